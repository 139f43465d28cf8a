"""Garbage: time in which Python's garbage collector stopped the whole process, including the canaries."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from time import perf_counter

from infercanary.contract.report import Family, Metric
from infercanary.probe.samplers import Sampler, register

PAUSE = Metric(
    "infercanary_gc_pause_seconds_total",
    "counter",
    "Time in which Python's garbage collector stopped the process that the probe runs in.",
    reading="A run is tagged `gc` if pauses took more than 5 % of its time and more than 2 ms. With many long-lived "
    "objects, `gc.freeze()` after loading helps.",
)


class _Pauses:
    """Entry of ``gc.callbacks`` that sums the pauses. All probes of the process share one entry."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._since = perf_counter()
        elif self._since:
            self.seconds += perf_counter() - self._since


_pauses = _Pauses()


@register
class GarbageSampler(Sampler):
    """Reports the collector's pauses since the first sample. The sampler does not change the collector."""

    name = "garbage"

    def sample(self) -> Iterable[Family]:
        if _pauses not in gc.callbacks:
            gc.callbacks.append(_pauses)
        yield PAUSE.family(_pauses.seconds)
