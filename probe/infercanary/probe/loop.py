"""The probe: on schedule and within its budget it samples, runs every canary, samples again, and reports."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType

from infercanary.command.settings import UsageError
from infercanary.contract.profile import Profile
from infercanary.contract.report import PATH, Report, Run, decode
from infercanary.probe.access import Access, ServerTls
from infercanary.probe.arguments import address, check, check_others, check_reserves, checked
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.duty import (
    BUSY,
    DUTY_CAP,
    INTERVAL,
    MISSED,
    PAID_WITHIN,
    RESTARTS,
    Burst,
)
from infercanary.probe.histogram import Tally
from infercanary.probe.journal import MAX_BYTES
from infercanary.probe.memory import Ended, HostMemory
from infercanary.probe.pace import bursts, pace
from infercanary.probe.pool import Pool
from infercanary.probe.profiling import SHARE, Profiling, profile_each
from infercanary.probe.publish import Publisher
from infercanary.probe.rounds import Rounds
from infercanary.probe.samplers import Sampler, make_samplers
from infercanary.probe.samplers.threads import Place
from infercanary.probe.sampling import Sampling
from infercanary.probe.schedule import Budget, Schedule, keep_for_sweeps, plan
from infercanary.probe.start import since_start
from infercanary.probe.sweep import Sweep, Sweeping
from infercanary.probe.targets import Target, adapt
from infercanary.probe.watcher import Memory

log = logging.getLogger("infercanary.probe")

_SAMPLE_SECONDS = 15.0  # samples go on between rounds that are far apart, and while a canary opens
_CLOSE_SECONDS = 2.0
_ONCE_LIMITED_SECONDS = 120.0


class Probe:
    """Runs canaries in this process, and answers the exporter.

    In a server, start it and forget it; or use it as a context manager::

        probe = Probe({"resnet18": TorchTarget(model, [{"shape": [1, 3, 224, 224]}])}, executor=pool)
        probe.start()

    INFERCANARY_INTERVAL_SECONDS, INFERCANARY_DUTY_CAP and INFERCANARY_BURST in the environment override arguments.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        listen: str | int = "[::]:9798",
        tls: ServerTls | None = None,
        token_file: str | None = None,
        interval_seconds: float = 10.0,
        duty_cap: float = 0.01,
        burst: bool | None = None,
        timeout_seconds: float = 30.0,
        open_timeout_seconds: float = 600.0,
        controls: bool = True,
        journal: str | os.PathLike[str] | None = None,
        journal_bytes: int = MAX_BYTES,
        memory_reserve: int | None = None,
        device_memory_reserve: int | None = None,
        sweeps: Mapping[str, Sweep] | None = None,
        profile: bool = False,
        samplers: Mapping[str, bool] | Iterable[Sampler] = MappingProxyType({}),
        executor: Executor | None = None,
        on_hang: Callable[[], Executor | None] | None = None,
    ) -> None:
        """Check the arguments. Nothing runs yet, and nothing raises into the host later.

        Args:
            targets: Name → what to execute and time; the names become the label ``canary``.
            listen: ``host:port``, a port alone for every address (IPv4 and IPv6), or ``unix:///path`` on a
                volume shared with the exporter.
            tls: Certificate and key to answer with; None for plain HTTP.
            token_file: Whose text the exporter must show; None for everybody.
            interval_seconds: Between runs, with a jitter of ±20 %; longer where the duty cap needs it.
            duty_cap: The largest share of the time that runs may take (0.01 = 1 %).
            burst: Whether runs may come more often in the first 15 minutes, from the duty of the first hour. By default
                where all canaries are known to run on the CPU, and without ``executor``: requests would wait for it.
            timeout_seconds: A run that takes longer counts as ``timed_out``.
            open_timeout_seconds: The same for loading.
            controls: Whether to measure the controls after each run: a few milliseconds, within the duty cap.
            journal: A file to which each run is appended as a line of JSON.
            journal_bytes: The most that it and the file before it, ``PATH.1``, take.
            memory_reserve: Bytes of host memory that are left alone when a canary is opened; by default 64 MiB, or 5 %
                of the limit where that is more.
            device_memory_reserve: The same of a GPU's memory; by default 256 MiB, or 2 % of it where that is more.
            sweeps: Name → what to sweep of that canary, within the duty cap.
            profile: Whether repeats are profiled now and then, within the duty cap, where the engine has a profiler.
            samplers: Name → whether it is on, where that is not its default; or samplers in place of the built-in ones.
            executor: The server's own pool, if it runs its model in one: each repeat then takes its turn there, on the
                threads that serve. Otherwise canaries run in a thread of the probe's own.
            on_hang: Called in the probe's thread when a canary holds a thread of that pool past its deadline. It may
                return another pool to use from then on, so that a server with few threads goes on serving.

        Raises:
            UsageError: An argument that cannot be meant.
        """
        check(targets, interval_seconds, timeout_seconds, open_timeout_seconds, duty_cap)
        check_others(executor, on_hang, controls, samplers)
        check_reserves(memory_reserve=memory_reserve, device_memory_reserve=device_memory_reserve)
        given = interval_seconds, duty_cap
        interval_seconds, duty_cap = pace(*given)
        if (interval_seconds, duty_cap) != given:
            log.info("by the environment: a run every %g s, a duty of %g at most", interval_seconds, duty_cap)
        targets = {name: adapt(target) for name, target in targets.items()}
        self._targets = targets
        self._listen = address(listen)
        self._access = Access(tls, token_file)
        self._interval = interval_seconds
        self._duty_cap = duty_cap
        self._burst = bursts(burst if executor is None else bool(burst))
        self._tally = Tally()
        pool = Pool(executor, on_hang) if executor is not None else None
        wanted = {name: checked(name, sweep, targets) for name, sweep in (sweeps or {}).items()}
        points = {name: {"batches": s.batches, "concurrency": s.concurrency} for name, s in wanted.items()}
        self._memory = Memory(targets, HostMemory(memory_reserve), device_memory_reserve)
        self._canaries = [
            Canary(
                name, target, self._tally, timeout_seconds, open_timeout_seconds, pool,
                sweep=points.get(name), memory=self._memory,
            )
            for name, target in targets.items()
        ]  # fmt: skip
        kept, intervals = keep_for_sweeps([(s.seconds, s.every_seconds) for s in wanted.values()], duty_cap)
        profilable = [
            canary for canary in self._canaries if profile and targets[canary.name].profiler != "none"
        ]
        kept_for_profiles = SHARE * duty_cap if profilable else 0.0
        self._runs_cap = duty_cap - kept - kept_for_profiles
        swept = {canary.name: canary for canary in self._canaries if canary.name in wanted}
        self._sweeps = [
            Sweeping(
                swept[name], targets[name], sweep, interval, timeout_seconds, self._tally, self._memory, pool
            )
            for (name, sweep), interval in zip(wanted.items(), intervals, strict=True)
        ]  # fmt: skip
        self._profiles = [
            Profiling(c, targets[c.name], kept_for_profiles / len(profilable), timeout_seconds, pool)
            for c in profilable
        ]
        self._controls = Controls(self._tally) if controls else None
        if isinstance(samplers, Mapping):
            samplers = make_samplers(samplers, compute_threads=self._compute_threads, places=self._places)
        self._sampling = Sampling(samplers, self._tally)
        self._publisher = Publisher(
            self._tally, self._sampling, self._canaries, journal, journal_bytes, self._controls
        )
        self._stopping = threading.Event()
        self._rounds = Rounds(
            self._canaries, self._sweeps, self._controls, self._sampling, self._memory, self._tally,
            self._stopping, self._profiles,
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._tally.set(INTERVAL, interval_seconds)
        self._tally.set(DUTY_CAP, duty_cap)
        self._tally.add(MISSED, 0)

    @property
    def address(self) -> str:
        """Where it answers; empty before it does."""
        return self._publisher.address

    def start(self) -> None:
        """Serve and run in a daemon thread. Never raises into the host: failures are logged.

        Start it in the process that serves: threads do not survive a fork (gunicorn: in ``post_fork``).
        """
        if self._thread is not None:
            if os.getpid() != self._pid:
                log.error(
                    "the probe was started before this process was forked; make and start another one here"
                )
            return
        self._pid = os.getpid()
        for canary in self._canaries:
            canary.be_a_guest()
        for profiling in self._profiles:
            profiling.is_guest = True
        self._thread = threading.Thread(target=self._run_guarded, name="infercanary-probe", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the host is out of threads, or about to exit
            log.error("the probe cannot start: %s", error)
        else:
            # A daemon thread that the interpreter cuts off inside a model's C++ code can abort the whole process.
            atexit.register(self.stop)

    def stop(self, seconds: float = 5.0) -> None:
        """Stop, after the run under way, for which it waits ``seconds`` at most. Never raises; any thread may call.

        Args:
            seconds: Also 0: the run under way is then interrupted.
        """
        atexit.unregister(self.stop)
        # In a forked child there are no threads of this probe, and its locks may be held for ever.
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        self._memory.stop()
        for sweeping in self._sweeps:
            sweeping.interrupt()
        for profiling in self._profiles:
            profiling.interrupt()
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

    def own_process(self, ended: Sequence[Ended]) -> None:
        """Start this process anew where memory runs out, as the one before it did. Call it before :meth:`open`.

        Args:
            ended: What the process before this one ended; it is left alone.
        """
        self._memory.own_process(ended)

    def serve(self) -> None:
        """Listen: the first of the three steps of :meth:`start`. Raises :class:`UsageError` where it cannot."""
        self._tally.set(BUSY, self._rounds.busy)
        self._publisher.serve(self._listen, self._access)

    def open(self) -> None:
        """Load and warm up every canary, one after another: side by side they would disturb one another's warm-up.

        The second step. Whatever fails is tried again while running.

        Raises:
            UsageError: The first mistake in the settings, after all canaries were tried.
        """
        for canary in self._canaries:
            begin = time.monotonic()
            while canary.state == "opening" and not canary.limited_seconds and not self._stopping.is_set():
                canary.open(_SAMPLE_SECONDS)
                if canary.is_opening and not self._stopping.is_set():
                    log.info(
                        "canary %s: still loading, waiting for its server or warming up after %.0f s",
                        canary.name,
                        time.monotonic() - begin,
                    )
                    self._sampling.take()
                self._close_for_memory()
                self._publisher.observe_environment()
                self._publisher.keep(self._rounds.failed())
        for canary in self._canaries:
            if canary.mistake is not None:
                raise UsageError(f"canaries.{canary.name}: {canary.mistake}")

    def run(self) -> None:
        """Run rounds on schedule until :meth:`stop` is called from another thread: the third step."""
        if self._stopping.is_set():
            return
        at = self.address if self.address.startswith("unix:") else f"{self.address}{PATH}"
        log.info("the report is at %s", at)
        now = self._rounds.worked_until = time.monotonic()
        schedule = Schedule(self._interval, now)
        budget = Budget(self._runs_cap, now)
        if may_burst := self._may_burst():
            log.info("for some minutes runs come more often, from the duty of the first hour (`burst`)")
        burst = Burst(self._runs_cap, now, may_burst)
        for sweeping in self._sweeps:
            sweeping.start(now)
        self._sampling.take()
        self._publish()
        while True:
            planned, cost, steady = self._plan()
            gives_way = any(canary.gives_way for canary in self._canaries)
            interval, share = burst.plan(cost, steady, time.monotonic(), gives_way)
            budget.fill_at(share, time.monotonic())
            self._pace(schedule, interval, logging.DEBUG if burst.is_on else logging.INFO)
            slot, missed = schedule.next(time.monotonic())
            self._tally.add(MISSED, missed)
            slot = max(slot, budget.ready_at(cost, time.monotonic()))
            # The sample before a run is taken first, so that the run begins in its slot.
            if not self._wait_until(slot - self._rounds.lead):
                return
            for canary in self._canaries:
                canary.open(0)  # those that failed are tried again, beside the others' runs, which are tagged
            runs, cost = self._rounds.run(planned, slot)
            self._publisher.observe_environment()
            for account in (budget, burst):
                account.spend(cost, time.monotonic())
            self._tally.set(BUSY, self._rounds.busy)
            self._publisher.keep(runs)
            if self._rounds.sweep() or self._rounds.profile():
                self._publish()

    def once(self, rounds: int = 1) -> Report | None:
        """Run one round now, with neither port nor journal: the report, or None where it was stopped meanwhile.

        Call it after :meth:`open`, in place of the other two steps. A canary that could not be opened is left alone.

        Args:
            rounds: Or so many, one right after the other.

        Returns:
            What an exporter would get; None where the probe was stopped.
        """
        self._sampling.settle(self._stopping)
        # The first measurement of the controls takes longer, and is not what they cost.
        for canary in 2 * self._canaries:
            if self._controls is not None and canary.is_open:
                self._controls.measure(canary.device)
        while self._rounds.profile():  # its run has it
            pass
        for number in range(rounds):
            runs = self._round_within_limits()
            if self._stopping.is_set():
                return None
            if number < rounds - 1:
                self._publisher.publish(runs)
        # What a round costs is known now.
        self._pace(Schedule(self._interval, time.monotonic()), self._plan()[2])
        self._publisher.observe_environment(final=True)
        self._tally.set(BUSY, self._rounds.busy)
        self._publisher.publish(runs)
        return decode(self.report(""))

    def _round_within_limits(self) -> list[Run]:
        """Run one round; canaries whose server refuses requests for their rate run again when it allows that."""
        deadline = time.monotonic() + _ONCE_LIMITED_SECONDS
        planned = self._plan()[0]
        runs: list[Run] = []
        while True:
            wait = max((canary.limited_seconds for canary, _ in planned), default=0.0)
            self._stopping.wait(max(0.0, min(wait, deadline - time.monotonic())))
            runs += self._rounds.run(planned, time.monotonic())[0]
            left = deadline - time.monotonic()
            planned = [entry for entry in planned if 0 < entry[0].limited_seconds < left]
            if not planned or self._stopping.is_set():
                return runs

    def profile(self, trace: Path | None = None) -> dict[str, Profile | str]:
        """Profile every canary now, apart from any schedule. Call it after :meth:`open`, in place of :meth:`run`.

        Args:
            trace: Where a trace for Perfetto is written; of several canaries each gets its name before the suffix.

        Returns:
            Canary → its profile, or one line that says why there is none.
        """
        return profile_each(self._canaries, self._targets, trace)

    def close(self) -> bool:
        """Stop listening and let go of every target; False where a thread hangs."""
        self._memory.stop()
        self._publisher.stop_serving()
        deadline = time.monotonic() + _CLOSE_SECONDS
        ended = True
        parts = (
            *self._sweeps,
            *self._profiles,
            *self._canaries,
            self._controls,
            self._sampling,
            self._publisher,
        )
        for part in parts:
            if part is not None:
                ended &= part.close(max(0.1, deadline - time.monotonic()))
        return ended

    def report(self, since: str) -> bytes:
        """The report for a caller with this cursor, as JSON; callable from any thread.

        Args:
            since: The cursor of the caller's last report; empty to begin with the oldest run that is kept.
        """
        return self._publisher.report(since)

    def _run_guarded(self) -> None:
        try:
            self.serve()
            try:
                self.open()
            except UsageError:
                # Its canary stays `failing` and is tried again; the others, and the host, go on.
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

    def _compute_threads(self) -> int | None:
        """The threads of the canary that computes with most."""
        return max((canary.compute_threads for canary in self._canaries), default=0) or None

    def _places(self) -> Mapping[str, Place]:
        return self._rounds.places()

    def _plan(self) -> tuple[list[tuple[Canary, int]], float, float]:
        """The repeats of each open canary, the busy seconds of that round, and the interval that the duty cap needs."""
        canaries = [canary for canary in self._canaries if canary.is_open]
        fixed = sum(self._controls_cost(canary) for canary in canaries)
        repeats, interval = plan([c.repeat_cost for c in canaries], self._interval, self._runs_cap, fixed)
        cost = fixed + sum(n * c.repeat_cost for c, n in zip(canaries, repeats, strict=True))
        return list(zip(canaries, repeats, strict=True)), cost, interval

    def _pace(self, schedule: Schedule, interval: float, level: int = logging.INFO) -> None:
        """Go on with a run in every ``interval`` seconds, where that is another pace than now, which is logged."""
        if abs(interval / schedule.interval - 1) > 0.1:
            schedule.stretch(interval, time.monotonic())
            self._tally.set(INTERVAL, interval)
            log.log(level, "a run every %.3g s: the duty cap is %.3g %%", interval, 100 * self._duty_cap)

    def _may_burst(self) -> bool:
        """Whether runs may come more often at first: where it is wanted, and the container has just started."""
        by_default = all(canary.gpus == () for canary in self._canaries)
        wanted = by_default if self._burst is None else self._burst
        return wanted and since_start() is not None and self._publisher.starts_within(PAID_WITHIN) < RESTARTS

    def _controls_cost(self, canary: Canary) -> float:
        return self._controls.cost(canary.device) if self._controls is not None else 0.0

    def _wait_until(self, slot: float) -> bool:
        """Sleep until ``slot`` (monotonic), sampling on the way; False when the probe is stopped meanwhile."""
        while (left := slot - time.monotonic()) > 0:
            self._memory.alarm.wait(min(left, _SAMPLE_SECONDS))
            self._memory.alarm.clear()
            if self._stopping.is_set():
                return False
            self._close_for_memory()
            if slot - time.monotonic() > _SAMPLE_SECONDS / 3:
                self._sampling.take()
                self._publish()
        return not self._stopping.is_set()

    def _close_for_memory(self) -> None:
        """Close the canaries whose memory the server needs."""
        while self._memory.closing:
            ended = self._memory.closing[0]
            for canary in self._canaries:
                if canary.name == ended.canary:
                    canary.close_for_memory(ended)
            self._memory.closing.remove(ended)

    def _publish(self) -> None:
        self._tally.set(BUSY, self._rounds.busy)
        self._publisher.publish()
