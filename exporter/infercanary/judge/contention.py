"""Contention: CPU wait caused by other processes on the host. Finds contended starts, and subtracts the wait from
runs.
"""

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
    """Return starts after subtracting each run's CPU wait caused by others on the host.

    Wait caused inside the container stays, because the image causes it. The effect of cold caches after a wait stays,
    too.

    Args:
        starts: Starts of canaries with one thread: with several, each thread knows only its own wait.

    Returns:
        Only starts with a known wait in at least half of the runs, with these runs.
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
    """Return the starts without the contended ones, compared within each container and image.

    A contended start says nothing about restart variance and is no baseline while other starts exist. If the new
    image's starts are contended, they are compared with baseline starts that were contended as much; if there are
    none, with all.

    Args:
        starts: Starts of one service, in order of time.
        new: Starts of the new image, with the judged runs.
        pool: Limit from which a start is contended.

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
    """Return runs with known CPU wait, and their latency without it; empty if fewer than half are known."""
    known = [(s, rest) for s in start.samples if (rest := computing(s, inside=False))]
    return known if 2 * len(known) >= len(start.samples) else []
