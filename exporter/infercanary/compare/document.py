"""Documents of results of files: a comparison and a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from infercanary.compare.changes import ScanResult
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.recording import RecordedRuns, shown
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.shift import CHANGED
from infercanary.pages.from_result import causes_facts, measures_table, operators_table, timeline
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
    is_change, causes, unit = result.verdict in CHANGED, result.causes, result.unit or ""
    parts = [
        (
            name,
            "" if part.share is None else f"{100 * part.share:.0f} %",
            interval(part.shift, part.low, part.high),
        )
        for name, part in {**result.phases, **result.controls}.items()
    ]
    latency = MeasureVerdict(
        result.verdict, result.shift, result.low, result.high, result.baseline.median, result.candidate.median
    )
    measures = measures_table({"latency": latency, **result.measures}, unit)
    known = [measures, operators_table(causes.operators if causes and is_change else None)]
    old, new = baseline.every.tolist(), candidate.every.tolist()
    sides = [Series("baseline", old, "old"), Series("candidate", new)]
    return msgspec.structs.replace(
        _document(result),
        actions=result.next,
        facts=[
            Fact("expected", result.claim.sentence if result.claim else None),
            Fact("baseline", _side(result.baseline, "--baseline-id")),
            Fact("candidate", _side(result.candidate, "--candidate-id")),
            Fact(
                "confidence",
                f"{100 * result.level:g} %; a change is {100 * result.smallest_effect:g} % or more",
            ),
            Fact("restart SD", _restarts(result)),
            *(causes_facts(causes, is_change=is_change) if causes else ()),
        ],
        tables=[
            *filter(None, known),
            *_table("phases and controls", ("part", "of the change", "shift"), parts),
        ],
        charts=[
            *([Chart("run medians", "distributions", sides, unit)] if old and new else ()),
            *timeline("runs in order of time", ("baseline", "candidate"), old, new, unit),
        ],
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
            "; ".join(
                filter(None, (change.start and f"boot {change.start} begins", listed(change.changes, 6)))
            ),
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
    return msgspec.structs.replace(
        _document(result),
        facts=[
            Fact("levels", " → ".join(value(level.median, result.unit) for level in result.levels)),
            Fact("runs", f"{count(result.runs, 'run')} of {count(result.starts, 'start')}{block}"),
            Fact("left out", _left_out(result.left_out)),
        ],
        tables=_table("changes", ("index", "time", "shift", "what began there"), changes),
        charts=[chart] if series.runs else (),
    )


def plain(result: object) -> Any:
    """Return ``result`` as plain values for JSON: a number that is not finite is None."""
    return msgspec.json.decode(msgspec.json.encode(result))


def _document(result: ComparisonResult | ScanResult) -> Document:
    return Document(
        name=result.canary or "",
        verdict=result.verdict,
        sentence=result.sentence,
        exit_code=result.exit_code,
        notes=result.notes,
        data=plain(result),
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Table]:
    """Return a table without columns that are empty; none without rows."""
    kept = [column for column in zip(columns, *rows, strict=True) if any(column[1:])]
    if not kept:
        return []
    names, *cells = zip(*kept, strict=True)
    return [Table(title, names, cells)]


def _side(side: SideSummary, option: str) -> str:
    files = f"{', '.join(shown(file, 200) for file in side.files)}: " if side.files else ""
    environments = f", environment {', '.join(side.environments[:4])}" if side.environments else ""
    if len(side.environments) > 1:
        environments += f" (not one image? pick with {option})"
    left_out = f"; left out {_left_out(side.left_out)}" if side.left_out else ""
    return f"{files}{count(side.runs, 'run')} of {count(side.starts, 'start')}{environments}{left_out}"


def _left_out(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{runs:,} {reason}" for reason, runs in reasons.items())


def _restarts(result: ComparisonResult) -> str:
    """Restart SD, and where it is from."""
    source = {
        "given": "as given",
        "none": "without a restart: two files of numbers count as one series; else give --restart-sd",
        "assumed": "restart variance assumed: no restart observed yet",
        "measured": f"measured on {count(result.restarts_seen, 'start')}",
        "estimated": f"estimated from {count(result.restarts_seen, 'restart')} and the prior",
    }
    return f"{short(100 * result.restart_sd)} %, {source[result.restart_sd_from]}"
