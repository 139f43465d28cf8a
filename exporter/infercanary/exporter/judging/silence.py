"""Which canaries were removed from their service: they do not run, while others of it do."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from infercanary.judge.model import ServiceKey

Canary = tuple[ServiceKey, str]  # and its name

GONE_SECONDS, GONE_TURNS = 7200.0, 12  # both: a canary may be slow, and a host may stand still


class Silence:
    """Notes at each turn which canaries ran."""

    def __init__(self) -> None:
        self._since: dict[Canary, tuple[float, int]] = {}  # and for how many turns of its service

    def note(self, ran: Collection[Canary], judged: Mapping[ServiceKey, Collection[str]]) -> None:
        """Of the canaries that are ``judged`` (service → names), these ``ran`` since the last turn.

        Args:
            ran: Service and name of each canary that ran.
            judged: Service → names.
        """
        now = time.monotonic()
        for service in {service for service, _ in ran}:
            for canary in judged.get(service, ()):
                if (service, canary) not in ran:
                    since, turns = self._since.get((service, canary), (now, 0))
                    self._since[service, canary] = since, turns + 1
        for key in self._since.keys() & {*ran}:
            del self._since[key]

    def removed(self) -> set[Canary]:
        """Those that did not run for long.

        Returns:
            Service and name of each.
        """
        now = time.monotonic()
        return {
            key
            for key, (since, turns) in self._since.items()
            if turns >= GONE_TURNS and now - since >= GONE_SECONDS
        }

    def forget(self, known: Mapping[ServiceKey, Collection[str]]) -> None:
        """Forget all but those that are known.

        Args:
            known: Service → names.
        """
        self._since = {key: noted for key, noted in self._since.items() if key[1] in known.get(key[0], ())}
