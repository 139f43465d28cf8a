"""A connection to a database: opened at first use and again after it broke, with nested transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Executable, text
from sqlalchemy.exc import SQLAlchemyError

from infercanary.store.base import Database, StoreAway, StoreError

_SAVEPOINT, _RELEASE, _UNDO = map(
    text, ("SAVEPOINT part", "RELEASE SAVEPOINT part", "ROLLBACK TO SAVEPOINT part")
)
_COMMIT, _ROLLBACK = text("COMMIT"), text("ROLLBACK")


class Session:
    """One connection, in the driver's autocommit mode: a read by itself costs one round trip.

    Args:
        database: Where.
        opened: Called with each new connection.
        rolled_back: Called after each transaction, or part of one, that was not kept.
    """

    def __init__(
        self,
        database: Database,
        *,
        opened: Callable[[Connection], None] = lambda _: None,
        rolled_back: Callable[[], None] = lambda: None,
    ) -> None:
        self.size_bytes: int | None = None
        """Size of what is kept, as of the last transaction."""
        self._database = database
        self._opened = opened
        self._rolled_back = rolled_back
        self._connection: Connection | None = None
        self._driver: Any = None
        self._driver_error: Any = SQLAlchemyError
        self._depth = 0
        self._closed = False
        self._compiled: dict[Executable, str] = {}

    @contextmanager
    def work(self) -> Iterator[Connection]:
        """The connection, for reads by themselves or as a part of the open transaction.

        Raises:
            StoreError: In one line, with the fix; also after :meth:`close`.
        """
        shown = self._database.shown
        try:
            if self._closed:
                raise StoreError(f"{shown}: closed")
            if self._connection is None:
                if self._depth:
                    raise StoreAway(f"{shown}: not done, since a part of it failed")
                self._connection = self._connect()
            yield self._connection
        except (SQLAlchemyError, self._driver_error, UnicodeError, OverflowError, OSError) as error:
            raise self._database.error(error, self._connection) from error
        finally:
            if self._connection is not None and _is_lost(self._connection):
                self._disconnect()  # the next work begins anew

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Keep what is done within it as a whole or, after an exception, not at all; within another one, as a part.

        Raises:
            StoreError: It cannot be begun or ended.
            StoreAway: A part of it failed such that nothing is kept.
        """
        is_part = self._depth > 0
        end = _RELEASE if is_part else _COMMIT
        with self.work() as connection:
            if is_part:
                self._check(connection)
                self.fast(_SAVEPOINT)
            else:
                self._database.begin(connection)
            self._depth += 1
            try:
                yield connection
                self._check(connection)
                if not is_part:
                    self.size_bytes = self._database.size(connection)
                self.fast(end)
            except BaseException:
                # SQLite has undone all of it by itself where the disk is full.
                for statement in (_UNDO, _RELEASE) if is_part else (_ROLLBACK,):
                    with suppress(Exception):
                        connection.execute(statement)
                self._rolled_back()
                raise
            finally:
                self._depth -= 1

    def rows(self, statement: Executable, given: Any = None) -> Sequence[Any]:
        """Return all rows of a statement; none if it returns no rows."""
        with self.work() as connection:
            result = connection.execute(statement, given)
            return result.all() if result.returns_rows else ()

    def fast(self, statement: Executable, *given: Mapping[str, Any]) -> list[Any]:
        """Run a statement by the driver alone, within :meth:`work`: SQLAlchemy would take longer than SQLite itself.

        Args:
            statement: A constant, whose parameters are all given and need no conversion.
            given: Parameters; of several, the statement returns nothing.
        """
        connection: Any = self._connection
        if statement not in self._compiled:
            self._compiled[statement] = str(statement.compile(dialect=connection.dialect))  # type: ignore[attr-defined]
        sql = self._compiled[statement]
        with closing(self._driver.cursor()) as cursor:  # an open one would keep SQLite's file open
            if len(given) > 1:
                cursor.executemany(sql, given)
            else:
                cursor.execute(sql, *given)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        """Let go of the database. Never raises."""
        self._closed = True
        self._disconnect()

    def _connect(self) -> Connection:
        connection = self._database.connect()
        try:
            self._driver = connection.connection.driver_connection
            self._driver_error = connection.dialect.loaded_dbapi.Error
            self._opened(connection)
            self.size_bytes = self._database.size(connection)
        except BaseException:
            discard(connection)
            raise
        return connection

    def _check(self, connection: Connection) -> None:
        if _is_lost(connection) or not self._database.in_transaction(self._driver):
            raise StoreAway(f"{self._database.shown}: not done, since a part of it failed")

    def _disconnect(self) -> None:
        if self._connection is not None:
            discard(self._connection)
        self._connection = None


def _is_lost(connection: Connection) -> bool:
    return connection.closed or connection.invalidated


def discard(connection: Connection) -> None:
    """Close a connection whatever state it is in. Never raises."""
    with suppress(Exception):
        connection.invalidate()  # without a rollback, which a broken one would refuse
    with suppress(Exception):
        connection.close()
