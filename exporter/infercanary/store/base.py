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
"""Documents of one kind kept for each service and canary."""
GONE_SECONDS = 300.0
"""A container is gone after so many seconds without a run, while others of its service have some."""


class StoreError(Exception):
    """The store failed and is unchanged. One line, for people."""

    def __str__(self) -> str:
        return masked(" ".join(super().__str__().split()))


class StoreAway(StoreError):
    """The store is unavailable now: offer the same again later."""


class LeaseLost(StoreError):
    """Another process has the service's lease; nothing was written."""


class Document(msgspec.Struct, frozen=True):
    """A document with its Unix time."""

    at: float
    body: bytes


class LastRun(NamedTuple):
    """The last run of a canary in a container."""

    service: ServiceKey
    container: str
    canary: str
    at: float
    """Unix time by the probe's clock."""


class Database:
    """A kind of database: opens connections and explains errors. It holds no connection."""

    engine: Engine
    shown: str
    """Name for people, without secrets; each error begins with it."""
    advice: ClassVar[Mapping[str, str]] = {}
    """Part of an error's text → its fix."""
    set_aside_at: float | None = None
    """Unix time at which the last corrupt file was set aside; None if there was none."""
    retention = Retention()
    """Default windows of what is kept."""
    upgrades = False
    """True if old tables of a shared database may be upgraded: only by their owner's command."""

    def connect(self) -> Connection:
        """Open a connection in the driver's autocommit mode, with the tables of :mod:`.schema`; raises errors of
        SQLAlchemy and of the system.
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
        """Begin a transaction. An unusable connection is invalidated, with an error."""
        connection.exec_driver_sql("BEGIN")

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return the error in one line with its fix: :class:`StoreAway` if the same may succeed later.

        An unusable connection is invalidated; a corrupt file is set aside.
        """
        raise NotImplementedError

    def size(self, connection: Connection) -> int | None:
        """Return the stored bytes; None if another administrator owns the disk."""

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the store's age in seconds: the time that exporters watched, or the Unix time of its own clock.

        Args:
            connection: Within a transaction if ``now`` is given.
            now: Unix time by this machine's clock; None to read only.
        """
        raise NotImplementedError

    def fleet(self, session: Session) -> Fleet | None:
        """Return leases and findings of exporters that share the database; None if it has one owner."""

    def explained(self, text: str, code: str = "") -> str:
        """Return an error's text with its place and fix."""
        found = (f"{fix} ({text})" for part, fix in self.advice.items() if part in text or part == code)
        return f"{self.shown}: {next(found, text)}"
