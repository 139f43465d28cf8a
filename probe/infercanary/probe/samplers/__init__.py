"""Samplers: what the container, its threads and its GPUs were doing around a run.

A new one is one file here with its metrics and a ``sample()``, and its line in :func:`available`. The guard gives
each its success and duration metrics and a deadline, and keeps its failures from touching the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from infercanary.contract.report import Family, Metric
from infercanary.probe.deadline import DeadlineExceeded, Worker, one_line
from infercanary.probe.histogram import Tally

if TYPE_CHECKING:
    from infercanary.probe.samplers.threads import Place

log = logging.getLogger("infercanary.probe")

SUCCESS = Metric(
    "infercanary_sampler_success",
    "gauge",
    "1 if the sampler's last sample succeeded, else 0.",
    ("sampler",),
    reading="0: its metrics are missing, and the probe's log says why. For `nvml` on a host without a driver "
    "it is 1.",
)
DURATION = Metric(
    "infercanary_sampler_duration_seconds",
    "gauge",
    "Time that the sampler's last sample took.",
    ("sampler",),
    reading="A run waits for 0.1 s at most: above that its sample comes too late, and tags may be missing. "
    "From 5 s on it counts as hanging.",
)
# A round waits so long for its samples, all of them together, and then begins without those that are late: less than
# the jitter of a slot even at two rounds a second.
PATIENCE_SECONDS = 0.1
_DEADLINE_SECONDS = 5.0  # from here on it hangs; a GPU that nothing has used yet may take seconds to wake up


class Sampler(Protocol):
    """Takes one sample of something.

    It may have ``hanging``, families to show while it hangs, and ``close()``, called in its own thread in the end.
    """

    name: str

    def sample(self) -> Iterable[Family]:
        """The families now. Counters are cumulative; what cannot be known is left out. May raise, may hang."""
        ...


class Unavailable(Exception):
    """What the sampler watches is not here (no GPU, no driver): expected in places, so it is said once, quietly."""


class SampleFailed(Exception):
    """The sample failed, and the sampler knows why: ``families`` say so in metrics, and are not stale."""

    def __init__(self, why: str, families: Iterable[Family]) -> None:
        super().__init__(why)
        self.families = tuple(families)


class Guard:
    """Runs one sampler beside the probe's loop and keeps its last families.

    A sample that fails takes its families with it: stale numbers beside green health are worse than none. One that
    is late is waited for with ``patience`` and collected the next time; from ``deadline`` on it hangs, and what it
    still answers is thrown away.
    """

    def __init__(
        self,
        sampler: Sampler,
        tally: Tally,
        deadline: float = _DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.families: tuple[Family, ...] = ()
        self._sampler = sampler
        self._tally = tally
        self._deadline = deadline
        self._patience = patience
        self._worker = Worker(f"infercanary-{sampler.name}")
        self._begun: float | None = None
        self._took = 0.0
        self._hangs = False
        self._complaint = ""

    def sample(self, patience: float = math.inf) -> None:
        """Take a sample, or go on waiting for the one before; never raises. It waits ``patience`` seconds or less."""
        if self._begun is not None and not self._collect(0.0):
            return
        self._begun = perf_counter()
        try:
            self._worker.begin(self._take)
        except RuntimeError as error:  # the host is out of threads, or about to exit
            self._begun = None
            self._settle((), one_line(error))
            return
        self._collect(min(patience, self._patience, self._deadline))

    def _take(self) -> tuple[Family, ...]:
        begin = perf_counter()
        try:
            return tuple(self._sampler.sample())
        finally:
            self._took = perf_counter() - begin

    def _collect(self, seconds: float) -> bool:
        """Settle the sample that was begun, if it ends within ``seconds``; whether the thread is free again."""
        assert self._begun is not None
        families: tuple[Family, ...] = ()
        complaint, level = "", logging.WARNING
        try:
            families = self._worker.result(seconds)
        except DeadlineExceeded:
            if not self._hangs and (waited := perf_counter() - self._begun) >= self._deadline:
                self._hangs, self._took = True, waited
                self._settle(
                    getattr(self._sampler, "hanging", ()), f"hangs: no answer within {self._deadline:g} s"
                )
            return False
        except Unavailable as error:
            complaint, level = str(error), logging.INFO
        except SampleFailed as error:
            complaint, families = str(error), error.families
        except BaseException as error:
            complaint = one_line(error)
        if not self._hangs:  # else it is of long ago
            self._settle(families, complaint, level)
        self._begun, self._hangs = None, False
        return True

    def _settle(self, families: tuple[Family, ...], complaint: str, level: int = logging.WARNING) -> None:
        self.families = families
        if complaint != self._complaint:
            if complaint:
                log.log(level, "sampler %s: %s", self._sampler.name, complaint)
            else:
                log.info("sampler %s: works again", self._sampler.name)
        self._complaint = complaint
        self._tally.set(SUCCESS, not complaint, self._sampler.name)
        self._tally.set(DURATION, self._took, self._sampler.name)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the samples took."""
        return self._worker.cpu_seconds

    def close(self, seconds: float) -> bool:
        """End its thread; whether that was within ``seconds``."""
        return self._worker.stop(seconds, getattr(self._sampler, "close", None))


def available(
    compute_threads: Callable[[], int | None] = lambda: None, places: Callable[[], Mapping[str, Place]] = dict
) -> list[Sampler]:
    """The built-in samplers, with what canaries tell to that of the threads (its docstring)."""
    from infercanary.probe.samplers.cgroup import CgroupSampler
    from infercanary.probe.samplers.garbage import GarbageSampler
    from infercanary.probe.samplers.nvml import NvmlSampler
    from infercanary.probe.samplers.stalls import StallSampler
    from infercanary.probe.samplers.threads import ThreadSampler

    nvml = NvmlSampler()
    threads = ThreadSampler(
        local_cpus=lambda: nvml.local_cpus, compute_threads=compute_threads, places=places
    )
    return [threads, CgroupSampler(), GarbageSampler(), StallSampler(), nvml]
