"""What the container is granted, and how often it ran into that limit: cgroup v2 and v1, read by hand.

Files: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel. A container sees its own cgroup at the
mount point (a private cgroup namespace, Docker's default on v2) or at the path that /proc/self/cgroup gives. What is
above it binds it too: where ancestors are visible, the tightest limit counts. How often a limit was run into is counted
by the kernel in the cgroup that has it, and summed here.

A file that is not there, is switched off or holds what it should not leaves its metric out, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from infercanary.contract.report import Family
from infercanary.probe.samplers import Sampler, Unavailable, register
from infercanary.probe.samplers.cgroup.hierarchy import Cgroup, own_cgroup
from infercanary.probe.samplers.cgroup.metrics import CPUSET, CPUSET_INFO, MEMORY_LIMIT

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")
_MAX_LABEL = 256  # longest label that the exporter takes: it would refuse a longer list, and count that


@register
class CgroupSampler(Sampler):
    """Reads this process's cgroup; found anew at each sample, since a container may be moved.

    Args:
        root: Where cgroups are mounted.
        proc: The process's folder in ``/proc``.
    """

    name = "cgroup"

    def __init__(self, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._root = root
        self._proc = proc

    def sample(self) -> Iterable[Family]:
        cgroup = own_cgroup(self._root, self._proc)
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
    """CPU time and memory of this process's cgroup, for callers that ask often: the cgroup is found once.

    Args:
        root: Where cgroups are mounted.
        proc: The process's folder in ``/proc``.
    """

    def __init__(self, root: Path = _ROOT, proc: Path = _PROC) -> None:
        try:
            self._cgroup: Cgroup | None = own_cgroup(root, proc)
        except Unavailable:
            self._cgroup = None

    def seconds(self) -> float | None:
        """The CPU seconds so far of all that is in the container; None where the process has no cgroup of its own."""
        return None if self._cgroup is None else self._cgroup.cpu_seconds()

    def resident(self) -> int | None:
        """The bytes that processes in the container have mapped; None where it has no cgroup of its own."""
        return None if self._cgroup is None else self._cgroup.resident()


def granted_cpus(root: Path = _ROOT, proc: Path = _PROC) -> float | None:
    """Cores that the cgroup grants: the less of quota and cpuset. None where it limits neither, or is not visible.

    Args:
        root: Where cgroups are mounted.
        proc: The process's folder in ``/proc``.

    Returns:
        Cores, such as 1.5; or None.
    """
    try:
        cgroup = own_cgroup(root, proc)
    except Unavailable:
        return None
    _, cpus = cgroup.cpuset()
    return min(filter(None, (cgroup.quota(), cpus)), default=None)


def limits(root: Path = _ROOT, proc: Path = _PROC) -> dict[str, str]:
    """What whoever started the container gave it, as components of the environment.

    Args:
        root: Where cgroups are mounted.
        proc: The process's folder in ``/proc``.

    Returns:
        Component → number with its unit, ``none`` where there is no limit, ``unknown`` where none could be seen.
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
    """As people give it to ``--memory``, such as ``1.5 GiB``."""
    return f"{number / 2**30:.6g} GiB" if number >= 1 << 30 else f"{number / 2**20:.6g} MiB"
