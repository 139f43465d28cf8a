"""CPU wait caused by others on the host: starts that it made contended, and runs without it."""

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
    """``starts`` after subtracting each run's CPU wait caused by others on the host.

    CPU wait caused by others in the container stays in: that is the image's doing. Cold caches after a wait stay in.

    Args:
        starts: Of canaries with one thread; of several threads each knows only its own waiting.

    Returns:
        Those in which it is known of at least half of the runs, with these runs.
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
    """``starts`` without the contended ones, of each container and image.

    A contended start is no sign of the restart variance, and no baseline, while others are there. If the new image's
    starts are contended, they are compared with starts that were contended as much; without any, with all.

    Args:
        starts: Of one service, in order of time.
        new: Those of the new image, with the runs that are judged.
        pool: From when on a start is contended.

    Returns:
        At least one of each container and image; those of which the waiting is not known are all among them.
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
    """Runs whose CPU wait caused by others on the host is known, with the rest; none if fewer than half."""
    known = [(s, rest) for s in start.samples if (rest := computing(s, inside=False))]
    return known if 2 * len(known) >= len(start.samples) else []
