"""Which canary is judged next: one of the service that took least of the judge's time lately; and whose that time is.

A container may report as many starts and canaries as its budget allows, and each new one is judged. There is one thread
for that, so who keeps it busy waits for the others, and not they for him. Whose runs made it judge pays for it by a
budget, too: it is polled less often.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey
from infercanary.store.base import StoreError

_HALF_SECONDS = 60.0  # after which half of what was taken is forgotten
_LEAST_SECONDS = 1e-6  # what is less is forgotten
_FAILURE_SECONDS = 1.0  # what the store fails with comes after what it may not fail with


class Fairness:
    """What each service took of the judge's time lately, in seconds, and which containers are to be charged for it."""

    def __init__(self) -> None:
        self._taken: dict[ServiceKey, float] = {}
        self._charged: dict[tuple[ServiceKey, str], float] = {}
        self._at = time.monotonic()

    def order(self, canaries: Iterable[Canary]) -> list[Canary]:
        """The order in which they are to be looked at.

        Args:
            canaries: Those that are due, in the order in which they became that.

        Returns:
            The same; those of one service stay in order.
        """
        now = time.monotonic()
        left = 0.5 ** ((now - self._at) / _HALF_SECONDS)
        self._at = now
        self._taken = {
            service: seconds * left for service, seconds in self._taken.items() if seconds > _LEAST_SECONDS
        }
        return sorted(canaries, key=lambda canary: self._taken.get(canary[0], 0.0))

    def charge(self, service: ServiceKey, container: str) -> float:
        """What a container is to be charged for; from any thread.

        Args:
            service: Its service.
            container: Its stable name.

        Returns:
            Seconds since it was last asked.
        """
        return self._charged.pop((service, container), 0.0)

    def forget(self, known: Collection[tuple[ServiceKey, str]]) -> None:
        """Charge nobody else any more.

        Args:
            known: Service and stable name of the containers that still report.
        """
        for one in [*self._charged]:
            if one not in known:
                self._charged.pop(one, None)

    @contextmanager
    def counted(self, service: ServiceKey, containers: Collection[str]) -> Iterator[None]:
        """Count the CPU time that a service takes, and charge it to the containers in equal parts.

        Args:
            service: Whose.
            containers: Those of it whose runs are judged; none if they are not why, as after a change of settings.

        Yields:
            Nothing.
        """
        begin = time.thread_time()
        failed = 0.0
        try:
            yield
        except StoreError:
            failed = _FAILURE_SECONDS
            raise
        finally:
            seconds = time.thread_time() - begin
            self._taken[service] = self._taken.get(service, 0.0) + seconds + failed
            for container in containers:
                to_pay = self._charged.pop(
                    (service, container), 0.0
                )  # the event loop may ask at this very moment
                self._charged[service, container] = to_pay + seconds / len(containers)
