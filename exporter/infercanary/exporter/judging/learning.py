"""The priors of the restart variance: learned from all services of the store, kept in it as numbered documents."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from statistics import median

import msgspec
import structlog

from infercanary.exporter.judging.silence import Canary
from infercanary.judge.model import ServiceKey
from infercanary.judge.restarts import Prior, learned
from infercanary.judge.shift import Restarts
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

LEARN_SECONDS = 3600.0
"""A prior is learned so often at most, and not before an exporter has run for so long: then all were judged."""

_KIND = "restart_prior"
_OF_THE_STORE = ServiceKey("", "")  # no service has this name
_decoder = msgspec.json.Decoder(Prior)
_lessons = msgspec.json.Decoder(Restarts)
_KNOWN_SECONDS = 1800.0  # after which all that share a store have read a prior


class Learning:
    """What services teach, and the priors that were learned of it.

    An upgrade is judged by the last prior that was there when it began, also after a later one was learned: the same
    runs give the same verdict again.
    """

    def __init__(self) -> None:
        self._taught: dict[Canary, Restarts] = {}
        self._kept: list[tuple[float, Prior]] | None = None
        self._learned_at = math.inf

    def teach(self, canary: Canary, restarts: Restarts | None) -> None:
        """Take what the starts of a canary's service show by themselves.

        Args:
            canary: Service and canary.
            restarts: As they were learned without a prior; None where no image was started again.
        """
        if restarts is None:
            self._taught.pop(canary, None)
        else:
            self._taught[canary] = restarts

    def lesson(self, canary: Canary) -> bytes:
        """What a canary's service taught, for the store.

        Args:
            canary: Service and canary.

        Returns:
            Empty where it taught nothing.
        """
        taught = self._taught.get(canary)
        return b"" if taught is None else msgspec.json.encode(taught)

    def read_again(self) -> None:
        """Read the priors from the store when they are asked for next: another exporter may have learned one."""
        self._kept = None

    def forget(self, known: Collection[Canary]) -> None:
        """Forget all canaries but these.

        Args:
            known: Those that are still in the store.
        """
        self._taught = {canary: taught for canary, taught in self._taught.items() if canary in known}

    def prior(self, store: Store, at: float | None) -> Prior:
        """The prior that an upgrade is judged by.

        Args:
            store: Where priors are kept.
            at: When the upgrade began, a Unix time; None for what is judged without one.

        Returns:
            The last one of that time; the oldest that is kept where that one no longer is, and number 0, which is the
            policy's own, where none was learned yet.
        """
        kept = self._read(store)
        before = [prior for since, prior in kept if at is None or since <= at]
        if before:
            return before[-1]
        return kept[0][1] if kept and kept[0][1].number > 1 else Prior()

    def learn(self, store: Store, now: float) -> None:
        """Learn a prior, if it is time, and keep it where it differs from the last one.

        Args:
            store: Where priors are kept.
            now: A Unix time.
        """
        self._learned_at = min(self._learned_at, now)
        if now - self._learned_at < LEARN_SECONDS:
            return
        self._learned_at = now
        if store.fleet is not None:  # each exporter judges a part of the services
            self._kept = None
            taught = {(one.service, one.canary): _lessons.decode(one.body) for one in store.fleet.taught()}
            found = learned(_by_service(taught))
            now += _KNOWN_SECONDS
        else:
            found = learned(_by_service(self._taught))
        kept = self._read(store)
        if found is None or (kept and math.isclose(found.sd, kept[-1][1].sd, rel_tol=0.1)):
            return
        prior = msgspec.structs.replace(found, number=kept[-1][1].number + 1 if kept else 1)
        store.save(_OF_THE_STORE, "", _KIND, now, msgspec.json.encode(prior))
        kept.append((now, prior))
        log.info("learned how much starts differ", prior=prior.number, sd=f"{prior.sd:.2%}")

    def _read(self, store: Store) -> list[tuple[float, Prior]]:
        if self._kept is None:
            kept = []
            for document in store.history(_OF_THE_STORE, "", _KIND):
                try:
                    kept.append((document.at, _decoder.decode(document.body)))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    log.warning("a prior cannot be read", error=str(error))
            self._kept = kept
        return self._kept


def _by_service(taught: Mapping[Canary, Restarts]) -> list[Restarts]:
    """One for each service: its canaries share the starts."""
    services: dict[ServiceKey, list[Restarts]] = {}
    for (service, _), one in taught.items():
        services.setdefault(service, []).append(one)
    return [
        Restarts(median(one.sd for one in each), median(one.df for one in each)) for each in services.values()
    ]
