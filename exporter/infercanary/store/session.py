"""Session: a database connection with transactions, which opens at first use and reopens after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.exc import SQLAlchemyError

from infercanary.judge.model import ServiceKey
from infercanary.store.base import Database


class Session:
    """One connection in autocommit mode. A single read costs one round trip.

    Args:
        database: Kind and location of the database.
        reset: Called after each new connection and after each failed transaction.
    """

    def __init__(self, database: Database, reset: Callable[[], None] = lambda: None) -> None:
        self.size_bytes: int | None = None
        """Size of the database in bytes after the last transaction; None if unknown."""
        self._database = database
        self._reset = reset
        self._connection: Connection | None = None
        self._in_transaction = False
        self._driver_error: type[Exception] = SQLAlchemyError

    @contextmanager
    def work(self) -> Iterator[Connection]:
        """Yield the connection, for single reads or within an open transaction.

        Raises:
            StoreError: A statement failed. The message is one line with the fix.
        """
        try:
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection
        except (SQLAlchemyError, self._driver_error, UnicodeError, OverflowError, OSError) as error:
            raise self._database.error(error, self._connection) from error
        finally:
            if self._connection is not None and self._connection.invalidated:
                self._connection = None  # the next call of `work` reconnects

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the body of a ``with`` statement in a transaction, which is rolled back after an exception.

        If a transaction is already open, the body becomes part of that transaction. Nothing may be written after an
        exception, so do not catch an exception inside the outermost transaction.

        Raises:
            StoreError: The transaction cannot be begun or committed.
        """
        with self.work() as connection:
            if self._in_transaction:
                yield connection
                return
            self._database.begin(connection)
            self._in_transaction = True
            try:
                yield connection
                self.size_bytes = self._database.size(connection)
                connection.commit()
            except BaseException:
                with suppress(Exception):  # a broken connection has committed nothing
                    connection.rollback()
                self._reset()
                raise
            finally:
                self._in_transaction = False

    def rows(self, statement: Executable, given: Any = None) -> Sequence[Any]:
        with self.work() as connection:
            return connection.execute(statement, given).all()

    def keyed(self, statement: Executable, given: Any = None) -> list[Any]:
        """Run a statement. Return its rows, with the first two columns combined into the key of a service."""
        return [(ServiceKey(*row[:2]), *row[2:]) for row in self.rows(statement, given)]

    def fast(self, statement: Executable, *given: Mapping[str, Any]) -> list[Any]:
        """Run a statement directly with the driver. SQLAlchemy would take longer than SQLite itself.

        Args:
            statement: A constant statement whose parameters need no conversion.
            given: Sets of parameters. With more than one set, no rows are returned.
        """
        with (
            self.work() as connection,
            closing(connection.connection.cursor()) as cursor,
        ):  # an open cursor would keep the file open
            sql = _compiled(statement, connection.dialect)
            if len(given) > 1:
                cursor.executemany(sql, given)
            else:
                cursor.execute(sql, *given)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        """Close the connection. Never raises."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection = None

    def _connect(self) -> Connection:
        connection = self._database.connect()
        self._driver_error = self._database.engine.dialect.loaded_dbapi.Error
        self._reset()
        return connection


@cache
def _compiled(statement: Any, dialect: Dialect) -> str:
    return str(statement.compile(dialect=dialect))
