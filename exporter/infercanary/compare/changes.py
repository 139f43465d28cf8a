"""Finds where the level of one series changed, and what began there. Pure.

Starts follow each other without a break: a restart that changes the level is reported as a change, too.
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
"""Runs below which a series is too short."""
MOST = 4096
"""Points that are scanned at most; a longer series is scanned as medians of blocks."""

State = Literal["steady", "slower", "faster", "changed", "inconclusive"]


class LevelChange(Part, frozen=True, kw_only=True):
    """A change of level: the first run of the new level, and the shift to it as a ratio."""

    index: int
    """Among the runs that count, from 0 on; the first of its block where blocks were scanned."""
    at: float | None
    """Unix seconds; None of numbers."""
    start: str = ""
    """The id of the boot that began there; empty without one."""
    changes: Sequence[Change] = ()
    """Components of the environment that changed there."""


class Level(msgspec.Struct, frozen=True):
    """The runs between two changes."""

    index: int
    runs: int
    median: float


class ScanResult(Answer, frozen=True, kw_only=True):
    """The result of a scan of one series; its shift is from the first level to the last."""

    verdict: State
    block: int
    """Runs in each point that was scanned."""
    changes: Sequence[LevelChange] = ()
    levels: Sequence[Level] = ()
    left_out: Mapping[str, int] = {}


def scan_runs(
    canary: str,
    series: RecordedRuns,
    *,
    components: Mapping[str, Mapping[str, str]] = {},
) -> ScanResult:
    """Find where the level of ``series`` changed.

    Args:
        canary: Its name; empty for numbers.
        series: Its runs.
        components: Environment id → the components of that environment.

    Returns:
        Verdict, levels and changes; ``inconclusive`` without levels where the series is too short.
    """
    points = series.every
    block = max(1, -(-points.size // MOST))
    changes: list[LevelChange] = []
    levels: list[Level] = []
    shift = None
    state: State = "inconclusive"
    sentence = f"inconclusive: a scan needs {LEAST} runs, and there are {points.size}"
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
    """Return a change with what began there: a boot, or another environment."""
    index = change.index * block
    began: list[tuple[int, str, str]] = []  # first run, boot if it begins there, environment
    times: list[float] = []
    for start, environments in zip(series.starts, series.environments, strict=True):
        boot = shown(start.generation.boot_id)
        began += [(len(times) + first, "" if first else boot, id_) for first, id_ in environments]
        times += [sample.started_at for sample in start.samples]
    # A change is found within a few points of where it is.
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
