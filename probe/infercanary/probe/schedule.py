"""When to run: absolute jittered slots, and the budget that keeps the probe's duty under its cap.

All of it is pure: the caller passes the time (seconds of any monotonic clock), and sleeps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


class Schedule:
    """Slots at ``start + k × interval``, each moved by up to ±``jitter`` of the interval.

    Slots are absolute, so that a late run does not push all later ones; jitter keeps canaries of many
    containers, and anything periodic on the host, from locking into step. A slot that passed while a run was
    still going is missed: it is counted, never made up in a burst.
    """

    def __init__(
        self, interval: float, start: float, jitter: float = 0.2, rng: random.Random | None = None
    ) -> None:
        self.interval = interval
        self._start = start
        self._jitter = jitter
        self._rng = rng or random.Random()  # noqa: S311 - spreading load, not secrets
        self._slot = 0

    def next(self, now: float) -> tuple[float, int]:
        """The next slot's jittered time and how many slots were missed since the last one."""
        due = max(self._slot + 1, math.ceil((now - self._start) / self.interval))
        missed = due - self._slot - 1
        self._slot = due
        offset = self._rng.uniform(-self._jitter, self._jitter) * self.interval
        return max(now, self._start + due * self.interval + offset), missed

    def stretch(self, interval: float, now: float) -> None:
        """Go on with another interval: the next slot is one ``interval`` after ``now``."""
        self.interval, self._start, self._slot = interval, now, 0


class Budget:
    """Keeps busy time under ``cap`` of elapsed time: a bucket that fills with ``cap`` seconds each second.

    It holds at most the cost of the next run, so that a long idle time does not buy a burst. A run that cost
    more than was announced leaves a debt, which is paid back first. Debt is bounded to 5 minutes of pause: a
    hang of 30 s would otherwise silence every canary for 50 minutes at 1 %.
    """

    MAX_PAUSE = 300.0

    def __init__(self, cap: float, now: float) -> None:
        self.cap = cap
        self._level = 0.0
        self._at = now
        self._depth = math.inf

    def ready_at(self, cost: float, now: float) -> float:
        """The earliest time at which ``cost`` busy seconds are affordable (``now`` if they are already)."""
        self._depth = cost
        self._fill(now)
        return now + max(0.0, cost - self._level) / self.cap

    def spend(self, cost: float, now: float) -> None:
        """Book ``cost`` busy seconds."""
        self._fill(now)
        self._level = max(self._level - cost, -self.MAX_PAUSE * self.cap)

    def _fill(self, now: float) -> None:
        self._level = min(self._depth, self._level + (now - self._at) * self.cap)
        self._at = now


MIN_REPEATS, MAX_REPEATS = 5, 50


def plan(
    repeat_costs: list[float], interval: float, cap: float, fixed: float = 0.0, jitter: float = 0.2
) -> tuple[list[int], float]:
    """How often each canary repeats in a round, and the interval that the duty cap then needs.

    ``repeat_costs`` are each canary's busy seconds per repeat, ``fixed`` what a round costs besides. Each gets an
    equal share of the round's budget (``cap × interval``, less the jitter by which two slots may come closer), in 5
    to 50 repeats; where even 5 do not fit, the interval grows.
    """
    if not repeat_costs:
        return [], interval
    share = max(0.0, cap * interval * (1 - jitter) - fixed) / len(repeat_costs)
    repeats = [
        MAX_REPEATS if cost <= 0 else max(MIN_REPEATS, int(min(MAX_REPEATS, share / cost)))
        for cost in repeat_costs
    ]
    busy = fixed + sum(n * cost for n, cost in zip(repeats, repeat_costs, strict=True))
    return repeats, max(interval, busy / cap * (1 + jitter / 2))


SWEEP_SHARE = 0.5


def keep_for_sweeps(sweeps: Sequence[tuple[float, float]], cap: float) -> tuple[float, list[float]]:
    """What of the duty cap is kept for sweeps of so many seconds every so many, and how far apart each then is.

    At most half of the cap: verdicts rest on runs. Where the sweeps would take more, all of them come later, alike.
    What is kept never goes to runs, so that a sweep leaves no debt to them.
    """
    wanted = sum(seconds / every for seconds, every in sweeps)
    kept = min(wanted, SWEEP_SHARE * cap)
    return kept, [every * wanted / kept for _, every in sweeps]


class Turns:
    """When one canary's sweeps are due: ``interval`` apart, and up to ``jitter`` of it more.

    The first is one interval after ``start``: what it takes was kept for it meanwhile. Jitter keeps replicas that
    started together from sweeping together. A sweep that took longer than its ``seconds`` puts off the next in
    proportion, by a day at most.
    """

    MAX_PAUSE = 86_400.0

    def __init__(
        self,
        interval: float,
        seconds: float,
        start: float,
        jitter: float = 0.2,
        rng: random.Random | None = None,
    ) -> None:
        self._interval = interval
        self._seconds = seconds
        self._jitter = jitter
        self._rng = rng or random.Random()  # noqa: S311 - spreading load, not secrets
        self.due = self._after(start, interval)

    def ended(self, cost: float, began: float) -> None:
        """A sweep did that ``began`` then, and cost so many seconds."""
        pause = self._interval * max(1.0, cost / self._seconds)
        self.due = self._after(began, min(pause, max(self._interval, self.MAX_PAUSE)))

    def put_off(self, seconds: float, now: float) -> None:
        """Try again after so many seconds."""
        self.due = now + seconds

    def _after(self, now: float, pause: float) -> float:
        return now + pause * self._rng.uniform(1.0, 1.0 + self._jitter)
