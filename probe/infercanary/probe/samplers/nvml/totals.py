"""The driver's running totals, made fit for Prometheus.

Prometheus takes a counter that goes back for one that began anew at zero, and counts all of its new value as an
increase. The driver's totals do go back (the driver is reloaded, 32 bits overflow), and some drivers answer
nonsense for once. So we keep a total of our own: it begins at the driver's, never goes back, and never grows by
more than is possible in the time that passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from infercanary.probe.report import Metric
from infercanary.probe.samplers.nvml.calls import Found

_SLACK_SECONDS = 1.0  # the driver brings its totals up to date every 100 ms, and not all at once


class _Known(NamedTuple):
    value: float
    """The driver's, when it was last believed."""
    at: float
    total: float
    doubted: bool
    """The driver's last answer was not believed."""


class Totals:
    """Keeps a total per metric and labels. ``most`` is each metric's greatest possible increase per second."""

    def __init__(
        self,
        most: Mapping[Metric, float],
        # Since the host booted, suspended or not: no total of the driver's can be older.
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._most = most
        self._clock = clock
        self._known: dict[tuple[Metric, tuple[str, ...]], _Known] = {}

    def keep(self, found: Found) -> None:
        """Put our totals in the place of the driver's."""
        now = self._clock()
        for metric in self._most.keys() & found.keys():
            for labels, value in found[metric].items():
                found[metric][labels] = self._total(metric, labels, value, now)

    def _total(self, metric: Metric, labels: tuple[str, ...], value: float, now: float) -> float:
        before = self._known.get((metric, labels))
        if before is None:
            possible = value <= self._most[metric] * (now + _SLACK_SECONDS)
            known = _Known(value, now, value if possible else 0.0, False)
        else:
            increase = value - before.value if value >= before.value else value
            possible = increase <= self._most[metric] * (now - before.at + _SLACK_SECONDS)
            if possible:
                known = _Known(value, now, before.total + increase, False)
            elif before.doubted:  # it stays with it: go on from there
                known = _Known(value, now, before.total, False)
            else:
                known = before._replace(doubted=True)
        self._known[metric, labels] = known
        return known.total
