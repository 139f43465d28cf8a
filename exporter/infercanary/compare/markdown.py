"""Results as Markdown, for a comment on a change request: the sentence, both sides, and the evidence folded under them.

What it shows may be other people's words (names, labels of images): none of it links, mentions anybody or ends a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from infercanary.compare import text
from infercanary.compare.comparison import ComparisonResult
from infercanary.compare.measured import MeasureShift
from infercanary.compare.recording import shown
from infercanary.compare.units import measured, value
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
    rows = [
        *_row("", *names, "change"),
        "|---|---|---|---|",
        *_row(
            "latency",
            value(result.baseline.median, result.unit),
            value(result.candidate.median, result.unit),
            _interval(result.shift, result.low, result.high),
        ),
        *(line for each in result.measures.values() for line in _measure(each)),
    ]
    folded = [
        *_row("evidence", ""),
        "|---|---|",
        *(line for label, words in evidence.items() if words for line in _row(label, words)),
        *(line for words in result.next for line in _row("next", words)),
        *(line for words in result.notes for line in _row("note", words)),
    ]
    return "\n".join(
        [
            f"**{escaped(sentence)}**",
            "",
            *rows,
            "",
            "<details><summary>Evidence</summary>",
            "",
            *folded,
            "",
            "</details>",
        ]
    )


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


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(map(escaped, cells))} |"


def _measure(each: MeasureShift) -> Iterator[str]:
    if each.before is None or each.after is None or each.shift is None:
        return _row(each.words, "", "", f"{each.verdict}, too few values")
    sides = (measured(each.before, each.unit), measured(each.after, each.unit))
    return _row(each.words, *sides, f"{each.verdict} {_interval(each.shift, each.low, each.high)}")


def _interval(shift: float | None, low: float | None, high: float | None) -> str:
    if shift is None:
        return "not known"
    return interval(shift, -1.0 if low is None else low, math.inf if high is None else high)
