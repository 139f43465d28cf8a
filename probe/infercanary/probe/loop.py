"""The probe's loop: samples, runs every canary, samples again and reports, on schedule and within the duty budget."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infercanary.command.settings import UsageError
from infercanary.contract.profile import Profile
from infercanary.contract.report import PATH, Report, decode
from infercanary.probe.access import Access
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.deadline import close_all
from infercanary.probe.duty import DUTY_CAP, INTERVAL, MISSED, PAID_WITHIN, RESTARTS, Burst
from infercanary.probe.histogram import Tally
from infercanary.probe.memory import Ended, HostMemory
from infercanary.probe.pool import Pool
from infercanary.probe.profiling import SHARE, Profiling, profile_each
from infercanary.probe.publish import Publisher
from infercanary.probe.rounds import Rounds
from infercanary.probe.samplers import make_samplers
from infercanary.probe.samplers.threads import Place
from infercanary.probe.sampling import Sampling
from infercanary.probe.schedule import Budget, Schedule, keep_for_sweeps, plan
from infercanary.probe.settings import Settings, burst_wanted, check_sweep, check_targets, make_settings
from infercanary.probe.start import since_start
from infercanary.probe.sweep import Sweep, Sweeping
from infercanary.probe.targets import Target, adapt
from infercanary.probe.watcher import Memory

if TYPE_CHECKING:
    from infercanary.probe.roofline import CanaryLimit

log = logging.getLogger("infercanary.probe")

_SAMPLE_SECONDS = 15.0  # longest time between two samples, if the interval is long or a canary opens
_CLOSE_SECONDS = 2.0


class Probe:
    """Runs canaries in this process, and answers the exporter.

    In a server, start the probe once; or use it as a context manager::

        probe = Probe({"resnet18": TorchTarget(model, [{"shape": [1, 3, 224, 224]}])}, executor=pool)
        probe.start()
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        settings: Settings | None = None,
        *,
        sweeps: Mapping[str, Sweep] | None = None,
        executor: Executor | None = None,
        on_hang: Callable[[], Executor | None] | None = None,
        **changes: Any,
    ) -> None:
        """Check the arguments. Nothing runs yet; later, the probe raises no errors in the server.

        Args:
            targets: Name → target to run and time. The names become the label ``canary``.
            sweeps: Name → sweep of that canary, within the duty cap.
            executor: The server's own pool, if the server runs its model in a pool: each repeat then waits for a turn
                in the pool, and runs on the threads that serve. Otherwise canaries run in a thread of the probe.
            on_hang: Function called in the probe's thread if a canary holds a thread of that pool past its deadline.
                The function may return a new pool for later runs, so that a server with few threads can continue to
                serve.
            changes: Settings by name, as in :class:`~infercanary.probe.settings.Settings`.

        Raises:
            UsageError: An invalid argument.
        """
        check_targets(targets)
        targets = {name: adapt(target) for name, target in targets.items()}
        self.settings = settings = make_settings(settings or Settings(), changes)
        burst = burst_wanted()
        self._burst = False if burst is None and executor is not None else burst
        self._access = Access(settings.tls, settings.token_file)
        self._tally = Tally()
        self._memory = Memory(targets, HostMemory(settings.memory_reserve), settings.device_memory_reserve)
        pool = Pool(executor, on_hang) if executor is not None else None
        sweeps = {name: check_sweep(name, sweep, targets) for name, sweep in (sweeps or {}).items()}
        points = {name: {"batches": s.batches, "concurrency": s.concurrency} for name, s in sweeps.items()}
        canaries = {
            name: Canary(name, target, self._tally, settings.timeout_seconds, settings.open_timeout_seconds, pool,
                         sweep=points.get(name), memory=self._memory)
            for name, target in targets.items()
        }  # fmt: skip
        self._canaries = list(canaries.values())
        kept, intervals = keep_for_sweeps(
            [(s.seconds, s.every_seconds) for s in sweeps.values()], settings.duty_cap
        )
        self._between: list[Sweeping | Profiling] = [
            Sweeping(canaries[name], sweep, interval, self._tally, self._memory)
            for (name, sweep), interval in zip(sweeps.items(), intervals, strict=True)
        ]
        profiled = [
            name for name, target in targets.items() if settings.profile and target.profiler != "none"
        ]
        share = SHARE * settings.duty_cap if profiled else 0.0
        self._between += [
            Profiling(canaries[name], share / len(profiled), self._tally, self._memory) for name in profiled
        ]
        self._runs_cap = settings.duty_cap - kept - share
        self._controls = Controls(self._tally) if settings.controls else None
        samplers = make_samplers(
            settings.samplers, compute_threads=self._compute_threads, places=self._places
        )
        self._sampling = Sampling(samplers, self._tally)
        self._publisher = Publisher(
            self._tally, self._sampling, self._canaries, self._controls, settings.journal
        )
        self._stopping = threading.Event()
        self._rounds = Rounds(
            self._canaries, self._between, self._controls, self._sampling, self._memory, self._tally,
            self._stopping,
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._tally.set(INTERVAL, settings.interval_seconds)
        self._tally.set(DUTY_CAP, settings.duty_cap)
        self._tally.add(MISSED, 0)

    @property
    def address(self) -> str:
        """Address of the report; empty until the probe serves."""
        return self._publisher.address

    def start(self) -> None:
        """Serve and run in a daemon thread. Never raises; failures are logged.

        Call this in the process that serves, because threads do not survive a fork (gunicorn: in ``post_fork``).
        """
        if self._thread is not None:
            if os.getpid() != self._pid:
                log.error(
                    "the probe was started before this process was forked; make and start a new probe in this process"
                )
            return
        self._pid = os.getpid()
        for canary in self._canaries:
            canary.be_a_guest()
        for work in self._between:
            work.is_guest = True
        self._thread = threading.Thread(target=self._run_guarded, name="infercanary-probe", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads can be started, or Python is exiting
            log.error("the probe cannot start: %s", error)
        else:
            # If the interpreter stops a daemon thread inside a model's C++ code, the whole process may abort.
            atexit.register(self.stop)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop after the present run, but wait at most ``seconds`` for it. Never raises. Callable from any thread."""
        atexit.unregister(self.stop)
        # A forked child lacks the threads of this probe, and the probe's locks may be held forever.
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        self._memory.stop()
        thread = self._thread if self._thread is not None and self._thread.is_alive() else None
        for work in self._between:
            work.interrupt()
        for canary in self._canaries:
            # the loading of a model can be interrupted without harm
            if thread is None or seconds <= 0 or not canary.is_open:
                canary.interrupt()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(seconds)
        for canary in self._canaries:
            canary.interrupt()
        if self._controls is not None:
            self._controls.interrupt()
        thread.join(_CLOSE_SECONDS + 1)
        if thread.is_alive():
            log.warning("the probe did not stop in time; the thread ends with the process")

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def own_process(self, ended: Sequence[Ended]) -> None:
        """Allow this process to restart itself if memory runs out. Call this method before :meth:`open`.

        Args:
            ended: Canaries and sweep points that the previous process ended. They stay closed.
        """
        self._memory.own_process(ended)

    def serve(self) -> None:
        """Listen: the first of the three steps of :meth:`start`.

        Raises:
            UsageError: The address cannot be used.
        """
        self._publisher.serve(str(self.settings.listen), self._access)

    def open(self) -> None:
        """Load and warm up every canary, one after another: the second step. Retry failed canaries later.

        Raises:
            UsageError: The first mistake in the settings, after all canaries were tried.
        """
        for canary in self._canaries:
            while canary.state == "opening" and not self._stopping.is_set():
                canary.open(_SAMPLE_SECONDS)
                if canary.is_opening and not self._stopping.is_set():
                    log.info("canary %s: still loading, waiting for its server or warming up", canary.name)
                    self._sampling.take()
                self._close_for_memory()
                self._publisher.observe_environment()
                self._publisher.publish(self._rounds.failed())
        # Warm up the controls before the first run: their memory must be in the measures of all runs alike.
        for canary in 2 * self._canaries:
            if self._controls is not None and canary.is_open:
                self._controls.measure(canary.device)
        for canary in self._canaries:
            if canary.mistake is not None:
                raise UsageError(f"canaries.{canary.name}: {canary.mistake}")

    def run(self) -> None:
        """Run rounds on schedule until :meth:`stop` is called from another thread: the third step."""
        if self._stopping.is_set():
            return
        log.info("the report is at %s%s", self.address, "" if self.address.startswith("unix:") else PATH)
        now = self._rounds.worked_until = time.monotonic()
        schedule = Schedule(self.settings.interval_seconds, now)
        budget = Budget(self._runs_cap, now)
        if may_burst := self._may_burst():
            log.info("runs are more frequent for some minutes, within the duty of the first hour (a burst)")
        burst = Burst(self._runs_cap, now, may_burst)
        self._sampling.take()
        self._publisher.publish()
        while True:
            planned, cost, steady = self._plan()
            gives_way = any(canary.gives_way for canary in self._canaries)
            interval, share = burst.plan(cost, steady, time.monotonic(), gives_way)
            self._set_interval(schedule, interval, logging.DEBUG if burst.is_on else logging.INFO)
            slot, missed = schedule.next(time.monotonic())
            self._tally.add(MISSED, missed)
            slot = max(slot, budget.ready_at(cost, share, time.monotonic()))
            # Sample before the slot, so that the run begins in its slot.
            if not self._wait_until(slot - self._rounds.lead):
                return
            for canary in self._canaries:
                canary.open(0)  # failed canaries open again while other canaries run; these runs get a tag
            runs, cost = self._rounds.run(planned, slot)
            self._publisher.observe_environment()
            for account in (budget, burst):
                account.spend(cost, time.monotonic())
            self._publisher.publish(runs)
            if self._rounds.work_between():
                self._publisher.publish()

    def once(self, rounds: int = 1) -> Report | None:
        """Run rounds now, without port and journal. Return the report, or None if the probe was stopped.

        Call this method after :meth:`open`, without :meth:`serve` and :meth:`run`. There is no pause between rounds.
        """
        self._between[:] = [work for work in self._between if isinstance(work, Profiling)]  # no sweep
        self._sampling.settle(self._stopping)
        while self._rounds.work_between():  # profile first, so that the run contains the profile
            pass
        for _ in range(rounds):
            runs, _ = self._rounds.run(self._plan()[0], time.monotonic())
            if self._stopping.is_set():
                return None
            self._publisher.publish(runs)
        # Plan again: the cost of a round is known only now.
        self._set_interval(Schedule(self.settings.interval_seconds, time.monotonic()), self._plan()[2])
        self._publisher.observe_environment(final=True)
        self._publisher.publish()
        return decode(self.report(""))

    def profile(self, trace: Path | None = None) -> dict[str, Profile | str]:
        """Profile every canary now, after :meth:`open` and instead of :meth:`run`; see :func:`profile_each`."""
        return profile_each(self._canaries, trace)

    def limits(self) -> list[CanaryLimit]:
        """Find the limit of every canary now, after :meth:`open` and instead of :meth:`run`; see :mod:`.limits`."""
        # imported here, because a probe that runs permanently does not need this module
        from infercanary.probe.limits import limit_each

        return limit_each(self._canaries)

    def close(self) -> bool:
        """Stop listening and close every target. False if a thread hangs."""
        self._memory.stop()
        self._publisher.stop_serving()
        parts = [*self._between, *self._canaries, self._sampling, self._publisher, self._controls]
        return close_all([part.close for part in parts if part is not None], _CLOSE_SECONDS)

    def report(self, since: str) -> bytes:
        """Return the report as JSON, with the runs after the cursor ``since``; "" begins with the oldest kept run."""
        return self._publisher.report(since)

    def _run_guarded(self) -> None:
        try:
            self.serve()
            try:
                self.open()
            except UsageError:
                # Canaries with mistakes stay `failing` and are retried; the other canaries and the server continue.
                for canary in self._canaries:
                    if canary.mistake is not None:
                        log.error("canaries.%s: %s", canary.name, canary.mistake)
            self.run()
        except UsageError as error:
            log.error("the probe cannot start: %s", error)
        except BaseException:
            log.exception("the probe stopped: this is a defect of the probe; the server is not affected")
        finally:
            self.close()

    def _compute_threads(self) -> int | None:
        """Return the largest number of a canary's compute threads; None if unknown."""
        return max((canary.compute_threads for canary in self._canaries), default=0) or None

    def _places(self) -> Mapping[str, Place]:
        return self._rounds.places()

    def _plan(self) -> tuple[list[tuple[Canary, int]], float, float]:
        """Plan a round: repeats of each open canary, busy seconds, and the interval that the duty cap requires."""
        canaries = [canary for canary in self._canaries if canary.is_open]
        fixed = sum(self._controls.cost(c.device) for c in canaries) if self._controls is not None else 0.0
        costs = [canary.repeat_cost for canary in canaries]
        repeats, interval = plan(costs, self.settings.interval_seconds, self._runs_cap, fixed)
        busy = fixed + sum(n * cost for n, cost in zip(repeats, costs, strict=True))
        return list(zip(canaries, repeats, strict=True)), busy, interval

    def _set_interval(self, schedule: Schedule, interval: float, level: int = logging.INFO) -> None:
        if abs(interval / schedule.interval - 1) > 0.1:
            schedule.stretch(interval, time.monotonic())
            self._tally.set(INTERVAL, interval)
            cap = 100 * self.settings.duty_cap
            log.log(level, "a run every %.3g s, because the duty cap is %.3g %%", interval, cap)

    def _may_burst(self) -> bool:
        """True if a burst is allowed: the user wants it, the container has just started, and recent starts are few."""
        wanted = all(canary.gpus == () for canary in self._canaries) if self._burst is None else self._burst
        return wanted and since_start() is not None and self._publisher.starts_within(PAID_WITHIN) < RESTARTS

    def _wait_until(self, slot: float) -> bool:
        """Sleep until ``slot`` (monotonic), and take samples in the meantime. False if the probe was stopped."""
        while (seconds := slot - time.monotonic()) > 0:
            self._memory.alarm.wait(min(seconds, _SAMPLE_SECONDS))
            self._memory.alarm.clear()
            if self._stopping.is_set():
                return False
            self._close_for_memory()
            if slot - time.monotonic() > _SAMPLE_SECONDS / 3:
                self._sampling.take()
                self._publisher.publish()
        return not self._stopping.is_set()

    def _close_for_memory(self) -> None:
        """Close the canaries whose memory the server needs."""
        for ended in list(self._memory.closing):
            next(c for c in self._canaries if c.name == ended.canary).close_for_memory(ended)
            self._memory.closing.remove(ended)
