"""Documents with the result of a comparison or a scan of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from infercanary.compare.changes import ScanResult
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.recording import RecordedRuns
from infercanary.contract.text import printable
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.shift import CHANGED
from infercanary.pages.from_result import causes_facts, measures_table, operators_table, timeline
from infercanary.pages.sentence import listed
from infercanary.render.document import Chart, Document, Fact, Series, Table
from infercanary.render.json import plain_values
from infercanary.render.units import count, interval, short, value, when


def comparison_document(
    result: ComparisonResult,
    baseline: RecordedRuns,
    candidate: RecordedRuns,
    files: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Document:
    """Return the document on one canary.

    Args:
        result: Result on the canary.
        baseline: Counted runs of the baseline.
        candidate: Counted runs of the candidate.
        files: Names of the files of each side.
    """
    is_change, unit = result.verdict in CHANGED, result.unit or ""
    latency = MeasureVerdict(
        result.verdict, result.shift, result.low, result.high, result.baseline.median, result.candidate.median
    )
    old, new = baseline.every.tolist(), candidate.every.tolist()
    sides = [Series("baseline", old, "old"), Series("candidate", new)]
    return msgspec.structs.replace(
        _document(result),
        actions=result.next,
        facts=[
            Fact("expected", result.claim.sentence if result.claim else None),
            Fact("baseline", _side(result.baseline, "--baseline-id", files[0])),
            Fact("candidate", _side(result.candidate, "--candidate-id", files[1])),
            Fact(
                "confidence",
                f"{100 * result.level:g} %; a change is {100 * result.smallest_effect:g} % or more",
            ),
            Fact("restart SD", f"{short(100 * result.restart_sd)} %, {result.restart_sd_from}"),
            *causes_facts(result.causes, is_change=is_change),
        ],
        tables=[
            measures_table({"latency": latency, **result.measures}, unit),
            operators_table(result.causes.operators if is_change else None),
        ],
        charts=[
            Chart("run medians", "distributions", sides, unit),
            timeline("runs in order of time", ("baseline", "candidate"), old, new, unit),
        ],
    )


def scan_document(result: ScanResult, series: RecordedRuns) -> Document:
    """Return the document on one series.

    Args:
        result: Result of the scan.
        series: Scanned runs.
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
    return msgspec.structs.replace(
        _document(result),
        facts=[
            Fact("levels", " → ".join(value(level.median, result.unit) for level in result.levels)),
            Fact("runs", f"{count(result.runs, 'run')} of {count(result.starts, 'start')}{block}"),
            Fact("left out", _left_out(result.left_out)),
        ],
        tables=[Table("changes", ("index", "time", "shift", "what began there"), changes)],
        charts=[
            Chart(
                "runs in order of time",
                "points",
                [Series("runs", series.every.tolist())],
                result.unit or "",
                marks=[change.index for change in result.changes],
                levels=[msgspec.structs.astuple(level) for level in result.levels],
            )
        ],
    )


def _document(result: ComparisonResult | ScanResult) -> Document:
    return Document(
        name=result.canary or "",
        verdict=result.verdict,
        sentence=result.sentence,
        exit_code=result.exit_code,
        notes=result.notes,
        data=plain_values(result),
    )


def _side(side: SideSummary, option: str, files: Sequence[str]) -> str:
    others = f" + {len(files) - 1} more" if len(files) > 1 else ""
    # The end of a long path is the file's name, so cut the beginning.
    name = f"{'…' * (len(files[0]) > 60)}{printable(files[0][-60:])}{others}: " if files else ""
    parts = [
        f"{name}{count(side.runs, 'run')} of {count(side.starts, 'start')}",
        f"environment {', '.join(side.environments[:4])}" if side.environments else "",
        f"several images? select one with {option}" if len(side.environments) > 1 else "",
        f"left out {_left_out(side.left_out)}" if side.left_out else "",
    ]
    return "; ".join(filter(None, parts))


def _left_out(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{runs:,} {reason}" for reason, runs in reasons.items())
