"""PostgreSQL database that several exporters share: connections, tables, and explained errors."""

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
_TABLES_LOCK = 0x1CA9A12  # for pg_advisory_xact_lock: only one exporter at a time changes tables
_RETRY = "another exporter changed the same rows; the transaction is tried again"
_ADVICE: Mapping[str, str] = {  # key: SQLSTATE, or part of the error's text without SQLSTATE
    "53100": "the database's disk is full; stored data is not lost, and storing continues as soon as there is space",
    "53300": "the database has no free connection; raise max_connections, or use a pooler in session mode",
    "42501": "the role lacks a privilege, or the owner has not created the tables "
    "(`python -m infercanary.store.migrate LOCATION`); docs/fleet.md has the command and the grants",
    "read-only": "the database is read-only, perhaps a standby; add the primary to `store:`, such as host=a,b",
    "3D000": "the database does not exist; create it, or correct `store:`",
    "42P07": "the database has tables of another program or of version 0.1.0; use an empty database",
    "57014": "the statement took too long; the database is overloaded, or its disk is slow",
    "55P03": "the statement waited too long for a lock; it is tried again",
    "40001": _RETRY,
    "40P01": _RETRY,
    "password authentication failed": "the server rejected the password; the file is read again at each attempt",
    "certificate verify failed": "the server's certificate has expired, or its CA is not in the file of sslrootcert",
    "does not match host name": "the server's certificate has another host name; use that name in `store:`",
    "does not support SSL": "the server has no TLS; set ssl = on in its configuration, or use another sslmode",
    "valid client certificate": "the server requires a client certificate; add sslcert= and sslkey= to `store:`",
    "alert unknown ca": "the server does not trust the CA of the sslcert= certificate; check ssl_ca_file there",
    "no pg_hba.conf entry": "the server does not allow this role from this host; check pg_hba.conf, or the role",
}


class PostgresDatabase(Database):
    """PostgreSQL database at a URL.

    Args:
        url: Location, in the form that :meth:`.Location.of` reads.
        call_seconds: Longest time of a call to the database.

    Raises:
        StoreError: The URL is invalid.
    """

    advice = _ADVICE

    def __init__(self, url: str, call_seconds: float = _CALL_SECONDS) -> None:
        self._url = url
        self._location = Location.of(url)
        self.shown = self._location.shown
        self._call_seconds = call_seconds

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the Unix time of the database's clock."""
        return float(connection.execute(queries.NOW).scalar_one())

    def fleet(self, session: Session) -> Fleet:
        seconds = self._location.lease_seconds
        # A shorter time limit, to notice a silent database before the lease ends.
        renewing = PostgresDatabase(self._url, min(_CALL_SECONDS, seconds / 2))
        return Fleet(session, Session(renewing), seconds)

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Explain an error. Invalid values are a permanent error. After any other error, the same call may succeed
        later.
        """
        cause = getattr(error, "orig", None) or error
        is_refused = isinstance(
            cause, (self.engine.dialect.loaded_dbapi.DataError, UnicodeError, OverflowError)
        )
        text = self.explained(str(cause) or type(cause).__name__, getattr(cause, "sqlstate", None) or "")
        if connection is not None and not is_refused:
            connection.invalidate()  # the connection's state is unknown: reconnect before the next work
        return (StoreError if is_refused else StoreAway)(text)

    @cached_property
    def engine(self) -> Engine:  # type: ignore[override]
        """psycopg engine in autocommit mode."""
        try:
            import psycopg
            from psycopg.conninfo import make_conninfo
        except ImportError:
            fix = "in a checkout: pip install '.[exporter,postgres]'"
            raise StoreError(f"{self.shown}: psycopg is missing; {fix}") from None
        location = self._location
        seconds = math.inf if self.upgrades else self._call_seconds

        class Impatient(psycopg.Connection[Any]):
            """Connection with a time limit for each call.

            The client itself ends a call, because a paused server ignores statement_timeout and cancellation.
            """

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
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")

        def connect() -> psycopg.Connection[Any]:
            return Impatient.connect(make_conninfo(location.conninfo, **location.password()), autocommit=True)

        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,  # saves a round trip for each connection
        )

    def prepare(self, connection: Connection) -> None:
        """Create or upgrade the tables. A lock keeps other exporters from doing the same."""
        version = migrate.read_version(connection, self.shown)
        if version == schema.SCHEMA:
            return
        if version is not None and not self.upgrades:
            raise StoreError(
                f"{self.shown}: an older InferCanary created the tables (schema {version}); upgrade them as their "
                "owner, with `python -m infercanary.store.migrate LOCATION`"
            )
        self.begin(connection)
        connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
        # check again: another exporter may have created the tables meanwhile
        if migrate.read_version(connection, self.shown) == version:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            migrate.update(connection, version)
        connection.commit()
