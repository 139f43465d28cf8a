"""The probe: on schedule and within its budget it samples, runs every canary, samples again, and reports."""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.report import PATH, SCHEMA_VERSION, Family, Metric, Report, Run, decode, encode
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.environment import ENVIRONMENT, fingerprint
from infercanary.probe.histogram import Tally
from infercanary.probe.journal import ERRORS as JOURNAL_ERRORS
from infercanary.probe.journal import MAX_BYTES, Journal, check, last_runs
from infercanary.probe.pace import pace
from infercanary.probe.ring import Ring
from infercanary.probe.round import Round
from infercanary.probe.runner import Pool
from infercanary.probe.samplers import Sampler, Unavailable, make_samplers
from infercanary.probe.samplers.threads import Place
from infercanary.probe.sampling import PATIENCE_SECONDS, SUCCESS, Guard
from infercanary.probe.schedule import Budget, Schedule, keep_for_sweeps, plan
from infercanary.probe.serve import Server
from infercanary.probe.start import since_start
from infercanary.probe.sweep import Sweep, Sweeping, checked
from infercanary.probe.tags import Values, Window, gpus_at, state_tags, tags, values
from infercanary.probe.targets import Target
from infercanary.probe.targets.cuda_driver import CudaError, pci_bus_id

log = logging.getLogger("infercanary.probe")

START = Metric(
    "infercanary_probe_start_timestamp_seconds",
    "gauge",
    "When the probe started, Unix time.",
    reading="`changes(infercanary_probe_start_timestamp_seconds[1h])` counts restarts, after which all "
    "counters of the probe begin anew.",
)
INTERVAL = Metric(
    "infercanary_interval_seconds",
    "gauge",
    "Time between runs: as configured, or longer where the duty cap needs it.",
    reading="Above what was configured, the runs are so costly that the duty cap spaces them out: a change is "
    "noticed later. A smaller input, or a higher `duty_cap`, brings it back.",
)
MISSED = Metric(
    "infercanary_missed_slots_total",
    "counter",
    "Scheduled rounds that were missed: the one before, or a point of a sweep, was still going, or the duty cap was "
    "used up.",
    reading="A few after a run that was slow or hung are normal. A steady `rate` means that rounds take longer "
    "than `infercanary_interval_seconds`.",
)
LATENESS = Metric(
    "infercanary_lateness_seconds",
    "gauge",
    "How much later than intended the last round started.",
    reading="Milliseconds. Above 0.25 s the first canary's run is tagged `late`: the probe's thread got no "
    "CPU, or waited for the GIL.",
)
BUSY = Metric(
    "infercanary_busy_seconds_total",
    "counter",
    "Wall time spent in scheduled runs, their controls and sweeps (warm-up is not in it).",
    reading="The controls are in it, and `infercanary_sweep_busy_seconds_total`. `rate(…[15m])` is the duty now; "
    "`infercanary_duty_ratio` is that since the start.",
)
TIME_TO_REPORT = Metric(
    "infercanary_time_to_report_seconds",
    "gauge",
    "Cold start: from the container's start (outside of one, the process's) until the probe could be asked.",
    reading="Set once. What lies between it and `infercanary_time_to_steady_seconds` is loading and warming "
    "up.",
)
DUTY = Metric(
    "infercanary_duty_ratio",
    "gauge",
    "Share of the time since warm-up that was spent in scheduled runs, their controls and sweeps.",
    reading="Not far below `infercanary_duty_cap_ratio` is by design: repeats fill it, up to 50 in a run.",
)
DUTY_CAP = Metric(
    "infercanary_duty_cap_ratio",
    "gauge",
    "The cap that the duty is held under; after a run that hung, within the five minutes that follow.",
    reading="The setting `duty_cap`. Raise it for a slow model whose `infercanary_interval_seconds` is too "
    "long for you.",
)
CPU = Metric(
    "infercanary_probe_cpu_seconds_total",
    "counter",
    "CPU time of the probe itself (its loop, samplers and server), without the canaries' own work.",
    reading="`rate(…[5m])` is in cores, and a small fraction of one. A rise is a sampler that became costly: "
    "see `infercanary_sampler_duration_seconds`.",
)

_RING_RUNS = 2048
_SAMPLE_SECONDS = 15.0  # samples go on between rounds that are far apart, and while a canary opens
_CLOSE_SECONDS = 2.0
_SETTLE_SECONDS = 1.2  # NVML's utilization is that of the last second at most
_SETTLE_AT_MOST_SECONDS = 6.0  # a sampler hangs from 5 s on
_LEAST_JOURNAL_BYTES = 64 << 10


class Probe:
    """Runs canaries in this process and answers the exporter. ``start()`` and forget, or drive it step by step.

    ``targets``          name → what to execute and time; the names become the ``canary`` label.
    ``listen``           ``host:port``, or ``unix:///path`` on a volume shared with the exporter.
    ``interval_seconds`` between runs, jittered by ±20 %; stretched where the duty cap needs it.
    ``duty_cap``         the most that runs may take of the elapsed time (0.01 = 1 %).
    ``timeout_seconds``  a run that takes longer counts as ``timed_out``; ``open_timeout_seconds`` likewise for loading.
    ``controls``         measure the controls after each run: a few milliseconds, which the duty cap covers.
    ``journal``          a file to which each run is appended as a line of JSON; at most ``journal_bytes``, rotated.
    ``sweeps``           name → what to sweep of that canary (:class:`Sweep`), within the duty cap; none by default.
    ``samplers``         name → whether it is on, where that is not its default; or samplers, instead of ours.
    ``executor``         the server's own pool, if it runs its model in one: each repeat then takes its turn there, on
                         the very threads that serve. Otherwise canaries run in a thread of the probe's own.
    ``on_hang``          called, from the probe's thread, when a canary holds a thread of that pool past its deadline.
                         It may give another pool to use from then on: so a server whose threads are few goes on.

    INFERCANARY_INTERVAL_SECONDS and INFERCANARY_DUTY_CAP in the environment override the two arguments.

    Raises :class:`UsageError` for an argument that cannot be meant; nothing after that raises into the host.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        listen: str = "0.0.0.0:9798",
        interval_seconds: float = 10.0,
        duty_cap: float = 0.01,
        timeout_seconds: float = 30.0,
        open_timeout_seconds: float = 600.0,
        controls: bool = True,
        journal: str | os.PathLike[str] | None = None,
        journal_bytes: int = MAX_BYTES,
        sweeps: Mapping[str, Sweep] | None = None,
        samplers: Mapping[str, bool] | Iterable[Sampler] = MappingProxyType({}),
        executor: Executor | None = None,
        on_hang: Callable[[], Executor | None] | None = None,
    ) -> None:
        for name in targets:
            if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
                raise UsageError(
                    f"canaries: `{name}` is not a name of letters, digits, `_`, `.` and `-` (64 at most)"
                )
        for key, seconds in {
            "interval_seconds": interval_seconds,
            "timeout_seconds": timeout_seconds,
            "open_timeout_seconds": open_timeout_seconds,
        }.items():
            if not 0 < seconds < math.inf:
                raise UsageError(f"{key}: {seconds:g} is not a time; give seconds above 0")
        if not 0 < duty_cap <= 1:
            raise UsageError(f"duty_cap: {duty_cap:g} is not a share; give a number above 0, at most 1")
        given = interval_seconds, duty_cap
        interval_seconds, duty_cap = pace(*given)
        if (interval_seconds, duty_cap) != given:
            log.info("by the environment: a run every %g s, a duty of %g at most", interval_seconds, duty_cap)
        self.address = ""
        self._listen = listen
        self._interval = interval_seconds
        self._duty_cap = duty_cap
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.time()
        self._tally = Tally()
        pool = Pool(executor, on_hang) if executor is not None else None
        self._canaries = [
            Canary(name, target, self._tally, timeout_seconds, open_timeout_seconds, pool)
            for name, target in targets.items()
        ]
        wanted = {name: checked(name, sweep, targets) for name, sweep in (sweeps or {}).items()}
        kept, intervals = keep_for_sweeps([(s.seconds, s.every_seconds) for s in wanted.values()], duty_cap)
        self._runs_cap = duty_cap - kept
        swept = {canary.name: canary for canary in self._canaries if canary.name in wanted}
        self._sweeps = [
            Sweeping(swept[name], targets[name], sweep, interval, timeout_seconds, self._tally, pool)
            for (name, sweep), interval in zip(wanted.items(), intervals, strict=True)
        ]
        self._controls = Controls(self._tally) if controls else None
        chosen = (
            make_samplers(samplers, compute_threads=self._compute_threads, places=self._places)
            if isinstance(samplers, Mapping)
            else samplers
        )
        self._guards = [Guard(sampler, self._tally) for sampler in chosen]
        self._journal: Journal | None = None
        found: list[Run] = []
        if journal is not None:
            found = self._open_journal(Path(journal), journal_bytes)
        self._ring = Ring(self._boot_id, _RING_RUNS, found)
        self._sequence = 0
        self._engines: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._families: tuple[Family, ...] = ()
        self._outputs: dict[str, tuple[float, ...]] = {}
        self._snapshot = threading.Lock()
        self._running_since: float | None = None
        self._busy = 0.0
        self._cpu_before = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._server: Server | None = None
        self._tally.set(START, self._started_at)
        self._tally.set(INTERVAL, interval_seconds)
        self._tally.set(DUTY_CAP, duty_cap)
        self._tally.add(MISSED, 0)
        self._first: dict[str, Mapping[tuple[str, ...], float]] = {}  # of each metric, its first points
        self._last: Values = {}  # the sample at the end of the last run
        # Canary → those of its last run, as NVML numbers them.
        self._gpus: dict[str, frozenset[str] | None] = {}
        self._is_beside_sweep = False  # when the last round began
        self._sampling = 0.0  # seconds that the last sample took
        self._worked_until = -math.inf  # monotonic: when warm-up, canaries, controls or sweeps last ended

    def start(self) -> None:
        """Serve and run in a daemon thread. Never raises into the host: what goes wrong is logged.

        Start it in the process that serves: threads do not survive a fork (gunicorn: in ``post_fork``).
        """
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run_guarded, name="infercanary-probe", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the host is out of threads, or about to exit
            log.error("the probe cannot start: %s", error)
        else:
            # A daemon thread that the interpreter cuts off inside a model's C++ code can abort the whole process.
            atexit.register(self.stop)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop cleanly: the run under way ends first, for at most ``seconds``. Never raises; any thread may call."""
        atexit.unregister(self.stop)
        self._stopping.set()
        for sweeping in self._sweeps:
            sweeping.interrupt()
        waits = self._thread is not None and self._thread.is_alive() and seconds > 0
        for canary in self._canaries:
            if not waits or not canary.is_open:  # nothing is lost with a model that is half loaded
                canary.interrupt()
        if self._thread is None or self._thread is threading.current_thread() or not self._thread.is_alive():
            return
        self._thread.join(seconds)
        for canary in self._canaries:
            canary.interrupt()
        if self._controls is not None:
            self._controls.interrupt()
        self._thread.join(_CLOSE_SECONDS + 1)
        if self._thread.is_alive():
            log.warning("the probe did not stop in time; its thread ends with the process")

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self) -> None:
        """Listen. Raises :class:`UsageError` where that is not possible. First of the three steps of :meth:`start`."""
        self._cpu_before = time.thread_time()
        self._publish()
        self._server = Server(self._listen, self.report)
        self.address = self._server.address
        if (seconds := since_start()) is not None:
            self._tally.set(TIME_TO_REPORT, seconds)

    def open(self) -> None:
        """Load and warm up every canary, one after another: side by side they would disturb one another's warm-up.

        Raises the first :class:`UsageError`, after all were tried. Any other failure is tried again while running, and
        so is an image that has no CUDA for a canary that is to run on it.
        """
        for canary in self._canaries:
            begin = time.monotonic()
            while canary.state == "opening" and not self._stopping.is_set():
                canary.open(_SAMPLE_SECONDS)
                if canary.state == "opening" and not self._stopping.is_set():
                    log.info(
                        "canary %s: still loading or warming up after %.0f s",
                        canary.name,
                        time.monotonic() - begin,
                    )
                    self._sample()
                self._observe_environment()
                self._keep(self._failed_opens())
        for canary in self._canaries:
            if canary.mistake is not None:
                raise UsageError(f"canaries.{canary.name}: {canary.mistake}")

    def run(self) -> None:
        """Rounds on schedule until :meth:`stop` is called from another thread."""
        if self._stopping.is_set():
            return
        at = self.address if self.address.startswith("unix:") else f"{self.address}{PATH}"
        log.info("the report is at %s", at)
        now = self._running_since = self._worked_until = time.monotonic()
        schedule = Schedule(self._interval, now)
        budget = Budget(self._runs_cap, now)
        for sweeping in self._sweeps:
            sweeping.start(now)
        self._sample()
        self._publish()
        while True:
            planned = self._plan(schedule)
            slot, missed = schedule.next(time.monotonic())
            self._tally.add(MISSED, missed)
            cost = sum(repeats * c.repeat_cost + self._controls_cost(c) for c, repeats in planned)
            slot = max(slot, budget.ready_at(cost, time.monotonic()))
            # The sample before a run is taken first, so that the run begins in its slot.
            if not self._wait_until(slot - self._sampling):
                return
            for canary in self._canaries:
                canary.open(0)  # those that failed are tried again, beside the others' runs, which are tagged
            runs, cost = self._round(planned, slot)
            budget.spend(cost, time.monotonic())
            self._keep(runs)
            if self._sweep():
                self._publish()

    def once(self) -> Report | None:
        """One round of every open canary now, with neither port nor journal: the report, or None once stopped.

        After :meth:`open`, instead of the other two steps. A canary that could not be opened is not tried again.
        """
        schedule = Schedule(self._interval, time.monotonic())
        self._settle_samplers()
        # The controls' first time takes longer, which is not what they cost.
        for canary in 2 * self._canaries:
            if self._controls is not None and canary.is_open:
                self._controls.measure(canary.device)
        runs, _ = self._round(self._plan(schedule), time.monotonic())
        if self._stopping.is_set():
            return None
        self._plan(schedule)  # what a round costs, and so the interval that the duty cap needs, is known now
        self._environment = self._environment or fingerprint({})
        self._publish(runs)
        return decode(self.report(""))

    def close(self) -> bool:
        """Stop listening and let go of every target; whether every thread ended, or one hangs."""
        if self._server is not None:
            self._server.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        ended = True
        parts = (*self._sweeps, *self._canaries, self._controls, *self._guards, self._journal)
        for part in parts:
            if part is not None:
                ended &= part.close(max(0.1, deadline - time.monotonic()))
        return ended

    def report(self, since: str) -> bytes:
        """The report for a caller with this cursor, as JSON; callable from any thread."""
        with self._snapshot:
            runs, cursor, lost = self._ring.since(since)
            families, environment, outputs = self._families, self._environment, self._outputs
        boot_id, started_at = self._boot_id, self._started_at
        return encode(
            Report(SCHEMA_VERSION, boot_id, started_at, cursor, lost, families, environment, runs, outputs)
        )

    def _run_guarded(self) -> None:
        try:
            self.serve()
            try:
                self.open()
            except UsageError:
                # Its canary stays `failing`, and is tried again: the others, and the host, go on.
                for canary in self._canaries:
                    if canary.mistake is not None:
                        log.error("canary %s: cannot be opened: %s", canary.name, canary.mistake)
            self.run()
        except UsageError as error:
            log.error("the probe cannot start: %s", error)
        except BaseException:
            log.exception("the probe stopped: this is a defect of the probe, the host is not affected")
        finally:
            self.close()

    def _open_journal(self, path: Path, max_bytes: int) -> list[Run]:
        """The runs that earlier probes wrote there last. Raises :class:`UsageError`."""
        if why := check(path):
            raise UsageError(f"journal: {why}")
        if max_bytes < _LEAST_JOURNAL_BYTES:
            raise UsageError(f"journal_bytes: {max_bytes} is too little; give {_LEAST_JOURNAL_BYTES} or more")
        self._journal = Journal(path, self._boot_id, max_bytes)
        try:
            return last_runs(path, _RING_RUNS // 2)
        except OSError as error:
            raise UsageError(
                f"journal: `{path}` cannot be read ({error.strerror}); mend its rights"
            ) from None

    def _compute_threads(self) -> int | None:
        """Of the canary that computes with most."""
        return max((canary.compute_threads for canary in self._canaries), default=0) or None

    def _places(self) -> dict[str, Place]:
        """Where the thread of each canary's last run was, where that went well, and which GPUs it worked for."""
        return {
            canary.name: canary.place._replace(gpus=self._gpus.get(canary.name))
            for canary in self._canaries
            if canary.place is not None
        }

    def _plan(self, schedule: Schedule) -> list[tuple[Canary, int]]:
        """Repeats for each open canary; the schedule stretched, or relaxed, to what the duty cap now needs."""
        canaries = [canary for canary in self._canaries if canary.is_open]
        fixed = sum(self._controls_cost(canary) for canary in canaries)
        repeats, interval = plan([c.repeat_cost for c in canaries], self._interval, self._runs_cap, fixed)
        if abs(interval / schedule.interval - 1) > 0.1:
            schedule.stretch(interval, time.monotonic())
            self._tally.set(INTERVAL, interval)
            log.info("a run every %.3g s keeps the duty under %.3g %%", interval, 100 * self._duty_cap)
        return list(zip(canaries, repeats, strict=True))

    def _controls_cost(self, canary: Canary) -> float:
        return self._controls.cost(canary.device) if self._controls is not None else 0.0

    def _wait_until(self, slot: float) -> bool:
        """Sleep until ``slot`` (monotonic), sampling on the way; False when the probe is stopped meanwhile."""
        while (left := slot - time.monotonic()) > 0:
            if self._stopping.wait(min(left, _SAMPLE_SECONDS)):
                return False
            if slot - time.monotonic() > _SAMPLE_SECONDS / 3:
                self._sample()
                self._publish()
        return not self._stopping.is_set()

    def _round(self, planned: list[tuple[Canary, int]], slot: float) -> tuple[list[Run], float]:
        """One round of every open canary, from ``slot`` (monotonic) on: the runs, and what they cost (s)."""
        runs = self._failed_opens()
        cost = 0.0
        self._is_beside_sweep = any(sweeping.is_running for sweeping in self._sweeps)
        rested = time.monotonic() - self._worked_until
        before = self._sample()
        # What NVML calls busy so soon after the probe's own work may be that work.
        quiet = before if rested >= _SETTLE_SECONDS else {}
        self._stopping.wait(max(0.0, slot - time.monotonic()))
        lateness = max(0.0, time.monotonic() - slot)
        self._tally.set(LATENESS, lateness)
        for canary, repeats in planned:
            if self._stopping.is_set():
                break
            started_at = time.time()
            if (done := canary.round(repeats, lateness)) is not None:
                if self._controls is not None:
                    # Where it gave way or hangs, the GPU is to be left alone. The CPU's say how the host does.
                    device = canary.device if done.latencies else "cpu"
                    done = done._replace(controls=self._controls.measure(device))
                self._worked_until = time.monotonic()
                # The sample says whether the canary was near them.
                self._gpus[canary.name] = _gpus(canary.gpus, before)
                after = self._sample()
                beside = self._controls.took if self._controls is not None else 0.0
                self._busy += done.busy + beside
                cost += done.cost + beside
                previous = self._last or self._first
                gpus = self._gpus[canary.name] = _gpus(canary.gpus, after)
                window = Window(done, lateness, self._first, previous, quiet, before, after, gpus)
                run = self._run(canary, done, started_at - lateness, started_at, tags(window))
                runs.append(msgspec.structs.replace(run, sm_clock=window.sm_clock, waited=window.waited))
                before = self._last = after
            lateness = 0.0  # a later canary of the round waits for the one before by intent
        self._observe_environment()
        return runs, cost

    def _sweep(self) -> bool:
        """One point of a sweep that is due, the longest due first; whether there was one.

        Right after a round, so that the next one is as far away as can be, and never beside a canary that opens.
        """
        for sweeping in sorted(self._sweeps, key=lambda sweeping: sweeping.due):
            if self._stopping.is_set() or any(canary.is_opening for canary in self._canaries):
                return False
            if took := sweeping.step(time.monotonic()):
                self._busy += took
                self._worked_until = time.monotonic()
                self._last = self._sample()  # what a sweep did to the host is not the next run's
                return True
        return False

    def _failed_opens(self) -> list[Run]:
        now = time.time()
        failed = ((canary, canary.failed_open()) for canary in self._canaries)
        return [self._run(canary, done, now, now, ()) for canary, done in failed if done is not None]

    def _run(
        self,
        canary: Canary,
        done: Round,
        scheduled_at: float,
        started_at: float,
        disturbed: tuple[str, ...],
    ) -> Run:
        self._sequence += 1
        beside = any(other.is_opening for other in self._canaries if other is not canary)
        state = state_tags(canary.state, beside_opening=beside, beside_sweep=self._is_beside_sweep)
        all_tags = (*state, *disturbed)
        canary.tag(all_tags, eligible=done.outcome == "ok" and not all_tags)
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
        )

    def _sample(self) -> Values:
        """Take a sample; the plain numbers in it."""
        begin = time.monotonic()
        for guard in self._guards:
            guard.sample(max(0.0, begin + PATIENCE_SECONDS - time.monotonic()))
        self._sampling = time.monotonic() - begin
        found = values(family for guard in self._guards for family in guard.families)
        for metric, points in found.items():  # a sampler may be late at first
            self._first.setdefault(metric, points)
        return found

    def _settle_samplers(self) -> None:
        """Sample until each sampler has answered or hangs, and what a GPU counts as busy is no longer the warm-up."""
        begin = time.monotonic()
        while True:
            self._sample()
            if self._stopping.wait(_SETTLE_SECONDS) or time.monotonic() - begin > _SETTLE_AT_MOST_SECONDS:
                return
            told = next((family for family in self._tally.families() if family.name == SUCCESS.name), None)
            if len(told.points if told else ()) == len(self._guards):
                return

    def _observe_environment(self) -> None:
        """Canaries may differ in a component (one on the CPU, one on a GPU): it then has all their values."""
        told: dict[str, set[str]] = {}
        for canary in self._canaries:
            for component, value in canary.environment.items():
                told.setdefault(component, set()).add(value)
        engines = {component: ", ".join(sorted(values)) for component, values in told.items()}
        if engines != self._engines:
            self._engines, self._environment = engines, fingerprint(engines)

    def _keep(self, runs: list[Run]) -> None:
        """Write them to the journal, and publish them. One that does not serve is a look beside a probe that does."""
        if self._journal is not None and self._server is not None:
            self._journal.append(runs, self._environment, self._reference_outputs())
            self._tally.set(JOURNAL_ERRORS, self._journal.lost)
        self._publish(runs)

    def _publish(self, runs: Iterable[Run] = ()) -> None:
        """Swap in a new snapshot, the runs with the numbers that count them; the server reads it under the lock."""
        cpu = time.thread_time() - self._cpu_before + sum(guard.cpu_seconds for guard in self._guards)
        self._tally.set(CPU, cpu + (self._server.cpu_seconds if self._server is not None else 0.0))
        self._tally.set(BUSY, self._busy)
        if self._running_since is not None and (elapsed := time.monotonic() - self._running_since) > 0:
            self._tally.set(DUTY, self._busy / elapsed)
        environment = ENVIRONMENT.family(dict.fromkeys(self._environment.items(), 1.0))
        sampled = (family for guard in self._guards for family in guard.families)
        families = (*self._tally.families(), *sampled, environment)
        outputs = self._reference_outputs()
        with self._snapshot:
            self._ring.extend(runs)
            self._families, self._outputs = families, outputs

    def _reference_outputs(self) -> dict[str, tuple[float, ...]]:
        return {c.name: c.output for c in self._canaries if c.output is not None}


def _gpus(ordinals: Iterable[int] | None, sample: Values) -> frozenset[str] | None:
    """NVML's indexes of the GPUs that have these numbers in CUDA; None where that cannot be told."""
    if ordinals is None:
        return None
    try:
        found = [gpus_at(pci_bus_id(ordinal), sample) for ordinal in ordinals]
    except (Unavailable, CudaError):
        return None
    return None if None in found else frozenset[str]().union(*filter(None, found))
