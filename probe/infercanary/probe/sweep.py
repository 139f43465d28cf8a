"""Sweeps: latency and throughput of a canary at several loads, measured between runs; off by default.

A load is a batch size, or a number of concurrent requests. Each load has an equal share of the sweep's seconds, and
only one load is measured between two rounds, so that no run is missed. A part of the duty cap is reserved for sweeps
from the start (docs/profiles.md).
"""

from __future__ import annotations

import time
from contextlib import suppress
from time import perf_counter
from typing import Annotated

import msgspec
from msgspec import Meta

from infercanary.contract.measures import throughput_of
from infercanary.contract.report import Metric
from infercanary.probe.background import MAX_PAUSE, Background
from infercanary.probe.canary import Canary
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load, Measured, Measurement, Missing
from infercanary.probe.memory import trim
from infercanary.probe.schedule import jittered
from infercanary.probe.targets import Failure
from infercanary.probe.watcher import Memory

_POINT = ("canary", "batch", "concurrency")
LATENCY = Metric(
    "infercanary_sweep_latency_seconds",
    "gauge",
    "Median wall time of a request of `batch` samples, with `concurrency` requests at a time, in the last sweep.",
    _POINT,
    reading="Plot it against `infercanary_sweep_samples_per_second`: if latency grows and throughput does not, "
    "the device is full.",
)
RATE = Metric(
    "infercanary_sweep_samples_per_second",
    "gauge",
    "Samples per second in the last sweep, of all concurrent requests together.",
    _POINT,
    reading="Judged as measure `throughput@BATCHxCONCURRENCY`. A fall with concurrency means that threads compete.",
)
PEAK = Metric(
    "infercanary_sweep_peak_memory_bytes",
    "gauge",
    "Peak device memory that the engine allocated during this point of the sweep.",
    _POINT,
    reading="Only for engines that count GPU memory (torch). In a server's process, the server's memory is included.",
)
INTERVAL = Metric(
    "infercanary_sweep_interval_seconds",
    "gauge",
    "Time between sweeps: as configured, or longer if sweeps would use more than half of the duty cap.",
    ("canary",),
    reading="`infercanary ab` waits for a sweep that is due. Fewer `sweep.seconds` or a higher `duty_cap` shorten "
    "the interval.",
)
TIMESTAMP = Metric(
    "infercanary_sweep_timestamp_seconds",
    "gauge",
    "Unix time at which the last sweep ended; missing before.",
    ("canary",),
    reading="`time() - infercanary_sweep_timestamp_seconds` is the age of the sweep's values.",
)

# after these reasons, all larger loads would fail as well
_TOO_MUCH = ("out_of_memory", "short_of_memory", "too_slow", "timed_out")


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points and time of a canary's sweeps: ``Sweep(batches=(1, 8, 32), concurrency=(1, 4))``."""

    batches: Annotated[tuple[Annotated[int, Meta(ge=1, le=4096)], ...], Meta(max_length=8)] = ()
    """Batch sizes, each measured with one request at a time."""
    concurrency: Annotated[tuple[Annotated[int, Meta(ge=1, le=64)], ...], Meta(max_length=8)] = ()
    """Numbers of concurrent requests. Each request contains the canary's own inputs."""
    seconds: Annotated[float, Meta(ge=0.1, le=600)] = 10.0
    """Maximum seconds of a sweep; each point has an equal share."""
    every_seconds: Annotated[float, Meta(ge=1, le=604_800)] = 3600.0
    """Seconds between two sweeps; longer if sweeps would otherwise use more than half of the duty cap."""

    def __post_init__(self) -> None:
        if not self.batches and not self.concurrency:
            raise ValueError("nothing to sweep; give `batches` or `concurrency`")

    def loads(self, samples: int) -> list[Load]:
        """Return the points in increasing order: first batches with a single request, then concurrent requests.

        Args:
            samples: Samples in each of the concurrent requests.
        """
        batches = [Load(batch, 1) for batch in sorted(self.batches)]
        together = [Load(samples, number) for number in sorted(self.concurrency)]
        return list(dict.fromkeys([*batches, *together]))


class Sweeping(Background):
    """Sweeps one canary. Each :meth:`step` measures one point, in a thread that ends after the point (or hangs)."""

    def __init__(self, canary: Canary, sweep: Sweep, interval: float, tally: Tally, memory: Memory) -> None:
        super().__init__(canary, "sweep")
        self._sweep = sweep
        self._interval = interval
        self._tally = tally
        self._memory = memory
        # one interval after the start, so that the duty cap holds from the start
        self._plan_next(0.0, time.monotonic())
        # time at which a running point was abandoned; None without such a point
        self._given_up_at: float | None = None
        self._left: list[Load] | None = None  # remaining points of the present sweep; None between sweeps
        self._share = self._began = self._cost = 0.0
        self._too_much: dict[Load, Missing] = {}
        self._complaints: dict[Load, Complaint] = {}
        tally.set(INTERVAL, interval, canary.name)

    def step(self, now: float) -> float:
        """Measure the next point if it is due. Return the seconds that points took; 0 if no point was due."""
        if self.is_running:
            return 0.0
        took = 0.0
        if self._given_up_at is not None:  # an abandoned point has ended since the last step
            took = max(0.0, now - self._given_up_at)
            self._given_up_at = None
        if self._left != [] and now >= self.next_at and self._canary.is_fit:
            if self._canary.target.is_busy():
                self.put_off(now)
            else:
                self._left = self._left or self._begin(now)
                took += self._measure(self._left.pop(0))
        # If the last run waited in the server's pool, the sweep also makes requests wait, so it costs more than its
        # time.
        self._cost += took * self._canary.crowding
        if self._left == [] and not self.is_running:
            self._left = None
            self._tally.set(TIMESTAMP, time.time(), self.canary)
            self._plan_next(self._cost, self._began)
        return took

    def _plan_next(self, cost: float, began: float) -> None:
        """Plan the next sweep. If the last sweep cost more than ``sweep.seconds``, the next sweep is later in
        proportion.
        """
        pause = self._interval * max(1.0, cost / self._sweep.seconds)
        self.next_at = began + jittered(min(pause, max(self._interval, MAX_PAUSE)))

    def _begin(self, now: float) -> list[Load]:
        """Begin a sweep, and return its points."""
        # Other loads may fit this time, or be fast enough.
        self._too_much = {load: why for load, why in self._too_much.items() if why.reason == "out_of_memory"}
        self._began, self._cost = now, 0.0
        samples = 1
        with suppress(Exception):  # the target may be a user's code, which may raise any exception
            samples = int(self._canary.target.samples)
        loads = self._sweep.loads(samples)
        self._share = self._sweep.seconds / len(loads)
        return loads

    def _measure(self, load: Load) -> float:
        """Measure a point and set its metrics. Return the seconds that this took."""
        for smaller, missing in self._too_much.items():
            if load.is_at_least(smaller):
                detail = missing.detail if load == smaller else f"as for the smaller load {smaller.words}"
                self._show(load, missing._replace(detail=detail))
                return 0.0
        begin = perf_counter()
        result: Measured | Missing
        measurement = Measurement(self.canary, self._canary.target, load, self._share, self._canary.pool)
        try:
            with self._memory.point(self.canary, self._canary.target, load) as growth:
                measurement.look = growth.check
                result = self._worker.call(measurement.measure, self._share)
        except Failure as error:
            result = Missing("short_of_memory", str(error))
        except Interrupted:
            measurement.give_up()
            return 0.0
        except DeadlineExceeded:
            if measurement.give_up() and self._canary.pool is not None:
                self._canary.pool.lost_a_thread()
            self._given_up_at = time.monotonic()
            result = Missing(
                "timed_out",
                f"not finished within {self._share:.3g} s; until the point ends, runs are tagged beside_canary and are "
                "not judged; give the sweep more seconds, or remove that point",
            )
        except RuntimeError as error:  # no thread can be started for the point
            result = Missing("raised", one_line(error))
        trim()  # the threads have ended, but their heaps still hold memory of the requests
        if isinstance(result, Measured):
            self._memory.note_point(self.canary, load, growth.largest, result.device_bytes)
        self._show(load, result)
        return perf_counter() - begin

    def _show(self, load: Load, result: Measured | Missing) -> None:
        """Set the metrics of a point. If the point has no numbers, remove its metrics and log the reason once."""
        complaint = self._complaints.setdefault(
            load, Complaint(f"canary {self.canary}: sweep of {load.words}")
        )
        labels = self.canary, str(load.batch), str(load.concurrency)
        for metric in (LATENCY, RATE, PEAK):
            self._tally.forget(metric, *labels)
        if isinstance(result, Measured):
            complaint.set("")
            self._tally.set(LATENCY, result.latency, *labels)
            self._tally.set(RATE, result.rate, *labels)
            self.measures[throughput_of(*load)] = result.rate
            if result.peak_bytes is not None:
                self._tally.set(PEAK, result.peak_bytes, *labels)
            return
        if result.reason in _TOO_MUCH:
            self._too_much.setdefault(load, result)
        complaint.set(f"{result.reason}: {result.detail}")
