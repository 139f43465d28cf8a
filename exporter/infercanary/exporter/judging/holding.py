"""How much of what is known of services is kept in memory: each has its share of that, whatever its probes report."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey
from infercanary.store.reading import fair

log = structlog.get_logger(__name__)

_IN_MEMORY = 3  # bytes of what is known, decoded, for each that it has as it is stored


class Holding:
    """Which canaries' findings are kept. What a service has too much goes: the canaries that came last, first.

    Args:
        most_bytes: Of all findings in memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes // _IN_MEMORY
        self._sizes: dict[ServiceKey, dict[str, int]] = {}
        self._total = 0
        self._warned: set[ServiceKey] = set()

    def hold(self, one: Canary, size: int) -> list[Canary]:
        """Note what is known of a canary now.

        Args:
            one: Service and canary.
            size: Bytes of its findings, as they are stored.

        Returns:
            The canaries that do not fit, and are to be forgotten; this one may be among them.
        """
        service, canary = one
        sizes = self._sizes.setdefault(service, {})
        self._total += size - sizes.get(canary, 0)
        sizes[canary] = size
        if self._total <= self._most:
            return []
        totals = {name: sum(each.values()) for name, each in self._sizes.items()}
        share = fair(totals.values(), self._most)
        gone = []
        for name, total in totals.items():
            while total > share:
                last, last_size = self._sizes[name].popitem()
                total -= last_size
                self._total -= last_size
                gone.append((name, last))
        for name, last in gone:
            if name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "not all verdicts of a service are kept: they take more than its share of the memory; give the "
                    "exporter more, or the service fewer canaries",
                    service=str(name), canary=last,
                )  # fmt: skip
        return gone

    def forget(self, service: ServiceKey, but: Collection[str] = ()) -> None:
        """Forget canaries that are no more.

        Args:
            service: Its key.
            but: Those that are still there.
        """
        sizes = self._sizes.get(service, {})
        for canary in sizes.keys() - but:
            self._total -= sizes.pop(canary)
        if not sizes:
            self._sizes.pop(service, None)
        if not but:
            self._warned.discard(service)
