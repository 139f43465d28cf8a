"""One container's probe, as polled so far: what it reported, and what the exporter shows of the polling."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from infercanary.client.accept import Accepted, Reason
from infercanary.client.fetch import Failure
from infercanary.contract.report import Family, Metric, Run
from infercanary.contract.vocabulary import COLD_START_METRIC, GPU_SHARED_WITH
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
    reading="Healthy is milliseconds. Near `timeout_seconds`, the host or the container has too little CPU.",
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
    reading="Healthy is no increase. `too_many`: one of the exporter's `limits`. Otherwise a probe of another "
    "version, or unusual names of yours.",
)
RUNS_COLLECTED = Metric(
    "infercanary_runs_collected_total",
    "counter",
    "Runs that the exporter took from the probe, each once.",
    reading="It grows with `infercanary_runs_total`.",
)
RUNS_LEFT_OUT = Metric(
    "infercanary_runs_left_out_total",
    "counter",
    "Runs of earlier starts that are not judged: no poll saw these starts, so their image is unknown.",
    reading="It grows if the container started more than once while the exporter was away.",
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
    RUNS_LEFT_OUT,
    RUNS_LOST,
    SHARED,
    SHARED_GPU,
    UNKNOWN_PROCESSES,
    *judged_families.METRICS,
)

Side = Literal["old", "new", "other"]

_TOGETHER_SECONDS = 60.0  # within which a sidecar and its server are started, in any order
_COLD_START_BYTES = 8 << 10  # of the names of canaries in one family
_SETTLED_SECONDS = 300.0  # until who comes onto its GPU, or leaves it, is a fact: each change is judged
_GENERATIONS = 2  # this start, and the one before: its runs may come out of the journal


class PolledProbe:
    """A container's probe, as polled so far. Times are of the monotonic clock.

    Args:
        container: As it was found first.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self.up = False
        self.trouble = "not polled yet"
        self.polled = False
        self.reported_at: float | None = None
        self.environment: dict[str, str] = {}
        self.history = History()
        self.duration: float | None = None
        self.account = Account()
        self.failures: Counter[Failure] = Counter()
        self.rejected: Counter[Reason] = Counter()
        self.runs_collected = 0
        self.runs_left_out = 0
        self.runs_lost = 0
        # The CPUs that it may use, as it last reported, and how many of them it shares.
        self.cpus = ""
        self.cpuset = 0
        self.shared_cpus: int | None = None
        # The same of GPUs: as it last reported them, who else is on them, and since when (monotonic).
        self.gpus: tuple[SeenGpu, ...] = ()
        self.shared_gpus: dict[SeenGpu, GpuShare] = {}
        self.neighbours = ""
        self.neighbours_since: float | None = None
        self._settled: frozenset[str] = frozenset()  # those who stayed
        self._moving: dict[str, float] = {}  # who came since, or left: since when
        # Up to where its runs were collected.
        self.cursor = ""
        self.sequences: dict[str, int] = {}  # by boot id, of its last starts: the last run that was taken
        # Runs from before that time are of a server that it no longer watches.
        self.since = container.watched_since
        # Its last starts by boot id, for the judge, with what each of them reported of its cold start.
        self.generations: dict[str, tuple[Generation, list[Family]]] = {}
        # When the kernel ended its server for memory, since the start before: Unix times.
        self.kills: tuple[float, ...] = ()
        # What the judge had found when that was last shown.
        self.findings: Findings | None = None
        self.publishes = True
        self.reported = ReportedCanaries()
        # What it reported last, what the judge found, and what the exporter says of it, by family.
        self.lines: list[Lines] = []
        self.verdicts: list[Lines] = []
        self.vitals: dict[str, Lines] = {}

    @property
    def key(self) -> Key:
        """Its identity in every label set."""
        return self.container.key

    def start_id(self, boot_id: str) -> str:
        """The judge's name for a start: another server beside a sidecar is one, although its own process goes on.

        Args:
            boot_id: Of the probe's process.
        """
        watched = self.container.watched_id[:12]
        return f"{boot_id}@{watched}" if watched else boot_id

    @property
    def start(self) -> Generation | None:
        """The start that reports now, as it last said; None where none ever did."""
        return next((generation for generation, _ in reversed(self.generations.values())), None)

    @property
    def identity(self) -> dict[str, str]:
        """The labels that every one of its series carries."""
        return self.container.labels

    def new_runs(
        self, boot_id: str, runs: Iterable[tuple[Run, RunSummary]]
    ) -> dict[str, list[tuple[Run, RunSummary]]]:
        """The runs that were not taken yet.

        Args:
            boot_id: Of the probe's process.
            runs: As it reports them. One that found the journal of the process before it offers those that were not
                collected from that, too.

        Returns:
            Boot id → runs, in order.
        """
        starts: dict[str, list[tuple[Run, RunSummary]]] = {}
        for run, summary in runs:
            of = run.boot_id or boot_id
            last = starts[of][-1][0].sequence if of in starts else self.sequences.get(of, -1)
            if run.sequence > last and run.started_at >= self.since:
                starts.setdefault(of, []).append((run, summary))
        return starts

    def remember(self, boot_id: str, started_at: float, accepted: Accepted, profiles: Packed) -> None:
        """Note which start of the container it is that reports.

        Args:
            boot_id: Of the probe's process.
            started_at: When that began, a Unix time.
            accepted: The sound part of its report.
            profiles: Of the runs in it.
        """
        c = self.container
        self._settle(time.monotonic())
        environment = self._shared(self._environment(accepted.environment))
        before = self.generations.pop(boot_id, None)
        if before is None and next(reversed(self.generations), "") in self.sequences:
            self.kills = ()  # an earlier start that ran has them; one that never did leaves them to the next
        # What a sidecar reports of its start, and the outputs that it compares with, are an earlier server's.
        of_earlier = c.watched_since > started_at + _TOGETHER_SECONDS
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
            started_at=max(started_at, c.watched_since) if before is None else before[0].started_at,
            environment=environment,
            outputs={} if of_earlier else accepted.outputs,
            memory_kills=self.kills,
            profiles=merged({} if before is None else before[0].profiles, profiles),
        )
        families = () if of_earlier else accepted.families
        cold_start = [
            family
            for family in families
            if family.name == COLD_START_METRIC
            and sum(sys.getsizeof(text) for point in family.points for text in point.labels)
            <= _COLD_START_BYTES
        ]
        self.generations[boot_id] = generation, cold_start
        while len(self.generations) > _GENERATIONS:
            del self.generations[next(iter(self.generations))]

    def ended(self, at: float) -> tuple[Generation, list[Family]] | None:
        """Note that the kernel ended its server for memory.

        Args:
            at: A Unix time.

        Returns:
            The start that ended so, for the judge, with what it reported of its cold start; None where none ran yet.
        """
        self.kills += (at,)
        boot_id = next(reversed(self.generations), "")
        if boot_id not in self.sequences:
            return None
        generation, cold_start = self.generations[boot_id]
        generation = msgspec.structs.replace(generation, memory_kills=self.kills)
        self.generations[boot_id] = generation, cold_start
        return generation, cold_start

    def side(self, canary: str) -> Side:
        """Which side of a canary's last upgrade it runs.

        Args:
            canary: Its name.

        Returns:
            ``new`` where the verdict is about its image, also where nothing was upgraded; ``old`` where it runs what
            that one replaced; else ``other``, such as for an image of which the judge has no run yet.
        """
        finding = self.findings.get(canary) if self.findings is not None else None
        if finding is None:
            return "new"
        if self.start is None:
            return "other"
        judgement, sides = finding.result, finding.sides
        boot, name = (self.start.container, self.start.boot_id), image_name(self.start)
        if judgement.upgraded_at is None:
            return "new" if boot in sides.others or name == judgement.candidate_image else "other"
        # By its start, else by its image: the judge may not know the start yet, or another host's of that name.
        if boot in sides.new or boot in sides.old:
            return "new" if boot in sides.new else "old"
        if name == judgement.candidate_image:
            return "new"
        return "old" if name == judgement.baseline_image else "other"

    def gone(self, at: float) -> tuple[Generation, list[Family]] | None:
        """Note that its container is no more.

        Args:
            at: A Unix time.

        Returns:
            The start that ended so, for the judge, with what it reported of its cold start; None where none ran yet.
        """
        boot_id = next(reversed(self.generations), "")
        if boot_id not in self.sequences:
            return None
        generation, cold_start = self.generations[boot_id]
        return msgspec.structs.replace(generation, ended_at=at), cold_start

    def families(self, now: float) -> list[Family]:
        """What the exporter itself measures of it; ``now`` is of the monotonic clock.

        Args:
            now: Seconds, of the monotonic clock.

        Returns:
            Families without labels of the container; those that are not known have no points.
        """
        c = self.container
        shares = self.shared_gpus if self.up else {}
        return [
            UP.family({(): float(self.up)} if c.is_asked else {}),
            AGE.family({(): now - self.reported_at} if self.reported_at is not None else {}),
            INFO.family({(c.image, c.image_key, c.image_digest, c.id): 1.0}),
            POLL_DURATION.family({(): self.duration} if self.duration is not None else {}),
            POLL_FAILURES.family(
                {(reason,): float(count) for reason, count in sorted(self.failures.items())}
            ),
            EXCEEDED.family(
                {(budget,): float(count) for budget, count in sorted(self.account.exceeded.items())}
            ),
            REJECTED.family({(reason,): float(count) for reason, count in sorted(self.rejected.items())}),
            RUNS_COLLECTED.family(float(self.runs_collected)),
            RUNS_LEFT_OUT.family(float(self.runs_left_out)),
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
        """How much of the latency is waiting for CPUs that others on the host have.

        Returns:
            Canary → share from 0 to 1; only where that is known.
        """
        shares = {canary: waiting_share(runs) for canary, runs in self.history.canaries.items()}
        return {canary: share for canary, share in shares.items() if share is not None}

    def share(self, gpus: dict[SeenGpu, GpuShare], now: float) -> None:
        """Note who else is on its GPUs.

        Args:
            gpus: Its GPUs → who shares each.
            now: Seconds, of the monotonic clock.
        """
        changed = self._settled ^ neighbours(gpus.values())
        self._moving = {name: self._moving.get(name, now) for name in changed}
        self.shared_gpus = gpus

    def _settle(self, now: float) -> None:
        """Take it for a fact of the start that one came or left, once that held for a while.

        Any probe may claim to be on this GPU: one that comes and goes changes nothing, nor what is known of others.
        """
        due = {name: since for name, since in self._moving.items() if now - since >= _SETTLED_SECONDS}
        if due:
            self._settled = self._settled.symmetric_difference(due)
            self._moving = {name: since for name, since in self._moving.items() if name not in due}
            self.neighbours, self.neighbours_since = in_words(self._settled), max(due.values())

    def _shared(self, environment: dict[str, str]) -> dict[str, str]:
        """The same environment as one that is in memory already: many reports may wait for the store."""
        known = (generation.environment for generation, _ in self.generations.values())
        return next((each for each in known if each == environment), environment)

    def _environment(self, reported: dict[str, str]) -> dict[str, str]:
        """What the probe reports, and what only the exporter knows: who else is on the container's GPUs."""
        own = {name: value for name, value in reported.items() if name != GPU_SHARED_WITH}
        return own | ({GPU_SHARED_WITH: self.neighbours} if self.neighbours else {})
