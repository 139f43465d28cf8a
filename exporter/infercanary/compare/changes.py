"""Finds changes of level in one series, and the starts or environments that began at each change. Pure functions.

Consecutive starts form one series, so a restart may also change the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT
from infercanary.compare.recording import Answer, RecordedRuns, shown
from infercanary.judge import changepoints, differences
from infercanary.judge.changepoints import ChangePoint, scan
from infercanary.judge.policy import FILES
from infercanary.judge.result import Change, Part
from infercanary.render.units import count, percent

LEAST = changepoints.FEWEST
"""Fewest runs of a series that can be scanned."""
MOST = 4096
"""Maximum number of scanned points; a longer series is scanned as medians of blocks."""

State = Literal["steady", "slower", "faster", "changed", "inconclusive"]


class LevelChange(Part, frozen=True, kw_only=True):
    """A change of level: its first run, and the shift from the old to the new level as a ratio."""

    index: int
    """Index of the new level's first run among the counted runs, from 0. With blocks, a change begins with a block."""
    at: float | None
    """Unix seconds; None for files of numbers."""
    start: str = ""
    """Boot id of the start that began at the change; empty if no start began there."""
    changes: Sequence[Change] = ()
    """Components of the environment that changed with the same run."""


class Level(msgspec.Struct, frozen=True):
    """The runs between two changes."""

    index: int
    runs: int
    median: float


class ScanResult(Answer, frozen=True, kw_only=True):
    """Result of a scan of one series. Its shift is the change from the first level to the last level."""

    verdict: State
    block: int
    """Number of runs in each scanned point."""
    changes: Sequence[LevelChange] = ()
    levels: Sequence[Level] = ()
    left_out: Mapping[str, int] = {}


def scan_runs(
    canary: str,
    series: RecordedRuns,
    *,
    components: Mapping[str, Mapping[str, str]] = {},
) -> ScanResult:
    """Find the changes of level in ``series``.

    Args:
        canary: Name of the canary; empty for files of numbers.
        series: Runs of the canary.
        components: Components of each environment, by environment id.

    Returns:
        Verdict, levels and changes; ``inconclusive`` without levels if the series is too short.
    """
    points = series.every
    block = max(1, -(-points.size // MOST))
    changes: list[LevelChange] = []
    levels: list[Level] = []
    shift = None
    state: State = "inconclusive"
    sentence = f"inconclusive: a scan needs {LEAST} runs, but there are {points.size}"
    if points.size >= LEAST:
        blocks = np.median(points[: points.size // block * block].reshape(-1, block), axis=1)
        changes = [_level_change(change, block, series, components, canary) for change in scan(blocks)]
        edges = [0, *(change.index for change in changes), points.size]
        levels = [Level(i, j - i, float(np.median(points[i:j]))) for i, j in pairwise(edges)]
        shift = levels[-1].median / levels[0].median - 1
        is_back = abs(math.log1p(shift)) < FILES.decide.log_effect
        state = "steady" if not changes else "changed" if is_back else "slower" if shift > 0 else "faster"
        sentence = f"{state}: {count(len(changes), 'change')} of level in {count(points.size, 'run')}"
        if changes:
            sentence += f", the last level is {percent(shift)} from the first"
    return ScanResult(
        canary=shown(canary) or None,
        verdict=state,
        exit_code=OF_VERDICT[state],
        sentence=sentence,
        shift=shift,
        runs=points.size,
        starts=len(series.points),
        block=block,
        unit="s" if series.starts or series.in_seconds else None,
        changes=changes,
        levels=levels,
        left_out=series.left_out,
    )


def _level_change(
    change: ChangePoint,
    block: int,
    series: RecordedRuns,
    components: Mapping[str, Mapping[str, str]],
    canary: str,
) -> LevelChange:
    """Return a change of level with the start or environment that began at the change."""
    index = change.index * block
    # Index of the first run, boot id if a start begins with this run (else ""), and environment id.
    began: list[tuple[int, str, str]] = []
    times: list[float] = []
    for start, environments in zip(series.starts, series.environments, strict=True):
        boot = shown(start.generation.boot_id)
        began += [(len(times) + first, "" if first else boot, id_) for first, id_ in environments]
        times += [sample.started_at for sample in start.samples]
    # The scan finds a change within a few points of the true place.
    near = [(old, new) for old, new in pairwise(began) if abs(new[0] - index) <= 3 * block]
    ids = (near[0][0][2], near[-1][1][2]) if near else ("", "")
    before, after = (components.get(id_, {}) for id_ in ids)
    return LevelChange(
        index=index,
        at=times[index] if times else None,
        shift=change.shift,
        low=change.low,
        high=change.high,
        start=next((boot for _, (_, boot, _) in reversed(near) if boot), ""),
        changes=differences.changes(before, after, canary),
    )
