"""Where runs are kept and judged: one thread with the store, beside the event loop, which only hands over and reads.

What a probe reported is queued, bounded; once a second the thread stores what is queued, in one transaction, and
judges what has reached another look. A store that fails costs verdicts, never a scrape: what is queued waits for it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import structlog

from infercanary.contract.report import Family, Metric, Run
from infercanary.contract.vocabulary import COLD_START_METRICS
from infercanary.exporter.judging.action import Boot, Due, Seen, due, seen
from infercanary.exporter.judging.answers import Answer, remember
from infercanary.judge import drift
from infercanary.judge.causes import joined
from infercanary.judge.drift import Drift
from infercanary.judge.model import Generation, Judgement, Start, kept
from infercanary.judge.restarts import restarts_before
from infercanary.judge.sentence import sentence
from infercanary.judge.stages import judge
from infercanary.judge.trials import Trials, trials
from infercanary.judge.upgrade import last_upgrade
from infercanary.store.base import Store, StoreError, open_store

log = structlog.get_logger(__name__)

STORE_UP = Metric(
    "infercanary_store_up",
    "gauge",
    "1 if the judge's store took what was last given to it, else 0.",
    reading="0 is an alert: verdicts stand still. The exporter's log says why (a full disk, rights, another exporter "
    "on the same file). What came meanwhile is kept in memory, as far as it fits, and stored later.",
)
STORE_ERRORS = Metric(
    "infercanary_store_errors_total",
    "counter",
    "Failures to read or write the judge's store.",
    reading="`increase(…[15m]) > 0` with `infercanary_store_up` at 1 again: it mended itself.",
)
STORE_BYTES = Metric(
    "infercanary_store_bytes",
    "gauge",
    "Size of the judge's store.",
    reading="Bounded by what is kept of each container; runs older than a day are thinned.",
)
STORE_SET_ASIDE = Metric(
    "infercanary_store_set_aside_timestamp_seconds",
    "gauge",
    "When the judge's store was last found corrupt, set aside under another name, and begun anew.",
    reading="Missing is healthy. It is an alert: baselines and earlier verdicts are lost. The file is beside the "
    "store, with `.corrupt-` and that time in its name; once it is removed, the exporter's next start knows of none.",
)
STORE_UNREADABLE = Metric(
    "infercanary_store_unreadable_rows_total",
    "counter",
    "Rows of the judge's store that could not be read, each time that they were to be.",
    reading="Healthy is 0. Verdicts do without them; the disk fails, or another program wrote to the file.",
)
STORE_REFUSED = Metric(
    "infercanary_store_refused_runs_total",
    "counter",
    "Runs that were not stored, because their container has more than 32 canaries.",
    reading="Healthy is 0. A canary beyond the first 32 has no verdicts: give the container fewer.",
)
STORED = Metric(
    "infercanary_stored_runs_total",
    "counter",
    "Runs that the judge's store took, each once, whatever was delivered twice.",
    reading="Its `rate` is that of `infercanary_runs_total` over all containers.",
)
DROPPED = Metric(
    "infercanary_unjudged_runs_total",
    "counter",
    "Runs that were dropped before they were stored, because the store failed for too long.",
    reading="Healthy is no increase. Verdicts rest on fewer runs, no more.",
)
SECONDS = Metric(
    "infercanary_judge_seconds_total",
    "counter",
    "CPU time of the judge's thread: storing and judging.",
    reading="`rate(…[5m])` is in cores: a small fraction of one.",
)
METRICS = (
    *(STORE_UP, STORE_ERRORS, STORE_BYTES, STORE_SET_ASIDE, STORE_UNREADABLE, STORE_REFUSED),
    *(STORED, DROPPED, SECONDS),
)

_TURN_SECONDS = 1.0
_MAX_QUEUED = 100_000
_THIN_SECONDS = 900.0
_GONE_SECONDS, _GONE_ROUNDS = 7200.0, 12  # without a run of a canary whose service went on; both
_TRIALS = 2  # in one judgement: after a restart of the exporter all of them are to be made again
_SIBLINGS = 8
_SIBLINGS_SECONDS = 30.0  # they are read from the store so often at most

Canary = tuple[str, str]  # service, canary


class Findings(NamedTuple):
    """What is known of one service, by canary: its verdict, drift in each container, past answers, and A/A trials."""

    judgements: Mapping[str, Judgement]
    creeps: Mapping[tuple[str, str], Drift]
    """By container and canary."""
    answers: Mapping[str, tuple[Answer, ...]]
    trials: Mapping[str, Trials]
    """The judge's own A/A tests."""


NOTHING = Findings({}, {}, {}, {})


def cold_starts(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Canary → step → seconds, out of the report's families."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        step = COLD_START_METRICS.get(family.name)
        if step is not None and family.labels == ("canary",):
            for point in family.points:
                if isinstance(point.value, float) and point.value > 0:  # it is a divisor later
                    found[point.labels[0]][step] = point.value
    return dict(found)


class Reported(NamedTuple):
    """What a start of a container reported: itself, and the runs that are new."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """They come out of the journal of a start that this exporter did not see: the store has what it was, or nobody."""


def _still_holds(told: Judgement, starts: Sequence[Start]) -> bool:
    """Whether it is about the last upgrade as it is now: an image may have been withdrawn."""
    upgrade = last_upgrade(starts)
    return told.upgraded_at == (upgrade.at if upgrade else None)


class Judging:
    """The thread. ``location`` None keeps the runs in memory, until the exporter ends."""

    def __init__(self, location: str | os.PathLike[str] | None) -> None:
        self.findings: dict[str, Findings] = {}
        """Service → what is known of it; replaced as a whole, so that it may be read at any time."""
        self._location = location
        self._queue: deque[Reported] = deque()
        self._queued = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._store: Store | None = None
        self._up = True
        self._errors = self._stored = self._dropped = 0
        self._seconds = 0.0
        self._bytes = 0
        self._complaint = ""
        self._seen: dict[Canary, dict[Boot, Seen]] = {}  # when last judged
        self._said: dict[str, dict[str, Generation]] = {}  # by service and container: of its newest start
        # Canaries that did not run while their service did: since when, and for how many turns.
        self._silent: dict[Canary, tuple[float, int]] = {}
        self._thinned_at = -math.inf
        self._others: list[list[Start]] = []  # of each sibling
        self._others_at = -math.inf
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)

    def start(self) -> None:
        """Open the store and begin."""
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Store what is queued, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def submit(self, generation: Generation, families: Sequence[Family], runs: Sequence[Run]) -> None:
        """Hand over what a start of a container reported; any thread may call, and none waits.

        ``families`` are those that this start itself reported last: of them its cold start is told.
        """
        self._submit(Reported(msgspec.structs.replace(generation, cold_start=cold_starts(families)), runs))

    def submit_found(self, service: str, container: str, boot_id: str, runs: Sequence[Run]) -> None:
        """As :meth:`submit`, of an earlier start that this exporter did not see: taken if the store knows it."""
        start = Generation(service=service, container=container, boot_id=boot_id, started_at=0.0)
        self._submit(Reported(start, runs, is_found=True))

    def _submit(self, reported: Reported) -> None:
        with self._lock:
            self._queue.append(reported)
            self._queued += len(reported.runs)
            while self._queued > _MAX_QUEUED:
                oldest = self._queue.popleft()
                self._queued -= len(oldest.runs)
                self._dropped += len(oldest.runs)

    def families(self) -> list[Family]:
        """What the metrics say of the store and the judge."""
        store = self._store
        set_aside_at = store.set_aside_at if store else None
        return [
            STORE_UP.family(float(self._up)),
            STORE_ERRORS.family(float(self._errors)),
            STORE_BYTES.family(float(self._bytes)),
            STORE_SET_ASIDE.family({} if set_aside_at is None else set_aside_at),
            STORE_UNREADABLE.family(float(store.unreadable if store else 0)),
            STORE_REFUSED.family(float(store.refused if store else 0)),
            STORED.family(float(self._stored)),
            DROPPED.family(float(self._dropped)),
            SECONDS.family(self._seconds),
        ]

    def turn(self) -> None:
        """Store what is queued, and judge what has reached another look; in the thread that does this, alone."""
        begin = time.thread_time()
        try:
            store = self._opened()
            touched = self._take(store)
            self._up, self._complaint = True, ""
            if not self._stopping.is_set():
                self._judge(store, touched)
                if time.monotonic() - self._thinned_at > _THIN_SECONDS:
                    self._thinned_at = time.monotonic()
                    store.thin(time.time())
                    self._forget(store)
            self._bytes = store.size_bytes
        except StoreError as error:
            self._errors += 1
            self._up = False
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the judge's store fails; what comes is kept in memory for now", error=str(error))
        except Exception as error:
            # Ours to mend; until then verdicts stand still, and scrapes go on.
            self._errors += 1
            if repr(error) != self._complaint:
                self._complaint = repr(error)
                log.exception("judging failed by a fault of the exporter")
        self._seconds += time.thread_time() - begin

    def _run(self) -> None:
        while not self._stopping.wait(_TURN_SECONDS):
            self.turn()
        self.turn()
        if self._store is not None:
            self._store.close()

    def _opened(self) -> Store:
        if self._store is None:
            self._store = open_store(self._location)
        return self._store

    def _take(self, store: Store) -> set[Canary]:
        """Store what is queued: the canaries that have new runs."""
        with self._lock:
            batch = [*self._queue]
        touched: set[Canary] = set()
        stored = 0
        if batch:
            with store.transaction():
                for reported in batch:
                    g = reported.generation
                    try:
                        if reported.is_found:
                            known = store.start_of(g.service, g.container, g.boot_id)
                            if known is None:
                                log.info(
                                    "runs of an earlier start are left out: of which image it was, nobody knows",
                                    service=g.service, container=g.container, runs=len(reported.runs),
                                )  # fmt: skip
                                continue
                            g = known
                        else:
                            self._said.setdefault(g.service, {})[g.container] = g
                        stored += store.take(g, map(kept, reported.runs))
                    except StoreError as error:
                        # One that cannot be taken must not hold up the rest; a full disk fails the whole transaction.
                        self._errors += 1
                        log.error(
                            "runs not stored", service=g.service, container=g.container, error=str(error)
                        )
                    else:
                        touched |= {(g.service, run.canary) for run in reported.runs}
        self._stored += stored
        with self._lock:
            for reported in batch:  # `submit` may have dropped some of them meanwhile
                if self._queue and self._queue[0] is reported:
                    self._queue.popleft()
                    self._queued -= len(reported.runs)
        return touched

    def _judge(self, store: Store, touched: set[Canary]) -> None:
        """Judge each canary of which something is due."""
        self._note(touched)
        pending = dict.fromkeys(touched)
        while pending:
            service, canary = next(iter(pending))
            del pending[service, canary]
            # After a restart of the exporter all probes hand over their rings while all canaries are due.
            if self._queued > _MAX_QUEUED // 2:
                pending |= dict.fromkeys(self._take(store))
            taken = store.taken(service, canary)
            known = self._seen.get((service, canary), {})
            told = self.findings.get(service, NOTHING).judgements.get(canary)
            said = {(g.container, g.boot_id): g for g in self._said.get(service, {}).values()}
            now = due(known, taken, said, told)
            if now is Due.COUNT and told and told.upgraded_at is not None:
                self._count(store, service, canary, told, told.upgraded_at)
            if now in (Due.COUNT, Due.NOTHING):
                continue
            starts = [Start.of(g, found) for g, found in store.generations(service, canary)]
            self._seen[service, canary] = seen(starts, taken, said)
            try:
                self._judge_one(store, service, canary, starts, told if now is Due.DRIFT else None)
            except StoreError:
                del self._seen[service, canary]  # it is judged again once the store works
                raise
            except Exception:
                # Ours to mend; until then it must cost this canary only.
                self._errors += 1
                log.exception("not judged by a fault of the exporter", service=service, canary=canary)

    def _count(self, store: Store, service: str, canary: str, told: Judgement, since: float) -> None:
        """Say how far the start of the new image is now that has most runs; else what was ``told`` stands."""
        new = store.generations(service, canary, since=since)
        image = new[-1][0].image_key if new else ""
        runs = max(
            (sum(s.is_settled for s in found) for g, found in new if g.image_key == image), default=told.runs
        )
        now = msgspec.structs.replace(told, runs=runs)
        findings = self.findings[service]
        self.findings[service] = findings._replace(judgements={**findings.judgements, canary: now})

    def _judge_one(
        self, store: Store, service: str, canary: str, starts: Sequence[Start], stands: Judgement | None
    ) -> None:
        """Judge a canary; of the drift alone where the verdict on its last upgrade ``stands``."""
        siblings = self._siblings(store, service)
        before = self.findings.get(service, NOTHING)
        told = stands if stands and _still_holds(stands, starts) else judge(starts, siblings, canary)
        known = before.judgements.get(canary)
        answers = before.answers
        if known is None or (known.state, known.upgraded_at) != (told.state, told.upgraded_at):
            log.info("verdict", service=service, canary=canary, verdict=sentence(told))
            answers = {**answers, canary: remember(store, service, canary, told, time.time())}
        creeps = {key: found for key, found in before.creeps.items() if key[1] != canary}
        for container in {start.generation.container for start in starts}:
            own = [s for s in starts if s.generation.container == container]
            same = [s for s in own if s.generation.image_key == own[-1].generation.image_key]
            creeps[container, canary] = drift.detect(same, siblings, canary, restarts_before(own[-1], starts))
        tried = {**before.trials, canary: trials(starts, siblings, before.trials.get(canary, {}), _TRIALS)}
        self.findings[service] = Findings({**before.judgements, canary: told}, creeps, answers, tried)

    def _note(self, touched: set[Canary]) -> None:
        """Which canaries ran, and which did not while others of their service went on."""
        now = time.monotonic()
        for service in {service for service, _ in touched}:
            for canary in self.findings.get(service, NOTHING).judgements:
                if (service, canary) not in touched:
                    since, rounds = self._silent.get((service, canary), (now, 0))
                    self._silent[service, canary] = since, rounds + 1
        for key in touched & self._silent.keys():
            del self._silent[key]

    def _forget(self, store: Store) -> None:
        """Let go of what the store no longer has, and of canaries that their service has no more.

        Names may come and go for years, and what was found of one that was removed stands on no dashboard for ever.
        """
        gone = {
            key
            for key, (since, rounds) in self._silent.items()
            if rounds >= _GONE_ROUNDS and time.monotonic() - since >= _GONE_SECONDS
        }
        known: dict[str, set[str]] = defaultdict(set)
        for service, canary in store.canaries():
            if (service, canary) not in gone:
                known[service].add(canary)
        self._silent = {key: said for key, said in self._silent.items() if key[1] in known[key[0]]}
        self._seen = {key: seen for key, seen in self._seen.items() if key[1] in known[key[0]]}
        self._said = {service: said for service, said in self._said.items() if known[service]}
        for service, found in [*self.findings.items()]:
            left = known[service]
            if not left:
                del self.findings[service]
            elif not found.judgements.keys() <= left:
                self.findings[service] = Findings(
                    {canary: told for canary, told in found.judgements.items() if canary in left},
                    {key: told for key, told in found.creeps.items() if key[1] in left},
                    {canary: told for canary, told in found.answers.items() if canary in left},
                    {canary: told for canary, told in found.trials.items() if canary in left},
                )

    def _siblings(self, store: Store, service: str) -> list[Start]:
        """A canary in one container of each other service on this host, of those that Docker found: by image one start.

        Restarted by themselves they go on being witnesses of what was before; upgraded too, on either side of that.
        """
        now = time.monotonic()
        if now - self._others_at > _SIBLINGS_SECONDS:
            self._others_at, self._others = now, []
            for other, name in store.most_active(_SIBLINGS + 1):
                starts = [Start.of(g, found) for g, found in store.generations(other, name) if g.image_id]
                alive = [start for start in starts if start.samples]
                if alive:
                    last = max(alive, key=lambda start: start.samples[-1].started_at).generation.container
                    self._others.append(joined([s for s in alive if s.generation.container == last]))
        others = [each for each in self._others if each[0].generation.service != service]
        return [start for each in others[:_SIBLINGS] for start in each]
