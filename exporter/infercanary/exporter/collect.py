"""Polls of each container's probe on a clock of its own.

A probe's faults cost only itself: each has its own connection, deadline, size limit and back-off, and
a report is read in a worker thread, away from the event loop that serves the scrapes.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import structlog

from infercanary.client.fetch import Failure, PollError, fetch
from infercanary.contract.text import printable
from infercanary.exporter.canaries import reported_canaries
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container, Key, MemoryKill
from infercanary.exporter.discovery.kills import KillCounts
from infercanary.exporter.expose import Exposition, Lines, write
from infercanary.exporter.judging import families as judged_families
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import Shares
from infercanary.exporter.poll import Prepared, prepared
from infercanary.exporter.polled import AGE, PolledProbe
from infercanary.exporter.sharing import cpu_bits, listed_cpus, listed_gpus, shared_cpus, shared_gpus
from infercanary.exporter.watch import WATCH
from infercanary.judge.model import Generation, ServiceKey

log = structlog.get_logger(__name__)

_MAX_BACKOFF_SECONDS = 60.0
_QUICK_RETRIES = 3
_ENDED_SECONDS = 3600.0
_ENDED_SERVICES = 32
_COMPARE_SECONDS = 1.0  # probes that report other CPUs each time must not cost more


def backoff(failed: int, poll_seconds: float) -> float:
    """Seconds until the next poll after ``failed`` failures in a row: the first retries are quick.

    Args:
        failed: Number of polls.
        poll_seconds: Time between successful polls; also the least.
    """
    doubled = poll_seconds * 2.0 ** min(max(0, failed - _QUICK_RETRIES), 32)
    return max(poll_seconds, min(_MAX_BACKOFF_SECONDS, doubled))


class EndedService(NamedTuple):
    """A service without a container: a server that is stopped takes its card and its alerts with it."""

    service: ServiceKey
    container: str
    """Its last container, or one of these."""
    seconds: float
    """Time since then."""


class Collector:
    """Polls the probes of containers, shows their reports, and hands their runs to the judge.

    Args:
        config: May be replaced while it runs.
        exposition: Shows the probes.
        judging: Takes the runs.
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
        """Probes by service."""
        self.shares = Shares(memory)
        self.kills = KillCounts()
        self._ended: dict[ServiceKey, tuple[str, float]] = {}
        self._exposition = exposition
        self._reserved = reserved
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="report")
        # Of a thousand reports that come at once, most wait here: to queue them all would hold up the event loop.
        self._reading = asyncio.Semaphore(2)
        self._shares_changed = False
        self._compared_at = -math.inf

    def follow(self, containers: Iterable[Container]) -> None:
        """Poll ``containers`` and no others, as many as fit; those that are polled already go first.

        Args:
            containers: All that the discoveries found.
        """
        wanted = self.shares.admitted({c.key: c for c in containers}, self.probes, self.config.limits)
        self.judging.watched = frozenset(container.service_key for container in wanted.values())
        self.kills.follow(wanted.values(), time.time())
        # A container with another id is another container, whatever its name.
        gone = {
            key
            for key, probe in self.probes.items()
            if key not in wanted or wanted[key].ids != probe.container.ids
        }
        for key in gone:
            self._drop(self.probes.pop(key))
        # Starts are spread, so that a thousand probes do not answer in the same instant.
        spread = min(self.config.poll_seconds, 0.005 * len(wanted))
        services: defaultdict[ServiceKey, list[PolledProbe]] = defaultdict(list)
        for key, container in wanted.items():
            probe = self.probes.get(key)
            if probe is None:
                probe = self.probes[key] = PolledProbe(container)
                if container.watched_id and key in gone:
                    probe.since = time.time()  # it may have been created while the one before still served
                self._update(probe, container, (), spread)
            elif probe.container != container or (container.url is None and not probe.up):
                self._update(probe, container, probe.container.notes, spread)
            if container.is_asked:  # a label of others must not make a service wait for it
                services[container.service_key].append(probe)
        now = time.monotonic()
        ended = {service: (probes[-1].container.replica, now) for service, probes in self.services.items()}
        kept = [(service, end) for service, end in (self._ended | ended).items() if service not in services]
        self._ended, self.services = dict(kept[-_ENDED_SERVICES:]), dict(services)

    def ended_services(self) -> list[EndedService]:
        """Services whose last container ended within the last hour, the last one first."""
        now = time.monotonic()
        ended = [EndedService(service, name, now - at) for service, (name, at) in self._ended.items()]
        return [service for service in reversed(ended) if service.seconds < _ENDED_SECONDS]

    def _drop(self, probe: PolledProbe) -> None:
        """Forget a container that was removed."""
        self._stop_polling(probe.key)
        self._exposition.forget(probe.key)
        self._end(probe.gone(time.time()))
        log.info("container is gone", **probe.identity)
        self.shares.forget(probe.key)
        self._shares_changed = True

    def _update(
        self, probe: PolledProbe, container: Container, noted: Collection[str], spread: float
    ) -> None:
        """Take what discovery says of a container, and start to poll it if it has an address."""
        if probe.container.url != container.url:
            self._stop_polling(probe.key)
        probe.container = container
        for note in container.notes:
            if note not in noted:
                log.warning(note, **probe.identity)
        if container.url is None:
            if probe.trouble != container.url_missing:
                log.warning("probe is not polled", **probe.identity, error=container.url_missing)
            # Counted at each listing, as polls are where there is something to poll.
            probe.failures[container.failure] += 1
            probe.up, probe.polled, probe.trouble = False, True, container.url_missing
        elif probe.key not in self._tasks:
            delay = random.uniform(0, spread)  # noqa: S311 - a jitter, not a secret
            self._tasks[probe.key] = WATCH.task("poll", partial(self._watch, probe, container.url, delay))
        if probe.polled:
            self.show(probe)

    def note_end(self, kill: MemoryKill) -> None:
        """Count a container that the kernel ended for memory, and tell the judge which start it was.

        Args:
            kill: Found by a discovery.
        """
        self.kills.count(kill)
        probe = self.probes.get(kill.container.key)
        # A sidecar that is ended says nothing about the server that it watches.
        if probe is not None and probe.container.server_id == kill.id:
            self._end(probe.killed(kill.at))

    def _end(self, start: Generation | None) -> None:
        if start is not None:
            self.judging.submit(start, ())

    def show(self, probe: PolledProbe) -> None:
        """Show what ``probe`` last reported, if it is up, and how its polls go. Never raises.

        Args:
            probe: One that is followed.
        """
        try:
            self._show(probe)
        except Exception as error:
            # A fault of ours must cost this probe only, and half a report is worse than none.
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
        now, service = time.monotonic(), probe.container.service_key
        if self._shares_changed and now - self._compared_at >= _COMPARE_SECONDS:
            self._shares_changed, self._compared_at = False, now
            self._compare()
        findings = self.judging.findings.get(service, NOTHING)
        publishes = self.judging.ownership.publishes(service)
        if findings is not probe.findings or publishes is not probe.publishes:
            probe.findings, probe.publishes = findings, publishes
            judged = judged_families.families(findings, probe.container.replica, publishes=publishes)
            probe.verdicts = [write(family, probe.identity) for family in judged]
            self._fit(probe, probe.lines)
        for family in probe.families(now):
            probe.vitals[family.name] = write(family, probe.identity)
        reported = probe.lines if probe.up else ()
        disputed = self._exposition.replace(probe.key, [*reported, *probe.vitals.values(), *probe.verdicts])
        if disputed:
            probe.rejected["conflict"] += len(disputed)

    def _compare(self) -> None:
        """Find the containers that share CPUs (those of Docker are all on one host) and GPUs.

        Each one's number is shown after its own next poll: to show a thousand together would hold up the event loop. A
        container whose probe is down still counts for the others: it goes on running.
        """
        cpus = {
            key: probe.cpuset for key, probe in self.probes.items() if probe.cpuset and probe.container.id
        }
        on_cpus, on_gpus = shared_cpus(cpus), shared_gpus({key: p.gpus for key, p in self.probes.items()})
        for key, probe in self.probes.items():
            probe.shared_cpus = on_cpus.get(key)
            probe.share(on_gpus[key], self._compared_at)

    async def absorb(self, probe: PolledProbe, body: bytes) -> None:
        """Take one answer of ``probe``.

        Args:
            probe: One that is followed.
            body: Its answer, untrusted.

        Raises:
            PollError: It is no valid report.
        """
        async with self._reading:
            answer = await asyncio.get_running_loop().run_in_executor(
                self._reader, prepared, body, probe.identity, probe.container.watched_since, self._reserved
            )
        now, spend = time.monotonic(), probe.account.spend
        service, replica = probe.container.service_key, probe.container.replica
        spend("bytes", len(body), now)
        spend("cpu_seconds", answer.cpu_seconds, now)
        self._take_runs(probe, answer, now)
        collected, left_out = self.judging.found(service, replica)
        probe.runs_collected += collected
        probe.runs_left_out += left_out
        probe.rejected += answer.rejected
        probe.reported_at = now
        self._take_families(probe, answer, now)
        if not probe.up:
            log.info("probe is up", **probe.identity, url=probe.container.url)
        probe.up, probe.trouble = True, ""

    def _take_runs(self, probe: PolledProbe, answer: Prepared, now: float) -> None:
        """Hand the new runs to the judge, if the probe's account allows them."""
        report, spend = answer.report, probe.account.spend
        size = sum(len(name) + len(text) for name, text in report.environment.items())
        if report.environment != probe.environment and spend("environment_bytes", size, now):
            probe.environment = report.environment
        # If the clock was set back, new runs are still those of the watched server.
        probe.since = min(probe.since, time.time())
        names = probe.account.affordable_canaries({run.canary for run in report.runs}, now)
        pairs = zip(report.runs, answer.summaries, strict=True)
        starts = probe.new_runs(report.boot_id, [pair for pair in pairs if pair[0].canary in names])
        unknown = {report.boot_id, *starts} - probe.sequences.keys() - probe.generations.keys()
        runs = [run for several in starts.values() for run, _ in several]
        if not (
            spend("starts", len(unknown), now)
            and spend("runs", len(runs), now)
            and spend("samples", sum(len(run.latencies) for run in runs), now)
        ):
            return  # the cursor stays: the same runs are asked for again
        probe.remember(report, answer.profiles)
        for boot_id, several in starts.items():
            probe.take(boot_id, several)
            raw = [run for run, _ in several]
            if boot_id in probe.generations:
                probe.runs_collected += len(several)
                self.judging.submit(probe.generations[boot_id], raw)
            else:
                c = probe.container
                self.judging.submit_found(c.service_key, c.replica, probe.start_id(boot_id), raw)
        if probe.cursor:  # at the first poll, what is past was never the exporter's
            probe.runs_lost += report.lost_runs
        probe.cursor = report.cursor

    def _take_families(self, probe: PolledProbe, answer: Prepared, now: float) -> None:
        """Keep as many of the reported families as the probe's account and the total allow."""
        families = answer.report.families
        probe.reported = reported_canaries(families)
        self._fit(probe, probe.account.affordable_series(answer.lines, probe.lines, now))
        if (cpus := listed_cpus(families)) != probe.cpus:
            probe.cpus, probe.cpuset, self._shares_changed = cpus, cpu_bits(cpus), True
        if (gpus := listed_gpus(families)) is not None and gpus != probe.gpus:
            probe.gpus, self._shares_changed = gpus, True

    def _fit(self, probe: PolledProbe, lines: Sequence[Lines]) -> None:
        """Show as much of a probe as fits: verdicts first, then its report."""
        both, verdicts = [*probe.verdicts, *lines], len(probe.verdicts)
        fitting = self.shares.fitting(probe.key, both, probe.account, self.config.limits)
        probe.verdicts, probe.lines = fitting[:verdicts], fitting[verdicts:]

    async def close(self) -> None:
        """Stop polling."""
        tasks = [*self._tasks.values()]
        for key in [*self._tasks]:
            self._stop_polling(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, probe: PolledProbe, url: str, delay: float) -> None:
        """Poll for as long as the container is followed."""
        next_poll, failed = time.monotonic() + delay, 0
        # A cancellation may be lost in a timeout that comes with it: so check which task polls now.
        while self._tasks.get(probe.key) is asyncio.current_task():
            await asyncio.sleep(next_poll - time.monotonic())
            await self._poll(probe, url)
            failed = 0 if probe.up else failed + 1
            now = time.monotonic()
            rest = max(backoff(failed, self.config.poll_seconds), probe.account.wait(now))
            next_poll = max(next_poll + rest, now)

    async def _poll(self, probe: PolledProbe, url: str) -> None:
        started = time.monotonic()

        def may_hold(size: int) -> bool:
            return self.shares.may_hold(probe.key, size, probe.account, self.config.limits)

        try:
            body = await fetch(
                url, probe.cursor, self.config.timeout_seconds, self.config.probe_access, may_hold
            )
            await self.absorb(probe, body)
        except PollError as error:
            self._failed(probe, error.reason, str(error))
        except Exception as error:
            # A fault of ours must cost this probe only.
            log.exception("poll failed by a fault of the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))
        finally:
            may_hold(0)
        probe.polled, probe.duration = True, time.monotonic() - started
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
