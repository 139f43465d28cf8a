"""The connection to PostgreSQL: opened when first used and again when it broke, with errors in plain words."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from infercanary.store.base import StoreAway, StoreError
from infercanary.store.postgres import sql
from infercanary.store.postgres.location import Location
from infercanary.store.postgres.schema import migrate

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]

_CALL_SECONDS = 15.0  # a statement that takes longer is given up, whatever the server does
_ADVICE: Mapping[str, str] = {
    "53100": "the database's disk is full; what was kept is not lost, and it goes on once there is room",
    "53300": "the database has no connection left; raise max_connections, or use a pooler in session mode",
    "42501": "the role lacks a right; docs/fleet.md has the grants",
    "25006": "the database is read-only, a standby perhaps; name the primary too: host=a,b",
    "3D000": "there is no such database; create it, or correct `store:`",
    "57014": "it took too long; the database is overloaded, or its disk is slow",
    "55P03": "it waited too long for a lock; it is tried again",
    "40001": "another exporter was faster; it is tried again",
    "40P01": "another exporter was faster; it is tried again",
}
# What no connection came of has no such code.
_ADVICE_BY_TEXT: Mapping[str, str] = {
    "password authentication failed": "the password was refused; it is read from the file again at each try",
    "certificate verify failed": "the server's certificate is not by a CA that sslrootcert names, or it has expired",
    "does not match host name": "the server's certificate is for another name; write its own into `store:`",
    "does not support SSL": "the server has no TLS; set ssl = on there, or another sslmode",
    "valid client certificate": "the server wants a certificate of this exporter; add sslcert= and sslkey=",
    "alert unknown ca": "the server does not know the CA of sslcert=; see its ssl_ca_file",
    "no pg_hba.conf entry": "the role may not connect from here; see pg_hba.conf, or correct the role in `store:`",
}


class PostgresSession:
    """One connection.

    Args:
        location: Of the database.
        rolled_back: Called after each transaction that was not kept, and with each new connection.
        most_seconds: After which a statement is given up, where that is sooner than it is anyway.
    """

    def __init__(
        self, location: Location, rolled_back: Callable[[], None], most_seconds: float = math.inf
    ) -> None:
        self._location = location
        self._most_seconds = most_seconds
        self._rolled_back = rolled_back
        self._db: psycopg.Connection[Row] | None = None
        self._within = 0
        self._closed = False
        self._until: float | None = None
        self._watchdog: threading.Thread | None = None

    def rows(self, statement: str, **given: object) -> list[Row]:
        """What a statement returns.

        Args:
            statement: One of :mod:`.sql`.
            given: Its parameters.

        Returns:
            All rows.

        Raises:
            StoreError: In one line, with the fix; also after :meth:`close`.
        """
        with self._work() as db:
            cursor = db.execute(statement.encode(), given)
            return cursor.fetchall() if cursor.description else []

    def run(self, statement: str, **given: object) -> None:
        """As :meth:`rows`, of a statement that returns none."""
        self.rows(statement, **given)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """As :meth:`infercanary.store.base.Store.transaction`.

        Yields:
            Nothing.

        Raises:
            StoreError: It cannot be begun or ended.
            StoreAway: A part of it failed.
        """
        with self._work() as db:
            block = db.transaction()
            block.__enter__()
        self._within += 1
        try:
            yield
            if self._db is not db or db.closed:
                raise StoreAway(f"{self._location.shown}: not done, since a part of it failed")
        except BaseException:
            self._within -= 1
            with suppress(Exception):
                block.__exit__(*sys.exc_info())
            self._rolled_back()
            raise
        self._within -= 1
        try:
            with self._work():
                block.__exit__(None, None, None)
        except BaseException:
            self._rolled_back()
            raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read within it is of one moment; within a transaction, of that.

        Yields:
            Nothing.
        """
        if self._within:
            yield
            return
        with self.transaction():
            self.run(sql.SNAPSHOT)
            yield

    def close(self) -> None:
        """Let go of it. Never raises."""
        self._closed = True
        self._disconnect()

    @contextmanager
    def _work(self) -> Iterator[psycopg.Connection[Row]]:
        """The connection; what goes wrong with it is a :class:`StoreError`."""
        shown = self._location.shown
        if self._closed:
            raise StoreError(f"{shown}: closed")
        try:
            import psycopg
        except ImportError:
            raise StoreError(
                f"{shown}: psycopg is missing; in a checkout: pip install '.[exporter,postgres]'"
            ) from None
        try:
            if self._db is None or self._db.closed:
                if self._within:
                    raise StoreAway(f"{shown}: not done, since the connection broke")
                self._db = None
                self._db = self._connect()
            self._until = time.monotonic() + min(_CALL_SECONDS, self._most_seconds)
            yield self._db
        except (psycopg.Error, UnicodeError, OSError) as error:
            if self._db is not None and (self._db.closed or self._db.broken):
                self._disconnect()
            # Values that no database takes are refused for good; all else may do better later.
            kind = StoreError if isinstance(error, psycopg.DataError | UnicodeError) else StoreAway
            raise kind(f"{shown}: {explain(error)}") from error
        finally:
            self._until = None

    def _connect(self) -> psycopg.Connection[Row]:
        import psycopg.conninfo

        location = self._location
        conninfo = psycopg.conninfo.make_conninfo(location.conninfo, **location.password())
        db: psycopg.Connection[Row] = psycopg.connect(conninfo, autocommit=True)
        try:
            migrate(db, self._location.shown)
        except BaseException:
            db.close()
            raise
        self._rolled_back()
        if self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watch, name="store-watchdog", daemon=True)
            self._watchdog.start()
        return db

    def _watch(self) -> None:
        """End a call that takes too long: a server that is paused neither answers nor takes a cancellation."""
        while not self._closed:
            time.sleep(1.0)
            until, db = self._until, self._db
            if until is not None and db is not None and time.monotonic() > until:
                with suppress(Exception), socket.socket(fileno=os.dup(db.fileno())) as twin:
                    twin.shutdown(socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(Exception):
                self._db.close()
        self._db = None


def explain(error: BaseException) -> str:
    """What went wrong, and how to fix it.

    Args:
        error: What psycopg raised, or the system.
    """
    text = " ".join(str(error).split())
    by_text = (advice for part, advice in _ADVICE_BY_TEXT.items() if part in text)
    advice = _ADVICE.get(getattr(error, "sqlstate", None) or "") or next(by_text, None)
    if advice is not None:
        return f"{advice} ({text})"
    return text or type(error).__name__
