"""Errors and values of the store, and the interface of a kind of database."""

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
"""Documents of a kind that are kept for each service and canary."""
GONE_SECONDS = 300.0
"""A container without a run for so long, while others of its service have some, is gone."""


class StoreError(Exception):
    """The store could not do it, and is as before. One line, for people."""

    def __str__(self) -> str:
        return masked(" ".join(super().__str__().split()))


class StoreAway(StoreError):
    """The store cannot do it now, and may later: offer the same again."""


class LeaseLost(StoreError):
    """Another process has the service's lease; nothing was written."""


class Document(msgspec.Struct, frozen=True):
    """A document, and the Unix time that was saved with it."""

    at: float
    body: bytes


class LastRun(NamedTuple):
    """The last run of a canary in a container."""

    service: ServiceKey
    container: str
    canary: str
    at: float
    """A Unix time, by the probe's clock."""


class Database:
    """A kind of database: how a connection to it is opened, and what its errors mean. It holds no connection."""

    engine: Engine
    shown: str
    """Its name for people, without secrets: each error begins with it."""
    advice: ClassVar[Mapping[str, str]] = {}
    """Part of an error's text → what to do."""
    set_aside_at: float | None = None
    """When the last corrupt file was set aside, a Unix time; None where none was."""
    retention = Retention()
    """How much is kept unless the caller says so."""
    upgrades = False
    """Whether older tables of a shared database are brought up to date: by their owner's command alone."""

    def connect(self) -> Connection:
        """Open a connection in the driver's autocommit mode, with the tables of :mod:`.schema`; errors of SQLAlchemy
        and of the system pass."""
        connection = self.engine.connect()
        try:
            self.prepare(connection)
        except BaseException:
            connection.invalidate()
            raise
        return connection

    def prepare(self, connection: Connection) -> None:
        """Check a new connection, and see that the tables are those of today."""
        raise NotImplementedError

    def begin(self, connection: Connection) -> None:
        """Begin a transaction. A connection that is of no use any more is invalidated, with an error."""
        connection.exec_driver_sql("BEGIN")

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return what went wrong in one line, with the fix: a :class:`StoreAway` where the same may succeed later.

        A connection that is of no use any more is invalidated; a corrupt file is set aside.
        """
        raise NotImplementedError

    def size(self, connection: Connection) -> int | None:
        """Return the bytes of what is kept; None where its disk is another administrator's."""

    def age(self, connection: Connection, now: float | None = None) -> float:
        """Return the age of the store in seconds: how long exporters have watched, or the Unix time of its own clock.

        Args:
            connection: Within a transaction if ``now`` is given.
            now: The Unix time by this machine's clock; None to read only.
        """
        raise NotImplementedError

    def fleet(self, session: Session) -> Fleet | None:
        """Return the leases and findings of exporters that share the database; None if it has one owner.

        Args:
            session: The store's.
        """

    def explained(self, text: str, code: str = "") -> str:
        """Return an error's text with what to do about it, and where."""
        found = (f"{fix} ({text})" for part, fix in self.advice.items() if part in text or part == code)
        return f"{self.shown}: {next(found, text)}"
