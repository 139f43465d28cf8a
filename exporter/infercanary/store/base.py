"""What judging needs of a store, and what goes wrong with one. :mod:`.kinds` says which kinds there are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import msgspec

from infercanary.contract.text import masked
from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.judge.policy import Policy

HISTORY = 100
"""Documents of a kind that are kept for each service and canary."""


class StoreError(Exception):
    """The store could not do it; what it was to change is as before. One line, for people."""

    def __str__(self) -> str:
        return masked(" ".join(super().__str__().split()))


class Document(msgspec.Struct, frozen=True):
    """What was saved, and the Unix time that was given with it."""

    at: float
    body: bytes


class StoreAway(StoreError):
    """The store cannot do it now, and may later: what it was given is to be offered again."""


class LeaseLost(StoreError):
    """Somebody else judges the service by now; nothing was written."""


class LastRun(NamedTuple):
    """When a canary ran last in a container."""

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


class Fleet(Protocol):
    """What exporters that share a store agree on. Every method may raise :class:`StoreError`; one thread at a time, but
    for :meth:`renew`.

    A service's lease has one holder. It ends after ``lease_seconds``, by the store's clock, unless it is renewed.
    """

    lease_seconds: float

    def hold(self, wanted: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew the leases of these services, and take those that nobody has.

        Args:
            wanted: Services; a lease of any other one is left to end.

        Returns:
            The services whose lease this process has now.
        """

    def renew(self, services: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew leases, and take none; by a connection of its own, from another thread than all other methods.

        Args:
            services: Those that this process holds.

        Returns:
            The services whose lease goes on.
        """

    def give_back(self, services: Collection[ServiceKey]) -> None:
        """End the leases of these services, so that another process may take them at once.

        Args:
            services: Those that this process holds; others are passed over.
        """

    def refresh(self, services: Collection[ServiceKey]) -> set[tuple[ServiceKey, str]]:
        """Read again what the store has of these services: what the reading methods of :class:`Store` say of them is of
        that moment, until the next call.

        Args:
            services: All others are forgotten.

        Returns:
            Service and canary of each canary of which a start, or its runs, changed since the call before.
        """

    def put_finding(self, service: ServiceKey, canary: str, at: float, body: bytes, taught: bytes) -> None:
        """Keep what is known of a canary now.

        Args:
            service: One whose lease this process has.
            canary: Its name.
            at: A Unix time.
            body: Any bytes.
            taught: What its restarts teach about others; empty for nothing.

        Raises:
            LeaseLost: The lease is another process's by now.
        """

    def findings(self, services: Collection[ServiceKey]) -> list[StoredFinding]:
        """What is known of these services, as far as it changed since the call before.

        Args:
            services: Any; what was known of others before is forgotten.

        Returns:
            One for each canary that has a new finding.
        """

    def running(self, service: ServiceKey) -> list[Generation]:
        """The newest start of each container that still runs, as far as runs and their ends show.

        Args:
            service: Any key.

        Returns:
            Starts, in order of their containers' names; none where nobody has the service's lease, for then no exporter
            sees what runs.
        """

    def services(self) -> set[ServiceKey]:
        """All services that are judged.

        Returns:
            Those whose lease somebody holds.
        """

    def taught(self) -> list[StoredFinding]:
        """What each canary of all services teaches.

        Returns:
            The ``taught`` of each :meth:`put_finding` that was not empty.
        """


class Store(Protocol):
    """Keeps each run once, thinner with age. Every method but :meth:`close` may raise :class:`StoreError`.

    Synchronous, and for one thread at a time: a worker's, never the event loop's. The properties may be read from any
    thread. A caller of :meth:`take` moves its cursor only after the transaction; what it then offers again after an
    error, or after a restart, is not taken twice.
    """

    @property
    def size_bytes(self) -> int | None:
        """Size of what is kept; None where the store cannot tell."""

    @property
    def fleet(self) -> Fleet | None:
        """For a store that several exporters share; None for one that has one owner, who judges all that is in it."""

    @property
    def set_aside_at(self) -> float | None:
        """When the last corrupt store was set aside, a Unix time; None where none was."""

    def transaction(self) -> AbstractContextManager[None]:
        """What is done within it is kept as a whole or, after an exception, not at all.

        Within another one, as each :meth:`take` can be, it costs only its own part: the rest may still be kept.

        Returns:
            A context manager, for ``with``.

        Raises:
            StoreError: On entry, if the store cannot be opened or written; at the end, if it could not be kept.
        """

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Keep ``samples``, in any order, of ``generation``.

        Each is taken once, by namespace, service, container, boot id and sequence. The last values of ``generation``
        are kept, but for ``started_at``, which stays. A container's earlier start is to be taken before its later one:
        where the clock was set back between them, only this order shows which came first. A run that comes only after
        later ones were merged is left out.

        Args:
            generation: The start, as it is known by now.
            samples: Its runs, of any canaries.

        Returns:
            How many of them are new.
        """

    def canaries(self, services: Collection[ServiceKey] | None = None) -> list[tuple[ServiceKey, str]]:
        """Service and canary of each canary that ran.

        Args:
            services: Of these services alone; None for all.

        Returns:
            Pairs, each once, in order of namespace and both names.
        """

    def last_runs(self, host: str) -> list[LastRun]:
        """What ran on a host, in containers that Docker or Kubernetes found.

        Args:
            host: As starts name it.

        Returns:
            One for each container and canary.
        """

    def taken(self, service: ServiceKey, canary: str) -> dict[tuple[str, str], int]:
        """Container and boot id → runs that were taken and had not failed, also those that were merged since.

        Args:
            service: Its key.
            canary: Its name.

        Returns:
            An entry for each start in which the canary ran; empty where there is none.
        """

    def start_of(self, service: ServiceKey, container: str, boot_id: str) -> Generation | None:
        """What is known of a start; None where it was never seen.

        Args:
            service: Its key.
            container: The stable name.
            boot_id: Of the probe, which says which start it is.

        Returns:
            The start, or None also where its row cannot be read.
        """

    def starts(self, service: ServiceKey) -> list[Generation]:
        """Each start of the service's containers, also without runs, in order of time.

        Args:
            service: Its key.

        Returns:
            Starts that can be read; the oldest first.
        """

    def generations(
        self,
        service: ServiceKey,
        canary: str,
        *,
        container: str | None = None,
        since: float = -math.inf,
        most_bytes: int | None = None,
    ) -> list[tuple[Generation, list[Sample]]]:
        """Each start in which the canary ran, with its runs (failed ones too) and the medians of its earlier ones.

        Args:
            service: Its key.
            canary: Its name.
            container: Starts of this container alone.
            since: Starts of that Unix time and later.
            most_bytes: For a judgement: the starts that it needs (:func:`.reading.to_judge`), so many bytes of them,
                and of their runs. Beyond it the oldest starts are left out, and of those that have most runs the ones
                between their first and last. None for all.

        Returns:
            Starts, and samples of each, in order of time; of starts that began at the same time, by container.
        """

    def keep_for(self, policy: Policy) -> None:
        """Keep, from now on, the runs that this policy looks at.

        Args:
            policy: Its last look says how many runs at the beginning of each start stay.
        """

    def thin(self, now: float) -> None:
        """Merge and drop what is no longer to be kept; to be called every few minutes.

        Args:
            now: A Unix time. Only its steps matter, as the time that exporters watched: one back, or of more than a
                day, does not count.
        """

    def save(self, service: ServiceKey, canary: str, kind: str, at: float, body: bytes) -> None:
        """Keep a document; of a service, canary and kind the last ``HISTORY`` are kept.

        Args:
            service: What it is about; the documents go when the store no longer knows the canary.
            canary: What it is about.
            kind: A name that its reader knows.
            at: A Unix time.
            body: Any bytes.
        """

    def history(self, service: ServiceKey, canary: str, kind: str) -> list[Document]:
        """What was saved, in the order in which it was.

        Args:
            service: As for :meth:`save`.
            canary: As for :meth:`save`.
            kind: As for :meth:`save`.

        Returns:
            At most ``HISTORY`` documents; the oldest first.
        """

    def close(self) -> None:
        """Let go of it. Never raises."""
