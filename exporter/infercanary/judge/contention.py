"""Contention: finds starts with CPU wait caused by other processes on the host, and subtracts this wait from runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from statistics import median

import msgspec

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.align import grouped
from infercanary.judge.crowding import computing
from infercanary.judge.model import Sample, Start
from infercanary.judge.policy import Pool


def left_waiting(starts: Sequence[Start]) -> list[Start]:
    """Subtract the CPU wait caused by other processes on the host from each run, and return the changed starts.

    Wait caused inside the container is not subtracted, because the image causes it. The effect of cold caches after a
    wait is unknown, and also not subtracted.

    Args:
        starts: Starts of canaries with one thread. With several threads, the wait of the other threads is unknown.

    Returns:
        Starts with a known wait in at least half of their runs. Runs with unknown wait are left out.
    """
    left = []
    for start in starts:
        samples = [
            msgspec.structs.replace(
                s,
                median=rest,
                waited=0.0,
                off_cpu={
                    why: max(0.0, t - (s.waited or 0.0)) if why == QUEUED else t
                    for why, t in s.off_cpu.items()
                },
            )
            for s, rest in _known(start)
        ]
        if samples:
            left.append(Start(start.generation, samples))
    return left


def uncontended(starts: Sequence[Start], new: Sequence[Start], pool: Pool) -> list[Start]:
    """Leave out contended starts, which distort the restart variance and the baseline.

    A start is contended if it waited longer than other starts of the same container and image. If the new image's
    starts waited longer, the baseline is the old starts that waited about as long as the new starts. Without such old
    starts, all old starts are the baseline.

    Args:
        starts: Starts of one service, in order of time.
        new: Starts of the new image, with the judged runs.
        pool: Threshold of a contended start.

    Returns:
        At least one start of each container and image. Starts with unknown wait are kept.
    """
    waits = {
        start.boot: math.log(median(1 + (s.waited or 0.0) / rest for s, rest in runs))
        for start in (*starts, *new)
        if (runs := _known(start))
    }
    felt = [waits[start.boot] for start in new if start.boot in waits]
    images = {start.work for start in new}
    known = (start for start in starts if len(start.samples) >= pool.fewest_runs and start.boot in waits)
    out = set()
    for group in grouped(known, attrgetter("replica")).values():
        usual = min(waits[start.boot] for start in group)
        if felt and group[0].work not in images:
            usual = max(usual, median(felt))
        far = {s.boot for s in group if abs(waits[s.boot] - usual) > math.log1p(pool.contended)}
        if len(far) < len(group):
            out |= far
    return [start for start in starts if start.boot not in out]


def _known(start: Start) -> list[tuple[Sample, float]]:
    """Return the runs with known CPU wait, and their latency after subtracting this wait.

    Returns:
        Empty if fewer than half of the runs have a known CPU wait.
    """
    known = [
        (s, rest) for s in start.samples if s.waited is not None and (rest := computing(s, inside=False))
    ]
    return known if 2 * len(known) >= len(start.samples) else []
