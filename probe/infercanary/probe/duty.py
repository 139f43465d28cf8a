"""What a probe says of its own pace and cost, and the burst of runs after its start, which is pure as schedules are.

After a start people wait for a verdict, and what was upgraded may be slow for all its users. So for 15 minutes runs may
come more often than configured, from the duty budget of the first hour: docs/adr/0013-a-burst-after-the-start.md.
"""

from __future__ import annotations

from infercanary.contract.report import Metric
from infercanary.probe.schedule import spaced

INTERVAL = Metric(
    "infercanary_interval_seconds",
    "gauge",
    "Time between runs: as configured, shorter in the burst after the start, longer if the duty cap requires it.",
    reading="Above the configured value, runs are too expensive for the cap: use a smaller input, or a higher "
    "`duty_cap`.",
)
MISSED = Metric(
    "infercanary_missed_slots_total",
    "counter",
    "Scheduled rounds that were missed: earlier work was still running, or the duty cap was used up.",
    reading="A few after a slow run are normal. A steady rate: rounds take longer than "
    "`infercanary_interval_seconds`.",
)
BUSY = Metric(
    "infercanary_busy_seconds_total",
    "counter",
    "Wall time of scheduled runs, controls, sweeps and profiles; warm-up is not included.",
    reading="`rate(…[15m])` is a share: about `infercanary_duty_cap_ratio`; up to four times that after a start.",
)
DUTY_CAP = Metric(
    "infercanary_duty_cap_ratio",
    "gauge",
    "Upper limit of the duty: the setting `duty_cap`, over the first hour and later.",
    reading="Raise it if a slow model has too long an `infercanary_interval_seconds`.",
)

SECONDS = 900.0
"""How long a burst may last."""

LEAST_INTERVAL = 2.0
"""Seconds between its runs, at least."""

RATE = 4.0
"""Of the duty cap, that it takes at most: an hour's duty would last 15 minutes."""

PAID_WITHIN = 3600.0
"""Seconds after the start, when the duty is below its cap again."""

PAID_BACK = 0.5
"""Share of the duty cap that goes into paying back. So a canary runs half as often as the cap allows meanwhile; with
more the burst would be longer, and the time after it would see next to nothing."""

RESTARTS = 2
"""Earlier starts within that time, from which on there is no burst: a container that restarts again and again would
burst for good. They are known from the journal."""


class Burst:
    """The share of the time that runs may take: more at first, less until that is paid back, then the cap.

    What is spent ahead of the cap is a debt. The burst ends after :data:`SECONDS`, or when more could not be paid back
    by :data:`PAID_BACK` of the cap within :data:`PAID_WITHIN`.

    Args:
        cap: The duty cap of runs, a share of the time.
        start: Seconds, of a monotonic clock.
        is_wanted: Whether there is a burst at all.
    """

    def __init__(self, cap: float, start: float, is_wanted: bool = True) -> None:
        self.debt = 0.0
        """Busy seconds that were spent ahead, and are not paid back."""
        self.is_on = False
        """Whether the next run was planned to come earlier than at a steady pace."""
        self._is_over = not is_wanted
        self._cap = cap
        self._start = self._at = start

    def plan(self, cost: float, interval: float, now: float, gives_way: bool = False) -> tuple[float, float]:
        """Plan the next run.

        Args:
            cost: Busy seconds that it is expected to take.
            interval: Seconds between runs at a steady pace.
            now: Seconds, monotonic.
            gives_way: Whether the host's own work waits for the canaries, or they for it: then nothing is hurried.

        Returns:
            Seconds between runs now, and the share of the time that they may take.
        """
        since = now - self._start
        left = PAID_BACK * self._cap * max(0.0, PAID_WITHIN - since)  # what can still be paid back
        self._is_over |= since >= SECONDS or self.debt + cost > left
        # No canary that is open costs nothing.
        self.is_on = not (self._is_over or gives_way) and cost > 0 and interval > LEAST_INTERVAL
        if self.is_on:
            share = RATE * self._cap
            return min(interval, max(LEAST_INTERVAL, spaced(cost, share))), share
        if self.debt > 0:
            share = (1 - PAID_BACK) * self._cap
            return max(interval, spaced(cost, share)), share
        return interval, self._cap

    def spend(self, cost: float, now: float) -> None:
        """Book a run.

        Args:
            cost: Busy seconds.
            now: Seconds, monotonic, when it ended.
        """
        ahead = cost - self._cap * (now - self._at)
        self._at = now
        self.debt = max(0.0, self.debt + (ahead if self.is_on else min(0.0, ahead)))
        if now - self._start >= PAID_WITHIN:
            self.debt = 0.0  # a run that hung: an hour of it is enough
