"""The PostgreSQL database that the exporters of a fleet share: connections, tables, and errors in plain words."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.pool import NullPool

from infercanary.store import migrate, queries, schema
from infercanary.store.base import Database, StoreAway, StoreError
from infercanary.store.fleet import Fleet
from infercanary.store.location import Location
from infercanary.store.session import Session

_CALL_SECONDS = 15.0
_TABLES_LOCK = 0x1CA9A12  # for pg_advisory_xact_lock: one exporter at a time creates or changes tables
_ADVICE: Mapping[str, str] = {  # by SQLSTATE, or by a part of the text if the server gave no answer
    "53100": "the database's disk is full; what was kept is not lost, and it goes on once there is room",
    "53300": "the database has no connection left; raise max_connections, or use a pooler in session mode",
    "42501": "the role lacks a right; docs/fleet.md has the grants",
    "read-only": "the database is read-only, a standby perhaps; name the primary too: host=a,b",
    "3D000": "there is no such database; create it, or correct `store:`",
    "42P07": "it has tables of another program, or of 0.1.0; name an empty database",
    "57014": "it took too long; the database is overloaded, or its disk is slow",
    "55P03": "it waited too long for a lock; it is tried again",
    "40001": "another exporter was faster; it is tried again",
    "40P01": "another exporter was faster; it is tried again",
    "password authentication failed": "the password was refused; it is read from the file again at each try",
    "certificate verify failed": "the server's certificate is not by a CA that sslrootcert names, or it has expired",
    "does not match host name": "the server's certificate is for another name; write its own into `store:`",
    "does not support SSL": "the server has no TLS; set ssl = on there, or another sslmode",
    "valid client certificate": "the server wants a certificate of this exporter; add sslcert= and sslkey=",
    "alert unknown ca": "the server does not know the CA of sslcert=; see its ssl_ca_file",
    "no pg_hba.conf entry": "the role may not connect from here; see pg_hba.conf, or correct the role in `store:`",
}


class PostgresDatabase(Database):
    """Database of a URL.

    Args:
        url: See :meth:`.Location.of`.
        call_seconds: Deadline of a call.

    Raises:
        StoreError: The URL is wrong.
    """

    advice = _ADVICE

    def __init__(self, url: str, call_seconds: float = _CALL_SECONDS) -> None:
        self._url = url
        self._location = Location.of(url)
        self.shown = self._location.shown
        self._call_seconds = call_seconds

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the Unix time by the database's clock."""
        return float(connection.execute(queries.NOW).scalar_one())

    def fleet(self, session: Session) -> Fleet:
        """Return the leases and findings of the exporters that share the database."""
        seconds = self._location.lease_seconds
        # A database that does not answer is noticed before the lease ends.
        renewing = PostgresDatabase(self._url, min(_CALL_SECONDS, seconds / 2))
        return Fleet(session, Session(renewing), seconds)

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Explain an error; only a value that no database takes is final, everything else may succeed later."""
        cause = getattr(error, "orig", None) or error
        is_refused = isinstance(
            cause, (self.engine.dialect.loaded_dbapi.DataError, UnicodeError, OverflowError)
        )
        text = self.explained(str(cause) or type(cause).__name__, getattr(cause, "sqlstate", None) or "")
        if connection is not None and not is_refused:
            connection.invalidate()  # in whatever state it is: the next work reconnects
        return (StoreError if is_refused else StoreAway)(text)

    @cached_property
    def engine(self) -> Engine:  # type: ignore[override]
        """psycopg engine; each statement is its own transaction unless one is begun."""
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
        except ImportError:
            fix = "in a checkout: pip install '.[exporter,postgres]'"
            raise StoreError(f"{self.shown}: psycopg is missing; {fix}") from None
        location = self._location
        seconds = math.inf if self.upgrades else self._call_seconds

        class Impatient(psycopg.Connection[Any]):
            """Gives up a call that takes too long: a paused server ignores statement_timeout and cancellation."""

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

    def prepare(self, connection: Connection) -> None:
        """Bring the tables to the current schema; of several exporters on an empty database one creates them."""
        version = migrate.read_version(connection, self.shown)
        if version == schema.SCHEMA:
            return
        if version is not None and not self.upgrades:
            raise StoreError(
                f"{self.shown}: the tables of an older InferCanary (schema {version}); as their owner run "
                "`python -m infercanary.store.migrate LOCATION`"
            )
        self.begin(connection)
        connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        if migrate.read_version(connection, self.shown) == version:  # unless another exporter was faster
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            migrate.update(connection, version)
        connection.commit()
