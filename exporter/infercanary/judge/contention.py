"""CPU wait caused by others on the host: starts that it made contended, and runs without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.model import Start
from infercanary.judge.policy import Pool


def left_waiting(starts: Sequence[Start], pool: Pool) -> list[Start]:
    """``starts`` after subtracting each run's CPU wait caused by others on the host.

    CPU wait caused by others in the container stays in: that is the image's doing. Cold caches after a wait stay in.

    Args:
        starts: Of canaries with one thread; of several threads each knows only its own waiting.
        pool: In how many of a start's runs the waiting must be known.

    Returns:
        Those in which it is known often enough, with the runs in which it is known.
    """
    left = []
    for start in starts:
        samples = [
            msgspec.structs.replace(
                s,
                median=s.median - s.waited,
                waited=0.0,
                off_cpu={why: max(0.0, t - s.waited) if why == QUEUED else t for why, t in s.off_cpu.items()},
            )
            for s in start.samples
            if s.median and s.waited is not None and s.waited < s.median
        ]
        if samples and len(samples) >= pool.waiting_known * len(start.samples):
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
    now = {start.boot: waiting for start in new if (waiting := _waiting(start, pool)) is not None}
    images = {start.work for start in new}
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[float, Start]]] = {}
    for start in starts:
        if len(start.samples) >= pool.fewest_runs and (waited := _waiting(start, pool)) is not None:
            groups.setdefault((start.generation.container, start.work), []).append((waited, start))
    most = math.log1p(pool.contended)
    out: set[tuple[str, str]] = set()
    for (container, image), group in groups.items():
        own = [waited for (name, _), waited in now.items() if name == container] or [*now.values()]
        usual = min(waited for waited, _ in group)
        if own and image not in images:
            usual = median(own) if median(own) - usual > most else usual
        far = {start.boot for waited, start in group if abs(waited - usual) > most}
        out |= far if len(far) < len(group) else set()
    return [start for start in starts if start.boot not in out]


def _waiting(start: Start, pool: Pool) -> float | None:
    """How much longer its runs took for CPU wait caused by others on the host: a logarithm, if it is known."""
    longer = [
        s.median / (s.median - s.waited)
        for s in start.samples
        if s.median and s.waited is not None and s.waited < s.median
    ]
    enough = longer and len(longer) >= pool.waiting_known * len(start.samples)
    return math.log(median(longer)) if enough else None
