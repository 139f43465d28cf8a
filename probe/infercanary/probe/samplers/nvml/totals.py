"""Totals: monotonic counters made from the driver's running totals.

Prometheus reads a decrease of a counter as a restart at zero, and counts the whole new value as an increase. The
driver's totals can decrease (the driver is reloaded, 32 bits overflow), and some drivers sometimes return wrong
values. So the sampler keeps its own totals. They begin at the driver's values, never decrease, and never grow faster
than is possible. A value that decreases or jumps is accepted only if the next value confirms it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found

ERRORS_PER_SECOND = 1e6
"""Largest possible increase per second of counted events: errors, rows, resent packets.

A GPU with more errors no longer works, and most wrong values are far above this limit. The first value, with all
events since the host booted, is also below the limit.
"""

_SLACK_SECONDS = 1.0  # the driver updates each total every 100 ms, but not all totals at the same time


class _Known(NamedTuple):
    value: float
    """The driver's last accepted value."""
    at: float
    total: float
    doubt: str = ""
    """Reason why the driver's last value was refused: "back" (a decrease) or "leap" (a jump); empty if accepted."""


class Totals:
    """Keeps a total for each metric and labels.

    Args:
        most: Metric → largest possible increase per second; other metrics are unchanged.
    """

    def __init__(self, most: Mapping[Metric, float]) -> None:
        self._most = most
        self._known: dict[tuple[Metric, tuple[str, ...]], _Known] = {}

    def keep(self, found: Found) -> Found:
        """Replace the driver's totals by monotonic totals in place, and return the mapping.

        Call this method once for each reading: a second call with the same values would confirm a doubtful value.

        Args:
            found: One reading; metrics without a limit are unchanged.
        """
        # this clock includes suspend; no total is older than the boot
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
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
            else:  # the value is possible, or the next value confirmed it
                known = _Known(value, now, before.total + (increase if possible else 0))
        self._known[metric, labels] = known
        return known.total
