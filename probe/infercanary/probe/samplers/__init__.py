"""Samplers: what the container, its threads and its GPUs were doing around a run.

A new one is one file here with its metrics and a ``sample()``, and its line in :func:`available`. The guard gives
each its success and duration metrics and a deadline, and keeps its failures from touching the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Protocol

from infercanary.probe.deadline import DeadlineExceeded, StillBusy, Worker, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.report import Family, Metric

log = logging.getLogger("infercanary.probe")

SUCCESS = Metric(
    "infercanary_sampler_success", "gauge", "1 if the sampler's last sample succeeded, else 0.", ("sampler",)
)
DURATION = Metric(
    "infercanary_sampler_duration_seconds", "gauge", "Time that the sampler's last sample took.", ("sampler",)
)
_DEADLINE_SECONDS = 1.0


class Sampler(Protocol):
    """Takes one sample of something."""

    name: str

    def sample(self) -> Iterable[Family]:
        """The families now. Counters are cumulative; what cannot be known is left out. May raise, may hang."""
        ...


class Unavailable(Exception):
    """What the sampler watches is not here (no GPU, no driver): expected in places, so it is said once, quietly."""


class Guard:
    """Runs one sampler under a deadline and keeps its last families.

    A sample that fails takes its families with it: stale numbers beside green health are worse than none.
    """

    def __init__(self, sampler: Sampler, tally: Tally, deadline: float = _DEADLINE_SECONDS) -> None:
        self.families: tuple[Family, ...] = ()
        self._sampler = sampler
        self._tally = tally
        self._deadline = deadline
        self._worker = Worker(f"infercanary-{sampler.name}")
        self._complaint = ""

    def sample(self) -> None:
        """Take a sample; never raises."""
        name, begin, level = self._sampler.name, perf_counter(), logging.WARNING
        try:
            self.families = self._worker.call(lambda: tuple(self._sampler.sample()), self._deadline)
            complaint = ""
        except StillBusy:
            self.families = ()
            return
        except DeadlineExceeded as error:
            complaint = f"hangs: {error}"
        except Unavailable as error:
            complaint, level = str(error), logging.INFO
        except BaseException as error:
            complaint = one_line(error)
        if complaint:
            self.families = ()
        if complaint != self._complaint:
            if complaint:
                log.log(level, "sampler %s: %s", name, complaint)
            else:
                log.info("sampler %s: works again", name)
        self._complaint = complaint
        self._tally.set(SUCCESS, not complaint, name)
        self._tally.set(DURATION, perf_counter() - begin, name)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the samples took."""
        return self._worker.cpu_seconds

    def close(self, seconds: float) -> bool:
        """End its thread; whether that was within ``seconds``."""
        return self._worker.stop(seconds)


def available() -> list[Sampler]:
    """The built-in samplers."""
    from infercanary.probe.samplers.cgroup import CgroupSampler
    from infercanary.probe.samplers.nvml import NvmlSampler
    from infercanary.probe.samplers.threads import ThreadSampler

    return [ThreadSampler(), CgroupSampler(), NvmlSampler()]
