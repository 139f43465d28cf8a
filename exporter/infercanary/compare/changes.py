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
from infercanary.render.units import count, percent

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
    changes: list[LevelChange] = []
    levels: list[Level] = []
    shift = 0.0
    state: State = "inconclusive"
    if points.size >= LEAST:
        found = scan(cast("Points", blocks))
        changes = [_level_change(change, block, series, components or {}, canary) for change in found]
        edges = [0, *(change.index for change in changes), points.size]
        levels = [Level(i, j - i, float(np.median(points[i:j]))) for i, j in pairwise(edges)]
        shift = levels[-1].median / levels[0].median - 1
        is_back = abs(math.log1p(shift)) < FILES.decide.log_effect
        state = "steady" if not changes else "changed" if is_back else "slower" if shift > 0 else "faster"
    words = f"{count(len(changes), 'change')} of level in {count(points.size, 'run')}"
    last = (
        "the first level again"
        if state == "changed"
        else f"the last level is {percent(shift)} from the first"
    )
    return ScanResult(
        canary=shown(canary) or None,
        verdict=state,
        exit_code=OF_VERDICT[state],
        sentence={
            "inconclusive": f"inconclusive: a scan needs {LEAST} runs, and there are {points.size}",
            "steady": f"steady: no change of level in {count(points.size, 'run')}",
        }.get(state, f"{state}: {words}, {last}"),
        shift=shift if levels else None,
        runs=points.size,
        starts=len(series.points),
        block=block,
        unit="s" if series.starts or series.in_seconds else None,
        files=files,
        changes=changes,
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
    return block, np.median(points[: points.size // block * block].reshape(-1, block), axis=1)


def _level_change(
    change: ChangePoint,
    block: int,
    series: RecordedRuns,
    components: Mapping[str, Mapping[str, str]],
    canary: str,
) -> LevelChange:
    """Return a change with what began there: a boot, or another environment."""
    index = int(change.index) * block
    reach = 3 * block  # a change is found within a few points of where it is
    at, boot = None, ""
    changes: tuple[Change, ...] = ()
    offset, before = 0, ""
    for start, environments in zip(series.starts, series.environments, strict=True):
        if offset and abs(offset - index) <= reach:
            boot = shown(start.generation.boot_id)
        if 0 <= index - offset < len(start.samples):
            at = start.samples[index - offset].started_at
        for first, after in environments:
            if before not in ("", after) and abs(offset + first - index) <= reach:
                changes = differences.changes(components.get(before, {}), components.get(after, {}), canary)
            before = after
        offset += len(start.samples)
    return LevelChange(
        index=index, at=at, shift=change.shift, low=change.low, high=change.high, start=boot, changes=changes
    )
