"""Polls each container's probe on a clock of its own, and shows what it answers.

What a probe does wrong costs only itself: each has its own connection, deadline, size limit and back-off, and
a report is read in a worker thread, away from the event loop that serves the scrapes.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import aiohttp
import msgspec
import structlog

from infercanary.client.fetch import Failure, PollError, fetch, open_session
from infercanary.client.wire import Meter, Turns
from infercanary.contract.report import Run
from infercanary.contract.text import printable
from infercanary.exporter.canaries import reported_canaries
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.departed import Departed
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.discovery.kills import KillCounts, MemoryKill
from infercanary.exporter.expose import Exposition, Lines, write
from infercanary.exporter.history import RunSummary
from infercanary.exporter.judging import families as judged_families
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import Shares
from infercanary.exporter.poll import prepared
from infercanary.exporter.polled import AGE, PolledProbe
from infercanary.exporter.sharing import cpu_bits, listed_cpus, listed_gpus, shared_cpus, shared_gpus
from infercanary.exporter.watch import WATCH
from infercanary.judge.model import ServiceKey

log = structlog.get_logger(__name__)

_MAX_BACKOFF_SECONDS = 60.0
_BOOTS = 512  # as many as a probe in a crash loop finds runs in its journal
_QUICK_RETRIES = 3
_COMPARE_SECONDS = 1.0  # probes that report other CPUs each time must not cost more


def backoff(failed: int, poll_seconds: float) -> float:
    """Seconds until the next poll after ``failed`` failures in a row: the first retries are quick.

    Args:
        failed: Polls.
        poll_seconds: Between polls that go well; also the least.

    Returns:
        Seconds.
    """
    doubled = poll_seconds * 2.0 ** min(max(0, failed - _QUICK_RETRIES), 32)
    return max(poll_seconds, min(_MAX_BACKOFF_SECONDS, doubled))


class Collector:
    """Polls the probes of the containers it follows, and shows them in an :class:`Exposition`.

    Args:
        config: May be replaced while it runs.
        exposition: Where probes are shown.
        judging: Where runs go.
        reserved: Base names of the exporter's own families.
        memory: Bytes that the exporter's process may take; None for any number.
    """

    def __init__(
        self,
        config: ExporterConfig,
        exposition: Exposition,
        judging: Judging,
        reserved: Collection[str],
        memory: int | None = None,
    ) -> None:
        self.config = config
        self.judging = judging
        self.probes: dict[Key, PolledProbe] = {}
        self.services: dict[ServiceKey, list[PolledProbe]] = {}
        """The same by service."""
        self.shares = Shares(memory)
        self.kills = KillCounts()
        self.departed = Departed()
        self._exposition = exposition
        self._reserved = reserved
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._turns = Turns()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="report")
        self._shares_changed = False
        self._compared_at = -math.inf

    def follow(self, containers: Iterable[Container]) -> None:
        """Poll ``containers`` and no others, as many as fit; those that are polled already go first.

        The one with another id, or that watches one with another id, is another container, whatever its name.

        Args:
            containers: All that the discoveries found.
        """
        found = {container.key: container for container in containers}
        wanted = self.shares.admitted(found, self.probes, self.config.limits)
        self.judging.watched = frozenset(container.service_key for container in wanted.values())
        self.kills.follow(wanted.values(), time.time())
        replaced: set[Key] = set()
        for key, known in list(self.probes.items()):
            if key not in wanted or wanted[key].ids != known.container.ids:
                self._stop_polling(key)
                self._exposition.forget(key)
                if (start := known.gone(time.time())) is not None:
                    self.judging.submit(*start, ())
                del self.probes[key]
                log.info("container is gone", **known.identity)
                self.shares.forget(key)
                self._shares_changed = True
                replaced.add(key)
        # Starts are spread, so that a thousand probes do not answer in the same instant.
        spread = min(self.config.poll_seconds, 0.005 * len(wanted))
        for key, container in wanted.items():
            probe = self.probes.get(key)
            said = probe.container.notes if probe is not None else ()
            if probe is None:
                probe = self.probes[key] = PolledProbe(container)
                if container.watched_id and key in replaced:
                    probe.since = time.time()  # it may have been created while the one before still served
            elif probe.container == container and (container.url is not None or probe.up):
                continue
            elif probe.container.url != container.url:
                self._stop_polling(key)
            probe.container = container
            for note in container.notes:
                if note not in said:
                    log.warning(note, **probe.identity)
            if container.url is None:
                if probe.trouble != container.url_missing:
                    log.warning("probe is not polled", **probe.identity, error=container.url_missing)
                # Counted at each listing, as polls are where there is something to poll.
                probe.failures[container.failure] += 1
                probe.up, probe.polled, probe.trouble = False, True, container.url_missing
            elif key not in self._tasks:
                delay = random.uniform(0, spread)  # noqa: S311 - a jitter, not a secret
                self._tasks[key] = WATCH.task("poll", partial(self._watch, probe, container.url, delay))
            if probe.polled:
                self.show(probe)
        services: defaultdict[ServiceKey, list[PolledProbe]] = defaultdict(list)
        for probe in self.probes.values():
            if probe.container.is_asked:  # another's label must not make a service wait for it
                services[probe.container.service_key].append(probe)
        self.services = dict(services)
        last = {service: probes[-1].container.replica for service, probes in services.items()}
        self.departed.follow(last, time.monotonic())

    def note_end(self, kill: MemoryKill) -> None:
        """Count a container that the kernel ended for memory, and let the judge know which start it was.

        Args:
            kill: As a discovery says it.
        """
        self.kills.count(kill)
        probe = self.probes.get(kill.container.key)
        # A sidecar that is ended is no news of the server that it watches.
        if (
            probe is not None
            and probe.container.server_id == kill.id
            and (start := probe.ended(kill.at)) is not None
        ):
            self.judging.submit(*start, ())

    def show(self, probe: PolledProbe) -> None:
        """Show what ``probe`` last reported, if it is up, and in any case how its polls go. Never raises.

        Args:
            probe: One that is followed.
        """
        try:
            self._show(probe)
        except Exception as error:
            # A fault of ours: until it is fixed it must cost this probe only, and half a report is worse than none.
            log.exception("probe not shown by a fault of the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))
            self._exposition.forget(probe.key)
            probe.lines, probe.vitals, probe.findings, probe.verdicts = [], {}, None, []
            with suppress(Exception):  # that it is down can be shown, unless this is where the fault lies
                self._show(probe)

    def refresh_ages(self) -> None:
        """Show how old each report is now, not at the last poll; and no verdict whose lease ended since that."""
        for probe in [*self.probes.values()]:
            if probe.publishes and not self.judging.ownership.publishes(probe.container.service_key):
                self.show(probe)
        now = time.monotonic()
        ages = ((key, now - p.reported_at) for key, p in self.probes.items() if p.reported_at is not None)
        self._exposition.refill(AGE.name, ages)

    def _show(self, probe: PolledProbe) -> None:
        now = time.monotonic()
        if self._shares_changed and now - self._compared_at >= _COMPARE_SECONDS:
            self._shares_changed, self._compared_at = False, now
            self._compare()
        vitals = probe.vitals
        service = probe.container.service_key
        found = self.judging.findings.get(service, NOTHING)
        publishes = self.judging.ownership.publishes(service)
        if found is not probe.findings or publishes is not probe.publishes:
            judged = judged_families.families(found, probe.container.replica, publishes=publishes)
            probe.findings, probe.publishes = found, publishes
            probe.verdicts = [write(family, probe.identity) for family in judged]
            self._fit(probe, probe.lines)
        for family in probe.families(now):
            vitals[family.name] = write(family, probe.identity)
        reported = probe.lines if probe.up else ()
        if disputed := self._exposition.replace(probe.key, [*reported, *vitals.values(), *probe.verdicts]):
            probe.rejected["conflict"] += len(disputed)

    def _compare(self) -> None:
        """Count what is shared: CPUs among the containers that Docker found, since all of them are on one host.

        Each one's number is shown after its own next poll: to show a thousand together would hold up the event loop. A
        container whose probe is down still counts for the others: it goes on running.
        """
        shared = shared_cpus(
            {key: probe.cpuset for key, probe in self.probes.items() if probe.cpuset and probe.container.id}
        )
        on_gpus = shared_gpus({key: probe.gpus for key, probe in self.probes.items()})
        for key, probe in self.probes.items():
            probe.shared_cpus = shared.get(key)
            probe.share(on_gpus[key], self._compared_at)

    async def absorb(self, probe: PolledProbe, body: bytes) -> None:
        """Take one answer of ``probe``.

        Args:
            probe: One that is followed.
            body: What it answered, unchecked.

        Raises:
            PollError: It is no valid report.
        """
        since = probe.container.watched_since
        received, lines, summaries, profiles, cpu_seconds = await asyncio.get_running_loop().run_in_executor(
            self._reader, prepared, body, probe.identity, since, self.config.limits, self._reserved
        )
        report, accepted = received.report, received.accepted
        now = time.monotonic()
        probe.account.spend("bytes", len(body), now)
        probe.account.spend("cpu_seconds", cpu_seconds, now)
        known, left_out = self.judging.found(probe.container.service_key, probe.container.replica)
        probe.runs_collected += known
        probe.runs_left_out += left_out
        if accepted.environment == probe.environment or not probe.account.spend(
            "environment_bytes",
            sum(len(name) + len(text) for name, text in accepted.environment.items()),
            now,
        ):
            accepted = msgspec.structs.replace(accepted, environment=probe.environment)
        # Where the clock was set back, what comes now is of the server that it watches.
        probe.since = min(probe.since, time.time())
        names = probe.account.affordable_canaries({run.canary for run in accepted.runs}, now)
        runs = [each for each in zip(accepted.runs, summaries, strict=True) if each[0].canary in names]
        starts = probe.new_runs(report.boot_id, runs)
        if _affords(probe, report.boot_id, starts, now):
            probe.remember(report.boot_id, report.started_at, accepted, profiles)
            for boot_id, several in starts.items():
                self._take(probe, boot_id, several)
            while len(probe.sequences) > _BOOTS:
                del probe.sequences[next(iter(probe.sequences))]
            if probe.cursor:  # at the first poll, what is past was never the exporter's
                probe.runs_lost += report.lost_runs
            probe.cursor = report.cursor  # else the same runs are asked for again
        probe.rejected += accepted.rejected
        probe.environment = accepted.environment
        probe.reported = reported_canaries(accepted.families)
        affordable = probe.account.affordable_series(lines, probe.lines, now)
        self._fit(probe, affordable)
        if (cpus := listed_cpus(accepted.families)) != probe.cpus:
            probe.cpus, probe.cpuset = cpus, cpu_bits(cpus)
            self._shares_changed = True
        if (gpus := listed_gpus(accepted.families)) is not None and gpus != probe.gpus:
            probe.gpus, self._shares_changed = gpus, True
        probe.reported_at = now
        if not probe.up:
            log.info("probe is up", **probe.identity, url=probe.container.url)
        probe.up, probe.trouble = True, ""

    def _take(self, probe: PolledProbe, boot_id: str, runs: Sequence[tuple[Run, RunSummary]]) -> None:
        """Hand over the new runs of one start."""
        probe.sequences[boot_id] = runs[-1][0].sequence
        probe.history.take(summary for _, summary in runs)
        raw = [run for run, _ in runs]
        if boot_id in probe.generations:
            probe.runs_collected += len(runs)
            self.judging.submit(*probe.generations[boot_id], raw)
        else:
            container = probe.container
            self.judging.submit_found(container.service_key, container.replica, probe.start_id(boot_id), raw)

    def _fit(self, probe: PolledProbe, lines: Sequence[Lines]) -> None:
        """Show as much of a probe as fits: verdicts first, then what it reports."""
        both = [*probe.verdicts, *lines]
        fitting = self.shares.fitting(probe.key, both, probe.account, self.config.limits)
        verdicts = len(probe.verdicts)
        probe.verdicts, probe.lines = fitting[:verdicts], fitting[verdicts:]

    async def close(self) -> None:
        """Stop polling."""
        tasks = [*self._tasks.values()]
        for key in list(self._tasks):
            self._stop_polling(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, probe: PolledProbe, url: str, delay: float) -> None:
        """Poll for as long as the container is followed."""
        loop = asyncio.get_running_loop()
        next_poll = loop.time() + delay
        failed = 0
        meter = Meter(self._turns)
        async with open_session(url, self.config.limits.report_bytes, meter) as session:
            # aiohttp may turn a cancellation into a timeout that comes with it: so it also checks which task polls now.
            while self._tasks.get(probe.key) is asyncio.current_task():
                await asyncio.sleep(next_poll - loop.time())
                await self._poll(probe, session, url)
                probe.account.spend("cpu_seconds", meter.read(), time.monotonic())
                failed = 0 if probe.up else failed + 1
                rest = max(backoff(failed, self.config.poll_seconds), probe.account.wait(time.monotonic()))
                next_poll = max(next_poll + rest, loop.time())

    async def _poll(self, probe: PolledProbe, session: aiohttp.ClientSession, url: str) -> None:
        config = self.config
        started = time.monotonic()
        try:
            body = await fetch(
                session,
                url,
                probe.cursor,
                config.timeout_seconds,
                config.limits.report_bytes,
                config.probe_access,
                lambda size: self.shares.may_hold(probe.key, size, probe.account, config.limits),
            )
            await self.absorb(probe, body)
        except PollError as error:
            self._failed(probe, error.reason, str(error))
        except Exception as error:
            # A fault of ours: until it is fixed it must cost this probe only.
            log.exception("poll failed by a fault of the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))
        finally:
            self.shares.may_hold(probe.key, 0, probe.account, config.limits)
        probe.polled = True
        probe.duration = time.monotonic() - started
        self.show(probe)

    def _failed(self, probe: PolledProbe, reason: Failure, detail: str) -> None:
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


def _affords(
    probe: PolledProbe, boot_id: str, starts: Mapping[str, Sequence[tuple[Run, RunSummary]]], now: float
) -> bool:
    """Whether a probe's account allows these runs, and the starts that nobody knew."""
    unknown = {boot_id, *starts} - probe.sequences.keys() - probe.generations.keys()
    runs = [run for several in starts.values() for run, _ in several]
    spend = probe.account.spend
    return (
        spend("starts", len(unknown), now)
        and spend("runs", len(runs), now)
        and spend("samples", sum(len(run.latencies) for run in runs), now)
    )
