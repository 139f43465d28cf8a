"""Sampling: runs each sampler in a separate thread with a deadline, and keeps its success and its last sample."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from time import perf_counter

from infercanary.contract.report import Family, Metric, joined
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import DeadlineExceeded, Worker, close_all, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import SampleFailed, Sampler, Unavailable
from infercanary.probe.tags import Sample, values

SUCCESS = Metric(
    "infercanary_sampler_success",
    "gauge",
    "1 if the sampler's last sample succeeded, else 0.",
    ("sampler",),
    reading="0: the sampler's metrics are missing; the probe's log says why. For `nvml`, no driver is not a failure.",
)
# A round waits this long for all samples together. Then the round begins without the late samples. The wait is
# shorter than the jitter of a slot, even with two rounds a second.
PATIENCE_SECONDS = 0.1
UTILIZATION_SECONDS = 1.2
"""Time after which NVML's utilization of a GPU no longer includes earlier work: NVML averages over at most one
second.
"""

_SETTLE_AT_MOST_SECONDS = 6.0  # seconds, longer than the deadline of any sampler
_DEADLINE_SECONDS = 5.0  # a slower sampler counts as hanging; an unused GPU may take seconds to wake up


class Guard:
    """Runs one sampler in parallel with the probe's loop, and keeps its last families.

    A failed sample leaves no families, because old numbers would look healthy. A late sample is
    collected at the next call. A sampler that exceeds :data:`_DEADLINE_SECONDS` hangs.

    Args:
        sampler: The sampler to run.
        tally: Storage of the success metric.
    """

    def __init__(self, sampler: Sampler, tally: Tally) -> None:
        self.families: tuple[Family, ...] = ()
        self.is_late = False
        """True while the last sample has not ended."""
        self._sampler = sampler
        self._tally = tally
        self._worker = Worker(f"infercanary-{sampler.name}", stays=True)
        self._begun = 0.0
        self._complaint = Complaint(f"sampler {sampler.name}")

    def sample(self, patience: float = PATIENCE_SECONDS) -> None:
        """Take a sample, and wait ``patience`` seconds for its end. Do nothing while the last sample is late. Never
        raises.
        """
        if self.is_late:
            self._collect(0.0)
        if not self.is_late:
            self._collect(patience)

    def _collect(self, seconds: float) -> None:
        """Begin a sample, unless the last sample is late. Collect the sample if it ends within ``seconds``."""
        families: tuple[Family, ...] = ()
        complaint, level = "", logging.WARNING
        try:
            if not self.is_late:
                self._worker.begin(lambda: tuple(self._sampler.sample()))
                self._begun, self.is_late = perf_counter(), True
            families = self._worker.result(seconds)
        except DeadlineExceeded:
            if perf_counter() - self._begun < _DEADLINE_SECONDS:
                return
            families, complaint = self._sampler.hanging, f"hangs: no answer within {_DEADLINE_SECONDS:g} s"
        except Unavailable as error:
            complaint, level = str(error), logging.INFO
        except SampleFailed as error:
            complaint, families = str(error), error.families
        except BaseException as error:  # also raised if no more threads can be started, or Python is exiting
            complaint = one_line(error)
        self.is_late = self._worker.is_busy
        self.families = families
        self._complaint.set(complaint, level)
        self._tally.set(SUCCESS, not complaint, self._sampler.name)

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time of the samples."""
        return self._worker.cpu_seconds

    def close(self, seconds: float) -> bool:
        """End the thread. True if the thread ended within ``seconds``."""
        return self._worker.stop(seconds, self._sampler.close)


class Sampling:
    """All samplers of a probe: takes samples around the probe's runs, and measures the time of the samples.

    Args:
        samplers: In the order of sampling.
        tally: Storage of the success metrics.
    """

    def __init__(self, samplers: Iterable[Sampler], tally: Tally) -> None:
        self.first = Sample()
        """First value of each metric."""
        self.seconds = 0.0
        """Duration of the last sample."""
        self._guards = [Guard(sampler, tally) for sampler in samplers]

    @property
    def families(self) -> tuple[Family, ...]:
        """Families of the last sample. Each metric appears once."""
        return joined(family for guard in self._guards for family in guard.families)

    @property
    def cpu_seconds(self) -> float:
        return sum(guard.cpu_seconds for guard in self._guards)

    def take(self) -> Sample:
        """Take a sample. Metrics of a failed or hanging sampler are missing; metrics of a late sampler are old."""
        begin = time.monotonic()
        for guard in self._guards:
            guard.sample(max(0.0, begin + PATIENCE_SECONDS - time.monotonic()))
        sample = Sample(values(self.families))
        sample.began = None if any(guard.is_late for guard in self._guards) else begin
        sample.ended = time.monotonic()
        self.seconds = sample.ended - begin
        for metric, points in sample.items():  # in the first samples, a sampler may be late
            self.first.setdefault(metric, points)
        return sample

    def settle(self, stopping: threading.Event) -> None:
        """Sample until no sampler is late, and GPU utilization no longer includes the warm-up.

        Args:
            stopping: Event that ends the sampling early.
        """
        begin = time.monotonic()
        while True:
            self.take()
            is_over = stopping.wait(UTILIZATION_SECONDS) or not any(guard.is_late for guard in self._guards)
            if is_over or time.monotonic() - begin > _SETTLE_AT_MOST_SECONDS:
                return

    def close(self, seconds: float) -> bool:
        """End all threads; see :func:`~infercanary.probe.deadline.close_all`."""
        return close_all([guard.close for guard in self._guards], seconds)
