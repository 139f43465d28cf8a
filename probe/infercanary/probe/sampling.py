"""How samplers are run: each in a thread of its own, with a deadline and a success; and what they gave."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from time import perf_counter

from infercanary.contract.report import Family, Metric, joined
from infercanary.probe.deadline import DeadlineExceeded, Worker, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import SampleFailed, Sampler, Unavailable
from infercanary.probe.tags import Points, Values, values

log = logging.getLogger("infercanary.probe")

SUCCESS = Metric(
    "infercanary_sampler_success",
    "gauge",
    "1 if the sampler's last sample succeeded, else 0.",
    ("sampler",),
    reading="0: the sampler's metrics are missing, and the probe's log says why. `nvml` without a driver is 1.",
)
# A round waits this long for all samples together, and then begins without those that are late. It is less than the
# jitter of a slot, even at two rounds a second.
PATIENCE_SECONDS = 0.1
UTILIZATION_SECONDS = 1.2
"""NVML's utilization of a GPU is that of the last second at most: from then on it shows nothing of what was before."""

_SETTLE_AT_MOST_SECONDS = 6.0  # a sampler hangs from 5 s on
_DEADLINE_SECONDS = 5.0  # from here on it hangs; a GPU that nothing has used yet may take seconds to wake up


class Guard:
    """Runs one sampler beside the probe's loop and keeps its last families.

    After a sample that failed there are no families: old numbers beside a healthy state are worse than none. A sample
    that is late is collected at the next one; after :data:`_DEADLINE_SECONDS` it hangs, and its answer is thrown away.

    Args:
        sampler: What it runs.
        tally: Where its success is counted.
    """

    def __init__(self, sampler: Sampler, tally: Tally) -> None:
        self.families: tuple[Family, ...] = ()
        self._sampler = sampler
        self._tally = tally
        self._worker = Worker(f"infercanary-{sampler.name}")
        self._begun: float | None = None
        self._hangs = False
        self._complaint = ""

    def sample(self, patience: float = PATIENCE_SECONDS) -> None:
        """Take a sample, unless the one before is still late; wait ``patience`` seconds for it. Never raises."""
        if self.is_late and not self._collect(0.0):
            return
        self._begun = perf_counter()
        try:
            self._worker.begin(lambda: tuple(self._sampler.sample()))
        except RuntimeError as error:  # the host is out of threads, or about to exit
            self._begun = None
            self._settle((), one_line(error))
        else:
            self._collect(patience)

    def _collect(self, seconds: float) -> bool:
        """Settle the sample that was begun, if it ends within ``seconds``; whether the thread is free again."""
        assert self._begun is not None
        families: tuple[Family, ...] = ()
        complaint, level = "", logging.WARNING
        try:
            families = self._worker.result(seconds)
        except DeadlineExceeded:
            if not self._hangs and perf_counter() - self._begun >= _DEADLINE_SECONDS:
                self._hangs = True
                self._settle(self._sampler.hanging, f"hangs: no answer within {_DEADLINE_SECONDS:g} s")
            return False
        except Unavailable as error:
            complaint, level = str(error), logging.INFO
        except SampleFailed as error:
            complaint, families = str(error), error.families
        except BaseException as error:
            complaint = one_line(error)
        if not self._hangs:  # else it is too old
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

    @property
    def is_late(self) -> bool:
        """Whether the sample that was begun last is not there yet."""
        return self._begun is not None

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the samples took."""
        return self._worker.cpu_seconds

    def close(self, seconds: float) -> bool:
        """End its thread; whether that was within ``seconds``.

        Args:
            seconds: How long to wait for a sample under way.
        """
        return self._worker.stop(seconds, self._sampler.close)


class Sampling:
    """All samplers of a probe: samples around its runs, and how long they take.

    Args:
        samplers: In the order in which they sample.
        tally: Where their success is counted.
    """

    def __init__(self, samplers: Iterable[Sampler], tally: Tally) -> None:
        self.first: dict[str, Points] = {}
        """Of each metric, the points of its first sample."""
        self.seconds = 0.0
        """How long the last sample took."""
        self.began: float | None = None
        """When it was begun (monotonic); None where a sampler was late for it, and what it shows may be older."""
        self._guards = [Guard(sampler, tally) for sampler in samplers]

    @property
    def families(self) -> tuple[Family, ...]:
        """What was sampled last, each metric once."""
        return joined(family for guard in self._guards for family in guard.families)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that all samples took."""
        return sum(guard.cpu_seconds for guard in self._guards)

    def take(self) -> Values:
        """Take a sample; the plain numbers in it.

        Returns:
            Metric → its points; nothing of a sampler that failed or is late.
        """
        begin = time.monotonic()
        for guard in self._guards:
            guard.sample(max(0.0, begin + PATIENCE_SECONDS - time.monotonic()))
        self.seconds = time.monotonic() - begin
        self.began = None if any(guard.is_late for guard in self._guards) else begin
        sample = values(self.families)
        for metric, points in sample.items():  # a sampler may be late at first
            self.first.setdefault(metric, points)
        return sample

    def settle(self, stopping: threading.Event) -> None:
        """Sample until no sampler is late, and what a GPU counts as busy is no longer the warm-up.

        Args:
            stopping: Ends it early.
        """
        begin = time.monotonic()
        while True:
            self.take()
            is_over = stopping.wait(UTILIZATION_SECONDS) or not any(guard.is_late for guard in self._guards)
            if is_over or time.monotonic() - begin > _SETTLE_AT_MOST_SECONDS:
                return

    def close(self, seconds: float) -> bool:
        """End all threads; whether that was within ``seconds``.

        Args:
            seconds: For all of them together; each thread gets 0.1 s at least.
        """
        deadline = time.monotonic() + seconds
        ended = [guard.close(max(0.1, deadline - time.monotonic())) for guard in self._guards]
        return all(ended)
