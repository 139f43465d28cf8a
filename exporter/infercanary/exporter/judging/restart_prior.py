"""Prior of the restart variance: learned from all services of the store, and kept there as numbered documents."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from infercanary.exporter.judging.documents import read
from infercanary.exporter.judging.findings import Findings
from infercanary.exporter.judging.ownership import PRIORS
from infercanary.judge.model import ServiceKey
from infercanary.judge.restarts import Prior, learned
from infercanary.judge.shift import Restarts
from infercanary.store.store import Store

LEARN_SECONDS = 3600.0
"""Smallest time between two priors, and from an exporter's start to its first prior: by then all services are judged.
"""

_KIND = "restart_prior"
_KNOWN_SECONDS = 1800.0  # seconds after which all exporters of a store have read a prior


class RestartPrior:
    """Priors learned from the restart variances of all services.

    An upgrade keeps the prior that was the last one when it began, so the same runs give the same verdict again.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, Prior]] | None = None
        self._learned_at = math.inf

    def read_again(self) -> None:
        """Read the priors from the store at the next use: another exporter may have learned one."""
        self._kept = None

    def at(self, store: Store, time: float | None) -> Prior:
        """Return the prior for an upgrade that began at a Unix ``time`` (None: now). Number 0, the policy's own, if
        none was learned before.
        """
        before = [prior for since, prior in self._read(store) if time is None or since <= time]
        return before[-1] if before else Prior()

    def learn(self, store: Store, now: float, findings: Mapping[ServiceKey, Findings]) -> None:
        """Learn a prior if it is due, and store it if it differs from the last one (or from the policy's own).

        Args:
            store: Keeps the priors; if it is shared, the findings of all exporters are read.
            now: A Unix time.
            findings: Findings by service.
        """
        self._learned_at = min(self._learned_at, now)
        if now - self._learned_at < LEARN_SECONDS:
            return
        self._learned_at = since = now
        # One canary of each service, because its canaries share the starts.
        taught = {
            service: finding.taught
            for service, found in findings.items()
            for finding in found.values()
            if finding.taught is not None
        }
        if store.fleet is not None:  # each exporter judges only some services
            self.read_again()
            since += _KNOWN_SECONDS
            taught = {
                service: msgspec.json.decode(body, type=Restarts) for service, _, body in store.fleet.taught()
            }
        prior = learned([*taught.values()])
        last = self.at(store, None)
        if prior is not None and not math.isclose(prior.sd, last.sd, rel_tol=0.1):
            prior = msgspec.structs.replace(prior, number=last.number + 1)
            store.save(PRIORS, "", _KIND, since, msgspec.json.encode(prior))
            self.read_again()

    def _read(self, store: Store) -> list[tuple[float, Prior]]:
        if self._kept is None:
            self._kept = read(store, PRIORS, "", _KIND, Prior)
        return self._kept
