"""Results as text: one sentence first, then the evidence, a picture, and what to do next."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from infercanary.compare import picture
from infercanary.compare.changes import LevelChange, ScanResult
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.measured import MeasureShift
from infercanary.compare.parts import PartShift
from infercanary.compare.recording import Floats, RecordedRuns, shown
from infercanary.compare.units import count, measured, short, value, when
from infercanary.judge import operator_words
from infercanary.judge.result import Change
from infercanary.judge.sentence import interval

_LABEL = 13  # columns, besides the indentation
_FEW = 6  # phases or controls in a row, when none of them moved


def comparison(
    result: ComparisonResult, baseline: RecordedRuns, candidate: RecordedRuns, width: int = 80
) -> str:
    """Return the result on one canary, as text for ``width`` columns.

    Args:
        result: On one canary.
        baseline: Its runs before.
        candidate: Its runs after.
        width: Columns.
    """
    beside = {"operators": operators(result), "measures": [*map(measure, result.measures.values())]}
    below = [("" if i else label, line) for label, each in beside.items() for i, line in enumerate(each)]
    last = [*(("next", action) for action in result.next), *(("note", note) for note in result.notes)]
    before, after = baseline.every, candidate.every
    blocks = [
        _head(result.canary, result.sentence, width),
        rows([*facts(result).items(), *below], width),
        distributions(before, after, result.unit, width) if before.size and after.size else [],
        rows(last, width),
    ]
    return _text(blocks)


def facts(result: ComparisonResult) -> dict[str, str]:
    """Return what the result rests on, and where the change is.

    Args:
        result: On one canary.

    Returns:
        Label → one line, which is empty where nothing is known.
    """
    return {
        "expected": result.claim.sentence if result.claim else "",
        "medians": f"{value(result.baseline.median, result.unit)} → {value(result.candidate.median, result.unit)}",
        "rests on": f"{side(result.baseline)} and {side(result.candidate)}; {100 * result.level:g} % confidence",
        "restarts": restarts(result),
        "left out": _left_out(result),
        "bottleneck": bottlenecks(result),
        "phases": pieces(result.phases, result.smallest_effect),
        "controls": pieces(result.controls, result.smallest_effect),
        "changed": changed(result.causes.changes if result.causes else ()),
    }


def scan(result: ScanResult, series: RecordedRuns, width: int = 80) -> str:
    """Return the result on one series, as text for ``width`` columns.

    Args:
        result: On one series.
        series: Its runs.
        width: Columns.
    """
    blocks = [
        _head(result.canary, result.sentence, width),
        [*_changes(result, width)],
        rows(levels(result).items(), width),
        [*_line(result, series.every, width)] if series.runs else [],
    ]
    return _text(blocks)


def levels(result: ScanResult) -> dict[str, str]:
    """Return the levels of a series, and what they rest on.

    Args:
        result: On one series.

    Returns:
        Label → one line, which is empty where nothing is known.
    """
    starts = f" of {count(result.starts, 'start')}" if result.unit else ""
    block = f", scanned as medians of {result.block} each" if result.block > 1 else ""
    return {
        "levels": " → ".join(value(level.median, result.unit) for level in result.levels),
        "rests on": f"{count(result.runs, 'run')}{starts}{block}",
        "left out": left_out(result.left_out),
    }


def began(change: LevelChange) -> str:
    """Return what began where the level changed: a boot, other components.

    Args:
        change: One change of level; the text is empty where nothing began there.
    """
    start = f"boot {change.start} begins" if change.start else ""
    return "; ".join(filter(None, (start, changed(change.changes))))


def restarts(result: ComparisonResult) -> str:
    """Return how much starts of one image differ, and how that is known.

    Args:
        result: On one canary.
    """
    sd = f"starts of one image differ by {short(100 * result.restart_sd)} % (SD)"
    return {
        "none": "two files of numbers count as one series without a restart between them; if there was one, give "
        "--restart-sd, or several files of each side",
        "given": f"{sd}, as given" if result.restart_sd else "nothing was restarted, as given",
        "assumed": f"{sd}, assumed: no restart of one image is in these files",
        "measured": f"{sd}, measured on {count(result.restarts_seen, 'start')}",
        "estimated": f"{sd}, from {count(result.restarts_seen, 'restart')} and the prior",
    }[result.restart_sd_from]


def bottlenecks(result: ComparisonResult) -> str:
    """Return what each resource made of the change.

    Args:
        result: On one canary; the text is empty where nothing is known, or there may be no change: its interval has 0.
    """
    shares = result.causes.bottlenecks if result.causes else {}
    low, high = ends(result)
    is_change = abs(result.shift or 0.0) >= result.smallest_effect and not low <= 0 <= high
    if not is_change or not shares.keys() - {"unknown"}:
        return ""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()) + " of the change"


def pieces(each: Mapping[str, PartShift], smallest_effect: float) -> str:
    """Return the phases or controls that moved, or that none did.

    Args:
        each: Phase or control → its shift; the text is empty without any.
        smallest_effect: A ratio: a smaller shift is none.
    """
    if not each:
        return ""
    clear = {name: piece for name, piece in each.items() if piece.moved}
    if clear:
        order = sorted(clear.items(), key=lambda item: -abs(item[1].share or item[1].shift))
        flat = f"; {len(each) - len(clear)} flat" if len(clear) < len(each) else ""
        return ", ".join(_piece(name, piece) for name, piece in order) + flat
    few = ", ".join(_piece(name, piece) for name, piece in list(each.items())[:_FEW])
    more = f" and {len(each) - _FEW} more" if len(each) > _FEW else ""
    small = all(abs(piece.shift) < smallest_effect for piece in each.values())
    return f"none {f'moved by {short(100 * smallest_effect)} %' if small else 'moved clearly'}: {few}{more}"


def operators(result: ComparisonResult) -> list[str]:
    """Return what profiled repeats show of the change: what they explain, then a line for each operator.

    Args:
        result: On one canary.

    Returns:
        Lines; none where a side has no profile, or the runs show no change.
    """
    found = result.causes.operators if result.causes else None
    return [] if found is None else [operator_words.summary(found), *map(operator_words.line, found.shifts)]


def measure(each: MeasureShift) -> str:
    """Return what is known of one measure: its verdict, both sides, and the shift.

    Args:
        each: Of one comparison.
    """
    before, after, shift = shifted(each)
    return f"{each.words}: {each.verdict}, " + (f"{before} → {after}, {shift}" if before else shift)


def shifted(each: MeasureShift) -> tuple[str, str, str]:
    """Return both sides of a measure and the shift between them; the sides are empty where there are too few values.

    Args:
        each: Of one comparison.
    """
    if each.before is None or each.after is None or each.shift is None:
        return "", "", "too few values"
    before, after = (measured(number, each.unit) for number in (each.before, each.after))
    return before, after, interval(each.shift, *ends(each))


def ends(of: ComparisonResult | MeasureShift) -> tuple[float, float]:
    """Return the ends of an interval, as ratios; an end that is not known lies as far out as it may.

    Args:
        of: What has the interval.
    """
    return -1.0 if of.low is None else of.low, math.inf if of.high is None else of.high


def left_out(reasons: Mapping[str, int]) -> str:
    """Return how many runs do not count, and why.

    Args:
        reasons: Reason → runs; the text is empty without any.
    """
    return ", ".join(
        f"{number:,} {reason}" for reason, number in sorted(reasons.items(), key=lambda r: -r[1])
    )


def changed(changes: Sequence[Change], most: int = 6) -> str:
    """Return the components of the environment that changed, at most ``most`` of them by name.

    Args:
        changes: In the order in which they are named; the text is empty without any.
        most: The others are counted.
    """
    each = [f"{shown(c.component)} {shown(c.before or 'none')} → {shown(c.after or 'none')}" for c in changes]
    more = [count(len(each) - most, "more component")] if len(each) > most else []
    return ", ".join([*each[:most], *more])


def distributions(before: Floats, after: Floats, unit: str | None, width: int) -> list[str]:
    """Return both sides as bars on one scale, each with its median.

    Args:
        before: The baseline's runs; one or more.
        after: The candidate's runs; one or more.
        unit: ``s`` for seconds; None for plain numbers.
        width: Columns.

    Returns:
        Lines: two for each side, and one for the scale.
    """
    room = width - _LABEL - 2
    low, high = picture.scale((before, after))
    lines = []
    for label, points in (("baseline", before), ("candidate", after)):
        middle = float(np.median(points))
        text = value(middle, unit)
        at = picture.place(middle, low, high, room)
        mark = f"{'':{at}}▲ {text}" if at + len(text) + 2 <= room else f"{text} ▲".rjust(at + 1)
        lines += [
            f"  {label:<{_LABEL}}{picture.bars(picture.densities(points, low, high, room))}",
            f"  {'':<{_LABEL}}{mark}",
        ]
    ends = value(low, unit), value(high, unit)
    return [*lines, f"  {'':<{_LABEL}}{ends[0]}{ends[1].rjust(room - len(ends[0]))}"]


def rows(facts: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Return what is known, beside its labels, wrapped.

    Args:
        facts: Labels (:func:`row`) and lines; one that is empty is left out.
        width: Columns.

    Returns:
        Lines.
    """
    return [line for label, text in facts if text for line in row(label, text, width)]


def row(label: str, text: str, width: int) -> list[str]:
    """Return ``text`` beside its label, wrapped.

    Args:
        label: Up to the width of the column of labels; empty to go on under the row before.
        text: One line, however long.
        width: Columns.

    Returns:
        Lines.
    """
    first, rest = f"  {label:<{_LABEL}}", " " * (_LABEL + 2)
    return wrapped(text, width, first, rest)


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap ``text``; a number, its unit and its interval stay in one line.

    Args:
        text: One line, however long.
        width: Columns.
        first: What the first line begins with.
        rest: What the others begin with.

    Returns:
        Lines; at least one.
    """
    joined = re.sub(r" (?=%)|(?<=%) (?=\[)", "\xa0", text)
    joined = re.sub(r"(\[[^][ ]+,) (?=[^][ ]+])", "\\1\xa0", joined)
    lines = textwrap.wrap(joined, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines] or [first]


def _text(blocks: Iterable[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block) + "\n"


def _head(canary: str | None, sentence: str, width: int) -> list[str]:
    text = f"{canary}: {sentence}" if canary else sentence
    return wrapped(shown(text, 2000), width)


def side(of: SideSummary) -> str:
    """Return how many runs and starts of a side count.

    Args:
        of: The side.
    """
    return f"{count(of.runs, 'run')} of {count(of.starts, 'start')}"


def _left_out(result: ComparisonResult) -> str:
    sides = {"baseline": result.baseline, "candidate": result.candidate}
    return "; ".join(f"{what} {left_out(of.left_out)}" for what, of in sides.items() if of.left_out)


def _piece(name: str, piece: PartShift) -> str:
    share = f", {100 * piece.share:.0f} % of the change" if piece.moved and piece.share is not None else ""
    return f"{name} {interval(piece.shift, piece.low, piece.high)}{share}"


def _changes(result: ScanResult, width: int) -> Iterator[str]:
    if not result.changes:
        return
    dated = result.changes[0].at is not None
    yield f"  {'index':>8}  {'time':<23}  shift" if dated else f"  {'index':>8}  shift"
    for change in result.changes:
        at = f"  {when(change.at):<23}" if change.at is not None else ""
        head = f"  {change.index:>8}{at}  "
        text = "; ".join(filter(None, (interval(change.shift, change.low, change.high), began(change))))
        yield from wrapped(text, width, head, " " * len(head))


def _line(result: ScanResult, points: Floats, width: int) -> Iterator[str]:
    """Yield the series as a line of bars, and marks under it where it changed."""
    room = width - _LABEL - 2
    line, low, high = picture.sparkline(points, room)
    yield f"  {'runs':<{_LABEL}}{line}"
    if result.changes:
        marks = [" "] * len(line)
        for change in result.changes:
            marks[picture.column(change.index, points.size, room)] = "▲"
        yield f"  {'changes':<{_LABEL}}{''.join(marks)}"
    yield f"  {'':<{_LABEL}}from {value(low, result.unit)} to {value(high, result.unit)}"
