"""The PostgreSQL database that the exporters of a fleet share: connections, tables, and errors in plain words."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, exc, func, inspect, select
from sqlalchemy.pool import NullPool

from infercanary.store import migrate, queries, schema
from infercanary.store.base import StoreAway, StoreError
from infercanary.store.fleet import Fleet
from infercanary.store.location import Location
from infercanary.store.retention import Retention
from infercanary.store.session import Session

_CALL_SECONDS = 15.0
_VERSION = select(schema.schema.c.version_num)
_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS: begun, and without an error
_TABLES_LOCK = 0x1CA9A12  # of pg_advisory_xact_lock: only one exporter at a time makes or changes tables
_ADVICE: Mapping[str, str] = {  # by SQLSTATE, or by a part of the text where the server gave no answer
    "[53100]": "the database's disk is full; what was kept is not lost, and it goes on once there is room",
    "[53300]": "the database has no connection left; raise max_connections, or use a pooler in session mode",
    "[42501]": "the role lacks a right; docs/fleet.md has the grants",
    "[25006]": "the database is read-only, a standby perhaps; name the primary too: host=a,b",
    "[3D000]": "there is no such database; create it, or correct `store:`",
    "[57014]": "it took too long; the database is overloaded, or its disk is slow",
    "[55P03]": "it waited too long for a lock; it is tried again",
    "[40001]": "another exporter was faster; it is tried again",
    "[40P01]": "another exporter was faster; it is tried again",
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

    set_aside_at: float | None = None
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

    def in_transaction(self, driver: Any) -> bool:
        """Return whether a transaction is open that can still be committed."""
        return bool(driver.info.transaction_status == _IN_TRANSACTION)

    def size(self, connection: Connection) -> None:
        """Return nothing: the server's disk is its administrator's."""

    def age(self, connection: Connection, now: float | None) -> float:
        """Return the Unix time by the database's clock."""
        return float(connection.execute(queries.NOW).scalar_one())

    def fleet(self, session: Session, holder: str | None) -> Fleet:
        """Return the leases and findings of the exporters that share the database."""
        seconds = self._location.lease_seconds
        # A database that does not answer is noticed before the lease ends.
        return Fleet(session, Session(PostgresDatabase(self._location, seconds / 2)), seconds, holder)

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return what went wrong; a value that no database takes is refused for good, all else may do better later."""
        cause = getattr(error, "orig", None) or error
        text = str(cause) or type(cause).__name__
        searched = f"[{getattr(cause, 'sqlstate', None)}] {text}"
        for part, advice in _ADVICE.items():
            if part in searched:
                text = f"{advice} ({text})"
                break
        is_refused = isinstance(error, exc.DataError) or isinstance(cause, UnicodeError)
        return (StoreError if is_refused else StoreAway)(f"{self.shown}: {text}")

    @cached_property
    def _engine(self) -> Engine:
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
        except ImportError:
            fix = "in a checkout: pip install '.[exporter,postgres]'"
            raise StoreError(f"{self.shown}: psycopg is missing; {fix}") from None
        location = self._location
        seconds = math.inf if self.upgrades else min(_CALL_SECONDS, self._call_seconds)

        class Impatient(psycopg.Connection[Any]):
            """Gives up a call that takes too long: a paused server obeys no statement_timeout and no cancellation."""

            def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
                return super().wait(self._limited(gen), *args, **options)

            def _limited(self, gen: Any) -> Any:
                until, ready = time.monotonic() + seconds, None
                try:
                    while time.monotonic() < until:
                        ready = yield gen.send(ready)
                except StopIteration as done:
                    return done.value
                self.close()
                raise psycopg.OperationalError(f"no answer for {seconds:g} s")

        def connect() -> psycopg.Connection[Any]:
            return Impatient.connect(make_conninfo(location.conninfo, **location.password()), autocommit=True)

        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,  # spares a round trip
        )

    def _prepare(self, connection: Connection) -> None:
        """See that the tables are those of today; of several exporters on an empty database one makes them."""
        version = _version(connection)
        if version is not None and not migrate.is_older(version, self.shown):
            return
        if version is not None and not self.upgrades:
            raise StoreError(
                f"{self.shown}: the tables of an older InferCanary (schema {version}); as their owner run "
                "`python -m infercanary.store.migrate LOCATION`"
            )
        self.begin(connection)
        connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        if (faster := _version(connection)) is not None:
            if faster == version:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                migrate.upgrade(connection)
        elif inspect(connection).has_table("schema_version"):
            raise StoreError(
                f"{self.shown}: has tables of 0.1.0, which cannot be read; name an empty database"
            )
        else:
            migrate.make(connection)
        connection.exec_driver_sql("COMMIT")


def _version(connection: Connection) -> str | None:
    return connection.scalar(_VERSION) if inspect(connection).has_table(schema.schema.name) else None
