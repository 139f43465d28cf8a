"""Finds where the level of one series changed, and what began there. Pure.

Starts follow each other without a break: a restart that changes the level is reported as a change, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, cast

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT
from infercanary.compare.recording import Floats, RecordedRuns, shown
from infercanary.judge import changepoints, differences
from infercanary.judge.changepoints import ChangePoint, scan
from infercanary.judge.policy import FILES
from infercanary.judge.result import Change
from infercanary.judge.statistics import Points

LEAST = changepoints.FEWEST
"""Runs below which a series is too short."""
MOST = 4096
"""Points that are scanned at most; a longer series is scanned as medians of blocks."""

State = Literal["steady", "slower", "faster", "changed", "inconclusive"]


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of level: the first run of the new level, and the shift to it as a ratio."""

    index: int
    """Among the runs that count, from 0 on; the first of its block where blocks were scanned."""
    at: float | None
    """Unix seconds; None of numbers."""
    shift: float
    low: float
    high: float
    start: str = ""
    """The id of the boot that began there; empty without one."""
    changes: Sequence[Change] = ()
    """Components of the environment that changed there."""


class Level(msgspec.Struct, frozen=True):
    """The runs between two changes."""

    index: int
    runs: int
    median: float


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scan of one series."""

    canary: str | None
    verdict: State
    exit_code: int
    sentence: str
    shift: float | None
    """From the first level to the last, as a ratio; None if the series is too short."""
    runs: int
    starts: int
    block: int
    """Runs in each point that was scanned."""
    unit: Literal["s"] | None
    files: Sequence[str]
    changes: Sequence[LevelChange] = ()
    levels: Sequence[Level] = ()
    left_out: Mapping[str, int] = {}
    notes: Sequence[str] = ()


def scan_runs(
    canary: str,
    series: RecordedRuns,
    *,
    files: Sequence[str] = (),
    components: Mapping[str, Mapping[str, str]] | None = None,
) -> ScanResult:
    """Find where the level of ``series`` changed.

    Args:
        canary: Its name; empty for numbers.
        series: Its runs.
        files: Names of the files, for the result.
        components: Environment id → the components of that environment.

    Returns:
        Verdict, levels and changes; ``inconclusive`` without levels where the series is too short.
    """
    points = series.every
    block, blocks = blocked(points)
    found: list[LevelChange] = []
    if enough := points.size >= LEAST:
        found = [
            _found(change, block, series, components or {}, canary) for change in scan(cast("Points", blocks))
        ]
    levels = _levels(points, [change.index for change in found]) if enough else []
    shift = levels[-1].median / levels[0].median - 1 if levels else 0.0
    state = _state(found, shift) if enough else "inconclusive"
    return ScanResult(
        canary=shown(canary) or None,
        verdict=state,
        exit_code=OF_VERDICT[state],
        sentence=_sentence(state, found, shift, points.size),
        shift=shift if enough else None,
        runs=points.size,
        starts=len(series.points),
        block=block,
        unit="s" if series.starts or series.in_seconds else None,
        files=files,
        changes=found,
        levels=levels,
        left_out=series.left_out,
    )


def blocked(points: Floats, most: int = MOST) -> tuple[int, Floats]:
    """Return the length of a block, and at most ``most`` medians of blocks; an incomplete last block is left out.

    Args:
        points: A series, in order of time.
        most: Points to return.

    Returns:
        Runs in a block (1 where nothing is merged), and the medians in the unit of ``points``.
    """
    block = max(1, -(-points.size // most))
    if block == 1:
        return 1, points
    whole = points[: points.size // block * block].reshape(-1, block)
    return block, np.median(whole, axis=1)


def _state(found: Sequence[LevelChange], shift: float) -> State:
    if not found:
        return "steady"
    log = math.log1p(shift)
    if abs(log) < FILES.decide.log_effect:
        return "changed"
    return "slower" if log > 0 else "faster"


def _sentence(state: State, found: Sequence[LevelChange], shift: float, runs: int) -> str:
    if state == "inconclusive":
        return f"inconclusive: {runs} runs are too few; a scan needs {LEAST}"
    if state == "steady":
        return f"steady: no change of level in {runs:,} runs"
    count = f"{len(found)} change{'s' if len(found) > 1 else ''} of level in {runs:,} runs"
    if state == "changed":
        return f"changed, and back to within {100 * FILES.decide.smallest_effect:g} % of the first level: {count}"
    return f"{state}: {count}, the last level is {100 * shift:+.1f} % from the first"


def _found(
    change: ChangePoint,
    block: int,
    series: RecordedRuns,
    components: Mapping[str, Mapping[str, str]],
    canary: str,
) -> LevelChange:
    index = int(change.index) * block
    at: float | None = None
    start = ""
    changes: tuple[Change, ...] = ()
    offset, before = 0, ""
    for runs, environments in zip(series.starts, series.environments, strict=True):
        if offset and _near(offset, index, block):
            start = shown(runs.generation.boot_id)
        if 0 <= index - offset < len(runs.samples):
            at = runs.samples[index - offset].started_at
        for first, environment in environments:
            if before not in ("", environment) and _near(offset + first, index, block):
                changes = differences.changes(
                    components.get(before, {}), components.get(environment, {}), canary
                )
            before = environment
        offset += len(runs.samples)
    return LevelChange(
        index=index, at=at, shift=change.shift, low=change.low, high=change.high, start=start, changes=changes
    )


def _near(one: int, other: int, block: int) -> bool:
    """Return whether two places are close: a change is found within a few points of where it is."""
    return abs(one - other) <= 3 * block


def _levels(points: Floats, indices: Sequence[int]) -> list[Level]:
    edges = [0, *indices, points.size]
    return [
        Level(first, last - first, float(np.median(points[first:last]))) for first, last in pairwise(edges)
    ]
