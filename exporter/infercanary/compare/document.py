"""Documents of results of files: a comparison and a scan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from infercanary.compare.changes import LevelChange, ScanResult
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.recording import RecordedRuns, shown
from infercanary.judge.shift import CHANGED
from infercanary.pages.from_result import causes_facts, measures_table, operators_table
from infercanary.pages.sentence import listed
from infercanary.render.document import Chart, Document, Fact, Series, Table
from infercanary.render.units import count, interval, short, value, when


def comparison_document(
    result: ComparisonResult, baseline: RecordedRuns, candidate: RecordedRuns
) -> Document:
    """Return the document on one canary.

    Args:
        result: The verdict on it.
        baseline: Its runs that count before.
        candidate: The same after.
    """
    is_change = result.verdict in CHANGED
    causes = result.causes
    parts = [
        (name, _percent(part.share), interval(part.shift, part.low, part.high))
        for name, part in (result.phases | result.controls).items()
    ]
    medians = (value(side.median, result.unit) for side in (result.baseline, result.candidate))
    low, high = -1.0 if result.low is None else result.low, math.inf if result.high is None else result.high
    shift = "unknown" if result.shift is None else interval(result.shift, low, high)
    measures = measures_table(result.measures)
    rows = [("latency", result.verdict, *medians, shift), *(measures.rows if measures else ())]
    tables = (
        Table("", ("measure", "verdict", "before", "after", "change"), rows),
        *_table("phases and controls", ("part", "of the change", "shift"), parts),
        operators_table(causes.operators if causes and is_change else None),
    )
    return Document(
        name=result.canary or "",
        verdict=result.verdict,
        sentence=result.sentence,
        exit_code=result.exit_code,
        actions=result.next,
        facts=[
            Fact("expected", result.claim.sentence if result.claim else None),
            Fact("baseline", _side(result.baseline)),
            Fact("candidate", _side(result.candidate)),
            Fact(
                "confidence",
                f"{100 * result.level:g} %; a change is {100 * result.smallest_effect:g} % or more",
            ),
            Fact("restart SD", _restarts(result)),
            *(causes_facts(causes, is_change=is_change) if causes else ()),
        ],
        tables=[table for table in tables if table],
        charts=_charts(baseline, candidate, result.unit or ""),
        notes=result.notes,
        data=plain(result),
    )


def scan_document(result: ScanResult, series: RecordedRuns) -> Document:
    """Return the document on one series.

    Args:
        result: What a scan found.
        series: The runs that were scanned.
    """
    changes = [
        (
            f"{change.index:,}",
            "" if change.at is None else when(change.at),
            interval(change.shift, change.low, change.high),
            _began(change),
        )
        for change in result.changes
    ]
    block = f", scanned as medians of {result.block} each" if result.block > 1 else ""
    chart = Chart(
        "runs in order of time",
        "points",
        [Series("runs", series.every.tolist())],
        result.unit or "",
        marks=[change.index for change in result.changes],
        levels=[(level.index, level.runs, level.median) for level in result.levels],
    )
    return Document(
        name=result.canary or "",
        verdict=result.verdict,
        sentence=result.sentence,
        exit_code=result.exit_code,
        facts=[
            Fact("levels", " → ".join(value(level.median, result.unit) for level in result.levels)),
            Fact("runs", f"{count(result.runs, 'run')} of {count(result.starts, 'start')}{block}"),
            Fact("left out", _left_out(result.left_out)),
        ],
        tables=_table("changes", ("index", "time", "shift", "what began there"), changes),
        charts=[chart] if series.runs else (),
        notes=result.notes,
        data=plain(result),
    )


def plain(result: object) -> Any:
    """Return ``result`` as plain values for JSON: a number that is not finite is None."""
    return msgspec.json.decode(msgspec.json.encode(result))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Table]:
    """Return a table without columns that are empty; none without rows."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    cells = [[row[i] for i in kept] for row in rows]
    return [Table(title, [columns[i] for i in kept], cells)] if rows else []


def _charts(baseline: RecordedRuns, candidate: RecordedRuns, unit: str) -> list[Chart]:
    old, new = baseline.every.tolist(), candidate.every.tolist()
    if not (old and new):
        return []
    sides = [Series("baseline", old, "old"), Series("candidate", new)]
    in_time = [
        Series("baseline", [*old, *[None] * len(new)], "old"),
        Series("candidate", [*[None] * len(old), *new]),
    ]
    return [
        Chart("run medians", "distributions", sides, unit),
        Chart("runs in order of time", "points", in_time, unit, marks=[len(old)]),
    ]


def _side(side: SideSummary) -> str:
    files = f"{', '.join(shown(file, 200) for file in side.files)}: " if side.files else ""
    environments = f", environment {', '.join(side.environments[:4])}" if side.environments else ""
    left_out = f"; left out {_left_out(side.left_out)}" if side.left_out else ""
    return f"{files}{count(side.runs, 'run')} of {count(side.starts, 'start')}{environments}{left_out}"


def _left_out(reasons: Mapping[str, int]) -> str:
    """Numbers of runs that do not count, by reason."""
    return ", ".join(f"{runs:,} {reason}" for reason, runs in sorted(reasons.items(), key=lambda r: -r[1]))


def _restarts(result: ComparisonResult) -> str:
    """Restart SD, and where it is from."""
    restarts = count(result.restarts_seen, "restart")
    source = {
        "given": "as given",
        "none": "without a restart: two files of numbers count as one series; else give --restart-sd",
        "assumed": "restart variance assumed: no restart observed yet",
        "measured": f"measured on {count(result.restarts_seen, 'start')}",
        "estimated": f"estimated from {restarts} and the prior",
    }[result.restart_sd_from]
    return f"{short(100 * result.restart_sd)} %, {source}"


def _began(change: LevelChange) -> str:
    """What began where a level changed: a boot, other components."""
    boot = f"boot {change.start} begins" if change.start else ""
    return "; ".join(filter(None, (boot, listed(change.changes, 6))))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
