"""Prior of the restart variance: learned from all services, and kept in the store as numbered documents."""

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
"""Shortest time between two priors, and between an exporter's start and the first prior. By then, all services are
judged.
"""

_KIND = "restart_prior"
_KNOWN_SECONDS = 1800.0  # delay before use of a new prior: all exporters must have read the prior


class RestartPrior:
    """Priors learned from the restart variances of all services.

    An upgrade is judged with the latest prior at the time of the upgrade. So a later prior does not change the verdict.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, Prior]] | None = None
        self._learned_at = math.inf

    def read_again(self) -> None:
        """Forget the cached priors. The next use reads them from the store, because another exporter may have learned a
        prior.
        """
        self._kept = None

    def at(self, store: Store, time: float | None) -> Prior:
        """Return the prior that is valid at a time.

        Args:
            store: Store with the priors.
            time: Unix time of an upgrade; None for now.

        Returns:
            The policy's own prior (number 0) if no prior was learned before this time.
        """
        before = [prior for since, prior in self._read(store) if time is None or since <= time]
        return before[-1] if before else Prior()

    def learn(self, store: Store, now: float, findings: Mapping[ServiceKey, Findings]) -> None:
        """Learn a prior if the last prior is old enough. Store a clearly different prior.

        Args:
            store: Store of the priors. From a shared store, the restart variances of all exporters are read.
            now: Unix time.
            findings: Findings of this exporter by service.
        """
        self._learned_at = min(self._learned_at, now)
        if now - self._learned_at < LEARN_SECONDS:
            return
        self._learned_at = since = now
        # All canaries of a service share the service's starts, so only one canary of each service counts.
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
