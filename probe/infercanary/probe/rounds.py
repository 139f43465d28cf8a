"""Rounds: a sample, then for each canary a run, its controls and a sample. Sweeps and profiles run between rounds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from infercanary.contract.measures import HOST_MEMORY
from infercanary.contract.report import Metric, Run
from infercanary.contract.vocabulary import NOT_JUDGED
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.duty import BUSY
from infercanary.probe.gpu.cuda_driver import CudaError, pci_bus_id
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import of_gpu
from infercanary.probe.profiling import Profiling
from infercanary.probe.result import RunResult
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.threads import Place
from infercanary.probe.sampling import UTILIZATION_SECONDS, Sampling
from infercanary.probe.sweep import Sweeping
from infercanary.probe.tags import Sample, Values, Window, clock_reason, gpus_at, state_tags, tags
from infercanary.probe.watcher import Memory

LATENESS = Metric(
    "infercanary_lateness_seconds",
    "gauge",
    "Delay of the last round: its actual start minus its intended start.",
    reading="A few milliseconds are healthy. Above 0.25 s, the probe's thread got no CPU, or waited for the GIL.",
)

GPU_CANARIES = Metric(
    "infercanary_gpu_canaries",
    "gauge",
    "Canaries of this probe that run on the GPU; with MIG, on the whole GPU.",
    ("gpu",),
    reading="0: no canary uses the GPU. Missing if the GPU of any canary is unknown, as for calls to a server.",
)


class Rounds:
    """Runs the canaries, and keeps the context of each run: earlier samples, and the probe's own work.

    Args:
        canaries: In the order of their runs.
        between: Sweeps and profiles of these canaries.
        controls: Measured after each run; None without controls.
        sampling: Takes samples before and after each run.
        memory: Checked before each round.
        tally: Storage of the probe's own metrics.
        stopping: Event that ends a round early.
    """

    def __init__(
        self,
        canaries: Sequence[Canary],
        between: Sequence[Sweeping | Profiling],
        controls: Controls | None,
        sampling: Sampling,
        memory: Memory,
        tally: Tally,
        stopping: threading.Event,
    ) -> None:
        self.worked_until = -math.inf
        """Monotonic time at which the probe's own work last ended: warm-up, a run, controls, a sweep or a profile."""
        self._canaries = canaries
        self._between = between
        self._controls = controls
        self._sampling = sampling
        self._memory = memory
        self._tally = tally
        self._stopping = stopping
        self._sequence = 0
        self._last: Sample | None = None  # sample at the end of the last run
        # canary → NVML's indexes of the GPUs of its last run
        self._gpus: dict[str, frozenset[str] | None] = {}
        self._is_beside_work = False  # True if a sweep or profile was still running when the last round began
        tally.add(BUSY, 0)

    @property
    def lead(self) -> float:
        """Return the seconds by which a round starts before its slot: the duration of a sample."""
        return self._sampling.seconds

    def run(self, planned: Sequence[tuple[Canary, int]], slot: float) -> tuple[list[Run], float]:
        """Run one round, or postpone the runs if the memory left is too small for a round.

        Args:
            planned: Open canaries, and the number of repeats of each.
            slot: Intended start (monotonic seconds).

        Returns:
            The runs, and their cost in seconds of the duty budget.
        """
        if planned and (why := self._memory.lack_for_round()):
            for canary, _ in planned:
                canary.put_off(why)
            planned = ()
        runs, cost = self.failed(), 0.0
        self._is_beside_work = any(work.is_running for work in self._between)
        rested = time.monotonic() - self.worked_until
        before = self._sampling.take()
        # Right after the probe's own work, NVML's utilization may include that work.
        quiet: Values = before if rested >= UTILIZATION_SECONDS else {}
        self._stopping.wait(max(0.0, slot - time.monotonic()))
        lateness = max(0.0, time.monotonic() - slot)
        self._tally.set(LATENESS, lateness)
        for canary, repeats in planned:
            if self._stopping.is_set():
                break
            started_at = time.time()
            self._memory.run_began = time.monotonic()
            done = canary.round(repeats)
            self._memory.run_began = None
            if done is not None:
                spent = 0.0
                if self._controls is not None:
                    # After a skipped or hanging run, do not use the GPU: the CPU's controls show the state of the
                    # host.
                    device = canary.device if done.latencies else "cpu"
                    done = done._replace(controls=self._controls.measure(device))
                    spent = self._controls.took
                self.worked_until = time.monotonic()
                self._memory.note_run()
                after = self._sampling.take()
                self._tally.add(BUSY, done.busy + spent)
                cost += done.cost + spent
                is_first = canary.name not in self._gpus
                gpus = self._gpus[canary.name] = _gpus(canary.gpus, after)
                window = Window(
                    done, lateness, self._sampling.first, self._last or before, quiet, before, after, gpus
                )
                measures = {**done.measures, **of_gpu(window)}
                # The controls allocate memory at their first measurement and keep part of it.
                if is_first and self._controls is not None:
                    measures.pop(HOST_MEMORY, None)
                runs.append(
                    self._record(
                        canary, done, started_at - lateness, started_at, tags(window), measures,
                        sm_clock=window.sm_clock, waited=window.waited, crowded=window.crowded,
                        inside=None if done.inside is None else done.inside.cores, received=window.received,
                        clock_reason=clock_reason(window),
                    )
                )  # fmt: skip
                before = self._last = after
            # only the first canary of a round can be late, because the other canaries wait for it
            lateness = 0.0
        self._show_gpus(before)
        return runs, cost

    def work_between(self) -> bool:
        """Run one sweep point or one profile: the most overdue of those that can run. Return True if work was done.

        Call this method right after a round, when the next round is farthest away. Nothing runs while a canary is
        opening or the probe is stopping.
        """
        for work in sorted(self._between, key=lambda work: work.next_at):
            if self._stopping.is_set() or any(canary.is_opening for canary in self._canaries):
                return False
            if took := work.step(time.monotonic()):
                # Take a new sample, so that this work does not affect the next run's tags.
                self._tally.add(BUSY, took)
                self.worked_until = time.monotonic()
                self._last = self._sampling.take()
                return True
        return False

    def failed(self) -> list[Run]:
        """Return a failed run for each failed opening and each postponed run, but only once.

        Returns:
            Runs without latencies; empty if there are none.
        """
        now = time.time()
        failed = [(canary, canary.failed()) for canary in self._canaries]
        return [self._record(canary, done, now, now, (), {}) for canary, done in failed if done is not None]

    def places(self) -> dict[str, Place]:
        """Return canary → place and GPUs of its last run's thread. Canaries with an unknown place are left out."""
        return {
            canary.name: canary.place._replace(gpus=self._gpus.get(canary.name))
            for canary in self._canaries
            if canary.place is not None
        }

    def _show_gpus(self, sample: Values) -> None:
        """Set the number of canaries on each GPU. If the sample has no GPUs, keep the last numbers."""
        if not (shown := sample.get("infercanary_gpu_info")):
            return
        self._tally.forget(GPU_CANARIES)
        used = [self._gpus.get(canary.name) for canary in self._canaries]
        if None not in used:
            for gpu in {labels[0].partition(":")[0] for labels in shown}:
                self._tally.set(GPU_CANARIES, sum(gpu in gpus for gpus in used if gpus), gpu)

    def _record(
        self,
        canary: Canary,
        done: RunResult,
        scheduled_at: float,
        started_at: float,
        conditions: tuple[str, ...],
        measures: dict[str, float],
        **context: Any,
    ) -> Run:
        self._sequence += 1
        beside = any(other.is_opening for other in self._canaries if other is not canary)
        all_tags = (*state_tags(canary.state, is_beside=beside or self._is_beside_work), *conditions)
        canary.count(all_tags, measures, eligible=done.outcome == "ok" and not all_tags)
        profile = None
        for work in self._between:
            if work.canary == canary.name:
                profile, work.profile = profile or work.profile, None
                # If this run is not judged, keep a sweep's result for a later run.
                if done.outcome == "ok" and NOT_JUDGED.isdisjoint(all_tags):
                    measures, work.measures = measures | work.measures, {}
        return Run(
            sequence=self._sequence,
            canary=canary.name,
            scheduled_at=scheduled_at,
            started_at=started_at,
            outcome=done.outcome,
            latencies=done.latencies,
            phases=done.phases,
            tags=all_tags,
            detail=done.detail,
            controls=dict(done.controls),
            output_error=done.output_error,
            off_cpu=done.idle,
            measures=measures,
            profile=profile,
            **context,
        )


def _gpus(ordinals: Iterable[int] | None, sample: Values) -> frozenset[str] | None:
    """Return NVML's indexes of the GPUs with these CUDA numbers; None if unknown."""
    if ordinals is None:
        return None
    try:
        indexes = [gpus_at(pci_bus_id(ordinal), sample) for ordinal in ordinals]
    except (Unavailable, CudaError):
        return None
    return None if None in indexes else frozenset[str]().union(*filter(None, indexes))
