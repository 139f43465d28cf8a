"""The worker that stores and judges runs: a thread, to which the event loop only hands over.

A report takes these steps:

1. :meth:`Judging.submit` puts it into a bounded queue, from the event loop;
2. once a second :meth:`Judging.turn` stores what is queued, in one transaction (:mod:`.intake`); of a store that
   several exporters share it also reads what the others stored for services whose lease it has (:mod:`.ownership`);
3. :func:`.schedule.next_action` says for each canary that ran what is due: judge it, look at its drift, count, nothing;
4. :func:`.findings.judge_canary` judges: the verdict, the measures, the drift, the A/A trials, the sentence;
5. a new verdict is logged, and recorded in the store (:mod:`.past_verdicts`);
6. the event loop shows the findings (:mod:`.families`, the status page).

A store that fails costs verdicts, never a scrape: what is queued waits for it.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from infercanary.contract.report import Family, Run
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.findings import NOTHING, Finding, Findings, decode, encode, judge_canary
from infercanary.exporter.judging.intake import take
from infercanary.exporter.judging.ownership import PRIORS, Ownership
from infercanary.exporter.judging.past_verdicts import changed_calls, record
from infercanary.exporter.judging.queue import ReportQueue, StartReport
from infercanary.exporter.judging.restart_prior import RestartPrior
from infercanary.exporter.judging.schedule import (
    Boot,
    Canary,
    NextAction,
    RemovedCanaries,
    SeenStart,
    View,
    next_action,
    seen_now,
)
from infercanary.exporter.judging.siblings import Siblings
from infercanary.exporter.watch import WATCH
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, ServiceKey, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.restarts import taught_by
from infercanary.judge.shift import CHANGED
from infercanary.judge.upgrade import select
from infercanary.pages.sentence import measure_words
from infercanary.store.base import LeaseLost, StoreError
from infercanary.store.store import Store, open_store

if TYPE_CHECKING:
    from infercanary.store.fleet import Fleet

log = structlog.get_logger(__name__)

_TURN_SECONDS = 1.0
_THIN_SECONDS = 900.0
_CANARIES = 64  # of one service: names that change each time must not fill the memory with verdicts


class Judging:
    """The thread.

    Args:
        location: Of the store; None keeps the runs in memory, until the exporter ends.
        policy: The numbers that decide.
        host: Host of the containers; it tells hosts apart where several exporters share the store.
        queue_bytes: Limit of what waits for the store.
        read_bytes: Limit of what is read of the store for one judgement, as :meth:`Store.generations` counts it.
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
        """Findings by service; each is replaced as a whole, so that it may be read at any time."""
        self.ownership = Ownership()
        self.watched: frozenset[ServiceKey] = frozenset()
        """Services that have containers here; replaced as a whole."""
        self.up = True
        """True if the store took what it was last given."""
        self._host = host
        self._location = location
        self._policy = self._wanted_policy = policy
        self._queue = ReportQueue(queue_bytes)
        self._read_bytes = read_bytes
        self._siblings = Siblings(read_bytes)
        self._removed = RemovedCanaries()
        self._prior = RestartPrior()
        self._stopping = threading.Event()
        self._store: Store | None = None
        self._complaint = ""
        self._counts: Counter[str] = Counter()  # of store_metrics
        self._seconds = 0.0
        self._bytes: int | None = None
        self._due: dict[Canary, None] = {}  # in order
        self._seen: dict[Canary, dict[Boot, SeenStart]] = {}
        # Newest start by service and container, and a number that changes when its report about itself does.
        self._reported: dict[ServiceKey, dict[str, tuple[Generation, int]]] = {}
        self._numbers = itertools.count()
        self._known: Counter[tuple[ServiceKey, str]] = Counter()
        self._left_out: Counter[tuple[ServiceKey, str]] = Counter()
        self._crowded: set[ServiceKey] = set()  # services with too many canaries
        self._thinned_at = -math.inf
        self._thread = WATCH.thread("judge", self._run)
        self._keeper = WATCH.thread("leases", self._keep_leases)

    # From the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the store and begin."""
        self._thread.start()
        self._keeper.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Store what is queued, and end; what is not stored after ``seconds`` is lost."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def reconfigure(self, policy: Policy) -> None:
        """Judge by ``policy`` from the next turn on; all canaries are judged again."""
        self._wanted_policy = policy

    def submit(self, generation: Generation, runs: Sequence[Run]) -> None:
        """Hand over a start, and its new runs."""
        self._queue.put(StartReport(msgspec.structs.replace(generation, host=self._host), runs))

    def submit_found(self, service: ServiceKey, container: str, boot_id: str, runs: Sequence[Run]) -> None:
        """Hand over runs of an earlier start that this exporter did not see: taken if the store knows the start.

        Args:
            service: Its key.
            container: The stable name.
            boot_id: Name of the start for the judge (:meth:`PolledProbe.start_id`).
            runs: In order, each once.
        """
        start = Generation(
            namespace=service.namespace,
            service=service.name,
            container=container,
            boot_id=boot_id,
            started_at=0.0,
        )
        self._queue.put(StartReport(start, runs, is_found=True))

    def found(self, service: ServiceKey, container: str) -> tuple[int, int]:
        """Runs of :meth:`submit_found` whose start the store knows, and runs that are left out, since the last call."""
        key = service, container
        return self._known.pop(key, 0), self._left_out.pop(key, 0)

    def families(self) -> list[Family]:
        """Metrics of the store and of the judge's own work, without labels of a container."""
        set_aside_at = self._store.database.set_aside_at if self._store is not None else None
        return [
            store_metrics.STORE_UP.family(float(self.up)),
            store_metrics.STORE_ERRORS.family(float(self._counts["errors"])),
            store_metrics.STORE_BYTES.family({} if self._bytes is None else float(self._bytes)),
            store_metrics.STORE_SET_ASIDE.family({} if set_aside_at is None else set_aside_at),
            store_metrics.STORED.family(float(self._counts["stored"])),
            store_metrics.DROPPED.family(float(self._queue.dropped)),
            store_metrics.SECONDS.family(self._seconds),
        ]

    # In the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(0.0 if self._due and self.up else _TURN_SECONDS):
            self.turn()
        self.turn()
        self._keeper.join()  # a lease that is given back stays so
        if self._store is not None:
            self.ownership.end(self._store.fleet)
            self._store.close()

    def _keep_leases(self) -> None:
        """Renew the leases whatever a turn does: a verdict is shown for as long as its lease lasts."""
        seconds = _TURN_SECONDS
        while not self._stopping.wait(seconds):
            if self._store is not None and (fleet := self._store.fleet) is not None:
                seconds = fleet.lease_seconds / 4
                with suppress(StoreError):  # the judge's thread says so as well
                    self.ownership.keep(fleet)

    def turn(self) -> None:
        """Store what is queued, and do what is due for each canary that ran; in the thread that does this, alone."""
        begin = time.thread_time()
        try:
            store = self._opened()
            if store.fleet is None or self._stopping.is_set() or self.ownership.is_due(store.fleet):
                ran = self._exchange(store)
                self.up, self._complaint = True, ""
                if not self._stopping.is_set():
                    ran |= self._apply_policy(store)
                    self._removed.note(ran, self.findings)
                    self._due.update(dict.fromkeys(ran))
                    self._act(store)
                    self._thin(store)
                self._bytes = store.session.size_bytes
            else:  # many small batches cost a shared store more than few large ones
                self._act(store)
        except StoreError as error:
            self.ownership.away()
            self._fail(error, str(error), "store unavailable: buffering runs in memory")
        except Exception as error:
            # A fault of ours: until it is fixed verdicts are not updated, and scrapes go on.
            self._fail(error, repr(error), "judging failed by a fault of the exporter")
        self._seconds += time.thread_time() - begin

    def _fail(self, error: Exception, complaint: str, event: str) -> None:
        """Count the failure, and log it unless it is the same as last time."""
        self.up = False
        self._counts["errors"] += 1
        if complaint != self._complaint:
            self._complaint = complaint
            log.error(event, error=complaint, exc_info=not isinstance(error, StoreError))

    def _opened(self) -> Store:
        if self._store is None:
            self._store = open_store(self._location)
        return self._store

    def _exchange(self, store: Store) -> set[Canary]:
        """Store what is queued, and read what others stored: the canaries of which something is new."""
        reports = self._queue.waiting()
        taken = take(store, reports)
        for report in reports:
            if not report.is_found:
                self._note(report.generation)
        for service in taken.ended:
            taken.ran |= {(service, canary) for canary in self.findings.get(service, NOTHING)}
        self._known += taken.known
        self._left_out += taken.left_out
        self._counts.update(errors=taken.failures, stored=taken.runs)
        self._queue.done(reports)
        if store.fleet is None or self._stopping.is_set():
            return taken.ran
        return self._share(store, store.fleet)

    def _share(self, store: Store, fleet: Fleet) -> set[Canary]:
        """Renew the leases, and read what other exporters wrote: the canaries of which something is new."""
        for service in self.ownership.renew(fleet, self.watched):
            self._unsee(service)
        followed = self.watched | self.ownership.read_asked(fleet)
        for service in self.findings.keys() - followed:
            del self.findings[service]
        unreadable = []
        for service, canary, body in fleet.findings(followed):
            if (finding := decode(body)) is not None:
                self._keep(service, canary, finding)
            else:
                unreadable.append(f"{service} {canary}")
        if unreadable:
            log.warning("findings of another version are dropped; their canaries are judged anew",
                        canaries=len(unreadable), first=unreadable[0])  # fmt: skip
        held = self.ownership.held - {PRIORS}
        changed = fleet.refresh(held)
        for service in held:
            known = self._reported.pop(service, {})
            self._reported[service] = {}
            for start in store.newest_starts(service).values():
                self._note(start, known)
        return changed

    def _note(self, start: Generation, known: dict[str, tuple[Generation, int]] | None = None) -> None:
        """Number the newest start of a container anew where it reports something else than before."""
        starts = self._reported.setdefault(start.key, {})
        noted = (starts if known is None else known).get(start.container)
        if noted is None or noted[0] != start:
            noted = start, next(self._numbers)
        starts[start.container] = noted

    def _unsee(self, service: ServiceKey) -> None:
        """Judge a service anew."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != service}
        self._reported.pop(service, None)

    def _apply_policy(self, store: Store) -> set[Canary]:
        """Judge by the policy that is wanted: the canaries that are to be judged again."""
        if self._wanted_policy == self._policy:
            return set()
        self._policy = self._wanted_policy
        self._seen.clear()
        self.findings = {
            service: {name: msgspec.structs.replace(each, trials={}) for name, each in findings.items()}
            for service, findings in self.findings.items()
        }
        return {*store.canaries(None if store.fleet is None else self.ownership.held)}

    def _act(self, store: Store) -> None:
        """Do what is due, as far as a turn goes; the rest is first in the next."""
        end = time.thread_time() + _TURN_SECONDS
        for canary in [*self._due]:
            del self._due[canary]
            self._due[canary] = None  # where the store fails with it, the others come first next time
            # After a restart of the exporter all probes hand over their rings while all canaries are to be judged.
            is_due = store.fleet is not None and self.ownership.is_due(store.fleet)  # long judgements
            if self._queue.is_half_full or is_due:
                self._due.update(dict.fromkeys(self._exchange(store)))
            if store.fleet is None or canary[0] in self.ownership.held:
                self._look_at(store, *canary)
            del self._due[canary]
            if time.thread_time() > end or self._stopping.is_set():
                break

    def _look_at(self, store: Store, service: ServiceKey, canary: str) -> None:
        """Do what is due for a canary."""
        findings = self.findings.get(service, NOTHING)
        if canary not in findings and len(findings) >= _CANARIES:
            if service not in self._crowded:
                self._crowded.add(service)
                log.warning(
                    "further canaries of the service are not judged", service=str(service), limit=_CANARIES
                )
            return
        finding = findings.get(canary)
        starts = self._reported.get(service, {}).values()
        view = View(
            seen=self._seen.get((service, canary), {}),
            taken=store.taken(service, canary),
            reported={(start.container, start.boot_id): number for start, number in starts},
            judgement=finding.result if finding is not None else None,
            new=finding.sides.new if finding is not None else (),
        )
        due = next_action(view, self._policy)
        if due is NextAction.COUNT and finding is not None:
            runs = max(map(view.counted, finding.sides.new), default=finding.result.runs)
            result = msgspec.structs.replace(finding.result, runs=runs)
            self._keep(service, canary, msgspec.structs.replace(finding, result=result))
        elif due is not NextAction.NOTHING:
            try:
                self._judge(store, service, canary, view, finding, due)
            except LeaseLost:
                log.warning("lost the lease on a service", service=str(service))
                self.ownership.lose(service)
                self._unsee(service)
            except StoreError:
                self._seen.pop((service, canary), None)  # it is judged again once the store works
                raise
            except Exception:
                # A fault of ours: until it is fixed it must cost this canary only.
                self._counts["errors"] += 1
                log.exception("not judged by a fault of the exporter", service=str(service), canary=canary)

    def _judge(
        self,
        store: Store,
        service: ServiceKey,
        canary: str,
        view: View,
        before: Finding | None,
        due: NextAction,
    ) -> None:
        """Judge a canary, and record a verdict that is new."""
        read = store.generations(service, canary, most_bytes=self._read_bytes)
        starts = identified([Start.of(generation, samples) for generation, samples in read])
        if store.fleet is not None:  # others may have stored more meanwhile
            view = view._replace(taken=store.taken(service, canary))
        self._seen[service, canary] = seen_now(starts, view)
        siblings = self._siblings.of(service, (start.generation.host for start in starts), store)
        upgrade = select(starts).upgrade
        policy = self._policy.but(**self._prior.at(store, upgrade.at if upgrade else None).changes)
        try:
            if not view.taken.keys() <= view.seen.keys():  # a start ended, and another one began
                self._prior.teach((service, canary), taught_by(starts, policy.pool))
            after = judge_canary(canary, before, starts, siblings, policy, due)
        except (ArithmeticError, ValueError, TypeError):
            if not siblings:
                raise
            # What a sibling reported must cost no other service its verdict.
            self._counts["errors"] += 1
            named = sorted({str(start.generation.key) for start in siblings})
            log.exception("judged without siblings by a fault of the exporter", service=str(service),
                          canary=canary, siblings=named)  # fmt: skip
            after = judge_canary(canary, before, starts, [], policy, due)
        after = self._recorded(store, service, canary, before, after)
        if store.fleet is not None:
            lesson = self._prior.lesson((service, canary))
            store.fleet.put_finding(service, canary, time.time(), encode(after), lesson)
        self._keep(service, canary, after)

    def _recorded(
        self, store: Store, service: ServiceKey, canary: str, before: Finding | None, after: Finding
    ) -> Finding:
        """Log a verdict that is new, and record it."""
        result, old = after.result, before.result if before is not None else None
        is_same = old is not None and old.upgraded_at == result.upgraded_at
        is_new = old is None or not is_same or old.state != result.state
        # Who reads the log at night must see that the host is blamed now, too.
        is_moved = old is not None and result.state in CHANGED and old.causes.cause != result.causes.cause
        if is_new or is_moved:
            log.info("verdict", service=str(service), canary=canary, verdict=after.sentence)
        changed = changed_calls(before.measures if before is not None and is_same else {}, after.measures)
        for name in changed:
            said = measure_words(name, after.measures[name])
            log.info("verdict on a measure", service=str(service), canary=canary, verdict=said)
        if not is_new and not changed:
            return after
        over = (old, before.sentence) if old is not None and before is not None and not is_same else None
        answers = record(store, service, canary, result, after.sentence, time.time(), after.measures, over)
        return msgspec.structs.replace(after, answers=answers)

    def _keep(self, service: ServiceKey, canary: str, finding: Finding) -> None:
        self.findings[service] = {**self.findings.get(service, NOTHING), canary: finding}

    def _thin(self, store: Store) -> None:
        if time.monotonic() - self._thinned_at > _THIN_SECONDS:
            self._thinned_at = time.monotonic()
            store.thin(time.time())
            self._forget(store)
            if store.fleet is None or PRIORS in self.ownership.held:
                self._prior.learn(store, time.time())
            else:
                self._prior.read_again()

    def _forget(self, store: Store) -> None:
        """Forget what the store no longer has, and canaries that were removed from their service.

        Names may come and go for years, and a finding on a removed canary must not stay on dashboards for ever.
        """
        mine = None if store.fleet is None else self.ownership.held | self.watched | self.ownership.asked
        canaries = {*store.canaries(mine)} - self._removed.all()
        known: defaultdict[ServiceKey, set[str]] = defaultdict(set)
        for service, canary in canaries:
            known[service].add(canary)
        self._removed.forget(known)
        self._seen = {canary: seen for canary, seen in self._seen.items() if canary in canaries}
        self._prior.forget(canaries)
        self._reported = {
            service: {name: noted for name, noted in starts.items() if not noted[0].ended_at}
            for service, starts in self._reported.items()
            if service in known
        }
        self._crowded &= known.keys()
        for service, findings in [*self.findings.items()]:
            kept = {canary: finding for canary, finding in findings.items() if (service, canary) in canaries}
            if not kept:
                del self.findings[service]
            elif len(kept) < len(findings):
                self.findings[service] = kept
