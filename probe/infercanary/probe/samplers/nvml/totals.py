"""Totals: the driver's running totals, made monotonic for Prometheus.

Prometheus takes a decreasing counter for a restart at zero, and counts its whole new value as an increase. The
driver's totals do decrease (the driver is reloaded, 32 bits overflow), and some drivers give a wrong answer now and
then. So the sampler keeps its own totals: they begin at the driver's, never decrease, and never grow by more than is
possible in the time that passed. An answer that goes back or leaps is accepted if the next one does, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found

ERRORS_PER_SECOND = 1e6
"""Limit for counted events (errors, rows, packets sent again): no GPU with so many still works, and wrong answers are
mostly far above. It also allows what was counted before the host booted.
"""

_SLACK_SECONDS = 1.0  # the driver updates its totals every 100 ms, not all together


class _Known(NamedTuple):
    value: float
    """Last accepted value of the driver."""
    at: float
    total: float
    doubt: str = ""
    """Why the driver's last answer was refused: it went "back", or was a "leap"; empty if it was accepted."""


class Totals:
    """Keeps a total for each metric and labels.

    Args:
        most: Metric → largest possible increase per second; other metrics are unchanged.
        clock: Seconds since the host booted.
    """

    def __init__(
        self,
        most: Mapping[Metric, float],
        # Since the host's boot, suspended or not: no total of the driver is older.
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._most = most
        self._clock = clock
        self._known: dict[tuple[Metric, tuple[str, ...]], _Known] = {}

    def keep(self, found: Found) -> Found:
        """Replace the driver's totals by ours, in place, and return the mapping. Call it once for each reading: a
        second call confirms the first.

        Args:
            found: One reading; metrics without a limit are unchanged.
        """
        now = self._clock()
        for metric in self._most.keys() & found.keys():
            for labels, value in found[metric].items():
                found[metric][labels] = self._total(metric, labels, value, now)
        return found

    def _total(self, metric: Metric, labels: tuple[str, ...], value: float, now: float) -> float:
        before, most = self._known.get((metric, labels)), self._most[metric]
        if before is None:
            known = _Known(value, now, value if value <= most * (now + _SLACK_SECONDS) else 0.0)
        else:
            increase = value if value < before.value else value - before.value
            possible = increase <= most * (now - before.at + _SLACK_SECONDS)
            doubt = "back" if value < before.value else "" if possible else "leap"
            if doubt and doubt != before.doubt:
                known = before._replace(doubt=doubt)
            else:  # it is possible, or was confirmed
                known = _Known(value, now, before.total + (increase if possible else 0))
        self._known[metric, labels] = known
        return known.total
