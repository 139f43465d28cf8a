"""The probe: on schedule and within its budget it samples, runs every canary, samples again, and reports."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping

from infercanary.probe.canary import Canary, Round
from infercanary.probe.environment import ENVIRONMENT, fingerprint
from infercanary.probe.histogram import Tally
from infercanary.probe.report import SCHEMA_VERSION, Family, Metric, Report, Run, encode
from infercanary.probe.ring import Ring
from infercanary.probe.samplers import Guard, Sampler, available
from infercanary.probe.schedule import Budget, Schedule, plan
from infercanary.probe.serve import Server
from infercanary.probe.targets import Target
from infercanary.settings import UsageError

log = logging.getLogger("infercanary.probe")

START = Metric("infercanary_probe_start_timestamp_seconds", "gauge", "When the probe started, Unix time.")
INTERVAL = Metric(
    "infercanary_interval_seconds",
    "gauge",
    "Time between runs: as configured, or longer where the duty cap needs it.",
)
MISSED = Metric(
    "infercanary_missed_slots_total",
    "counter",
    "Scheduled rounds that were missed because the one before was still going.",
)
LATENESS = Metric(
    "infercanary_lateness_seconds", "gauge", "How much later than intended the last round started."
)
BUSY = Metric(
    "infercanary_busy_seconds_total", "counter", "Wall time spent in scheduled runs (warm-up is not in it)."
)
DUTY = Metric(
    "infercanary_duty_ratio", "gauge", "Share of the time since warm-up that was spent in scheduled runs."
)
DUTY_CAP = Metric("infercanary_duty_cap_ratio", "gauge", "The cap that the duty is held under.")
CPU = Metric(
    "infercanary_probe_cpu_seconds_total",
    "counter",
    "CPU time of the probe's loop, outside the canaries' own work.",
)

_RING_RUNS = 2048
_SAMPLE_SECONDS = 15.0  # samples go on between rounds that are far apart


class Probe:
    """Runs canaries in this process and answers the exporter. ``start()`` and forget, or drive it step by step.

    ``targets``          name → what to execute and time; the names become the ``canary`` label.
    ``listen``           ``host:port``, or ``unix:///path`` on a volume shared with the exporter.
    ``interval_seconds`` between runs, jittered by ±20 %; stretched where the duty cap needs it.
    ``duty_cap``         the most that runs may take of the elapsed time (0.01 = 1 %).
    ``timeout_seconds``  a run that takes longer counts as ``timed_out``; ``open_timeout_seconds`` likewise for loading.
    ``samplers``         None for all built-in ones.
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
        samplers: Iterable[Sampler] | None = None,
    ) -> None:
        self.address = ""
        self._listen = listen
        self._interval = interval_seconds
        self._duty_cap = duty_cap
        self._boot_id = uuid.uuid4().hex
        self._started_at = time.time()
        self._tally = Tally()
        self._canaries = [
            Canary(name, target, self._tally, timeout_seconds, open_timeout_seconds)
            for name, target in targets.items()
        ]
        self._guards = [Guard(s, self._tally) for s in (available() if samplers is None else samplers)]
        self._ring = Ring(self._boot_id, _RING_RUNS)
        self._sequence = 0
        self._environment: dict[str, str] = {}
        self._families: tuple[Family, ...] = ()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._server: Server | None = None
        self._tally.set(START, self._started_at)
        self._tally.set(INTERVAL, interval_seconds)
        self._tally.set(DUTY_CAP, duty_cap)
        self._tally.add(MISSED, 0)
        self._tally.add(BUSY, 0)

    def start(self) -> None:
        """Serve and run in a daemon thread. Never raises into the host: what goes wrong is logged.

        Start it in the process that serves: threads do not survive a fork (gunicorn: in ``post_fork``).
        """
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run_guarded, name="infercanary-probe", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop cleanly: the run under way ends first, for at most ``seconds``. Never raises."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                log.warning("the probe did not stop within %g s: a canary is still running", seconds)

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self) -> None:
        """Listen. Raises :class:`UsageError` where that is not possible. First of the three steps of :meth:`start`."""
        self._sample()
        self._publish()
        self._server = Server(self._listen, self.report)
        self.address = self._server.address
        log.info("the report is at %s/report", self.address)

    def open(self) -> None:
        """Load and warm up every canary. Raises the first :class:`UsageError`, after all were tried."""
        mistakes = []
        for canary in self._canaries:
            if self._stopping.is_set():
                return
            log.info("canary %s: opening and warming up", canary.name)
            try:
                canary.open()
            except UsageError as error:
                mistakes.append(UsageError(f"canary {canary.name}: {error}"))
            self._observe_environment()
            self._publish()
        if mistakes:
            raise mistakes[0]

    def run(self) -> None:
        """Rounds on schedule until :meth:`stop` is called from another thread or a signal handler."""
        now = time.monotonic()
        schedule = Schedule(self._interval, now)
        budget = Budget(self._duty_cap, now)
        steady_since, busy_total = now, 0.0
        while not self._stopping.is_set():
            repeats = self._plan(schedule)
            slot, missed = schedule.next(time.monotonic())
            self._tally.add(MISSED, missed)
            cost = sum(n * c.repeat_cost for n, c in zip(repeats, self._canaries, strict=True))
            slot = max(slot, budget.ready_at(cost, time.monotonic()))
            if not self._wait_until(slot):
                return
            self._tally.set(LATENESS, time.monotonic() - slot)
            scheduled_at = time.time() - (time.monotonic() - slot)
            busy = self._round(repeats, scheduled_at)
            busy_total += busy
            budget.spend(busy, time.monotonic())
            self._tally.add(BUSY, busy)
            self._tally.set(DUTY, busy_total / (time.monotonic() - steady_since))
            self._tally.set(CPU, time.thread_time())
            self._publish()

    def close(self) -> None:
        """Stop listening and let go of every target."""
        if self._server is not None:
            self._server.close()
        for canary in self._canaries:
            canary.close(1.0)
        for guard in self._guards:
            guard.close()

    def report(self, since: str) -> bytes:
        """The report for a caller with this cursor, as JSON; callable from any thread."""
        runs, cursor, lost = self._ring.since(since)
        return encode(
            Report(
                SCHEMA_VERSION,
                self._boot_id,
                self._started_at,
                cursor,
                lost,
                self._families,
                self._environment,
                runs,
            )
        )

    def _run_guarded(self) -> None:
        try:
            self.serve()
            try:
                self.open()
            except UsageError as error:
                # Its canary stays `failing`, and is tried again: the others, and the host, go on.
                log.error("%s", error)
            self.run()
        except UsageError as error:
            log.error("the probe cannot start: %s", error)
        except BaseException:
            log.exception("the probe stopped: this is a defect of the probe, the host is not affected")
        finally:
            self.close()

    def _plan(self, schedule: Schedule) -> list[int]:
        """Repeats for each canary; the schedule stretched, or relaxed, to what the duty cap now needs."""
        costs = [canary.repeat_cost for canary in self._canaries]
        repeats, interval = plan(costs, self._interval, self._duty_cap)
        if abs(interval / schedule.interval - 1) > 0.1:
            schedule.stretch(interval, time.monotonic())
            self._tally.set(INTERVAL, interval)
            log.info("a run every %.3g s keeps the duty under %.3g %%", interval, 100 * self._duty_cap)
        return repeats

    def _wait_until(self, slot: float) -> bool:
        """Sleep until ``slot`` (monotonic), sampling on the way; False when the probe is stopped meanwhile."""
        while (left := slot - time.monotonic()) > 0:
            if self._stopping.wait(min(left, _SAMPLE_SECONDS)):
                return False
            if slot - time.monotonic() > _SAMPLE_SECONDS / 3:
                self._sample()
                self._publish()
        return not self._stopping.is_set()

    def _round(self, repeats: list[int], scheduled_at: float) -> float:
        """One round of every canary; the busy seconds."""
        self._sample()
        busy = 0.0
        for canary, count in zip(self._canaries, repeats, strict=True):
            started_at = time.time()
            done = canary.round(count)
            if done is not None:
                busy += done.busy
                self._ring.append(self._run(canary, done, scheduled_at, started_at))
        self._observe_environment()
        self._sample()
        return busy

    def _run(self, canary: Canary, done: Round, scheduled_at: float, started_at: float) -> Run:
        self._sequence += 1
        return Run(
            sequence=self._sequence,
            canary=canary.name,
            scheduled_at=scheduled_at,
            started_at=started_at,
            outcome=done.outcome,
            latencies=done.latencies,
            phases=done.phases,
            tags=() if canary.state == "steady" else (canary.state,),
            detail=done.detail,
        )

    def _sample(self) -> None:
        for guard in self._guards:
            guard.sample()

    def _observe_environment(self) -> None:
        engines = {key: value for canary in self._canaries for key, value in canary.environment.items()}
        if not self._environment or not engines.items() <= self._environment.items():
            self._environment = fingerprint(engines)

    def _publish(self) -> None:
        """Swap in a new snapshot; the server's threads only ever read a whole one."""
        environment = ENVIRONMENT.family(dict.fromkeys(self._environment.items(), 1.0))
        sampled = (family for guard in self._guards for family in guard.families)
        self._families = (*self._tally.families(), *sampled, environment)
