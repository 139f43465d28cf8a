"""Facts that the exporter itself uses from a report's families. A probe is untrusted, so the number of facts is
limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec

from infercanary.contract.cpus import parse_cpus
from infercanary.contract.report import Family
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC

FAILING = ("failing", "out_of_memory")
"""States in which a canary does not run."""
_MAX_CANARIES = 16  # number of canaries with a history (history.py)
_MAX_POINTS = 128  # for one family: 16 canaries in 8 states, or a host's GPUs with their MIG instances
_MAX_PROCESSES = 1e6


_ByName: TypeAlias = Mapping[str, Family]


class SeenGpu(NamedTuple):
    """GPU or MIG instance that a container may use."""

    label: str
    """NVML's index of the GPU in the container."""
    uuid: str
    listed: float = math.nan
    """Number of processes on the GPU that NVML lists in the container; NaN if unknown."""
    own: float = math.nan
    """Number of processes on the GPU that belong to the container; NaN if unknown."""


class ReportFacts(msgspec.Struct, frozen=True):
    """Facts of one report."""

    states: Mapping[str, str] = {}
    """State by canary."""
    failures: Mapping[str, str] = {}
    """Description of the failure, by failing canary."""
    cold_starts: dict[str, dict[str, float]] = {}
    """Seconds by canary and step of the cold start."""
    cpus: int = 0
    """Cpuset with a bit for each CPU; 0 if unknown or malformed."""
    gpus: tuple[SeenGpu, ...] | None = None
    """GPUs that canaries may use; None if the driver does not answer."""


def read_facts(families: Iterable[Family]) -> ReportFacts:
    """Read the exporter's facts from a report's families.

    Args:
        families: Accepted families; their labels and values are untrusted.
    """
    by_name = {family.name: family for family in families}
    cold_starts: dict[str, dict[str, float]] = {}
    for (canary, step), seconds in _values(by_name, COLD_START_METRIC, "canary", "step").items():
        if step in COLD_START and seconds > 0:  # the value becomes a divisor, so zero is excluded
            cold_starts.setdefault(canary, {})[step] = seconds
    return ReportFacts(
        _by_canary(by_name, "infercanary_canary_state", "state"),
        _by_canary(by_name, "infercanary_canary_failure_info", "detail"),
        cold_starts,
        _cpus(by_name),
        _gpus(by_name),
    )


def _values(by_name: _ByName, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the value of each series by its values of ``labels``; empty if the family lacks one of these labels."""
    family = by_name.get(name)
    if family is None or not {*labels} <= {*family.labels}:
        return {}
    places = [family.labels.index(label) for label in labels]
    return {
        tuple(point.labels[place] for place in places): point.value
        for point in family.points[:_MAX_POINTS]
        if isinstance(point.value, float)
    }


def _by_canary(by_name: _ByName, name: str, label: str) -> dict[str, str]:
    """Map each canary to the value of ``label`` in the canary's series with value 1."""
    series = [labels for labels, value in _values(by_name, name, "canary", label).items() if value == 1]
    return {labels[0]: labels[1] for labels in series[:_MAX_CANARIES]}


def _cpus(by_name: _ByName) -> int:
    with suppress(ValueError):  # a malformed list, or not exactly one list
        [(cpus,)] = _values(by_name, "infercanary_cgroup_cpuset_info", "cpus")
        return parse_cpus(cpus)
    return 0


def _gpus(by_name: _ByName) -> tuple[SeenGpu, ...] | None:
    """Return the GPUs that canaries use; for a GPU in MIG mode, its MIG instances."""
    if "infercanary_gpu_info" not in by_name:
        return None
    uuids = sorted(_values(by_name, "infercanary_gpu_info", "gpu", "uuid"))
    split = {gpu.partition(":")[0] for gpu, _ in uuids if ":" in gpu}
    canaries, listed, own = (
        {gpu: count for (gpu,), count in _values(by_name, name, "gpu").items() if 0 <= count < _MAX_PROCESSES}
        for name in ("infercanary_gpu_canaries", "infercanary_gpu_processes", "infercanary_gpu_own_processes")
    )
    return tuple(
        SeenGpu(gpu, uuid, listed.get(gpu, math.nan), own.get(gpu, math.nan))
        for gpu, uuid in uuids
        if gpu not in split and uuid.startswith(("GPU-", "MIG-")) and canaries.get(gpu.partition(":")[0], 1)
    )
