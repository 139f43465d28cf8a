"""A connection to a database: opened at first use and again after it broke, with nested transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from infercanary.store.base import Database, StoreAway, StoreError


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
        self._depth = 0
        self._closed = False

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
                    raise StoreAway(f"{shown}: not done, since a part before it failed")
                self._connection = self._connect()
            yield self._connection
        except (SQLAlchemyError, UnicodeError, OverflowError, OSError) as error:
            raise self._database.error(error, self._connection) from error
        finally:
            if self._connection is not None and (self._connection.closed or self._connection.invalidated):
                self._disconnect()  # the next work begins anew

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep what is done within it as a whole or, after an exception, not at all; within another one, as a part.

        Raises:
            StoreError: It cannot be begun or ended.
            StoreAway: A part of it failed such that nothing is kept.
        """
        database, inner = self._database, self._depth > 0
        with self.work() as connection:
            if not inner:
                database.begin(connection)
            elif not database.in_transaction(connection):
                raise StoreAway(f"{database.shown}: not done, since a part before it failed")
            else:
                connection.exec_driver_sql("SAVEPOINT part")
        self._depth += 1
        try:
            yield
            with self.work() as still:
                if still is not connection or not database.in_transaction(connection):
                    raise StoreAway(f"{database.shown}: not done, since a part of it failed")
                if not inner:
                    self.size_bytes = database.size(connection)
                connection.exec_driver_sql("RELEASE SAVEPOINT part" if inner else "COMMIT")
        except BaseException:
            # The database may have rolled all of it back by itself, as SQLite does when the disk is full.
            for statement in (
                ("ROLLBACK TO SAVEPOINT part", "RELEASE SAVEPOINT part") if inner else ("ROLLBACK",)
            ):
                with suppress(Exception):
                    connection.exec_driver_sql(statement)
            self._rolled_back()
            raise
        finally:
            self._depth -= 1

    def close(self) -> None:
        """Let go of the database. Never raises."""
        self._closed = True
        self._disconnect()

    def _connect(self) -> Connection:
        connection = self._database.connect()
        try:
            self._opened(connection)
            self.size_bytes = self._database.size(connection)
        except BaseException:
            discard(connection)
            raise
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            discard(self._connection)
        self._connection = None


def discard(connection: Connection) -> None:
    """Close a connection whatever state it is in. Never raises."""
    with suppress(Exception):
        connection.invalidate()  # without a rollback, which a broken one would refuse
    with suppress(Exception):
        connection.close()
