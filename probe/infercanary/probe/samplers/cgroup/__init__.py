"""Cgroup: limits of the container, and counts of reached limits (cgroup v2 and v1), read without a library.

Files: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel. A container sees its own cgroup at the
mount point (a private cgroup namespace, Docker's default on v2) or at the path in /proc/self/cgroup. Limits of
ancestors also apply, so the tightest visible limit counts. The kernel counts a reached limit in the cgroup that has
the limit; this module sums the counts of all levels.

If a file is missing, disabled or malformed, only its metric is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from infercanary.contract.report import Family
from infercanary.probe.samplers import Sampler, Unavailable, register
from infercanary.probe.samplers.cgroup.hierarchy import Cgroup, own_cgroup
from infercanary.probe.samplers.cgroup.metrics import CPUSET, CPUSET_INFO, MEMORY_LIMIT, THROTTLED_SECONDS

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")
_MAX_LABEL = 256  # maximum length of a label that the exporter accepts; longer CPU lists are left out


@register
class CgroupSampler(Sampler):
    """Reads this process's cgroup. Each sample searches for the cgroup again, because a container may be moved."""

    name = "cgroup"

    def sample(self) -> Iterable[Family]:
        cgroup = own_cgroup(_ROOT, _PROC)
        yield from (metric.family(value) for metric, value in cgroup.facts().items() if value is not None)
        text, cpus = cgroup.cpuset()
        if cpus:
            yield CPUSET.family(cpus)
            if len(text) <= _MAX_LABEL:
                yield CPUSET_INFO.family({(text,): 1})
        for metric, waited in cgroup.pressure().items():
            if waited:
                yield metric.family(waited)


class ContainerCpu:
    """CPU time and memory of this process's cgroup. The cgroup is searched for only once."""

    def __init__(self) -> None:
        try:
            self._cgroup: Cgroup | None = own_cgroup(_ROOT, _PROC)
        except Unavailable:
            self._cgroup = None

    def seconds(self) -> float | None:
        """Return the CPU seconds of everything in the container; None without a separate cgroup."""
        return None if self._cgroup is None else self._cgroup.cpu_seconds()

    def throttled(self) -> float:
        """Return the seconds in which CPU quotas stopped threads, summed over CPUs; 0 if unknown."""
        return 0.0 if self._cgroup is None else self._cgroup.facts()[THROTTLED_SECONDS] or 0.0

    def resident(self) -> int | None:
        """Return the bytes mapped by processes in the container; None without a separate cgroup."""
        return None if self._cgroup is None else self._cgroup.resident()


def granted_cpus() -> float | None:
    """Return the number of cores that quota and cpuset grant, such as 1.5; None without a visible limit."""
    try:
        cgroup = own_cgroup(_ROOT, _PROC)
    except Unavailable:
        return None
    _, cpus = cgroup.cpuset()
    return min(filter(None, (cgroup.quota(), cpus)), default=None)


def limits(root: Path = _ROOT, proc: Path = _PROC) -> dict[str, str]:
    """Return the limits of the container, as components of the environment.

    Args:
        root: Mount point of cgroups.
        proc: The process's folder in ``/proc``.

    Returns:
        Component → its limit; ``none`` without a limit, ``unknown`` if no cgroup is visible.
    """
    try:
        cgroup = own_cgroup(root, proc)
    except Unavailable:
        return {"cpu_quota": "unknown", "memory_limit": "unknown"}
    quota, memory = cgroup.quota(), cgroup.facts()[MEMORY_LIMIT]
    _, cpus = cgroup.cpuset()
    found = {
        "cpu_quota": "none" if quota is None else f"{quota:g}",
        "memory_limit": "none" if memory is None else _bytes(memory),
    }
    return found | ({"cpuset_cpus": str(cpus)} if cpus else {})


def _bytes(number: float) -> str:
    """Format a size in bytes: ``1.5 GiB``."""
    return f"{number / 2**30:.6g} GiB" if number >= 1 << 30 else f"{number / 2**20:.6g} MiB"
