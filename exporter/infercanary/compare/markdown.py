"""Results as Markdown, for a comment on a change request: the sentence, both sides, and the evidence folded under them.

What it shows may be other people's words (names, labels of images): none of it links, mentions anybody or ends a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from infercanary.compare import text
from infercanary.compare.comparison import ComparisonResult
from infercanary.compare.measured import MeasureShift
from infercanary.compare.recording import shown
from infercanary.compare.units import value
from infercanary.judge.sentence import interval

_MOST = 2000  # characters of one cell
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]|(?<![^\W_])_|_(?![^\W_])")  # cgroup_throttled needs none
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def comparison(
    result: ComparisonResult,
    names: tuple[str, str] = ("baseline", "candidate"),
    more: Mapping[str, str] | None = None,
) -> str:
    """Return the result on one canary as Markdown.

    Args:
        result: On one canary.
        names: Of both sides.
        more: Further evidence, by its label.
    """
    sentence = f"{result.canary}: {result.sentence}" if result.canary else result.sentence
    evidence = {**text.facts(result), **(more or {})}
    evidence.pop("medians")  # the table has them
    shift = "not known" if result.shift is None else interval(result.shift, *text.ends(result))
    medians = (value(side.median, result.unit) for side in (result.baseline, result.candidate))
    rows = [("", *names, "change"), ("latency", *medians, shift), *map(_measure, result.measures.values())]
    folded = [
        ("evidence", ""),
        *((label, words) for label, words in evidence.items() if words),
        *(("next", words) for words in result.next),
        *(("note", words) for words in result.notes),
    ]
    summary = "<details><summary>Evidence</summary>"
    head = f"**{escaped(sentence)}**"
    return "\n".join([head, "", *_table(rows), "", summary, "", *_table(folded), "", "</details>"])


def document(results: Iterable[str], notes: Iterable[str]) -> str:
    """The results and the notes on all of them, as one text.

    Args:
        results: Each as :func:`comparison` returns it.
        notes: Lines.
    """
    return "\n\n".join([*results, *(f"Note: {escaped(note)}" for note in notes)]) + "\n"


def escaped(words: str) -> str:
    """Return one line of text that Markdown shows as it is.

    Args:
        words: Anything.
    """
    plain = _SPECIAL.sub(lambda sign: f"\\{sign[0]}", shown(words, _MOST))
    return _MENTION.sub("@\N{ZERO WIDTH SPACE}", plain)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *others = (f"| {' | '.join(map(escaped, cells))} |" for cells in rows)
    return [head, "|---" * len(rows[0]) + "|", *others]


def _measure(each: MeasureShift) -> tuple[str, ...]:
    before, after, shift = text.shifted(each)
    return each.words, before, after, f"{each.verdict} {shift}" if before else f"{each.verdict}, {shift}"
