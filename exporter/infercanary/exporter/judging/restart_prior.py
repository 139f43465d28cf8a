"""Prior of the restart variance: learned from all services of the store, kept in it as numbered documents."""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import median

import msgspec
import structlog

from infercanary.exporter.judging.schedule import Canary
from infercanary.judge.model import ServiceKey
from infercanary.judge.restarts import Prior, learned
from infercanary.judge.shift import Restarts
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

LEARN_SECONDS = 3600.0
"""Least time between two priors, and from the start of an exporter to the first: then all services were judged."""

_KIND = "restart_prior"
_OF_THE_STORE = ServiceKey("", "")  # no service has this name
_decoder = msgspec.json.Decoder(Prior)
_lessons = msgspec.json.Decoder(Restarts)
_KNOWN_SECONDS = 1800.0  # after which all that share a store have read a prior


class RestartPrior:
    """Restart variances of services, and the priors learned from them.

    An upgrade is judged by the last prior that was there when it began, also after a later one was learned: the same
    runs give the same verdict again.
    """

    def __init__(self) -> None:
        self._taught: dict[Canary, Restarts] = {}
        self._kept: list[tuple[float, Prior]] | None = None
        self._learned_at = math.inf

    def teach(self, canary: Canary, restarts: Restarts | None) -> None:
        """Take the restart variance of a canary's service, learned without a prior; None if no image was restarted."""
        if restarts is None:
            self._taught.pop(canary, None)
        else:
            self._taught[canary] = restarts

    def lesson(self, canary: Canary) -> bytes:
        """Restart variance that a canary's service taught, for the store; empty if none."""
        taught = self._taught.get(canary)
        return b"" if taught is None else msgspec.json.encode(taught)

    def read_again(self) -> None:
        """Read the priors from the store at the next use: another exporter may have learned one."""
        self._kept = None

    def forget(self, known: Collection[Canary]) -> None:
        """Forget all canaries but the ``known`` ones."""
        self._taught = {canary: taught for canary, taught in self._taught.items() if canary in known}

    def at(self, store: Store, time: float | None) -> Prior:
        """The prior for an upgrade that began at a Unix ``time``; None is the last one.

        The oldest one where that of the time is no longer kept, and number 0, the policy's own, where none was learned.
        """
        kept = self._read(store)
        before = [prior for since, prior in kept if time is None or since <= time]
        if before:
            return before[-1]
        return kept[0][1] if kept and kept[0][1].number > 1 else Prior()

    def learn(self, store: Store, now: float) -> None:
        """Learn a prior if it is time (``now`` is a Unix time), and keep it where it differs from the last one."""
        self._learned_at = min(self._learned_at, now)
        if now - self._learned_at < LEARN_SECONDS:
            return
        self._learned_at = now
        taught = self._taught
        if store.fleet is not None:  # each exporter judges a part of the services
            self._kept = None
            taught = {
                (service, canary): _lessons.decode(body) for service, canary, body in store.fleet.taught()
            }
        services: dict[ServiceKey, list[Restarts]] = {}
        for (service, _), restarts in taught.items():
            services.setdefault(service, []).append(restarts)
        # One for each service: its canaries share the starts.
        prior = learned(
            [Restarts(median(r.sd for r in each), median(r.df for r in each)) for each in services.values()]
        )
        kept = self._read(store)
        if prior is None or (kept and math.isclose(prior.sd, kept[-1][1].sd, rel_tol=0.1)):
            return
        prior = msgspec.structs.replace(prior, number=kept[-1][1].number + 1 if kept else 1)
        now += _KNOWN_SECONDS if store.fleet is not None else 0.0
        store.save(_OF_THE_STORE, "", _KIND, now, msgspec.json.encode(prior))
        kept.append((now, prior))
        log.info("restart variance learned from all services", prior=prior.number, sd=f"{prior.sd:.2%}")

    def _read(self, store: Store) -> list[tuple[float, Prior]]:
        if self._kept is None:
            self._kept = []
            for document in store.history(_OF_THE_STORE, "", _KIND):
                try:
                    self._kept.append((document.at, _decoder.decode(document.body)))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    log.warning("a prior cannot be read", error=str(error))
        return self._kept
