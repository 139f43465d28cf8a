"""State of the probe of one container, and the metrics of the polls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from infercanary.client.accept import Reason
from infercanary.client.fetch import Failure
from infercanary.contract.report import Family, Metric, Report, Run
from infercanary.contract.vocabulary import GPU_SHARED_WITH, NOBODY
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.expose import Lines
from infercanary.exporter.history import History, waiting_share
from infercanary.exporter.judging import families as judged_families
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.limits import EXCEEDED, Account
from infercanary.exporter.report_facts import ReportFacts
from infercanary.exporter.sharing import SHARED, SHARED_GPU, UNKNOWN_PROCESSES, GpuShare
from infercanary.judge.model import Generation
from infercanary.judge.profiles import Packed, merged

UP = Metric(
    "infercanary_up",
    "gauge",
    "1 if the last poll of the container's probe gave a valid report, else 0.",
    reading="0 for some minutes is an alert: the probe's own series are missing. The status page has the reason.",
)
AGE = Metric(
    "infercanary_report_age_seconds",
    "gauge",
    "Time from the last valid report of the container's probe to the last poll.",
    reading="Healthy is 0. The age increases while polls fail.",
)
INFO = Metric(
    "infercanary_container_info",
    "gauge",
    "Always 1; facts that Docker or the kubelet reports about the container.",
    ("image", "image_id", "image_digest", "container_id"),
    reading="Join on instance, namespace, service, pod and container. Labels are empty for a container from the "
    "config's list.",
)
POLL_DURATION = Metric(
    "infercanary_poll_duration_seconds",
    "gauge",
    "Duration of the last poll, from connecting until the whole answer was received.",
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
    reading="Healthy is no increase. `too_many`: the report is too large. For other reasons, compare the versions "
    "of probe and exporter, and look for unusual names in your config.",
)
RUNS_COLLECTED = Metric(
    "infercanary_runs_collected_total",
    "counter",
    "Runs that the exporter collected from the probe. Each run counts once.",
    reading="Should grow as fast as `infercanary_runs_total`.",
)
RUNS_LOST = Metric(
    "infercanary_runs_lost_total",
    "counter",
    "Runs that left the probe's ring buffer before the exporter collected them.",
    reading="Healthy is no increase: the buffer holds 2,048 runs, which last for hours.",
)
WAITING = Metric(
    "infercanary_canary_waiting_ratio",
    "gauge",
    "Share of the canary's latency over 10 minutes that was CPU wait caused by other processes on the host.",
    ("canary",),
    reading="A large share is an alert: requests also wait. CPU wait caused by the container or its quota does "
    "not count.",
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

_TOGETHER_SECONDS = 60.0  # a sidecar may start this long before its server
_SETTLED_SECONDS = 300.0
"""Each changed component of the environment is judged. So a neighbour that comes and goes within this time does not
become a component.
"""
_GENERATIONS = 2  # the current start, and the previous start with runs in the journal
_BOOTS = 512  # a probe in a crash loop may find runs of this many starts in its journal


class PolledProbe:
    """State of the probe of one container. Times are by the monotonic clock unless noted otherwise.

    Args:
        container: The container as first found.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        # Polls.
        self.up = self.polled = False
        self.trouble = "not polled yet"
        self.duration = math.nan
        self.failures: Counter[Failure] = Counter()
        self.account = Account()
        # The last report.
        self.reported_at: float | None = None
        self.reported = ReportFacts()
        self.rejected: Counter[Reason] = Counter()
        self.environment: dict[str, str] = {}
        self.history = History()
        # Other containers on the same CPUs and GPUs.
        self.shared_cpus = math.nan
        self.shared_gpus: Mapping[tuple[str, str], GpuShare] = {}  # other users by label and uuid
        self.neighbours = ""
        self._settled: set[str] = set()
        self._moving: dict[str, float] = {}  # time of the change, by neighbour that came or left
        # Runs and starts.
        self.runs_collected = self.runs_lost = 0
        self.cursor = ""
        self.sequences: dict[str, int] = {}  # sequence number of the last collected run, by boot id
        self.since = container.watched_since  # runs before this Unix time belong to an earlier server
        self.generations: dict[str, Generation] = {}  # starts by boot id
        self.kills: tuple[float, ...] = ()  # memory kills since the previous start, Unix times
        # Rendered families of the report, of the judge, and of the exporter.
        self.lines: list[Lines] = []
        self.verdicts: list[Lines] = []
        self.vitals: list[Lines] = []
        self.findings = NOTHING  # findings that ``verdicts`` are rendered from
        self.publishes = True

    @property
    def key(self) -> Key:
        return self.container.key

    @property
    def identity(self) -> dict[str, str]:
        """Labels of all series of the container."""
        return self.container.labels

    @property
    def start(self) -> Generation | None:
        """The start that reported last."""
        return next(reversed(self.generations.values()), None)

    def start_id(self, boot_id: str) -> str:
        """Return the id by which the judge distinguishes starts.

        The id is the boot id. With a sidecar, the watched container's id is appended. So a new server is a new start,
        even with the same process of the probe.

        Args:
            boot_id: Boot id of the probe's process.
        """
        watched = self.container.watched_id[:12]
        return f"{boot_id}@{watched}" if watched else boot_id

    def new_runs(self, report: Report, canaries: Collection[str]) -> dict[str, list[Run]]:
        """Select the runs of these canaries that were not collected yet.

        Args:
            report: A report. The probe's journal may add runs of earlier processes.
            canaries: Names of the canaries.

        Returns:
            Runs by boot id, in order of time.
        """
        starts: dict[str, list[Run]] = {}
        last = dict(self.sequences)
        for run in report.runs:
            boot = run.boot_id or report.boot_id
            is_new = run.sequence > last.get(boot, -1) and run.started_at >= self.since
            if is_new and run.canary in canaries:
                starts.setdefault(boot, []).append(run)
                last[boot] = run.sequence
        return starts

    def take(self, report: Report, starts: Mapping[str, Sequence[Run]], profiles: Packed) -> None:
        """Record the start that sent a report, and the report's new runs.

        Args:
            report: The valid part of the report.
            starts: New runs by boot id, of this start or of earlier starts.
            profiles: Profiles of the runs in the report.
        """
        c, latest, boot_id = self.container, self.start, report.boot_id
        before = self.generations.pop(boot_id, None)
        if before is None and next(reversed(self.generations), "") in self.sequences:
            # These kills ended an earlier start with runs. Kills of a start without runs are kept for the next start.
            self.kills = ()
        environment = self.environment | {GPU_SHARED_WITH: self.neighbours}  # overrides the probe's own claim
        if not self.neighbours:
            del environment[GPU_SHARED_WITH]
        if latest is not None and latest.environment == environment:
            environment = latest.environment  # one copy for all reports: many reports may wait for the store
        # The cold start and the reference outputs of a sidecar may belong to an earlier server.
        is_own = c.watched_since <= report.started_at + _TOGETHER_SECONDS
        self.generations[boot_id] = Generation(
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
            cold_start=self.reported.cold_starts if is_own else {},
            memory_kills=self.kills,
            profiles=merged(before.profiles if before else {}, profiles),
        )
        if len(self.generations) > _GENERATIONS:
            del self.generations[next(iter(self.generations))]
        for boot_id, runs in starts.items():
            self.sequences[boot_id] = runs[-1].sequence
            self.history.take(runs)
            if len(self.sequences) > _BOOTS:
                del self.sequences[next(iter(self.sequences))]

    def families(self, now: float) -> list[Family]:
        """Return the metrics of the polls.

        Args:
            now: Seconds, monotonic clock.

        Returns:
            Families without container labels; unknown values are missing.
        """
        c = self.container
        families = [
            UP.family(float(self.up) if c.is_asked else math.nan),
            AGE.family(math.nan if self.reported_at is None else now - self.reported_at),
            INFO.family({(c.image, c.image_key, c.image_digest, c.id): 1.0}),
            POLL_DURATION.family(self.duration),
            POLL_FAILURES.family(_by_reason(self.failures)),
            EXCEEDED.family(_by_reason(self.account.exceeded)),
            REJECTED.family(_by_reason(self.rejected)),
            RUNS_COLLECTED.family(self.runs_collected),
            RUNS_LOST.family(self.runs_lost),
        ]
        if self.up:  # values from the report
            shares = self.shared_gpus.items()
            families += [
                WAITING.family({(canary,): waiting_share(runs) for canary, runs in self.history.items()}),
                SHARED.family(self.shared_cpus),
                SHARED_GPU.family({gpu: share.others for gpu, share in shares}),
                UNKNOWN_PROCESSES.family({gpu: share.unknown for gpu, share in shares}),
            ]
        return families

    def share(self, gpus: Mapping[tuple[str, str], GpuShare], now: float) -> None:
        """Record the other containers on the same GPUs.

        A neighbour that has been present or absent for long enough changes the environment of the next report. Any
        probe may claim to use this GPU, so a neighbour that comes and goes changes nothing.

        Args:
            gpus: Other users of the container's GPUs, by label and uuid of a GPU.
            now: Seconds, monotonic clock.
        """
        names = {name for share in gpus.values() for name in share.names}
        if gpus and not names:
            names = {NOBODY}
        moving = {name: self._moving.get(name, now) for name in self._settled ^ names}
        due = {name for name, since in moving.items() if now - since >= _SETTLED_SECONDS}
        self._settled ^= due
        self._moving = {name: since for name, since in moving.items() if name not in due}
        self.neighbours = ", ".join(sorted(self._settled))
        self.shared_gpus = gpus


def _by_reason(counter: Mapping[Any, int]) -> dict[tuple[str, ...], float]:
    return {(reason,): count for reason, count in counter.items()}
