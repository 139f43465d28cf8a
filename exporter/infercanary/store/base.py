"""Errors and value types of the store, and the interface of a database backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from infercanary.contract.text import masked
from infercanary.judge.model import ServiceKey
from infercanary.store.retention import Retention

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from infercanary.store.fleet import Fleet
    from infercanary.store.session import Session

HISTORY = 100
"""Number of documents of one kind that are kept for each service and canary."""
GONE_SECONDS = 300.0
"""Seconds without a run after which a container counts as gone, if other containers of its service have runs."""


class StoreError(Exception):
    """A call of the store failed and changed nothing. The message is one line for users."""

    def __str__(self) -> str:
        return masked(" ".join(super().__str__().split()))


class StoreAway(StoreError):
    """The store is unavailable now. The same call may succeed later."""


class LeaseLost(StoreError):
    """Another process has the service's lease; nothing was written."""


class Document(msgspec.Struct, frozen=True):
    """A stored document of the judge."""

    at: float
    """Unix time of the document."""
    body: bytes


class LastRun(NamedTuple):
    """The last run of a canary in a container."""

    service: ServiceKey
    container: str
    canary: str
    at: float
    """Unix time of the probe's clock."""


class Database:
    """A database backend: opens connections and explains errors. A backend itself keeps no connection open."""

    engine: Engine
    shown: str
    """Name for messages, without secrets. Each error message begins with this name."""
    advice: ClassVar[Mapping[str, str]] = {}
    """Explanation and fix of an error, by part of the error's text."""
    set_aside_at: float | None = None
    """Unix time at which the last corrupt file was renamed; None if there is no such file."""
    retention = Retention()
    """Default limits for the number of stored rows."""
    upgrades = False
    """True if old tables of a shared database may be upgraded. Only the ``migrate`` command upgrades them."""
    is_guest = False
    """True for a command that adds benchmarks, perhaps while an exporter has the same file open."""

    def connect(self) -> Connection:
        """Open a connection in autocommit mode, with the tables of :mod:`.schema`.

        Raises:
            Exception: An unconverted error of SQLAlchemy or of the operating system.
        """
        connection = self.engine.connect()
        try:
            self.prepare(connection)
        except BaseException:
            connection.invalidate()
            raise
        return connection

    def prepare(self, connection: Connection) -> None:
        """Check a new connection, and bring the tables to the current schema."""
        raise NotImplementedError

    def begin(self, connection: Connection) -> None:
        """Begin a transaction. An unusable connection is invalidated, and an error is raised."""
        connection.exec_driver_sql("BEGIN")

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return an error whose message of one line names the fix.

        An unusable connection is invalidated, and a corrupt file is renamed.

        Args:
            error: Error of the driver or of the operating system.
            connection: Connection with which the error occurred.

        Returns:
            A :class:`StoreAway` if the same call may succeed later.
        """
        raise NotImplementedError

    def size(self, connection: Connection) -> int | None:
        """Return the size of the database in bytes; None if the database is on a server."""

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the store's age in seconds: total running time of its exporters, or the Unix time of a database
        server.

        Args:
            connection: Connection, within a transaction if ``now`` is given.
            now: Unix time of this machine's clock, to advance the age; None to read only.
        """
        raise NotImplementedError

    def fleet(self, session: Session) -> Fleet | None:
        """Return leases and findings of exporters that share the database; None if no other exporter uses it."""

    def explained(self, text: str, code: str = "") -> str:
        """Return an error's message: name of the database, explanation and fix."""
        found = (f"{fix} ({text})" for part, fix in self.advice.items() if part in text or part == code)
        return f"{self.shown}: {next(found, text)}"
