"""Worker: the thread that stores and judges runs, separate from the event loop.

A report is processed in these steps:

1. :meth:`Judging.submit` puts the report into a bounded queue, from the event loop;
2. once a second :meth:`Judging.turn` stores the queue in one transaction (:mod:`.intake`); with a shared store, it also
reads the runs that other exporters stored for services whose lease this exporter has (:mod:`.ownership`);
3. :func:`.schedule.due` decides for each canary that ran which judgements are due;
4. :func:`.findings.judge_canary` judges: verdict, measures, drift, A/A trials, sentence;
5. a new verdict is logged and recorded (:mod:`.past_verdicts`), and gets the benchmark of its image
(:mod:`.benchmarked`);
6. the event loop shows the findings (:mod:`.families`, the status page).

If the store fails, reports wait in the queue and verdicts are not updated, but scrapes are still answered.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from infercanary.contract.report import Family, Metric, Run
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.benchmarked import with_benchmark
from infercanary.exporter.judging.findings import NOTHING, Finding, Findings, decode, encode, judge_canary
from infercanary.exporter.judging.intake import take
from infercanary.exporter.judging.ownership import PRIORS, Ownership
from infercanary.exporter.judging.past_verdicts import record
from infercanary.exporter.judging.queue import ReportQueue, StartReport
from infercanary.exporter.judging.restart_prior import RestartPrior
from infercanary.exporter.judging.schedule import CANARIES, ServiceState, due, seen_now
from infercanary.exporter.judging.siblings import Siblings
from infercanary.exporter.watch import WATCH
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, ServiceKey, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.upgrade import select
from infercanary.store.base import LeaseLost, StoreError
from infercanary.store.store import Store, is_shared, open_store

if TYPE_CHECKING:
    from infercanary.store.fleet import Fleet

log = structlog.get_logger(__name__)

_TURN_SECONDS = 1.0
_THIN_SECONDS = 900.0


class Judging:
    """Thread that stores and judges runs.

    Args:
        location: Location of the store; None keeps the runs in memory until the exporter ends.
        policy: Thresholds of the judge.
        host: Host of the containers, if exporters of several hosts share the store.
        queue_bytes: Limit of the queue's memory.
        read_bytes: Limit of the data read for one judgement, as in :meth:`Store.generations`.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None,
        policy: Policy = LIVE,
        host: str = "",
        queue_bytes: int = 128 << 20,
        read_bytes: int = 32 << 20,
    ) -> None:
        self.findings: dict[ServiceKey, Findings] = {}
        """Findings by service. A service's findings are replaced as a whole. Any thread may read at any time."""
        self.ownership = Ownership(is_alone=not is_shared(str(location)))
        self.watched: frozenset[ServiceKey] = frozenset()
        """Services with containers that this exporter polls; replaced as a whole."""
        self.up = True
        """True if the last turn succeeded."""
        self.host = host
        self._location = location
        self._policy = policy
        self._queue = ReportQueue(queue_bytes)
        self._read_bytes = read_bytes
        self._siblings = Siblings(read_bytes)
        self._prior = RestartPrior()
        self._stopping = threading.Event()
        self._store: Store | None = None
        self._complaint = ""
        self._counts: Counter[Metric] = Counter()
        self._seconds = 0.0
        self._bytes: int | None = None
        self._due: dict[tuple[ServiceKey, str], None] = {}  # service and canary, in order
        self._services: defaultdict[ServiceKey, ServiceState] = defaultdict(ServiceState)
        self._thinned_at = -math.inf
        self._thread = WATCH.thread("judge", self._run)
        self._keeper = WATCH.thread("leases", self._keep_leases)

    # From the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the store and begin."""
        self._thread.start()
        self._keeper.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Store the queue and end. Runs that are not stored within ``seconds`` are lost."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def submit(self, generation: Generation, runs: Sequence[Run], *, is_found: bool = False) -> None:
        """Put a start and its new runs into the queue.

        Args:
            runs: New runs, in order of time.
            is_found: True for a start that this exporter did not see. Its runs are stored only if the store already
                has the start.
        """
        generation = msgspec.structs.replace(generation, host=self.host)
        self._queue.put(StartReport(generation, runs, is_found))

    @property
    def set_aside_at(self) -> float | None:
        """Unix time at which the last corrupt store file was renamed; None if no such file exists."""
        return self._store.database.set_aside_at if self._store is not None else None

    def families(self) -> list[Family]:
        """Return the metrics of the store and of the judge's thread, without container labels."""
        values: dict[Metric, float | None] = {
            store_metrics.STORE_UP: self.up,
            store_metrics.STORE_BYTES: self._bytes,
            store_metrics.STORE_SET_ASIDE: self.set_aside_at,
            store_metrics.DROPPED: self._queue.dropped,
            store_metrics.SECONDS: self._seconds,
        }
        return [
            metric.family({} if (value := values.get(metric, self._counts[metric])) is None else value)
            for metric in store_metrics.METRICS
        ]

    # In the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(0.0 if self._due and self.up else _TURN_SECONDS):
            self.turn()
        self.turn()
        self._keeper.join()  # a later renewal could take back a lease that was just given back
        if self._store is not None:
            self.ownership.end(self._store.fleet)
            self._store.close()

    def _keep_leases(self) -> None:
        """Renew the leases in a separate thread. A turn may take longer than a lease lasts."""
        seconds = _TURN_SECONDS
        while not self._stopping.wait(seconds):
            if self._store is not None and (fleet := self._store.fleet) is not None:
                seconds = fleet.lease_seconds / 4
                self.ownership.keep(fleet)

    def turn(self) -> None:
        """Store the queue, and judge the canaries that are due. Only the judge's thread calls this."""
        begin = time.thread_time()
        try:
            store = self._opened()
            # In a shared store, many small transactions take longer than a few large ones.
            if store.fleet is None or self._stopping.is_set() or self._must_exchange(store):
                self._exchange(store)
                self.up, self._complaint = True, ""
                self._bytes = store.session.size_bytes
            if not self._stopping.is_set():
                self._act(store)
                self._thin(store)
        except StoreError as error:
            self.ownership.is_away = True
            self._fail("store unavailable: buffering runs in memory", error)
        except Exception as error:
            # The bug stops updates of verdicts. Scrapes are still answered.
            self._fail("judging failed because of a bug in the exporter", error)
        self._seconds += time.thread_time() - begin

    def _fail(self, event: str, error: Exception) -> None:
        """Count a failure, and log it unless it is the same as the last failure."""
        self.up = False
        self._counts[store_metrics.STORE_ERRORS] += 1
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.error(event, error=self._complaint, exc_info=not isinstance(error, StoreError))

    def _opened(self) -> Store:
        if self._store is None:
            self._store = open_store(self._location)
        return self._store

    def _must_exchange(self, store: Store) -> bool:
        """Return True if reports must be stored, or leases renewed, before the next judgement.

        After a restart of the exporter, all probes report their buffered runs while all canaries are due.
        """
        return self._queue.is_half_full or (store.fleet is not None and self.ownership.is_due(store.fleet))

    def _exchange(self, store: Store) -> None:
        """Store the queue, and read the data that other exporters stored."""
        if reports := self._queue.waiting():
            self._counts.update(take(store, reports))
            self._queue.done(reports)
        for report in reports:
            start, state = report.generation, self._services[report.generation.key]
            boot, findings = (start.container, start.boot_id), self.findings.get(start.key, NOTHING)
            if store.fleet is None:
                state.note(start)
            runs = Counter(run.canary for run in report.runs)
            # After the end of a start (a report without runs), all canaries of the service may be due.
            for canary in runs or findings:
                has_upgrade = _has_upgrade(findings.get(canary))
                may_be_due = state.may_be_due(
                    canary, boot, runs[canary], self._policy, has_upgrade=has_upgrade
                )
                self._ran(start.key, canary, may_be_due=may_be_due or store.fleet is not None)
        if store.fleet is not None and not self._stopping.is_set():
            self._share(store, store.fleet)

    def _ran(self, service: ServiceKey, canary: str, *, may_be_due: bool = True) -> None:
        ran_at = self._services[service].ran_at
        if canary in ran_at or len(ran_at) < CANARIES:
            ran_at[canary] = time.monotonic()
            if may_be_due:
                self._due[service, canary] = None

    def _share(self, store: Store, fleet: Fleet) -> None:
        """Renew the leases, and read the data that other exporters stored."""
        for service in self.ownership.renew(fleet, self.watched):
            self._services[service].seen.clear()  # all canaries of the service are due
        followed = self.watched | self.ownership.read_asked(fleet)
        for service in self.findings.keys() - followed:
            del self.findings[service]
        for service, canary, body in fleet.findings(followed):
            if (finding := decode(body)) is not None:
                self._keep(service, canary, finding)
        held = self.ownership.held - {PRIORS}
        for service, canary in fleet.refresh(held):
            self._ran(service, canary)
        for service in held:
            newest = store.newest_starts(service)
            for start in newest.values():
                self._services[service].note(start)
            self._services[service].newest = newest

    def _act(self, store: Store) -> None:
        """Judge due canaries for about one turn. The remaining canaries come first in the next turn."""
        end = time.thread_time() + _TURN_SECONDS
        for service, canary in [*self._due]:
            if self._must_exchange(store):
                self._exchange(store)
            del self._due[service, canary]
            if store.fleet is None or service in self.ownership.held:
                self._look_at(store, service, canary)
            if time.thread_time() > end or self._stopping.is_set():
                break

    def _look_at(self, store: Store, service: ServiceKey, canary: str) -> None:
        """Judge one canary, if anything is due."""
        try:
            self._judge(store, service, canary)
        except LeaseLost:
            self.ownership.lose([service])
        except StoreError:
            self._services[service].seen.pop(canary, None)
            self._due[service, canary] = None  # the canary comes last when the store works again
            raise
        except Exception:
            # Limit a bug to the verdict on this canary.
            self._counts[store_metrics.STORE_ERRORS] += 1
            log.exception("not judged because of a bug in the exporter", service=str(service), canary=canary)

    def _judge(self, store: Store, service: ServiceKey, canary: str) -> None:
        before = self.findings.get(service, NOTHING).get(canary)
        state, taken = self._services[service], store.taken(service, canary)
        state.reported[canary] = taken
        extent = due(state.seen.get(canary, {}), taken, self._policy, has_upgrade=_has_upgrade(before))
        if not any(extent):
            return
        read = store.generations(service, canary, most_bytes=self._read_bytes)
        starts = identified([Start.of(generation, samples) for generation, samples in read])
        state.seen[canary] = seen_now(starts, taken)
        siblings = self._siblings.of(service, (start.generation.host for start in starts), store)
        selection = select(starts)
        upgraded_at = selection.upgrade.at if selection.upgrade else None
        policy = self._policy.but(**self._prior.at(store, upgraded_at).changes)
        after = judge_canary(canary, before, starts, siblings, policy, extent, selection)
        after = record(store, service, canary, before, after)
        after = with_benchmark(after, state.newest.values(), store.session, canary)
        if store.fleet is not None:
            lesson = b"" if after.taught is None else msgspec.json.encode(after.taught)
            store.fleet.put_finding(service, canary, time.time(), encode(after), lesson)
        self._keep(service, canary, after)

    def _keep(self, service: ServiceKey, canary: str, finding: Finding) -> None:
        self.findings[service] = {**self.findings.get(service, NOTHING), canary: finding}
        self._services[service].ran_at.setdefault(canary, time.monotonic())

    def _thin(self, store: Store) -> None:
        if time.monotonic() - self._thinned_at > _THIN_SECONDS:
            self._thinned_at = time.monotonic()
            store.thin(time.time())
            self._forget(store)
            if store.fleet is None or PRIORS in self.ownership.held:
                self._prior.learn(store, time.time(), self.findings)
            else:
                self._prior.read_again()

    def _forget(self, store: Store) -> None:
        """Forget canaries that the store no longer has, and canaries that were removed from their service.

        Otherwise their findings would stay in memory and on dashboards for ever.
        """
        stored = {*store.canaries(self._services)}
        for service, state in [*self._services.items()]:
            state.forget(service, stored)
            findings = self.findings.get(service, NOTHING)
            self.findings[service] = {name: findings[name] for name in findings if name in state.ran_at}
            if not self.findings[service]:
                del self.findings[service]
            if not state.ran_at:
                del self._services[service]


def _has_upgrade(finding: Finding | None) -> bool:
    return finding is not None and finding.result.upgraded_at is not None
