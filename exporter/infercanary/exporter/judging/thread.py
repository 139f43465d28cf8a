"""Where runs are kept and judged: one thread with the store, beside the event loop, which only hands over and reads.

What a probe reported takes these steps:

1. :meth:`Judging.submit` puts it into a bounded queue, from the event loop;
2. once a second :meth:`Judging.turn` stores what is queued, in one transaction (:mod:`.intake`); of a store that
   several exporters share it also reads what the others stored, of the services whose lease it has (:mod:`.ownership`);
3. :func:`.action.next_action` says for each canary that ran what to do: judge it, look at its drift, count, nothing;
   what is not done within a turn is first in the next;
4. :meth:`.findings.Findings.judged` judges: the verdict, the measures, the drift, the A/A trials, the sentence;
5. a new verdict is logged, and recorded in the store (:mod:`.answers`);
6. the event loop shows the findings (:mod:`.metrics`, the status page).

A store that fails costs verdicts, never a scrape: what is queued waits for it.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from infercanary.contract.report import Family, Run
from infercanary.exporter.judging import action, store_metrics
from infercanary.exporter.judging.action import Boot, NextAction, SeenStart, View
from infercanary.exporter.judging.answers import changed_calls, record
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.judging.intake import take
from infercanary.exporter.judging.learning import Learning
from infercanary.exporter.judging.ownership import PRIORS, Ownership, encoded, with_finding
from infercanary.exporter.judging.queue import ReportQueue, StartReport, cold_starts
from infercanary.exporter.judging.siblings import Siblings
from infercanary.exporter.judging.silence import Canary, Silence
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
        host: That the containers run on; it tells hosts apart where several exporters share the store.
        queue_bytes: Of what waits for the store.
        read_bytes: Of what is read of the store for one judgement, as :meth:`Store.generations` counts them.
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
        """Service → what is known of it; replaced as a whole, so that it may be read at any time."""
        self.ownership = Ownership()
        self.watched: frozenset[ServiceKey] = frozenset()
        """The services that have containers here; replaced as a whole."""
        self._host = host
        self._location = location
        self._policy = self._wanted_policy = policy
        self._queue = ReportQueue(queue_bytes)
        self._read_bytes = read_bytes
        self._crowded: set[ServiceKey] = set()  # services with too many canaries
        self._siblings = Siblings(read_bytes)
        self._silence = Silence()
        self._learning = Learning()
        self._stopping = threading.Event()
        self._store: Store | None = None
        self.up = True
        """Whether the store took what it was last given."""
        self._complaint = ""
        self._errors = self._stored = 0
        self._seconds = 0.0
        self._bytes: int | None = None
        self._due: dict[Canary, None] = {}  # to be looked at
        self._unfinished = False  # the last turn had no time for all of them
        self._seen: dict[Canary, Mapping[Boot, SeenStart]] = {}  # when last judged
        # By service and container: its newest start, and a number that changes when what it reports does.
        self._reported: dict[ServiceKey, dict[str, tuple[Generation, int]]] = {}
        self._numbers = itertools.count()
        self._found: dict[tuple[ServiceKey, str], tuple[int, int]] = {}  # that nobody asked about yet
        self._thinned_at = -math.inf
        self._thread = WATCH.thread("judge", self._run)
        self._keeper = WATCH.thread("leases", self._keep_leases)

    # From the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the store and begin."""
        self._thread.start()
        self._keeper.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Store what is queued, and end.

        Args:
            seconds: How long to wait; what is not stored by then is lost.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def reconfigure(self, policy: Policy) -> None:
        """Judge by ``policy``, from the next turn on; all canaries are judged again.

        Args:
            policy: The numbers that decide.
        """
        self._wanted_policy = policy

    def submit(self, generation: Generation, families: Sequence[Family], runs: Sequence[Run]) -> None:
        """Hand over what a start of a container reported.

        Args:
            generation: The start.
            families: Those that this start itself reported last: its cold start is among them.
            runs: Those that are new.
        """
        generation = msgspec.structs.replace(generation, cold_start=cold_starts(families), host=self._host)
        self._queue.put(StartReport(generation, runs))

    def submit_found(self, service: ServiceKey, container: str, boot_id: str, runs: Sequence[Run]) -> None:
        """Hand over runs of an earlier start that this exporter did not see: taken if the store knows the start.

        Args:
            service: Its key.
            container: The stable name.
            boot_id: As the judge names the start (:meth:`PolledProbe.start_id`).
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
        """Outcome of the runs of :meth:`submit_found`.

        Args:
            service: Its key.
            container: The stable name.

        Returns:
            Runs whose start the store knows, and runs that are left out, since it was last asked.
        """
        return self._found.pop((service, container), (0, 0))

    def families(self) -> list[Family]:
        """The metrics of the store and of the judge's own work.

        Returns:
            Families without labels of a container.
        """
        set_aside_at = self._store.set_aside_at if self._store is not None else None
        return [
            store_metrics.STORE_UP.family(float(self.up)),
            store_metrics.STORE_ERRORS.family(float(self._errors)),
            store_metrics.STORE_BYTES.family({} if self._bytes is None else float(self._bytes)),
            store_metrics.STORE_SET_ASIDE.family({} if set_aside_at is None else set_aside_at),
            store_metrics.STORED.family(float(self._stored)),
            store_metrics.DROPPED.family(float(self._queue.dropped)),
            store_metrics.SECONDS.family(self._seconds),
        ]

    # In the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(0.0 if self._unfinished else _TURN_SECONDS):
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
            fleet = None if self._store is None else self._store.fleet
            if fleet is not None:
                seconds = fleet.lease_seconds / 4
                with suppress(StoreError):  # the judge's thread says so as well
                    self.ownership.keep(fleet)

    def turn(self) -> None:
        """Store what is queued, and do what is next for each canary that ran; in the thread that does this, alone."""
        begin = time.thread_time()
        unfinished, self._unfinished = self._unfinished, False
        try:
            store = self._opened()
            fleet = store.fleet
            if fleet is not None and not self._stopping.is_set() and not self.ownership.is_due(fleet):
                if unfinished:
                    self._act(store, ())
                return  # many small batches cost a shared store more than few large ones
            ran = self._take(store)
            if fleet is not None and not self._stopping.is_set():
                ran = self._share(store, fleet)
            self.up, self._complaint = True, ""
            if not self._stopping.is_set():
                ran = self._apply_policy(store) | ran
                self._silence.note(ran, {name: found.judgements for name, found in self.findings.items()})
                self._act(store, ran)
                self._thin(store)
            self._bytes = store.size_bytes
        except StoreError as error:
            self.up = False
            self.ownership.away()
            self._failed(error, str(error), "the judge's store fails; what comes is kept in memory for now")
        except Exception as error:
            # A fault of ours: until it is fixed verdicts are not updated, and scrapes go on.
            self.up = False
            self._failed(error, repr(error), "judging failed by a fault of the exporter")
        self._seconds += time.thread_time() - begin

    def _failed(self, error: Exception, complaint: str, event: str) -> None:
        """Count the failure, and log it unless it is the same as last time."""
        self._errors += 1
        if complaint != self._complaint:
            self._complaint = complaint
            if isinstance(error, StoreError):
                log.error(event, error=complaint)
            else:
                log.exception(event)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = open_store(self._location)
            self._store.keep_for(self._policy)
        return self._store

    def _take(self, store: Store) -> set[Canary]:
        """Store what is queued: the canaries that ran."""
        reports = self._queue.waiting()
        taken = take(store, reports)
        for start in (report.generation for report in reports if not report.is_found):
            self._reported.setdefault(start.key, {})[start.container] = self._numbered(start)
        for service in taken.ended:
            judged = self.findings.get(service, NOTHING).judgements
            self._wait_for((service, canary) for canary in judged)
        for key, counts in taken.found.items():
            before = self._found.pop(key, (0, 0))  # the event loop may ask at this very moment
            self._found[key] = before[0] + counts[0], before[1] + counts[1]
        self._errors += taken.failures
        self._stored += taken.runs
        self._queue.done(reports)
        return taken.ran

    def _share(self, store: Store, fleet: Fleet) -> set[Canary]:
        """Renew the leases, and read what other exporters wrote: the canaries of which something is new."""
        for service in self.ownership.renew(fleet, self.watched):
            self._unsee(service)
        followed = self.watched | self.ownership.read_asked(fleet)
        for service in self.findings.keys() - followed:
            del self.findings[service]
        unreadable = []
        for found in fleet.findings(followed):
            known = with_finding(self.findings.get(found.service, NOTHING), found.canary, found.body)
            if known is None:
                unreadable.append(f"{found.service} {found.canary}")
            else:
                self.findings[found.service] = known
        if unreadable:
            log.warning("findings of another version are dropped; their canaries are judged anew",
                        canaries=len(unreadable), first=unreadable[0])  # fmt: skip
        held = self.ownership.held - {PRIORS}
        changed = fleet.refresh(held)
        for service in held:
            self._reported[service] = {
                container: self._numbered(start) for container, start in store.newest_starts(service).items()
            }
        return changed

    def _numbered(self, start: Generation) -> tuple[Generation, int]:
        """A start with its number, which is another one where it reports something else than before."""
        known = self._reported.get(start.key, {}).get(start.container)
        return known if known is not None and known[0] == start else (start, next(self._numbers))

    def _unsee(self, service: ServiceKey) -> None:
        """Judge a service anew."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != service}
        self._reported.pop(service, None)

    def _apply_policy(self, store: Store) -> set[Canary]:
        """Judge by the policy that is wanted: the canaries that are to be judged again."""
        if self._wanted_policy == self._policy:
            return set()
        self._policy = self._wanted_policy
        store.keep_for(self._policy)
        self._seen.clear()
        self.findings = {
            service: msgspec.structs.replace(found, trials={}, measures={})
            for service, found in self.findings.items()
        }
        return {*store.canaries(None if store.fleet is None else self.ownership.held)}

    def _wait_for(self, canaries: Iterable[Canary]) -> None:
        """Have these canaries looked at."""
        self._due.update(dict.fromkeys(canaries))

    def _act(self, store: Store, ran: Iterable[Canary]) -> None:
        """Do what is next for each of these canaries, and for those that the last turns left: as far as a turn goes."""
        self._wait_for(ran)
        pending = self._due
        end = time.thread_time() + _TURN_SECONDS
        for one in [*pending]:
            pending[one] = pending.pop(
                one, None
            )  # where the store fails with it, the others come first next time
            # After a restart of the exporter all probes hand over their rings while all canaries are to be judged.
            if self._queue.is_half_full:
                taken = self._take(store)
                self._wait_for(taken if store.fleet is None else ())
            if store.fleet is not None and self.ownership.is_due(store.fleet):  # long judgements
                self._wait_for(self._share(store, store.fleet))
            if store.fleet is None or one[0] in self.ownership.held:
                self._look_at(store, *one)
            del pending[one]
            if time.thread_time() > end or self._stopping.is_set():
                break
        self._unfinished = bool(pending)

    def _look_at(self, store: Store, service: ServiceKey, canary: str) -> None:
        """Do what is next for a canary."""
        found = self.findings.get(service, NOTHING)
        if canary not in found.judgements and len(found.judgements) >= _CANARIES:
            if service not in self._crowded:
                self._crowded.add(service)
                log.warning(
                    "further canaries of the service are not judged", service=str(service), limit=_CANARIES
                )
            return
        view = View(
            seen=self._seen.get((service, canary), {}),
            taken=store.taken(service, canary),
            reported={
                (start.container, start.boot_id): number
                for start, number in self._reported.get(service, {}).values()
            },
            judgement=found.judgements.get(canary),
        )
        due = action.next_action(view, self._policy)
        if due is NextAction.COUNT:
            runs = action.runs_of_new_image(store, service, canary, view, self._read_bytes)
            self.findings[service] = found.counted(canary, runs)
        elif due is not NextAction.NOTHING:
            self._judge(store, service, canary, view, drift_alone=due is NextAction.DRIFT)

    def _judge(
        self, store: Store, service: ServiceKey, canary: str, view: View, *, drift_alone: bool
    ) -> None:
        """Judge a canary, and record a verdict that is new."""
        try:
            read = store.generations(service, canary, most_bytes=self._read_bytes)
            starts = identified([Start.of(g, samples) for g, samples in read])
            if store.fleet is not None:  # others may have stored more meanwhile
                view = view._replace(taken=store.taken(service, canary))
            self._seen[service, canary] = action.seen_now(starts, view)
            starts = action.counting_starts(starts, self._policy)
            siblings = self._siblings.of(service, (s.generation.host for s in starts), store)
            before = self.findings.get(service, NOTHING)
            upgrade = select(starts).upgrade
            prior = self._learning.prior(store, upgrade.at if upgrade else None)
            policy = self._policy.but(**prior.changes)
            try:
                if not view.taken.keys() <= view.seen.keys():  # a start ended, and another one began
                    self._learning.teach((service, canary), taught_by(starts, policy.pool))
                after = before.judged(canary, starts, siblings, policy, drift_alone=drift_alone)
            except (ArithmeticError, ValueError, TypeError):
                if not siblings:
                    raise
                # What a sibling reported must cost no other service its verdict.
                self._errors += 1
                named = sorted({str(start.generation.key) for start in siblings})
                log.exception("judged without siblings by a fault of the exporter", service=str(service),
                              canary=canary, siblings=named)  # fmt: skip
                after = before.judged(canary, starts, [], policy, drift_alone=drift_alone)
            judgement, words = after.judgements[canary], after.sentences[canary]
            known, measures = view.judgement, after.measures[canary]
            was = (known.state, known.upgraded_at) if known is not None else None
            is_new = was != (judgement.state, judgement.upgraded_at)
            # Who reads the log at night must see that the host is blamed now, too.
            is_moved = (
                judgement.state in CHANGED
                and known is not None
                and known.causes.cause != judgement.causes.cause
            )
            if is_new or is_moved:
                log.info("verdict", service=str(service), canary=canary, verdict=words)
            is_same = known is not None and known.upgraded_at == judgement.upgraded_at
            changed = changed_calls(before.measures.get(canary, {}) if is_same else {}, measures)
            for name in changed:
                said = measure_words(name, measures[name])
                log.info("verdict on a measure", service=str(service), canary=canary, verdict=said)
            if is_new or changed or canary not in before.measures:  # then one may take back what is recorded
                over = None
                if known is not None and not is_same:
                    over = known, before.sentences[canary]
                answers = record(store, service, canary, judgement, words, time.time(), measures, over)
                after = after.answered(canary, answers)
            body = encoded(after, canary)
            if store.fleet is not None:
                lesson = self._learning.lesson((service, canary))
                store.fleet.put_finding(service, canary, time.time(), body, lesson)
            self.findings[service] = after
        except LeaseLost:
            log.warning("another exporter judges this service now", service=str(service))
            self.ownership.lose(service)
            self._unsee(service)
        except StoreError:
            self._seen.pop((service, canary), None)  # it is judged again once the store works
            raise
        except Exception:
            # A fault of ours: until it is fixed it must cost this canary only.
            self._errors += 1
            log.exception("not judged by a fault of the exporter", service=str(service), canary=canary)

    def _thin(self, store: Store) -> None:
        if time.monotonic() - self._thinned_at > _THIN_SECONDS:
            self._thinned_at = time.monotonic()
            store.thin(time.time())
            self._forget(store)
            if store.fleet is None or PRIORS in self.ownership.held:
                self._learning.learn(store, time.time())
            else:
                self._learning.read_again()

    def _forget(self, store: Store) -> None:
        """Forget what the store no longer has, and canaries that were removed from their service.

        Names may come and go for years, and what was found of a removed one must not stay on dashboards for ever.
        """
        removed = self._silence.removed()
        known: dict[ServiceKey, set[str]] = defaultdict(set)
        mine = None if store.fleet is None else self.ownership.held | self.watched | self.ownership.asked
        for service, canary in store.canaries(mine):
            if (service, canary) not in removed:
                known[service].add(canary)
        self._silence.forget(known)
        self._seen = {key: seen for key, seen in self._seen.items() if key[1] in known[key[0]]}
        self._learning.forget({(service, canary) for service, each in known.items() for canary in each})
        self._reported = {
            service: {name: noted for name, noted in starts.items() if not noted[0].ended_at}
            for service, starts in self._reported.items()
            if known[service]
        }
        for service, found in [*self.findings.items()]:
            if not known[service]:
                del self.findings[service]
            elif not found.judgements.keys() <= known[service]:
                self.findings[service] = found.only(known[service])
