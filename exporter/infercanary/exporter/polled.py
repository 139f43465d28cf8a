"""One container's probe, as polled so far: what it reported, and what the exporter shows of the polling."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from infercanary.client.accept import Reason
from infercanary.client.fetch import Failure
from infercanary.contract.report import Family, Metric, Report, Run
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC, GPU_SHARED_WITH
from infercanary.exporter.canaries import ReportedCanaries
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.expose import Lines
from infercanary.exporter.history import History, RunSummary, waiting_share
from infercanary.exporter.judging import families as judged_families
from infercanary.exporter.judging.findings import Findings
from infercanary.exporter.limits import EXCEEDED, Account
from infercanary.exporter.sharing import (
    SHARED,
    SHARED_GPU,
    UNKNOWN_PROCESSES,
    GpuShare,
    SeenGpu,
    in_words,
    neighbours,
)
from infercanary.judge.identity import image_name
from infercanary.judge.model import Generation
from infercanary.judge.profiles import Packed, merged

UP = Metric(
    "infercanary_up",
    "gauge",
    "1 if the last poll of the container's probe gave a valid report, else 0.",
    reading="0 for minutes is an alert: all that the probe reports is missing. The status page has the reason.",
)
AGE = Metric(
    "infercanary_report_age_seconds",
    "gauge",
    "Time since the last valid report of the container's probe.",
    reading="Healthy is at most about `poll_seconds`.",
)
INFO = Metric(
    "infercanary_container_info",
    "gauge",
    "Always 1; what Docker or the kubelet reports about the container.",
    ("image", "image_id", "image_digest", "container_id"),
    reading="Join it on instance, namespace, service, pod and container. Labels are empty for a container from the "
    "config's list.",
)
POLL_DURATION = Metric(
    "infercanary_poll_duration_seconds",
    "gauge",
    "Time of the last poll, from connecting to the whole body.",
    reading="Healthy is milliseconds. Near `poll_seconds`, the host or the container has too little CPU.",
)
POLL_FAILURES = Metric(
    "infercanary_poll_failures_total",
    "counter",
    "Polls that gave no valid report, by reason.",
    ("reason",),
    reading="The status page has the last reason in words. `server_gone`: a sidecar's server does not run. "
    "`label`: a label is wrong.",
)
REJECTED = Metric(
    "infercanary_rejected_total",
    "counter",
    "Parts of valid reports that were left out (families, runs, environment entries), by reason.",
    ("reason",),
    reading="Healthy is no increase. `too_many`: more than an honest report has. Otherwise a probe of another "
    "version, or unusual names of yours.",
)
RUNS_COLLECTED = Metric(
    "infercanary_runs_collected_total",
    "counter",
    "Runs that the exporter took from the probe, each once.",
    reading="It grows with `infercanary_runs_total`.",
)
RUNS_LOST = Metric(
    "infercanary_runs_lost_total",
    "counter",
    "Runs that left the probe's ring before the exporter collected them.",
    reading="Healthy is no increase: the ring holds 2,048 runs, which last for hours.",
)
WAITING = Metric(
    "infercanary_canary_waiting_ratio",
    "gauge",
    "Share of the canary's latency over 10 minutes that was CPU wait caused by other processes on the host.",
    ("canary",),
    reading="A large share is an alert: requests wait as long. The container itself and its quota do not count.",
)
METRICS = (
    WAITING,
    UP,
    AGE,
    INFO,
    POLL_DURATION,
    POLL_FAILURES,
    REJECTED,
    EXCEEDED,
    RUNS_COLLECTED,
    RUNS_LOST,
    SHARED,
    SHARED_GPU,
    UNKNOWN_PROCESSES,
    *judged_families.METRICS,
)

K = TypeVar("K", bound=str)
Side = Literal["old", "new", "other"]

_COLD_START_POINTS = 128  # of 16 canaries, several times the steps of each
_TOGETHER_SECONDS = 60.0  # a sidecar may start so long before its server
_SETTLED_SECONDS = 300.0
"""A neighbour that comes and goes within this time is no component of the environment: each change is judged."""
_GENERATIONS = 2  # this start and the one before, whose runs may come out of the journal
_BOOTS = 512  # as many as a probe in a crash loop finds runs of in its journal


class PolledProbe:
    """State of a container's probe, as polled so far. Times are of the monotonic clock.

    Args:
        container: The container as first found.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        # Polls.
        self.up = self.polled = False
        self.trouble = "not polled yet"
        self.duration: float | None = None
        self.failures: Counter[Failure] = Counter()
        self.account = Account()
        # The last report.
        self.reported_at: float | None = None
        self.reported = ReportedCanaries()
        self.rejected: Counter[Reason] = Counter()
        self.environment: dict[str, str] = {}
        self.history = History()
        self.cpus = ""
        self.cpuset = 0
        self.gpus: tuple[SeenGpu, ...] = ()
        # Other containers on its CPUs and GPUs.
        self.shared_cpus: int | None = None
        self.shared_gpus: dict[SeenGpu, GpuShare] = {}
        self.neighbours = ""
        self.neighbours_since: float | None = None
        self._settled: frozenset[str] = frozenset()
        self._moving: dict[str, float] = {}  # name of a neighbour that came or left → since when
        # Runs and starts.
        self.runs_collected = self.runs_lost = 0
        self.cursor = ""
        self.sequences: dict[str, int] = {}  # boot id → last run that was taken
        self.since = container.watched_since  # runs before this Unix time are of an earlier server
        self.generations: dict[str, Generation] = {}  # by boot id
        self.kills: tuple[float, ...] = ()  # memory kills since the start before, Unix times
        # Rendered families: of the report, of the judge, and of the exporter.
        self.lines: list[Lines] = []
        self.verdicts: list[Lines] = []
        self.vitals: dict[str, Lines] = {}
        self.findings: Findings | None = None  # that ``verdicts`` show
        self.publishes = True

    @property
    def key(self) -> Key:
        """Identity of the container."""
        return self.container.key

    @property
    def identity(self) -> dict[str, str]:
        """Labels of all of its series."""
        return self.container.labels

    @property
    def start(self) -> Generation | None:
        """The start that reported last."""
        return next(reversed(self.generations.values()), None)

    def start_id(self, boot_id: str) -> str:
        """Name a start for the judge: a new server beside a sidecar is one, although the probe's process goes on.

        Args:
            boot_id: Of the probe's process.
        """
        watched = self.container.watched_id[:12]
        return f"{boot_id}@{watched}" if watched else boot_id

    def new_runs(
        self, boot_id: str, runs: Iterable[tuple[Run, RunSummary]]
    ) -> dict[str, list[tuple[Run, RunSummary]]]:
        """Select the runs that were not taken yet.

        Args:
            boot_id: Of the probe's process.
            runs: In order; also those of earlier processes, from the journal.

        Returns:
            Boot id → runs, in order.
        """
        starts: dict[str, list[tuple[Run, RunSummary]]] = {}
        last = dict(self.sequences)
        for run, summary in runs:
            boot = run.boot_id or boot_id
            if run.sequence > last.get(boot, -1) and run.started_at >= self.since:
                starts.setdefault(boot, []).append((run, summary))
                last[boot] = run.sequence
        return starts

    def take(self, boot_id: str, runs: Sequence[tuple[Run, RunSummary]]) -> None:
        """Note the new runs of one start.

        Args:
            boot_id: Of the probe's process.
            runs: In order.
        """
        self.sequences[boot_id] = runs[-1][0].sequence
        while len(self.sequences) > _BOOTS:
            del self.sequences[next(iter(self.sequences))]
        self.history.take(summary for _, summary in runs)

    def remember(self, report: Report, profiles: Packed) -> None:
        """Note the start that reports.

        Args:
            report: Its sound part.
            profiles: Profiles of the runs in it.
        """
        self._settle(time.monotonic())
        c, latest, boot_id = self.container, self.start, report.boot_id
        before = self.generations.pop(boot_id, None)
        if before is None and next(reversed(self.generations), "") in self.sequences:
            self.kills = ()  # they ended an earlier start that ran; a start that never ran leaves them to the next
        environment = {name: text for name, text in self.environment.items() if name != GPU_SHARED_WITH}
        if self.neighbours:
            environment[GPU_SHARED_WITH] = self.neighbours
        if latest is not None and latest.environment == environment:
            environment = latest.environment  # many reports may wait for the store
        # A sidecar's start, and the outputs that it compares with, may be those of an earlier server.
        is_own = c.watched_since <= report.started_at + _TOGETHER_SECONDS
        generation = Generation(
            namespace=c.namespace,
            service=c.service,
            container=c.replica,
            boot_id=self.start_id(boot_id),
            image=c.image,
            image_id=c.image_id,
            image_digest=c.image_digest,
            image_form=c.image_form,
            origin=c.origin,
            started_at=before.started_at if before else max(report.started_at, c.watched_since),
            environment=environment,
            outputs=report.outputs if is_own else {},
            cold_start=cold_starts(report.families) if is_own else {},
            memory_kills=self.kills,
            profiles=merged(before.profiles if before else {}, profiles),
        )
        self.generations[boot_id] = generation
        while len(self.generations) > _GENERATIONS:
            del self.generations[next(iter(self.generations))]

    def killed(self, at: float) -> Generation | None:
        """Note that the kernel ended the server for memory.

        Args:
            at: Unix time.

        Returns:
            The start that ended; None if none ran yet.
        """
        self.kills += (at,)
        return self._end(memory_kills=self.kills)

    def gone(self, at: float) -> Generation | None:
        """Note that the container was removed.

        Args:
            at: Unix time.

        Returns:
            The start that ended; None if none ran yet.
        """
        return self._end(ended_at=at)

    def _end(self, **changes: object) -> Generation | None:
        boot_id = next(reversed(self.generations), "")
        if boot_id not in self.sequences:
            return None
        self.generations[boot_id] = ended = msgspec.structs.replace(self.generations[boot_id], **changes)
        return ended

    def side(self, canary: str) -> Side:
        """Side of the canary's last upgrade that the container runs.

        Args:
            canary: Its name.

        Returns:
            ``new`` if the verdict is about its image, also without an upgrade; ``old`` if it runs the image before;
            else ``other``, such as for an image of which the judge has no run yet.
        """
        finding = self.findings.get(canary) if self.findings is not None else None
        if finding is None:
            return "new"
        if self.start is None:
            return "other"
        sides, is_upgraded = finding.sides, finding.result.upgraded_at is not None
        boot, image = (self.start.container, self.start.boot_id), image_name(self.start)
        # By its start, else by its image: the judge may not know the start yet, or it is of another host.
        if is_upgraded and boot in sides.old and boot not in sides.new:
            return "old"
        if boot in (sides.new if is_upgraded else sides.others) or image == finding.result.candidate_image:
            return "new"
        return "old" if is_upgraded and image == finding.result.baseline_image else "other"

    def families(self, now: float) -> list[Family]:
        """Measure the polls.

        Args:
            now: Seconds, monotonic clock.

        Returns:
            Families without labels of the container; unknown ones have no points.
        """
        c = self.container
        shares = self.shared_gpus if self.up else {}
        return [
            UP.family({(): float(self.up)} if c.is_asked else {}),
            AGE.family({(): now - self.reported_at} if self.reported_at is not None else {}),
            INFO.family({(c.image, c.image_key, c.image_digest, c.id): 1.0}),
            POLL_DURATION.family({(): self.duration} if self.duration is not None else {}),
            POLL_FAILURES.family(_counts(self.failures)),
            EXCEEDED.family(_counts(self.account.exceeded)),
            REJECTED.family(_counts(self.rejected)),
            RUNS_COLLECTED.family(float(self.runs_collected)),
            RUNS_LOST.family(float(self.runs_lost)),
            # These come from its report, and so are missing while it is down.
            WAITING.family({(canary,): share for canary, share in self.waiting().items()} if self.up else {}),
            SHARED.family({(): self.shared_cpus} if self.up and self.shared_cpus is not None else {}),
            SHARED_GPU.family({(g.label, g.uuid): share.others for g, share in shares.items()}),
            UNKNOWN_PROCESSES.family(
                {(g.label, g.uuid): s.unknown for g, s in shares.items() if s.unknown is not None}
            ),
        ]

    def waiting(self) -> dict[str, float]:
        """Share of the latency that is CPU wait caused by other processes on the host.

        Returns:
            Canary → share from 0 to 1; only if known.
        """
        shares = {canary: waiting_share(runs) for canary, runs in self.history.canaries.items()}
        return {canary: share for canary, share in shares.items() if share is not None}

    def share(self, gpus: dict[SeenGpu, GpuShare], now: float) -> None:
        """Note the other containers on its GPUs.

        Args:
            gpus: Its GPUs → who shares each.
            now: Seconds, monotonic clock.
        """
        changed = self._settled ^ neighbours(gpus.values())
        self._moving = {name: self._moving.get(name, now) for name in changed}
        self.shared_gpus = gpus

    def _settle(self, now: float) -> None:
        """Make a neighbour that stayed, or stayed away, a fact of the start.

        Any probe may claim to be on this GPU: one that comes and goes changes nothing, nor what is known of others.
        """
        due = {name: since for name, since in self._moving.items() if now - since >= _SETTLED_SECONDS}
        if due:
            self._settled ^= due.keys()
            self._moving = {name: since for name, since in self._moving.items() if name not in due}
            self.neighbours, self.neighbours_since = in_words(self._settled), max(due.values())


def _counts(counter: Counter[K]) -> dict[tuple[str, ...], float]:
    return {(reason,): float(count) for reason, count in sorted(counter.items())}


def cold_starts(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Canary → step → seconds above zero, out of a report's families."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        if family.name == COLD_START_METRIC and family.labels == ("canary", "step"):
            for point in family.points[:_COLD_START_POINTS]:
                canary, step = point.labels
                if (
                    step in COLD_START and isinstance(point.value, float) and point.value > 0
                ):  # a divisor later
                    found[canary][step] = point.value
    return dict(found)
