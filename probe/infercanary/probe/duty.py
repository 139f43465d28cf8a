"""Metrics of the probe's interval and cost, and the burst of runs after the start.

After a start, people wait for a verdict, and a bad upgrade may slow all users. So for 15 minutes, runs may be
more frequent than configured, within the duty of the first hour: docs/adr/0013-a-burst-after-the-start.md. The
burst is pure: the caller passes the time.
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
    reading="A few after a slow run are normal. A steady rate means that rounds take longer than "
    "`infercanary_interval_seconds`.",
)
BUSY = Metric(
    "infercanary_busy_seconds_total",
    "counter",
    "Wall time of scheduled runs, controls, sweeps and profiles; warm-up is not included.",
    reading="`rate(…[15m])` is the duty: about `infercanary_duty_cap_ratio`, up to four times as much after a start.",
)
DUTY_CAP = Metric(
    "infercanary_duty_cap_ratio",
    "gauge",
    "Upper limit of the duty: the setting `duty_cap`, over the first hour and later.",
    reading="Raise the cap if a slow model makes `infercanary_interval_seconds` too long.",
)

SECONDS = 900.0
"""Longest duration of a burst, seconds."""

LEAST_INTERVAL = 2.0
"""Shortest time between the runs of a burst, seconds."""

RATE = 4.0
"""Highest duty in a burst, in multiples of the duty cap: at this rate, an hour's duty is used up in 15 minutes."""

PAID_WITHIN = 3600.0
"""Seconds after the start until the average duty is below its cap again."""

PAID_BACK = 0.5
"""Share of the duty cap that repays a burst's debt. During repayment, a canary runs half as often as the cap
allows. A larger share would make the burst longer, and leave almost no runs for the time after the burst.
"""

RESTARTS = 2
"""After this number of earlier starts within :data:`PAID_WITHIN`, there is no burst. Otherwise, a container that
restarts again and again would burst permanently. The journal gives the earlier starts.
"""


class Burst:
    """Share of the time that runs may take: above the cap in the burst, below until the debt is repaid, then the cap.

    Duty above the cap is a debt. The burst ends after :data:`SECONDS`, or earlier, if :data:`PAID_BACK` of the cap
    could not repay a larger debt within :data:`PAID_WITHIN`.

    Args:
        cap: The duty cap of runs, a share of the time.
        start: Monotonic clock, seconds.
        is_wanted: False for no burst.
    """

    def __init__(self, cap: float, start: float, is_wanted: bool = True) -> None:
        self.debt = 0.0
        """Busy seconds above the cap that are not repaid yet."""
        self.is_on = False
        """True if the plan puts the next run before the end of the steady interval."""
        self._is_over = not is_wanted
        self._cap = cap
        self._start = self._at = start

    def plan(self, cost: float, interval: float, now: float, gives_way: bool = False) -> tuple[float, float]:
        """Plan the next run.

        Args:
            cost: Expected busy seconds of the run.
            interval: Seconds between runs without a burst.
            now: Monotonic clock, seconds.
            gives_way: True to pause the burst: the server's own work waits for the canaries, or the canaries wait for
                the server's work.

        Returns:
            Seconds between runs now, and the share of the time that runs may take.
        """
        since = now - self._start
        # largest debt that can still be repaid in time
        left = PAID_BACK * self._cap * max(0.0, PAID_WITHIN - since)
        self._is_over |= since >= SECONDS or self.debt + cost > left
        # With a cost of 0, no canary is open.
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
            now: End of the run: monotonic clock, seconds.
        """
        ahead = cost - self._cap * (now - self._at)
        self._at = now
        self.debt = max(0.0, self.debt + (ahead if self.is_on else min(0.0, ahead)))
        if now - self._start >= PAID_WITHIN:
            self.debt = 0.0  # forget the rest of a hung run's debt: repayment ends after an hour
