"""Polls each container's probe on a clock of its own, and shows what it answers.

What a probe does wrong costs only itself: each has its own connection, deadline, size limit and back-off, and
a report is read in a worker thread, away from the event loop that serves the scrapes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import structlog

from infercanary.exporter.accept import Reason
from infercanary.exporter.config import Config
from infercanary.exporter.discovery import Container
from infercanary.exporter.expose import Exposition, Key, Lines, fill, write
from infercanary.exporter.history import History
from infercanary.exporter.poll import Failure, PollError, digest, fetch, open_session
from infercanary.probe.report import Family, Metric, Point

log = structlog.get_logger(__name__)

UP = Metric(
    "infercanary_up", "gauge", "1 if the last poll of the container's probe gave a valid report, else 0."
)
AGE = Metric(
    "infercanary_report_age_seconds",
    "gauge",
    "Time since the last valid report of the container's probe.",
)
INFO = Metric(
    "infercanary_container_info",
    "gauge",
    "1, with what Docker says of the container: image reference, image id, registry digest and container id.",
    ("image", "image_id", "image_digest", "container_id"),
)
POLL_DURATION = Metric(
    "infercanary_poll_duration_seconds",
    "gauge",
    "Time that the last poll took, from connecting to the whole body.",
)
POLL_FAILURES = Metric(
    "infercanary_poll_failures_total", "counter", "Polls that gave no valid report, by reason.", ("reason",)
)
REJECTED = Metric(
    "infercanary_rejected_total",
    "counter",
    "Parts of otherwise valid reports that were left out (families, runs, environment entries), by reason.",
    ("reason",),
)
RUNS_COLLECTED = Metric(
    "infercanary_runs_collected_total", "counter", "Raw runs taken from the probe, each once."
)
RUNS_LOST = Metric(
    "infercanary_runs_lost_total",
    "counter",
    "Raw runs that left the probe's ring before the exporter came for them.",
)
METRICS = (UP, AGE, INFO, POLL_DURATION, POLL_FAILURES, REJECTED, RUNS_COLLECTED, RUNS_LOST)

_MAX_BACKOFF_SECONDS = 60.0
_QUICK_RETRIES = 3


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
        # Where the collection of its runs has come to.
        self.boot_id = ""
        self.cursor = ""
        self.sequence = -1
        # What it showed last, so that the next report only fills in values.
        self.lines: dict[str, Lines] = {}
        self.vitals: dict[str, Lines] = {}

    @property
    def key(self) -> Key:
        """Its identity in every label set."""
        return self.container.service, self.container.name

    @property
    def identity(self) -> dict[str, str]:
        """The labels that every one of its series carries."""
        return {"service": self.container.service, "container": self.container.name}

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
            REJECTED.family({(reason,): float(count) for reason, count in sorted(self.rejected.items())}),
            RUNS_COLLECTED.family(float(self.runs_collected)),
            RUNS_LOST.family(float(self.runs_lost)),
        ]


def backoff(failed: int, poll_seconds: float) -> float:
    """Seconds until the next poll after ``failed`` failures in a row: the first retries are quick."""
    doubled = poll_seconds * 2.0 ** min(max(0, failed - _QUICK_RETRIES), 32)
    return max(poll_seconds, min(_MAX_BACKOFF_SECONDS, doubled))


class Collector:
    """Polls the probes of the containers it follows, and shows them in an :class:`Exposition`."""

    def __init__(self, config: Config, exposition: Exposition, reserved: Collection[str]) -> None:
        self.config = config
        self.probes: dict[Key, Probe] = {}
        self._exposition = exposition
        self._reserved = reserved
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="report")

    def follow(self, containers: Iterable[Container]) -> None:
        """Poll ``containers`` and no others. The one with another id is another container, whatever its name."""
        wanted = {(container.service, container.name): container for container in containers}
        for key, known in list(self.probes.items()):
            if key not in wanted or wanted[key].id != known.container.id:
                self._stop_polling(key)
                self._exposition.forget(key)
                del self.probes[key]
        # Starts are spread, so that a thousand probes do not answer in the same instant.
        spread = min(self.config.poll_seconds, 0.005 * len(wanted))
        for key, container in wanted.items():
            probe = self.probes.get(key)
            if probe is None:
                probe = self.probes[key] = Probe(container)
            elif probe.container == container:
                continue
            elif probe.container.url != container.url:
                self._stop_polling(key)
            probe.container = container
            if container.url is None:
                probe.up, probe.polled, probe.trouble = False, True, container.url_missing
            elif key not in self._tasks:
                delay = random.uniform(0, spread)  # noqa: S311 - a jitter, not a secret
                self._tasks[key] = asyncio.create_task(self._watch(probe, container.url, delay))
            if probe.polled:
                self.show(probe)

    def show(self, probe: Probe) -> None:
        """Show what ``probe`` last said, if it is up, and what the exporter says of it in any case."""
        vitals = probe.vitals
        for family in probe.families(time.monotonic()):
            vitals[family.name] = write(family, probe.identity, vitals.get(family.name))
        said = probe.lines.values() if probe.up else ()
        refused = self._exposition.replace(probe.key, [*said, *vitals.values()])
        if refused:
            probe.rejected["conflict"] += len(refused)

    def refresh_ages(self) -> None:
        """Show how old each report is now, not at the last poll."""
        now = time.monotonic()
        for key, probe in self.probes.items():
            lines = probe.vitals.get(AGE.name)
            if lines is not None and probe.reported_at is not None:
                self._exposition.put(key, fill(lines, [Point((), now - probe.reported_at)]))

    async def absorb(self, probe: Probe, body: bytes) -> None:
        """Take one answer of ``probe``. Raises :class:`PollError`."""
        digested = await asyncio.get_running_loop().run_in_executor(
            self._reader, digest, body, probe.identity, probe.lines, self.config.limits, self._reserved
        )
        report, accepted = digested.report, digested.accepted
        if report.boot_id != probe.boot_id:
            probe.sequence = -1
        fresh = []
        for run, summary in zip(accepted.runs, digested.summaries, strict=True):
            if run.sequence > probe.sequence:
                probe.sequence = run.sequence
                fresh.append(summary)
        probe.history.take(fresh)
        probe.runs_collected += len(fresh)
        if probe.cursor:  # to who comes for the first time, what is past is not lost
            probe.runs_lost += report.lost_runs
        probe.boot_id, probe.cursor = report.boot_id, report.cursor
        probe.rejected += accepted.rejected
        probe.environment = accepted.environment
        probe.lines = digested.lines
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
            while True:
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
        detail = "".join(character if character.isprintable() else " " for character in detail)[:300]
        if probe.up or not probe.polled:
            log.warning(
                "probe is down", **probe.identity, url=probe.container.url, reason=reason, error=detail
            )
        probe.failures[reason] += 1
        probe.up, probe.trouble = False, f"{reason}: {detail}"

    def _stop_polling(self, key: Key) -> None:
        if task := self._tasks.pop(key, None):
            task.cancel()
