"""Prior of the restart variance: learned from all services of the store, kept in it as numbered documents."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import msgspec
import structlog

from infercanary.exporter.judging.ownership import PRIORS
from infercanary.judge.model import ServiceKey
from infercanary.judge.restarts import Prior, learned
from infercanary.judge.shift import Restarts
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

LEARN_SECONDS = 3600.0
"""Least time between two priors, and from the start of an exporter to the first: then all services were judged."""

_KIND = "restart_prior"
_decoder = msgspec.json.Decoder(Prior)
_lessons = msgspec.json.Decoder(Restarts)
_KNOWN_SECONDS = 1800.0  # after which all that share a store have read a prior


class RestartPrior:
    """Priors learned from the restart variances of all services.

    An upgrade is judged by the last prior that was there when it began, also after a later one was learned: the same
    runs give the same verdict again.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, Prior]] | None = None
        self._learned_at = math.inf

    def read_again(self) -> None:
        """Read the priors from the store at the next use: another exporter may have learned one."""
        self._kept = None

    def at(self, store: Store, time: float | None) -> Prior:
        """The prior for an upgrade that began at a Unix ``time``; None is the last one.

        Number 0, the policy's own, if none was learned before.
        """
        before = [prior for since, prior in self._read(store) if time is None or since <= time]
        return before[-1] if before else Prior()

    def learn(self, store: Store, now: float, taught: Iterable[tuple[ServiceKey, Restarts]]) -> None:
        """Learn a prior if it is time (``now`` is a Unix time), and keep it where it differs from the last one.

        Args:
            store: Keeps the priors.
            now: A Unix time.
            taught: Restart variances of services, one a canary; of a shared store, its own are read.
        """
        self._learned_at = min(self._learned_at, now)
        if now - self._learned_at < LEARN_SECONDS:
            return
        self._learned_at = since = now
        if store.fleet is not None:  # each exporter judges a part of the services
            self.read_again()
            taught = [(stored.service, _lessons.decode(stored.body)) for stored in store.fleet.taught()]
            since += _KNOWN_SECONDS
        services: defaultdict[ServiceKey, list[Restarts]] = defaultdict(list)
        for service, restarts in taught:
            services[service].append(restarts)
        # One for each service: its canaries share the starts.
        prior = learned([Restarts(*map(median, zip(*each, strict=True))) for each in services.values()])
        kept = self._read(store)
        if prior is None or (kept and math.isclose(prior.sd, kept[-1][1].sd, rel_tol=0.1)):
            return
        prior = msgspec.structs.replace(prior, number=kept[-1][1].number + 1 if kept else 1)
        store.save(PRIORS, "", _KIND, since, msgspec.json.encode(prior))
        kept.append((since, prior))
        log.info("restart variance learned from all services", prior=prior.number, sd=f"{prior.sd:.2%}")

    def _read(self, store: Store) -> list[tuple[float, Prior]]:
        if self._kept is None:
            self._kept = []
            for document in store.history(PRIORS, "", _KIND):
                try:
                    self._kept.append((document.at, _decoder.decode(document.body)))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    log.warning("a prior cannot be read", error=str(error))
        return self._kept
