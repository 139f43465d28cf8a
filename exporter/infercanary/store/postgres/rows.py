"""One container's rows in PostgreSQL, for :mod:`.thinning`; they stay locked until the transaction ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from infercanary.store.postgres import sql
from infercanary.store.postgres.session import PostgresSession, Row
from infercanary.store.thinning import SeriesCounts


class PostgresRows:
    """The rows of ``container``: :class:`~infercanary.store.thinning.Rows`.

    Args:
        db: Within a transaction.
        service: The container's.
        container: The stable name.
    """

    def __init__(self, db: PostgresSession, service: UUID, container: str) -> None:
        self._db = db
        self._service = service
        self._key: dict[str, Any] = {"service": service, "container": container}

    def starts(self) -> list[Row]:
        """Id and image key of each start, the oldest first."""
        return self._db.rows(sql.STARTS_OF_CONTAINER, **self._key)

    def series(self) -> list[SeriesCounts]:
        """Its series, by canary, the newest first."""
        return [SeriesCounts(*row) for row in self._db.rows(sql.SERIES_OF_CONTAINER, **self._key)]

    def oldest(self, one: SeriesCounts, tier: int, count: int, after: int) -> list[Any]:
        """Sequences and bodies of the oldest rows of a tier."""
        return self._db.rows(
            sql.OLDEST, service=self._service, series=one.id, tier=tier, count=count, after=after
        )

    def replace(
        self, one: SeriesCounts, sequences: Sequence[int], merged: Sequence[tuple[int, int, bytes]]
    ) -> None:
        """Remove rows, add what they were merged into, and keep the counts."""
        key = {"service": self._service, "series": one.id}
        self._db.run(sql.DROP_SAMPLES, **key, sequences=[*sequences])
        if merged:
            numbers, tiers, bodies = (list(column) for column in zip(*merged, strict=True))
            self._db.run(
                sql.ADD_SAMPLES,
                service=self._service, series=[one.id] * len(merged), sequences=numbers, tiers=tiers, bodies=bodies,
            )  # fmt: skip
        self._db.run(sql.SET_COUNTS, **{**msgspec.structs.asdict(one), **key})

    def drop(self, starts: Iterable[UUID]) -> None:
        """Forget starts with all of their runs."""
        ids = [*starts]
        locked = self._db.rows(sql.LOCK_SERIES_OF_STARTS, service=self._service, starts=ids)
        series = [one for (one,) in locked]
        self._db.run(sql.DROP_SAMPLES_OF_SERIES, service=self._service, series=series)
        self._db.run(sql.DROP_STARTS, service=self._service, starts=ids)

    def drop_empty(self) -> None:
        """Forget the starts of which nothing is left, but for the last one."""
        empty = [start for (start,) in self._db.rows(sql.EMPTY_STARTS, **self._key)]
        if empty:
            self.drop(empty)
