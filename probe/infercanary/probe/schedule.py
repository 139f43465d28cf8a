"""Schedule of the runs: absolute slots with jitter, and the budget that keeps the probe's duty under its cap.

All code here is pure: the caller passes the time (seconds of a monotonic clock), and sleeps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

JITTER = 0.2
"""Jitter as a share of an interval. It prevents synchrony with other replicas and with periodic work on the host."""
_random = random.Random()  # noqa: S311 - no secret; the server's own generator stays unchanged


class Schedule:
    """Slots at ``start + k × interval``. Each slot is moved by up to ±:data:`JITTER` of the interval.

    Slots are absolute, so that a late run does not delay all later runs. A slot that passes during a run is
    counted as missed, without a later run in its place.

    Args:
        interval: Seconds.
        start: Monotonic clock, seconds.
    """

    def __init__(self, interval: float, start: float) -> None:
        self.interval, self._start, self._slot = interval, start, 0

    def next(self, now: float) -> tuple[float, int]:
        """Go to the next slot.

        Args:
            now: Seconds of the same clock as ``start``.

        Returns:
            The slot's jittered time, and the number of slots missed since the last call.
        """
        slot = max(self._slot + 1, math.ceil((now - self._start) / self.interval))
        missed = slot - self._slot - 1
        self._slot = slot
        offset = _random.uniform(-JITTER, JITTER) * self.interval
        return max(now, self._start + slot * self.interval + offset), missed

    def stretch(self, interval: float, now: float) -> None:
        """Continue with another interval. The next slot is one ``interval`` after ``now``.

        Args:
            interval: Seconds.
            now: Seconds of the same clock as ``start``.
        """
        self.interval, self._start, self._slot = interval, now, 0


class Budget:
    """Keeps busy time under ``cap`` of elapsed time: a token bucket that receives ``cap`` seconds each second.

    The bucket holds at most the cost of the next run, so that a long idle time allows no burst. A run that costs more
    than expected leaves a debt, which is repaid by a pause of at most 5 minutes. Without this limit, a hang of 30 s
    would stop every canary for 50 minutes at a cap of 1 %.

    Args:
        cap: A share of the time: 0.01 is 1 %.
        now: Monotonic clock, seconds.
    """

    MAX_PAUSE = 300.0

    def __init__(self, cap: float, now: float) -> None:
        self._cap = cap
        self._level = 0.0
        self._at = now
        self._depth = math.inf

    def ready_at(self, cost: float, cap: float, now: float) -> float:
        """Return the earliest time from ``now`` on at which the budget allows ``cost`` busy seconds.

        Args:
            cost: Expected busy seconds of the next run, and the depth of the bucket from now on.
            cap: The cap from now on, a share of the time.
            now: Monotonic clock, seconds.
        """
        self._depth = cost
        self._fill(now)
        self._cap = cap
        self._level = max(self._level, -self.MAX_PAUSE * cap)
        return now + max(0.0, cost - self._level) / cap

    def spend(self, cost: float, now: float) -> None:
        """Book ``cost`` busy seconds.

        Args:
            cost: Actual busy seconds of the run.
            now: Monotonic clock, seconds.
        """
        self._fill(now)
        self._level = max(self._level - cost, -self.MAX_PAUSE * self._cap)

    def _fill(self, now: float) -> None:
        self._level = min(self._depth, self._level + (now - self._at) * self._cap)
        self._at = now


MIN_REPEATS, MAX_REPEATS = 5, 50


def plan(
    repeat_costs: list[float], interval: float, cap: float, fixed: float = 0.0
) -> tuple[list[int], float]:
    """Plan a round. Each canary gets an equal share of the round's budget, in 5 to 50 repeats.

    The budget is ``cap × interval`` minus the jitter, because jitter can shorten the time between two slots.

    Args:
        repeat_costs: Busy seconds per repeat of each canary.
        interval: Seconds between rounds, as configured.
        cap: The duty cap, a share of the time.
        fixed: Busy seconds of each round besides the repeats: the controls.

    Returns:
        The repeats of each canary, and the interval that the cap requires: longer if 5 repeats do not fit.
    """
    if not repeat_costs:
        return [], interval
    share = max(0.0, cap * interval * (1 - JITTER) - fixed) / len(repeat_costs)
    repeats = [
        MAX_REPEATS if cost <= 0 else max(MIN_REPEATS, int(min(MAX_REPEATS, share / cost)))
        for cost in repeat_costs
    ]
    busy = fixed + sum(n * cost for n, cost in zip(repeats, repeat_costs, strict=True))
    return repeats, max(interval, spaced(busy, cap))


def spaced(busy: float, share: float) -> float:
    """Return the period at which rounds take a ``share`` of the time, plus an allowance for jitter.

    Args:
        busy: Seconds of a round.
        share: Share of the time, above 0.

    Returns:
        Seconds from one round to the next.
    """
    return busy / share * (1 + JITTER / 2)


def jittered(seconds: float) -> float:
    """Return ``seconds`` plus a random delay of up to :data:`JITTER`."""
    return seconds * _random.uniform(1.0, 1.0 + JITTER)


SWEEP_SHARE = 0.5


def keep_for_sweeps(sweeps: Sequence[tuple[float, float]], cap: float) -> tuple[float, list[float]]:
    """Split the duty cap between runs and sweeps. Runs never use the sweeps' part, so sweeps leave no debt.

    Args:
        sweeps: For each canary, seconds of a sweep and seconds between two sweeps.
        cap: The duty cap, a share of the time.

    Returns:
        The share for sweeps, at most half of the cap, because verdicts depend on runs; and the seconds between two
        sweeps of each canary, lengthened in the same ratio if the sweeps would exceed that share.
    """
    wanted = sum(seconds / every for seconds, every in sweeps)
    kept = min(wanted, SWEEP_SHARE * cap)
    return kept, [every * wanted / kept for _, every in sweeps]
