"""Errors and values of the store, and the interface of a kind of database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from infercanary.contract.text import masked
from infercanary.judge.model import ServiceKey
from infercanary.store.retention import Retention

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infercanary.store.fleet import Fleet
    from infercanary.store.session import Session

HISTORY = 100
"""Documents of a kind that are kept for each service and canary."""


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


class StoredFinding(NamedTuple):
    """A finding as it is kept."""

    service: ServiceKey
    canary: str
    body: bytes


class Database(Protocol):
    """A kind of database: how a connection to it is opened, and what its errors mean. It holds no connection."""

    shown: str
    """Its name for people, without secrets: each error begins with it."""
    set_aside_at: float | None
    """When the last corrupt file was set aside, a Unix time; None where none was."""
    retention: Retention
    """How much is kept unless the caller says so."""

    def connect(self) -> Connection:
        """Open a connection in the driver's autocommit mode, with the tables of :mod:`.schema`; errors of SQLAlchemy
        and of the system pass."""

    def begin(self, connection: Connection) -> None:
        """Begin a transaction. A connection that is of no use any more is to be closed, with an error."""

    def in_transaction(self, driver: Any) -> bool:
        """Return whether a driver's connection has a transaction open that can still be committed."""

    def error(self, error: Exception, connection: Connection | None) -> StoreError:
        """Return what went wrong in one line, with the fix: a :class:`StoreAway` where the same may succeed later.

        A connection that is of no use any more is closed; a corrupt file is set aside.
        """

    def size(self, connection: Connection) -> int | None:
        """Return the bytes of what is kept, or None if they are unknown."""

    def age(self, connection: Connection, now: float | None) -> float:
        """Return the age of the store in seconds: how long exporters have watched, or the Unix time of its own clock.

        Args:
            connection: Within a transaction if ``now`` is given.
            now: The Unix time by this machine's clock; None to read only.
        """

    def fleet(self, session: Session, holder: str | None) -> Fleet | None:
        """Return the leases and findings of exporters that share the database; None if it has one owner.

        Args:
            session: The store's.
            holder: Identifies this process; None for a random name.
        """
