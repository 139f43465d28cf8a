"""CPUs and GPUs that several containers of a host may use.

A container's probe reports the container's cpuset and GPUs. The probe is untrusted, but a false report can only make
neighbours look contended. A set of CPUs is an integer with one bit for each CPU, to compare a thousand sets quickly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from infercanary.contract.report import Metric
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.report_facts import SeenGpu

SHARED = Metric(
    "infercanary_container_shared_cpus",
    "gauge",
    "CPUs of the container's cpuset that another monitored container may also use; without cpusets, all CPUs of the "
    "host.",
    reading="0: no CPU is shared. Above 0, a neighbour may slow the container: pin both with `--cpuset-cpus`.",
)

SHARED_GPU = Metric(
    "infercanary_gpu_shared",
    "gauge",
    "Other monitored containers on the same GPU or MIG instance.",
    ("gpu", "uuid"),
    reading="Series with the same `uuid` share a GPU.",
)
UNKNOWN_PROCESSES = Metric(
    "infercanary_gpu_unknown_processes",
    "gauge",
    "Processes on the GPU or MIG instance that are in no container with a probe.",
    ("gpu", "uuid"),
    reading="Above 0, another process uses the GPU. 0 is no proof if the driver hides processes of other containers.",
)

_NAMES = 3


class GpuShare(NamedTuple):
    """Other users of a GPU."""

    others: int
    """Number of other containers."""
    names: tuple[str, ...]
    """Names of the first few containers, and ``…`` if there are more."""
    unknown: float
    """Processes outside all containers with a probe; NaN if unknown."""


def shared_cpus(cpusets: Iterable[int]) -> int:
    """Return the CPUs that occur in more than one set, as bits."""
    once = twice = 0
    for cpus in cpusets:
        twice |= once & cpus
        once |= cpus
    return twice


def shared_gpus(gpus: Mapping[Key, Iterable[SeenGpu]]) -> dict[Key, dict[tuple[str, str], GpuShare]]:
    """Find the other users of each container's GPUs.

    Args:
        gpus: GPUs by container.

    Returns:
        Other users by container, and by label and uuid of a GPU. Containers without a GPU are left out.
    """
    users: defaultdict[str, dict[Key, SeenGpu]] = defaultdict(dict)
    for key, seen in gpus.items():
        for gpu in seen:
            users[gpu.uuid][key] = gpu
    shares: defaultdict[Key, dict[tuple[str, str], GpuShare]] = defaultdict(dict)
    for uuid, sharers in users.items():
        others = len(sharers) - 1
        # limited: many containers may share the GPU
        first = sorted(sharers, key=lambda key: key[::-1])[: _NAMES + 1]
        known = sum(gpu.own for gpu in sharers.values())
        for key, gpu in sharers.items():
            names = [_name(other) for other in first if other != key][:_NAMES]
            names += ["…"] if others > _NAMES else []
            # A driver that hides known processes also hides other processes. Comparisons with NaN are false.
            unknown = gpu.listed - known if gpu.listed >= known else math.nan
            shares[key][gpu.label, uuid] = GpuShare(others, tuple(names), unknown)
    return shares


def _name(key: Key) -> str:
    """Return a name that survives restarts. In Kubernetes, this is the service, because pod names change."""
    namespace, service, replica = key
    return f"{namespace}/{service}" if namespace else replica
