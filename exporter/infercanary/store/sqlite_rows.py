"""One container's rows in the SQLite file, for :mod:`.thinning`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from infercanary.store.records import ContainerKey
from infercanary.store.thinning import SeriesCounts


class SqliteRows(NamedTuple):
    """The rows of ``container``: :class:`~infercanary.store.thinning.Rows`."""

    db: sqlite3.Connection
    """Within a transaction."""
    container: ContainerKey

    def starts(self) -> list[tuple[int, str]]:
        """Id and image key of each start, the oldest first."""
        return self.db.execute(
            "SELECT id, image_key FROM generation WHERE namespace = ? AND service = ? AND container = ? "
            "ORDER BY began, id",
            self.container,
        ).fetchall()

    def series(self) -> list[SeriesCounts]:
        """Its series, by canary, the newest first."""
        rows = self.db.execute(
            "SELECT s.id, canary, image_key, first_at, merged_through, failed_through, "
            "opening, raw, failed, first, blocks, hours FROM generation g JOIN series s ON s.generation = g.id "
            "WHERE namespace = ? AND service = ? AND container = ? ORDER BY canary, began DESC, g.id DESC",
            self.container,
        )
        return [SeriesCounts(*row) for row in rows]

    def oldest(self, one: SeriesCounts, tier: int, count: int, after: int) -> list[tuple[int, bytes]]:
        """Sequences and bodies of the oldest rows of a tier."""
        return self.db.execute(
            "SELECT sequence, body FROM sample WHERE series = ? AND sequence > ? AND tier = ? "
            "ORDER BY sequence LIMIT ?",
            (one.id, after, tier, count),
        ).fetchall()

    def replace(
        self, one: SeriesCounts, sequences: Sequence[int], merged: Sequence[tuple[int, int, bytes]]
    ) -> None:
        """Remove rows, add what they were merged into, and keep the counts."""
        self.db.executemany(
            "DELETE FROM sample WHERE series = ? AND sequence = ?", [(one.id, number) for number in sequences]
        )
        self.db.executemany("INSERT INTO sample VALUES (?, ?, ?, ?)", [(one.id, *row) for row in merged])
        self.db.execute(
            "UPDATE series SET merged_through = ?, failed_through = ?, opening = ?, raw = ?, failed = ?, first = ?, "
            "blocks = ?, hours = ? WHERE id = ?",
            (*msgspec.structs.astuple(one)[4:], one.id),
        )

    def drop(self, starts: Iterable[int]) -> None:
        """Forget starts with all of their runs."""
        drop(self.db, starts)

    def drop_empty(self) -> None:
        """Forget the starts of which nothing is left, but for the last one."""
        self.db.execute(
            "DELETE FROM generation WHERE namespace = ? AND service = ? AND container = ? "
            "AND id <> (SELECT id FROM generation "
            "WHERE namespace = ? AND service = ? AND container = ? ORDER BY began DESC, id DESC LIMIT 1) "
            "AND NOT EXISTS (SELECT 1 FROM series s WHERE s.generation = generation.id "
            "AND opening + raw + failed + first + blocks + hours > 0)",
            self.container * 2,
        )


def drop(db: sqlite3.Connection, starts: Iterable[int]) -> None:
    """Forget ``starts`` with all of their runs.

    Args:
        db: A connection within a transaction.
        starts: Ids of their rows.
    """
    db.executemany("DELETE FROM generation WHERE id = ?", [(start,) for start in starts])
