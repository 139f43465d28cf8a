"""Stalls: time in which the whole process did not run (stopped, frozen, machine paused, or GIL held by one thread).

The kernel does not count this time. If a sleep of a quarter of a second lasts two seconds, the process was stopped
for the rest. The sampler does not know how much of the sleep had passed before the stop. So each measured stall is up
to a quarter of a second too short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from infercanary.contract.report import Family, Metric
from infercanary.probe.samplers import Sampler, register

STALLED = Metric(
    "infercanary_stalled_seconds_total",
    "counter",
    "Time in which the process did not run: stopped, frozen, or one thread held the interpreter for 0.5 s or more.",
    reading="Healthy is no increase. Growth means a paused container or machine, or a library that holds the GIL.",
)

_TICK_SECONDS = 0.25
_STALL_SECONDS = 0.5  # far above delays from a CPU quota (100 ms periods) or from a full run queue


@register
class StallSampler(Sampler):
    """Runs a thread that wakes up four times a second, from the first sample until :meth:`close`."""

    name = "stalls"

    def __init__(self) -> None:
        self._seconds = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self) -> Iterable[Family]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, name="infercanary-stalls", daemon=True)
            self._thread.start()
        yield STALLED.family(self._seconds)

    def close(self) -> None:
        self._closed.set()

    def _tick(self) -> None:
        asleep_since = time.monotonic()
        while not self._closed.wait(_TICK_SECONDS):
            now = time.monotonic()
            overslept = now - asleep_since - _TICK_SECONDS
            if overslept > _STALL_SECONDS:
                self._seconds += overslept
            asleep_since = now
