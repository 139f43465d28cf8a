"""Polls the probe of each container on its own schedule.

Each probe has its own connection, deadline, size limit and back-off, so a faulty probe affects no other probe. A worker
thread reads the reports, separate from the event loop that answers scrapes.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import structlog
from msgspec.structs import replace

from infercanary.client.fetch import Failure, PollError, fetch
from infercanary.contract.text import printable
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container, Key, MemoryKill
from infercanary.exporter.discovery.kills import KillCounts
from infercanary.exporter.expose import Exposition, write
from infercanary.exporter.judging import families as judged_families
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.limits import UNLIMITED, Shares
from infercanary.exporter.poll import Prepared, prepared
from infercanary.exporter.probe_state import UP, PolledProbe
from infercanary.exporter.sharing import shared_cpus, shared_gpus
from infercanary.exporter.watch import WATCH
from infercanary.judge.model import ServiceKey

log = structlog.get_logger(__name__)

_LEAST_TIMEOUT_SECONDS = 3.0
_MAX_BACKOFF_SECONDS = 60.0
_QUICK_RETRIES = 3
_COMPARE_SECONDS = 5.0  # time between comparisons; one takes some milliseconds for a thousand containers


def backoff(failed: int, poll_seconds: float) -> float:
    """Return the seconds until the next poll after ``failed`` consecutive failures. The first retries are quick.

    Args:
        failed: Number of failed polls.
        poll_seconds: Time between successful polls; also the shortest delay.
    """
    doubled = poll_seconds * 2.0 ** min(max(0, failed - _QUICK_RETRIES), 32)
    return min(doubled, max(poll_seconds, _MAX_BACKOFF_SECONDS))


class Collector:
    """Polls the probes of containers, exposes their reports, and sends their runs to the judge.

    Args:
        config: May be replaced while the collector runs.
        exposition: Receives the reports.
        judging: Receives the runs.
        reserved: Base names of the exporter's own families.
        memory: Memory limit of the exporter's process, in bytes.
    """

    def __init__(
        self,
        config: ExporterConfig,
        exposition: Exposition,
        judging: Judging,
        reserved: Collection[str],
        memory: int = UNLIMITED,
    ) -> None:
        self.config = config
        self.judging = judging
        self.probes: dict[Key, PolledProbe] = {}
        self.services: dict[ServiceKey, list[PolledProbe]] = {}
        """Probes by service."""
        self.shares = Shares(memory)
        self.kills = KillCounts()
        self.ended: list[tuple[Container, float]] = []
        """Last containers of services that ended within the last hour, each with the Unix time of its end.
        The status page keeps a stopped server and its alerts by this list.
        """
        self._exposition = exposition
        self._reserved = reserved
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._reading = asyncio.Lock()  # reading reports one by one saves memory
        # Each further thread would take memory for its heap.
        self._reader = ThreadPoolExecutor(1, "report")
        self._compared_at = -math.inf

    def follow(self, containers: Iterable[Container]) -> None:
        """Poll only ``containers``, up to the memory limit. Containers that are already polled have priority.

        Args:
            containers: All containers that the discoveries found.
        """
        named = (replace(c, host=self.judging.host) for c in containers)
        wanted = self.shares.admitted({c.key: c for c in named}, self.probes)
        self.judging.watched = frozenset(container.service_key for container in wanted.values())
        self.kills.follow(wanted.values(), time.time())
        # A new id means a new container, even with the same name.
        gone = {
            key
            for key, probe in self.probes.items()
            if key not in wanted or wanted[key].ids != probe.container.ids
        }
        for key in gone:
            self._drop(self.probes.pop(key))
        services: defaultdict[ServiceKey, list[PolledProbe]] = defaultdict(list)
        now = time.time()
        for key, container in wanted.items():
            probe = self.probes.get(key) or PolledProbe(container)
            if container.watched_id and key in gone:
                probe.since = now  # the old server may still have answered while the new server started
            if key not in self.probes or probe.container.url != container.url:
                self._start_polling(probe, container)
            self.probes[key], probe.container = probe, container
            # A container without the enabling label never reports. A rollout of its service must not wait for a report.
            if container.is_asked:
                services[container.service_key].append(probe)
        self.ended = [(c, at) for c, at in self.ended if c.service_key not in services and at > now - 3600]
        self.ended += [
            (probes[-1].container, now)
            for service, probes in self.services.items()
            if service not in services
        ]
        self.services = services

    def _drop(self, probe: PolledProbe) -> None:
        """Forget a container that was removed."""
        self._stop_polling(probe.key)
        self._exposition.replace(probe.key, [])
        self._end(probe, ended_at=time.time())
        log.info("container is gone", **probe.identity)
        self.shares.forget(probe.key)

    def _start_polling(self, probe: PolledProbe, container: Container) -> None:
        self._stop_polling(probe.key)
        for note in container.notes:
            log.warning(note, **probe.identity)
        # Spread the first polls: a thousand probes should not answer at the same moment.
        spread = min(self.config.poll_seconds, 0.01 * len(self.probes))
        delay = random.uniform(0, spread)  # noqa: S311 - a jitter, not a secret
        self._tasks[probe.key] = WATCH.task("poll", partial(self._watch, probe, delay))

    def note_end(self, kill: MemoryKill) -> None:
        """Count a memory kill of a container. Tell the judge which start was ended by this kill.

        Args:
            kill: A memory kill found by a discovery.
        """
        self.kills.count(kill)
        probe = self.probes.get(kill.container.key)
        # A killed sidecar is no evidence about the watched server.
        if probe is not None and probe.container.server_id == kill.id:
            probe.kills += (kill.at,)
            self._end(probe, memory_kills=probe.kills)

    def _end(self, probe: PolledProbe, **changes: object) -> None:
        """Tell the judge about the end of a container's last start, if this start had runs."""
        boot_id = next(reversed(probe.generations), "")
        if boot_id in probe.sequences:
            ended = replace(probe.generations[boot_id], **changes)
            probe.generations[boot_id] = ended
            self.judging.submit(ended, ())

    def show(self, probe: PolledProbe) -> None:
        """Show the last report of ``probe`` if the probe is up, and the metrics of its polls. Never raises.

        Args:
            probe: A followed probe.
        """
        with self._guard(probe):
            self._show(probe)

    @contextmanager
    def _guard(self, probe: PolledProbe) -> Iterator[None]:
        """Limit the effect of a failed poll, or of a bug, to this probe."""
        try:
            yield
        except PollError as error:
            self._failed(probe, error.reason, str(error))
        except Exception as error:
            log.exception("poll failed because of a bug in the exporter", **probe.identity)
            self._failed(probe, "internal", repr(error))

    def withdraw_verdicts(self) -> None:
        """Remove verdicts if the lease on their service has ended since the last poll."""
        for probe in [*self.probes.values()]:
            if probe.publishes and not self.judging.ownership.publishes(probe.container.service_key):
                self.show(probe)

    def _show(self, probe: PolledProbe) -> None:
        now, service = time.monotonic(), probe.container.service_key
        if now - self._compared_at >= _COMPARE_SECONDS:
            self._compared_at = now
            self._compare(now)
        findings = self.judging.findings.get(service, NOTHING)
        publishes = self.judging.ownership.publishes(service)
        if findings is not probe.findings or publishes is not probe.publishes:
            judged = judged_families.families(findings, probe.container.replica, publishes=publishes)
            probe.verdicts = [write(family, probe.identity) for family in judged]
            probe.findings, probe.publishes = findings, publishes
        lines, verdicts = [*probe.verdicts, *probe.lines], len(probe.verdicts)
        lines = self.shares.fitting(probe.key, lines, probe.account)
        probe.verdicts, probe.lines = lines[:verdicts], lines[verdicts:]
        probe.vitals = [write(family, probe.identity) for family in probe.families(now)]
        reported = probe.lines if probe.up else ()
        if conflicts := self._exposition.replace(probe.key, [*reported, *probe.vitals, *probe.verdicts]):
            probe.rejected["conflict"] += conflicts

    def _compare(self, now: float) -> None:
        """Find the CPUs and GPUs that containers share.

        CPUs are compared only between discovered containers, which are on this host; containers in the config's list
        may be on other hosts. A container's result is exposed after its next poll: a thousand results at once would
        block the event loop. A container without an answering probe still runs, and counts as a neighbour.
        """
        probes = self.probes.items()
        shared = shared_cpus(probe.reported.cpus for _, probe in probes if probe.container.id)
        gpus = shared_gpus({key: probe.reported.gpus or () for key, probe in probes})
        for key, probe in probes:
            cpus = probe.reported.cpus if probe.container.id else 0
            probe.shared_cpus = (cpus & shared).bit_count() if cpus else math.nan
            probe.share(gpus.get(key, {}), now)

    async def absorb(self, probe: PolledProbe, body: bytes) -> None:
        """Process one answer of ``probe``.

        Args:
            probe: A followed probe.
            body: Body of the answer, untrusted.

        Raises:
            PollError: The body is not a valid report.
        """
        async with self._reading:
            since = probe.container.watched_since
            read = partial(prepared, body, probe.identity, since, self._reserved)
            answer = await asyncio.get_running_loop().run_in_executor(self._reader, read)
        now, spend = time.monotonic(), probe.account.spend
        spend("bytes", len(body), now)
        spend("cpu_seconds", answer.cpu_seconds, now)
        facts = answer.facts
        if facts.gpus is None:  # keep the known GPUs if the driver does not answer
            facts = replace(facts, gpus=probe.reported.gpus)
        probe.reported, probe.reported_at = facts, now
        self._take_runs(probe, answer, now)
        probe.lines = probe.account.affordable_series(answer.lines, probe.lines, now)
        probe.rejected += answer.rejected
        if not probe.up:
            log.info("probe is up", **probe.identity, url=probe.container.url)
        probe.up, probe.trouble = True, ""

    def _take_runs(self, probe: PolledProbe, answer: Prepared, now: float) -> None:
        """Send the new runs to the judge, if the probe's budgets allow it."""
        report, spend = answer.report, probe.account.spend
        size = sum(len(name) + len(text) for name, text in report.environment.items())
        if report.environment != probe.environment and spend("environment_bytes", size, now):
            probe.environment = report.environment
        # New runs belong to the watched server, even if the clock was set back.
        probe.since = min(probe.since, time.time())
        names = probe.account.affordable_canaries({run.canary for run in report.runs}, now)
        starts = probe.new_runs(report, names)
        unknown = {report.boot_id, *starts} - probe.sequences.keys() - probe.generations.keys()
        samples = [len(run.latencies) for runs in starts.values() for run in runs]
        if not (
            spend("starts", len(unknown), now)
            and spend("runs", len(samples), now)
            and spend("samples", sum(samples), now)
        ):
            return  # keep the cursor: the next poll asks for the same runs again
        probe.take(report, starts, answer.profiles)
        for boot_id, runs in starts.items():
            probe.runs_collected += len(runs)
            if boot_id in probe.generations:
                self.judging.submit(probe.generations[boot_id], runs)
            else:
                found = replace(probe.generations[report.boot_id], boot_id=probe.start_id(boot_id))
                self.judging.submit(found, runs, is_found=True)
        if probe.cursor:  # the exporter did not lose the runs before its first poll
            probe.runs_lost += report.lost_runs
        probe.cursor = report.cursor

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for key in [*self._tasks]:
            self._stop_polling(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reader.shutdown(wait=False)

    async def _watch(self, probe: PolledProbe, delay: float) -> None:
        """Poll while the container is followed."""
        failed = 0
        # A timeout at the same moment may swallow a cancellation. So check that this is still the current task.
        while self._tasks.get(probe.key) is asyncio.current_task():
            await asyncio.sleep(delay)
            await self._poll(probe)
            failed = 0 if probe.up else failed + 1
            delay = max(backoff(failed, self.config.poll_seconds), probe.account.wait(time.monotonic()))

    async def _poll(self, probe: PolledProbe) -> None:
        started, container = time.monotonic(), probe.container

        def may_hold(size: int) -> bool:
            return self.shares.may_hold(probe.key, size, probe.account)

        with self._guard(probe):
            try:
                if container.url is None:
                    raise PollError(container.failure, container.url_missing)
                seconds = max(_LEAST_TIMEOUT_SECONDS, self.config.poll_seconds)
                body = await fetch(container.url, probe.cursor, seconds, self.config.probe_access, may_hold)
                await self.absorb(probe, body)
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
        self._exposition.replace(probe.key, [])  # a part of a report would mislead, so clear all of it
        with suppress(Exception):  # perhaps writing this family failed
            self._exposition.replace(probe.key, [write(UP.family(0.0), probe.identity)])

    def _stop_polling(self, key: Key) -> None:
        if task := self._tasks.pop(key, None):
            task.cancel()
