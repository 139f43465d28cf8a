"""What this process has read of one service: the starts, the counts of their runs, and the runs' bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from uuid import UUID

import msgspec

from infercanary.judge.model import Generation
from infercanary.store.postgres import sql
from infercanary.store.postgres.session import PostgresSession, Row
from infercanary.store.reading import StartSize, ends
from infercanary.store.records import start_in

_READ = 50  # series in a statement: each may have thousands of rows, and a statement has seconds


class StartSeen(msgspec.Struct):
    """A start as it was read; ``generation`` is None where its row cannot be read."""

    revision: int
    began: float
    container: str
    boot_id: str
    generation: Generation | None
    work: str
    size: StartSize


class SeriesSeen(msgspec.Struct):
    """The runs of one canary of one start: how many there were when that was read, and those that were read."""

    id: UUID
    start: UUID
    canary: str
    first_at: float = 0.0
    last_at: float = 0.0
    taken: int = -1
    thinned: int = -1
    rows: int = 0
    read_thinned: int = -1
    bodies: list[tuple[int, bytes]] = []

    @property
    def is_read(self) -> bool:
        """Whether ``bodies`` are all the rows that there were."""
        return self.read_thinned == self.thinned and len(self.bodies) == self.rows

    @property
    def read_bytes(self) -> int:
        """Bytes of the runs that were read."""
        return sum(len(body) for _, body in self.bodies)

    def within(self, share: int | None) -> list[bytes]:
        """The runs that fit into a share: the first and the last ones.

        Args:
            share: Bytes; None for all.

        Returns:
            Runs as they are kept, in order.
        """
        bodies = [body for _, body in self.bodies]
        if share is None:
            return bodies
        first, last = ends(len(bodies), self.read_bytes, share)
        return bodies[:first] + bodies[len(bodies) - last :]


class Mirror:
    """A service, or one container of it.

    No id and no time shows what is new: a transaction may commit after one that began later. Counts do, for they change
    with the rows, under the lock of the series: see :meth:`read`.

    Args:
        service: The identifier.
        container: The only one to read; None for all.
    """

    def __init__(self, service: UUID, container: str | None = None) -> None:
        self.starts: dict[UUID, StartSeen] = {}
        self.series: dict[UUID, SeriesSeen] = {}
        self._service = service
        self._container = container

    @property
    def read_bytes(self) -> int:
        """Bytes of the runs that it holds."""
        return sum(one.read_bytes for one in self.series.values())

    def refresh(self, db: PostgresSession) -> set[str]:
        """Read the starts that are new or changed, and all counts.

        Args:
            db: Where.

        Returns:
            The canaries of which something changed.
        """
        of_all = sql.REVISIONS, sql.COUNTS
        of_container = sql.REVISIONS_OF_CONTAINER, sql.COUNTS_OF_STARTS
        revisions_of, counts_of = of_all if self._container is None else of_container
        with db.snapshot():
            revisions: dict[UUID, int] = dict(
                db.rows(revisions_of, service=self._service, container=self._container)
            )
            gone = self.starts.keys() - revisions.keys()
            changed = {
                start
                for start, revision in revisions.items()
                if start not in self.starts or self.starts[start].revision != revision
            }
            if changed:
                self.read_starts(db, changed)
            counts = db.rows(counts_of, service=self._service, starts=[*revisions])
        for start in gone:
            del self.starts[start]
        new = self._note(counts)
        left = {series for series, *_ in counts}
        for series in self.series.keys() - left:
            new.add(self.series.pop(series).canary)
        return new | {one.canary for one in self.series.values() if one.start in changed}

    def read_starts(self, db: PostgresSession, starts: Collection[UUID]) -> None:
        """Read some starts.

        Args:
            db: Where.
            starts: Their identifiers.
        """
        for row in db.rows(sql.STARTS, service=self._service, starts=[*starts]):
            start, revision, began, _, _, container, boot_id, *_, environment, details = row
            generation = start_in(row[3:])
            size = StartSize(len(details), hash(environment), len(environment))
            work = "" if generation is None else generation.work_key
            self.starts[start] = StartSeen(revision, began, container, boot_id, generation, work, size)

    def read(self, db: PostgresSession, several: Iterable[SeriesSeen]) -> None:
        """Read the runs of some series that are new.

        If nothing was merged since, and the rows that are known with those of higher sequences make the count, there is
        nothing else that is new; if not, the series is read again.

        Args:
            db: Where.
            several: Of this service.
        """
        ids = [one.id for one in several]
        with db.snapshot():
            if ids:
                counts = db.rows(sql.COUNTS_OF_SERIES, service=self._service, series=ids)
                self._note(counts)
            self._fetch(db, [one for one in ids if not self.series[one].is_read])
            again = [one for one in ids if not self.series[one].is_read]
            for one in again:
                self.series[one].bodies = []
            self._fetch(db, again)

    def of_canary(self, canary: str) -> Iterator[tuple[StartSeen, SeriesSeen]]:
        """The starts in which a canary ran, with its runs, in order of time.

        Args:
            canary: Its name.

        Yields:
            Each start, and the series.
        """
        found = [
            (self.starts[one.start], one)
            for one in self.series.values()
            if one.canary == canary and one.start in self.starts
        ]
        yield from sorted(found, key=lambda pair: _order(pair[0]))

    def in_order(self) -> list[StartSeen]:
        """All starts.

        Returns:
            In order of time.
        """
        return sorted(self.starts.values(), key=_order)

    def forget_runs(self, but: Collection[str]) -> None:
        """Hold no runs but those of some canaries; what is asked for again is read again.

        Args:
            but: Names.
        """
        for one in self.series.values():
            if one.canary not in but:
                one.bodies, one.read_thinned = [], -1

    def _note(self, counts: Iterable[Row]) -> set[str]:
        changed: set[str] = set()
        for series, start, canary, taken, thinned, rows, first_at, last_at in counts:
            one = self.series.get(series)
            if one is None:
                one = self.series[series] = SeriesSeen(series, start, canary)
            one.first_at, one.last_at = first_at, last_at
            if (one.taken, one.rows, one.thinned) != (taken, rows, thinned):
                changed.add(canary)
            one.taken, one.rows, one.thinned = taken, rows, thinned
        return changed

    def _fetch(self, db: PostgresSession, ids: list[UUID]) -> None:
        for one in ids:
            if self.series[one].read_thinned != self.series[one].thinned:
                self.series[one].bodies = []
        for begin in range(0, len(ids), _READ):
            part = ids[begin : begin + _READ]
            after = [bodies[-1][0] if (bodies := self.series[one].bodies) else -1 for one in part]
            rows = db.rows(sql.SAMPLES, service=self._service, series=part, after=after)
            for series_id, sequence, body in rows:
                self.series[series_id].bodies.append((sequence, body))
        for one in ids:
            self.series[one].read_thinned = self.series[one].thinned


def _order(start: StartSeen) -> tuple[float, str, str]:
    return start.began, start.container, start.boot_id
