"""Whether a service's replicas on this host differ: what an alert is about that no container shows alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from infercanary.contract.vocabulary import HARDWARE_COMPONENTS
from infercanary.exporter.conditions import WARNING, Condition
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.history import RunSummary
from infercanary.exporter.polled import PolledProbe
from infercanary.judge.model import ServiceKey
from infercanary.judge.policy import Policy

_SECONDS = 900.0
"""As in the rule that the alert reads: instance_service_container_canary:infercanary_run_median_seconds:p50_15m."""


class Replica(NamedTuple):
    """One of a service's containers."""

    service: ServiceKey
    name: str
    image_id: str
    environment: Mapping[str, str]
    canaries: Mapping[str, Iterable[RunSummary]]
    """Its last runs."""


def replica(probe: PolledProbe) -> Replica:
    """A container as its probe reported it.

    Args:
        probe: Of the container.

    Returns:
        What can be compared.
    """
    of = probe.container
    return Replica(of.service_key, of.replica, of.image_id, probe.environment, probe.history.canaries)


def apart(replicas: Mapping[Key, Replica], policy: Policy, now: float) -> dict[Key, list[Condition]]:
    """Of replicas with one image on one kind of hardware, the slowest one where it is too far from the fastest.

    Args:
        replicas: All on this host.
        policy: The numbers that decide.
        now: A Unix time.

    Returns:
        Key → a condition for each canary that is slow there.
    """
    alike: dict[tuple[ServiceKey, str, str], list[Key]] = defaultdict(list)
    for key, each in replicas.items():
        hardware = next(
            (each.environment[name] for name in HARDWARE_COMPONENTS if each.environment.get(name)), ""
        )
        if each.image_id and hardware:
            alike[each.service, each.image_id, hardware].append(key)
    found: dict[Key, list[Condition]] = defaultdict(list)
    for (_, image_id, hardware), keys in alike.items():
        for canary in {canary for key in keys if len(keys) > 1 for canary in replicas[key].canaries}:
            latencies = {
                key: _latency(replicas[key].canaries.get(canary, ()), now - _SECONDS) for key in keys
            }
            known = sorted((latency, key) for key, latency in latencies.items() if latency)
            if not known:
                continue
            (fast, at_best), (slow, at_worst) = known[0], known[-1]
            if slow / fast - 1 > policy.replicas_apart:
                words = (
                    f"{canary} takes {100 * (slow / fast - 1):.3g} % longer here than in {replicas[at_best].name}, "
                    "with one image on one kind of hardware"
                )
                labels = {"canary": canary, "image_id": image_id, "hardware": hardware}
                found[at_worst].append(Condition("InferCanaryReplicasApart", WARNING, words, labels))
    return found


def _latency(runs: Iterable[RunSummary], since: float) -> float:
    """Median of the runs' medians in seconds; 0 where there is none."""
    medians = [run.median for run in runs if run.median is not None and run.started_at > since]
    return median(medians) if medians else 0.0
