"""Polls each container's probe on a clock of its own, and shows what it answers.

What a probe does wrong costs only itself: each has its own connection, deadline, size limit and back-off, and
a report is read in a worker thread, away from the event loop that serves the scrapes.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
import structlog

from infercanary.client.accept import Accepted, Reason
from infercanary.client.fetch import Failure, PollError, fetch, open_session
from infercanary.contract.report import Family, Metric, Run
from infercanary.contract.text import printable
from infercanary.contract.vocabulary import COLD_START_METRICS
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition, Key, Lines, write
from infercanary.exporter.history import History
from infercanary.exporter.judging import metrics
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.judging.thread import Judging
from infercanary.exporter.poll import prepared
from infercanary.exporter.sharing import SHARED, cpu_bits, listed_cpus, shared_cpus
from infercanary.judge.model import Generation

log = structlog.get_logger(__name__)

UP = Metric(
    "infercanary_up",
    "gauge",
    "1 if the last poll of the container's probe gave a valid report, else 0.",
    reading="`infercanary_up == 0` for some minutes is an alert: all that the probe says is missing meanwhile. "
    "The status page has the reason, and `infercanary_poll_failures_total` its kind. A container that is gone "
    "has no series at all.",
)
AGE = Metric(
    "infercanary_report_age_seconds",
    "gauge",
    "Time since the last valid report of the container's probe.",
    reading="About `poll_seconds` at most while the probe is up; beyond that it is down, and for how long. "
    "Missing before the first report.",
)
INFO = Metric(
    "infercanary_container_info",
    "gauge",
    "1, with what Docker says of the container: image reference, image id, registry digest and container id.",
    ("image", "image_id", "image_digest", "container_id"),
    reading="Join it to see an upgrade in any graph: `infercanary_run_median_seconds * on (instance, service, "
    "container) group_left (image, image_digest) infercanary_container_info`. Empty labels: the container is from the "
    "config's list, not from Docker.",
)
POLL_DURATION = Metric(
    "infercanary_poll_duration_seconds",
    "gauge",
    "Time that the last poll took, from connecting to the whole body.",
    reading="Milliseconds. Near `timeout_seconds` (3 s by default) the host or the container's process is "
    "starved, and polls begin to fail.",
)
POLL_FAILURES = Metric(
    "infercanary_poll_failures_total",
    "counter",
    "Polls that gave no valid report, by reason.",
    ("reason",),
    reading="`unreachable`: not started, or no common network; `timeout`: starved or hung; `too_large` and "
    "`malformed`: not a probe, or a limit; `no_address`: no network that the exporter is in too; `server_gone`: the "
    "server that a sidecar watches does not run; `internal`: a fault of the exporter, whose log has it. For alerts "
    "use `infercanary_failed_polls_total`.",
)
# Each reason's series begins with its first failure, which for Prometheus is no increase: it sees one in a series that
# was there before. One for each reason of each container would be nine times as many, nearly all of them 0 for ever.
# What is rejected needs no such total: a bad family is there in the next report too.
FAILED_POLLS = Metric(
    "infercanary_failed_polls_total",
    "counter",
    "Polls that gave no valid report, for any reason; 0 at first, so that the first failure is an increase too.",
    reading="`increase(infercanary_failed_polls_total[15m]) > 0` also shows the failures between two scrapes, "
    "which `infercanary_up` may miss.",
)
REJECTED = Metric(
    "infercanary_rejected_total",
    "counter",
    "Parts of otherwise valid reports that were left out (families, runs, environment entries), by reason.",
    ("reason",),
    reading="Healthy is no increase. `too_many` is one of the exporter's `limits`; the others are a probe of "
    "another version, odd names in a sampler or target of your own, or an impostor.",
)
RUNS_COLLECTED = Metric(
    "infercanary_runs_collected_total",
    "counter",
    "Raw runs taken from the probe, each once.",
    reading="Grows with `infercanary_runs_total`. Runs of an earlier probe that were found in its journal "
    "count too.",
)
RUNS_LOST = Metric(
    "infercanary_runs_lost_total",
    "counter",
    "Raw runs that left the probe's ring before the exporter came for them.",
    reading="Healthy is no increase: the ring holds 2,048 runs, hours of them. Growth means that the exporter "
    "was away for long.",
)
METRICS = (
    UP,
    AGE,
    INFO,
    POLL_DURATION,
    POLL_FAILURES,
    FAILED_POLLS,
    REJECTED,
    RUNS_COLLECTED,
    RUNS_LOST,
    SHARED,
    *metrics.METRICS,
)

_MAX_BACKOFF_SECONDS = 60.0
_TOGETHER_SECONDS = 60.0  # within which a sidecar and its server are brought up, in any order
_GENERATIONS = 2  # this start, and the one before, whose runs may come out of its journal
_BOOTS = 1024  # as many as a probe in a crash loop finds runs in its journal
_QUICK_RETRIES = 3
_COMPARE_SECONDS = 1.0  # so that probes which say something else each time cost no more


class Probe:
    """A container's probe, as polled so far. Times are of the monotonic clock."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.up = False
        self.trouble = "not polled yet"
        self.polled = False
        self.reported_at: float | None = None
        self.environment: dict[str, str] = {}
        self.history = History()
        self.duration: float | None = None
        self.failures: Counter[Failure] = Counter()
        self.rejected: Counter[Reason] = Counter()
        self.runs_collected = 0
        self.runs_lost = 0
        # The CPUs that it may use, as it last said, and how many of them it shares.
        self.cpus = ""
        self.cpuset = 0
        self.shared_cpus: int | None = None
        # Where the collection of its runs has come to.
        self.cursor = ""
        self.sequences: dict[str, int] = {}  # by boot id, of its last starts: the last run that was taken
        # Runs from before that time are of a server that it no longer watches.
        self.since = container.watched_since
        # Its last starts by boot id, for the judge, with what each of them said of its cold start.
        self.generations: dict[str, tuple[Generation, list[Family]]] = {}
        # What the judge had found when that was last written.
        self.findings: Findings | None = None
        # What it showed last, so that the next report only fills in values.
        self.lines: dict[str, Lines] = {}
        self.vitals: dict[str, Lines] = {}

    @property
    def key(self) -> Key:
        """Its identity in every label set."""
        return self.container.service, self.container.name

    def start_id(self, boot_id: str) -> str:
        """The judge's name for a start: another server beside a sidecar is one, although its own process goes on."""
        watched = self.container.watched_id[:12]
        return f"{boot_id}@{watched}" if watched else boot_id

    @property
    def identity(self) -> dict[str, str]:
        """The labels that every one of its series carries."""
        return {"service": self.container.service, "container": self.container.name}

    def remember(self, boot_id: str, started_at: float, accepted: Accepted) -> None:
        """Note which start of the container it is that reports."""
        c = self.container
        before = self.generations.pop(boot_id, None)
        # What a sidecar said of its start, and the answers that it compares with, are those of an earlier server.
        of_earlier = c.watched_since > started_at + _TOGETHER_SECONDS
        generation = Generation(
            service=c.service,
            container=c.name,
            boot_id=self.start_id(boot_id),
            image=c.image,
            image_id=c.image_id,
            image_digest=c.image_digest,
            started_at=max(started_at, c.watched_since) if before is None else before[0].started_at,
            environment=accepted.environment,
            outputs={} if of_earlier else accepted.outputs,
        )
        said = () if of_earlier else accepted.families
        cold_start = [family for family in said if family.name in COLD_START_METRICS]
        self.generations[boot_id] = generation, cold_start
        while len(self.generations) > _GENERATIONS:
            del self.generations[next(iter(self.generations))]

    def families(self, now: float) -> list[Family]:
        """What the exporter itself says of it."""
        c = self.container
        return [
            UP.family(float(self.up)),
            AGE.family({(): now - self.reported_at} if self.reported_at is not None else {}),
            INFO.family({(c.image, c.image_id, c.image_digest, c.id): 1.0}),
            POLL_DURATION.family({(): self.duration} if self.duration is not None else {}),
            POLL_FAILURES.family(
                {(reason,): float(count) for reason, count in sorted(self.failures.items())}
            ),
            FAILED_POLLS.family(float(self.failures.total())),
            REJECTED.family({(reason,): float(count) for reason, count in sorted(self.rejected.items())}),
            RUNS_COLLECTED.family(float(self.runs_collected)),
            RUNS_LOST.family(float(self.runs_lost)),
            # It comes from its report, and so is missing while it is down.
            SHARED.family({(): self.shared_cpus} if self.up and self.shared_cpus is not None else {}),
        ]


def backoff(failed: int, poll_seconds: float) -> float:
    """Seconds until the next poll after ``failed`` failures in a row: the first retries are quick."""
    doubled = poll_seconds * 2.0 ** min(max(0, failed - _QUICK_RETRIES), 32)
    return max(poll_seconds, min(_MAX_BACKOFF_SECONDS, doubled))


class Collector:
    """Polls the probes of the containers it follows, and shows them in an :class:`Exposition`."""

    def __init__(
        self, config: ExporterConfig, exposition: Exposition, judging: Judging, reserved: Collection[str]
    ) -> None:
        self.config = config
        self.judging = judging
        self.probes: dict[Key, Probe] = {}
        self._exposition = exposition
        self._reserved = reserved
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="report")
        self._cpusets_changed = False
        self._compared_at = -math.inf

    def follow(self, containers: Iterable[Container]) -> None:
        """Poll ``containers`` and no others.

        The one with another id, or that watches one with another id, is another container, whatever its name.
        """
        wanted = {(container.service, container.name): container for container in containers}
        replaced: set[Key] = set()
        for key, known in list(self.probes.items()):
            if key not in wanted or wanted[key].ids != known.container.ids:
                self._stop_polling(key)
                self._exposition.forget(key)
                del self.probes[key]
                self._cpusets_changed = True
                replaced.add(key)
        # Starts are spread, so that a thousand probes do not answer in the same instant.
        spread = min(self.config.poll_seconds, 0.005 * len(wanted))
        for key, container in wanted.items():
            probe = self.probes.get(key)
            if probe is None:
                probe = self.probes[key] = Probe(container)
                if container.watched_id and key in replaced:
                    probe.since = time.time()  # it may have been created while the one before still served
            elif probe.container == container and (container.url is not None or probe.up):
                continue
            elif probe.container.url != container.url:
                self._stop_polling(key)
            probe.container = container
            if container.url is None:
                if probe.trouble != container.url_missing:
                    log.warning("probe cannot be reached", **probe.identity, error=container.url_missing)
                # Counted at each listing, as polls are where there is something to poll.
                probe.failures["server_gone" if container.server_gone else "no_address"] += 1
                probe.up, probe.polled, probe.trouble = False, True, container.url_missing
            elif key not in self._tasks:
                delay = random.uniform(0, spread)  # noqa: S311 - a jitter, not a secret
                self._tasks[key] = asyncio.create_task(self._watch(probe, container.url, delay))
            if probe.polled:
                self.show(probe)

    def show(self, probe: Probe) -> None:
        """Show what ``probe`` last said, if it is up, and what the exporter says of it in any case. Never raises."""
        try:
            self._show(probe)
        except Exception as error:
            # Ours to mend; until then it must cost this probe only, and half of what it said is worse than none.
            log.exception("probe not shown by a fault of the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))
            self._exposition.forget(probe.key)
            probe.lines, probe.vitals, probe.findings = {}, {}, None
            with suppress(Exception):  # that it is down can be shown, unless this is where the fault lies
                self._show(probe)

    def refresh_ages(self) -> None:
        """Show how old each report is now, not at the last poll."""
        now = time.monotonic()
        ages = ((key, now - p.reported_at) for key, p in self.probes.items() if p.reported_at is not None)
        self._exposition.refill(AGE.name, ages)

    def _show(self, probe: Probe) -> None:
        now = time.monotonic()
        if self._cpusets_changed and now - self._compared_at >= _COMPARE_SECONDS:
            self._cpusets_changed, self._compared_at = False, now
            self._compare_cpusets()
        vitals = probe.vitals
        found = self.judging.findings.get(probe.container.service, NOTHING)
        families = probe.families(now)
        if found is not probe.findings:
            families += metrics.families(found, probe.container.name)
            probe.findings = found
        for family in families:
            vitals[family.name] = write(family, probe.identity, vitals.get(family.name))
        said = probe.lines.values() if probe.up else ()
        refused = self._exposition.replace(probe.key, [*said, *vitals.values()])
        if refused:
            probe.rejected["conflict"] += len(refused)

    def _compare_cpusets(self) -> None:
        """Count what is shared among the containers that Docker found: all of them are on one host.

        Each one's number is shown after its own next poll: a thousand at once would hold up the event loop. One
        whose probe is down still counts for the others: it goes on running.
        """
        shared = shared_cpus(
            {key: probe.cpuset for key, probe in self.probes.items() if probe.cpuset and probe.container.id}
        )
        for key, probe in self.probes.items():
            probe.shared_cpus = shared.get(key)

    async def absorb(self, probe: Probe, body: bytes) -> None:
        """Take one answer of ``probe``. Raises :class:`PollError`."""
        received, lines, summaries = await asyncio.get_running_loop().run_in_executor(
            self._reader, prepared, body, probe.identity, probe.lines, self.config.limits, self._reserved
        )
        report, accepted = received.report, received.accepted
        fresh = []
        starts: dict[str, list[Run]] = {}
        for run, summary in zip(accepted.runs, summaries, strict=True):
            # A probe that found the journal of the one before offers what that had not handed over.
            boot_id = run.boot_id or report.boot_id
            if run.sequence > probe.sequences.get(boot_id, -1) and run.started_at >= probe.since:
                probe.sequences[boot_id] = run.sequence
                fresh.append(summary)
                starts.setdefault(boot_id, []).append(run)
        while len(probe.sequences) > _BOOTS:
            del probe.sequences[next(iter(probe.sequences))]
        probe.history.take(fresh)
        probe.remember(report.boot_id, report.started_at, accepted)
        for boot_id, runs in starts.items():
            if boot_id in probe.generations:
                self.judging.submit(*probe.generations[boot_id], runs)
            else:
                self.judging.submit_found(*probe.key, probe.start_id(boot_id), runs)
        probe.runs_collected += len(fresh)
        if probe.cursor:  # to who comes for the first time, what is past is not lost
            probe.runs_lost += report.lost_runs
        probe.cursor = report.cursor
        probe.rejected += accepted.rejected
        probe.environment = accepted.environment
        probe.lines = lines
        if (cpus := listed_cpus(accepted.families)) != probe.cpus:
            probe.cpus, probe.cpuset = cpus, cpu_bits(cpus)
            self._cpusets_changed = True
        probe.reported_at = time.monotonic()
        if not probe.up:
            log.info("probe is up", **probe.identity, url=probe.container.url)
        probe.up, probe.trouble = True, ""

    async def close(self) -> None:
        """Stop polling."""
        tasks = [*self._tasks.values()]
        for key in list(self._tasks):
            self._stop_polling(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, probe: Probe, url: str, delay: float) -> None:
        """Poll for as long as the container is followed."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        failed = 0
        async with open_session(url) as session:
            # A cancellation that meets a timeout comes out of aiohttp as that timeout: so it asks who polls now, too.
            while self._tasks.get(probe.key) is asyncio.current_task():
                await asyncio.sleep(due - loop.time())
                await self._poll(probe, session, url)
                failed = 0 if probe.up else failed + 1
                due = max(due + backoff(failed, self.config.poll_seconds), loop.time())

    async def _poll(self, probe: Probe, session: aiohttp.ClientSession, url: str) -> None:
        config = self.config
        started = time.monotonic()
        try:
            body = await fetch(session, url, probe.cursor, config.timeout_seconds, config.limits.report_bytes)
            await self.absorb(probe, body)
        except PollError as error:
            self._failed(probe, error.reason, str(error))
        except Exception as error:
            # Ours to mend; until then it must cost this probe only.
            log.exception("poll failed by a fault of the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))
        probe.polled = True
        probe.duration = time.monotonic() - started
        self.show(probe)

    def _failed(self, probe: Probe, reason: Failure, detail: str) -> None:
        detail = printable(detail, 300, " ")
        if probe.up or not probe.polled:
            log.warning(
                "probe is down", **probe.identity, url=probe.container.url, reason=reason, error=detail
            )
        probe.failures[reason] += 1
        probe.up, probe.trouble = False, f"{reason}: {detail}"

    def _stop_polling(self, key: Key) -> None:
        if task := self._tasks.pop(key, None):
            task.cancel()
