"""Which canary is judged next: one of the service that took least of the judge's time lately.

A container may report as many starts and canaries as its budget allows, and each new one is judged. There is one thread
for that, so who keeps it busy waits for the others, and not they for him.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey
from infercanary.store.base import StoreError

_HALF_SECONDS = 60.0  # after which half of what was taken is forgotten
_LEAST_SECONDS = 1e-6  # what is less is forgotten
_FAILURE_SECONDS = 1.0  # what the store fails with comes after what it may not fail with


class Fairness:
    """What each service took of the judge's time lately, in seconds."""

    def __init__(self) -> None:
        self._taken: dict[ServiceKey, float] = {}
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

    @contextmanager
    def counted(self, service: ServiceKey) -> Iterator[None]:
        """Count the CPU time that a service takes.

        Args:
            service: Whose.

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
            seconds = time.thread_time() - begin + failed
            self._taken[service] = self._taken.get(service, 0.0) + seconds
