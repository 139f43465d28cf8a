"""When to run: absolute jittered slots, and the budget that keeps the probe's duty under its cap.

All of it is pure: the caller passes the time (seconds of any monotonic clock), and sleeps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

JITTER = 0.2
"""Share of an interval. It keeps replicas that started together, and anything periodic on the host, out of step."""
_random = random.Random()  # noqa: S311 - spreading load, not secrets; the host's own generator is not touched


class Schedule:
    """Slots at ``start + k × interval``, each moved by up to ±:data:`JITTER` of the interval.

    Slots are absolute, so that a late run does not push all later ones. A slot that passed while a run was still going
    is missed: it is counted, never made up in a burst.

    Args:
        interval: Seconds.
        start: Seconds, of a monotonic clock.
    """

    def __init__(self, interval: float, start: float) -> None:
        self.interval, self._start, self._slot = interval, start, 0

    def next(self, now: float) -> tuple[float, int]:
        """Move on to the next slot.

        Args:
            now: Seconds, of the clock that ``start`` is of.

        Returns:
            Its jittered time, and how many slots were missed since the last one.
        """
        slot = max(self._slot + 1, math.ceil((now - self._start) / self.interval))
        missed = slot - self._slot - 1
        self._slot = slot
        offset = _random.uniform(-JITTER, JITTER) * self.interval
        return max(now, self._start + slot * self.interval + offset), missed

    def stretch(self, interval: float, now: float) -> None:
        """Go on with another interval: the next slot is one ``interval`` after ``now``.

        Args:
            interval: Seconds.
            now: Seconds, of the clock that ``start`` is of.
        """
        self.interval, self._start, self._slot = interval, now, 0


class Budget:
    """Keeps busy time under ``cap`` of elapsed time: a bucket that fills with ``cap`` seconds each second.

    It holds at most the cost of the next run, so that a long idle time allows no burst. A run that cost more than
    expected leaves a debt, which is paid back first: by a pause of 5 minutes at most, since a hang of 30 s would
    otherwise stop every canary for 50 minutes at 1 %.

    Args:
        cap: A share of the time: 0.01 is 1 %.
        now: Seconds, of a monotonic clock.
    """

    MAX_PAUSE = 300.0

    def __init__(self, cap: float, now: float) -> None:
        self._cap = cap
        self._level = 0.0
        self._at = now
        self._depth = math.inf

    def fill_at(self, cap: float, now: float) -> None:
        """Fill by another share of the time from now on.

        Args:
            cap: The share.
            now: Seconds, monotonic.
        """
        self._fill(now)
        self._cap = cap
        self._level = max(self._level, -self.MAX_PAUSE * cap)

    def ready_at(self, cost: float, now: float) -> float:
        """The earliest time at which ``cost`` busy seconds are affordable (``now`` if they are already).

        Args:
            cost: What the next run is expected to take; the bucket holds no more than that.
            now: Seconds, monotonic.
        """
        self._depth = cost
        self._fill(now)
        return now + max(0.0, cost - self._level) / self._cap

    def spend(self, cost: float, now: float) -> None:
        """Book ``cost`` busy seconds.

        Args:
            cost: What the run took.
            now: Seconds, monotonic.
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
    """Plan a round: each canary gets an equal share of its budget, in 5 to 50 repeats.

    The budget is ``cap × interval``, less the jitter by which two slots may come closer.

    Args:
        repeat_costs: Busy seconds per repeat of each canary.
        interval: Seconds between rounds, as configured.
        cap: The duty cap, a share of the time.
        fixed: Seconds that a round costs besides.

    Returns:
        The repeats of each canary, and the interval that the cap then needs: longer where 5 repeats do not fit.
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
    """How far apart rounds are that take a ``share`` of the time, with some room for jitter.

    Args:
        busy: Seconds of a round.
        share: Of the time, above 0.

    Returns:
        Seconds from one round to the next.
    """
    return busy / share * (1 + JITTER / 2)


def jittered(seconds: float) -> float:
    """Return so many seconds, and up to :data:`JITTER` of that more, at random."""
    return seconds * _random.uniform(1.0, 1.0 + JITTER)


SWEEP_SHARE = 0.5


def keep_for_sweeps(sweeps: Sequence[tuple[float, float]], cap: float) -> tuple[float, list[float]]:
    """Split the duty cap between runs and sweeps. Runs never get the part of the sweeps, so a sweep leaves no debt.

    Args:
        sweeps: Of each canary, seconds of a sweep and seconds between two.
        cap: The duty cap, a share of the time.

    Returns:
        The share for sweeps, at most half of the cap since verdicts rest on runs; and the seconds between two sweeps of
        each canary, all longer in the same ratio where the sweeps would take more than their share.
    """
    wanted = sum(seconds / every for seconds, every in sweeps)
    kept = min(wanted, SWEEP_SHARE * cap)
    return kept, [every * wanted / kept for _, every in sweeps]


class Turns:
    """When one canary's sweeps begin: ``interval`` seconds apart, and up to :data:`JITTER` of that more.

    The first is one interval after ``start``: by then its share of the duty cap is saved. A sweep that took longer than
    its ``seconds`` delays the next in proportion, by a day at most.

    Args:
        interval: Seconds.
        seconds: What a sweep is expected to take.
        start: Seconds, of a monotonic clock.
    """

    MAX_PAUSE = 86_400.0

    def __init__(self, interval: float, seconds: float, start: float) -> None:
        self._interval = interval
        self._seconds = seconds
        self.ended(0.0, start)

    def ended(self, cost: float, began: float) -> None:
        """Plan the next sweep, after one that ``began`` then and cost so many seconds.

        Args:
            cost: Busy seconds.
            began: When it did: seconds, monotonic.
        """
        pause = self._interval * max(1.0, cost / self._seconds)
        self.next_at = began + jittered(min(pause, max(self._interval, self.MAX_PAUSE)))

    def put_off(self, seconds: float, now: float) -> None:
        """Try again after so many seconds.

        Args:
            seconds: From ``now`` on.
            now: Seconds, monotonic.
        """
        self.next_at = now + seconds
