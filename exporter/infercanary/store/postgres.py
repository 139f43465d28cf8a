"""The PostgreSQL database that the exporters of a fleet share: connections, tables, and errors in plain words."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, exc, func, insert, inspect, select
from sqlalchemy.pool import NullPool

from infercanary.store import migrate, queries
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.fleet import Fleet
from infercanary.store.location import Location
from infercanary.store.retention import Retention
from infercanary.store.schema import SCHEMA, metadata, schema
from infercanary.store.session import Session

_CALL_SECONDS = 15.0
_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS: begun, and without an error
_TABLES_LOCK = 0x1CA9A12  # of pg_advisory_xact_lock: only one exporter at a time makes or changes tables
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
# An error before the server answered has no such code.
_ADVICE_BY_TEXT: Mapping[str, str] = {
    "password authentication failed": "the password was refused; it is read from the file again at each try",
    "certificate verify failed": "the server's certificate is not by a CA that sslrootcert names, or it has expired",
    "does not match host name": "the server's certificate is for another name; write its own into `store:`",
    "does not support SSL": "the server has no TLS; set ssl = on there, or another sslmode",
    "valid client certificate": "the server wants a certificate of this exporter; add sslcert= and sslkey=",
    "alert unknown ca": "the server does not know the CA of sslcert=; see its ssl_ca_file",
    "no pg_hba.conf entry": "the role may not connect from here; see pg_hba.conf, or correct the role in `store:`",
    "NUL (0x00)": "a name has a character that PostgreSQL cannot keep",
    "surrogates not allowed": "a name has a character that PostgreSQL cannot keep",
}


class PostgresDatabase:
    """A :class:`~infercanary.store.base.Database`.

    Args:
        location: Of the database.
        call_seconds: A call that takes longer is given up, where that is sooner than it is anyway.
    """

    set_aside_at = None
    """A database is never begun anew."""
    retention = Retention()
    upgrades = False
    """Whether :meth:`connect` brings older tables up to date: for their owner's command, not for exporters."""

    def __init__(self, location: Location, call_seconds: float = math.inf) -> None:
        self.shown = location.shown
        self._location = location
        self._call_seconds = call_seconds

    @classmethod
    def at(cls, url: str) -> PostgresDatabase:
        """The database of a URL, as :meth:`.Location.of` reads it."""
        return cls(Location.of(url))

    def connect(self) -> Connection:
        """Connect; each statement is a transaction of its own, unless one is begun."""
        connection = self._engine.connect()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def begin(self, connection: Connection) -> None:
        """Begin a transaction."""
        connection.exec_driver_sql("BEGIN")

    def in_transaction(self, connection: Connection) -> bool:
        """Return whether a transaction is open that can still be committed."""
        if connection.closed or connection.invalidated:
            return False
        return bool(connection.connection.driver_connection.info.transaction_status == _IN_TRANSACTION)

    def size(self, connection: Connection) -> None:
        """Return nothing: the server's disk is its administrator's."""

    def age(self, connection: Connection, now: float | None) -> float:
        """Return the Unix time by the database's clock."""
        return float(connection.scalar(queries.NOW) or 0.0)

    def fleet(self, session: Session, holder: str | None) -> Fleet:
        """Return the leases and findings of the exporters that share the database."""
        seconds = self._location.lease_seconds
        # A database that does not answer is noticed before the lease ends.
        return Fleet(session, Session(PostgresDatabase(self._location, seconds / 2)), seconds, holder)

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Explain what psycopg, SQLAlchemy or the system raised, with the fix."""
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        by_text = (advice for part, advice in _ADVICE_BY_TEXT.items() if part in text)
        advice = _ADVICE.get(getattr(cause, "sqlstate", None) or "") or next(by_text, None)
        # Values that no database takes are refused for good; anything else may do better later.
        kind = StoreError if isinstance(error, exc.DataError) or isinstance(cause, UnicodeError) else StoreAway
        return kind(f"{self.shown}: {f'{advice} ({text})' if advice else text}")

    @cached_property
    def _engine(self) -> Engine:
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
        except ImportError:
            raise StoreError(
                f"{self.shown}: psycopg is missing; in a checkout: pip install '.[exporter,postgres]'"
            ) from None

        class Impatient(psycopg.Connection[Any]):
            """Gives up a call that takes too long: a paused server obeys no statement_timeout and no cancellation."""

            def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
                return super().wait(self._limited(gen), *args, **options)

            def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
                until = time.monotonic() + seconds
                ready = None
                try:
                    while True:
                        ready = yield gen.send(ready)
                        if time.monotonic() > until:
                            self.close()
                            raise psycopg.OperationalError(f"no answer for {seconds:g} s")
                except StopIteration as done:
                    return done.value

        location = self._location
        seconds = math.inf if self.upgrades else min(_CALL_SECONDS, self._call_seconds)

        def connect() -> psycopg.Connection[Any]:
            return Impatient.connect(
                make_conninfo(location.conninfo, **location.password()), autocommit=True
            )

        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,  # spares a round trip
        )

    def _prepare(self, connection: Connection) -> None:
        """See that the tables are those of today; of exporters that start together on an empty database one makes them."""
        try:
            version = connection.scalar(select(schema.c.version_num))
        except exc.ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != "42P01":  # there is no such table
                raise
            version = None
        if version is not None and not self._is_older(version):
            return
        connection.exec_driver_sql("BEGIN")
        connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        tables = inspect(connection).get_table_names()
        if "schema_version" in tables:
            raise StoreError(
                f"{self.shown}: has tables of InferCanary 0.1.0, which this one does not read; name an empty database"
            )
        if schema.name not in tables:
            metadata.create_all(connection, checkfirst=False)
            connection.execute(insert(schema).values(version_num=SCHEMA))
        elif self._is_older(connection.scalar(select(schema.c.version_num)) or ""):
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            migrate.upgrade(connection)
        connection.exec_driver_sql("COMMIT")

    def _is_older(self, version: str) -> bool:
        if version > SCHEMA:
            raise StoreError(
                f"{self.shown}: written by a newer InferCanary (schema {version}, this one knows {SCHEMA}); upgrade "
                "this one, or name another database"
            )
        if version < SCHEMA and not self.upgrades:
            raise StoreError(
                f"{self.shown}: its tables are of an older InferCanary (schema {version}, this one needs {SCHEMA}); "
                "as their owner run: python -m infercanary.store.migrate LOCATION"
            )
        return version < SCHEMA
