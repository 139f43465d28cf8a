"""The cgroup that this process is in, in the one hierarchy of v2 or in those of v1."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from infercanary.contract.report import Metric
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.files import integer, number, summed, table, text
from infercanary.probe.samplers.cgroup.metrics import (
    LIMIT_HITS,
    MAJOR_FAULTS,
    MEMORY_LIMIT,
    OOM_KILLS,
    PERIODS,
    RESOURCES,
    STALLED,
    THROTTLED,
    THROTTLED_SECONDS,
    WAITING,
    WORKING_SET,
)

_V1_UNLIMITED = 1 << 60  # v1 says "no limit" with a page-rounded 2^63
_V1_CONTROLLERS = ("cpu", "cpuset", "memory", "cpuacct")

Facts = Mapping[Metric, "float | None"]
Lineage = list[Path]
"""A cgroup and its ancestors, as far as they are visible."""


class MemoryLimit(NamedTuple):
    """A limit on the memory of a cgroup that this process is in. In bytes."""

    above: str
    """The path of that cgroup below the mount point; empty for the process's own."""
    limit: int
    used: int
    inactive: int
    """Page cache in it that was not used lately, and is given back first."""
    active: int = 0
    """Page cache that was, and is given back where that does not suffice."""


class V2(NamedTuple):
    """The one hierarchy of v2."""

    lineage: Lineage

    def knows_limits(self) -> tuple[bool, bool]:
        """Whether limits on CPU time, and on memory, would be seen.

        Returns:
            Both of them: there is one hierarchy, and it is mounted.
        """
        return True, True

    def facts(self) -> Facts:
        """What the container is granted and has used. Times are in seconds, memory is in bytes.

        Returns:
            Metric → value; None where the kernel does not say it, or there is no limit.
        """
        memory = self._controlled("memory.current")
        time = summed(folder / "cpu.stat" for folder in self.lineage)
        events, pages = table(memory / "memory.events"), table(memory / "memory.stat")
        used = number(memory / "memory.current")
        # The own file counts what is below too; an ancestor's would count us again, and all beside us. Since Linux 5.2.
        above = (folder / "memory.events.local" for folder in self.lineage[self.lineage.index(memory) + 1 :])
        return {
            PERIODS: time.get("nr_periods"),
            THROTTLED: time.get("nr_throttled"),
            THROTTLED_SECONDS: _over(time.get("throttled_usec"), 1e6),
            WORKING_SET: _less(used, pages.get("inactive_file")),
            MEMORY_LIMIT: _least(number(folder / "memory.max") for folder in self.lineage),
            LIMIT_HITS: _plus(events.get("max"), (table(file).get("max") for file in above)),
            OOM_KILLS: events.get("oom_kill"),
            MAJOR_FAULTS: pages.get("pgmajfault"),
        }

    def quota(self) -> float | None:
        """The CPU quota that binds: the least of the cgroup's and its ancestors'.

        Returns:
            Cores; None where none has a quota.
        """
        limits = ((text(folder / "cpu.max") + " ").split(" ") for folder in self.lineage)
        return _least(_cores(integer(quota), integer(period)) for quota, period, *_ in limits)

    def cpu_seconds(self) -> float | None:
        """The CPU seconds of the own cgroup and those below; None in the root, whose time is the whole host's."""
        own = self.lineage[0]
        if not os.path.exists(own / "cgroup.events"):  # every cgroup has it, the root excepted
            return None
        return _over(table(own / "cpu.stat").get("usage_usec"), 1e6)

    def resident(self) -> int | None:
        """The bytes that processes of the own cgroup and those below have mapped, of files too; None in the root."""
        own = self.lineage[0]
        if not os.path.exists(own / "memory.current"):  # the root, or counted with others in a cgroup above
            return None
        pages = table(own / "memory.stat")
        return _plus(pages.get("anon"), [pages.get("file_mapped")])

    def memory_limits(self) -> list[MemoryLimit]:
        """The limits on memory of the own cgroup and of those above it, each with what is used there.

        Returns:
            The own one first; without the cgroups that have none.
        """
        files = "memory.max", "memory.current", "inactive_file", "active_file"
        return [found for folder in self.lineage if (found := _memory_limit(self.lineage, folder, *files))]

    def cpuset(self) -> Iterable[str]:
        """The lists of CPUs that the container may use, the best source first.

        Returns:
            Texts such as ``0-3,8``; empty ones where a file is missing.
        """
        return [text(self._controlled("cpuset.cpus.effective") / "cpuset.cpus.effective")]

    def pressure(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """How long tasks waited for each resource (PSI).

        Returns:
            Metric → labels → seconds since the cgroup was made; empty where the kernel has no PSI.
        """
        files = {resource: text(self.lineage[0] / f"{resource}.pressure") for resource in RESOURCES}
        return {WAITING: _waited(files, "some"), STALLED: _waited(files, "full")}

    def _controlled(self, file: str) -> Path:
        """Where the controller of ``file`` counts: a cgroup for which it is not enabled is counted in its parent."""
        return next((folder for folder in self.lineage if os.path.exists(folder / file)), self.lineage[0])


class V1(NamedTuple):
    """The hierarchies of v1, one for each controller; it keeps no pressure of a cgroup."""

    cpu: Lineage
    cpusets: Lineage
    memory: Lineage
    cpuacct: Lineage

    def knows_limits(self) -> tuple[bool, bool]:
        """Whether limits on CPU time, and on memory, would be seen.

        Returns:
            Whether the hierarchy of each is mounted.
        """
        return os.path.isdir(self.cpu[-1]), os.path.isdir(self.memory[-1])

    def facts(self) -> Facts:
        """What the container is granted and has used. Times are in seconds, memory is in bytes.

        Returns:
            Metric → value; None where the kernel does not say it, or there is no limit.
        """
        memory = self.memory[0]
        time = summed(folder / "cpu.stat" for folder in self.cpu)
        pages = table(memory / "memory.stat")
        used = number(memory / "memory.usage_in_bytes")
        # The latter knows whether its ancestors bind it, which on v1 is a setting (memory.use_hierarchy).
        limits = (number(memory / "memory.limit_in_bytes"), pages.get("hierarchical_memory_limit"))
        binding = (above for above in self.memory[1:] if number(above / "memory.use_hierarchy") == 1)
        return {
            PERIODS: time.get("nr_periods"),
            THROTTLED: time.get("nr_throttled"),
            THROTTLED_SECONDS: _over(time.get("throttled_time"), 1e9),
            WORKING_SET: _less(used, pages.get("total_inactive_file")),
            MEMORY_LIMIT: _least(limit for limit in limits if limit is not None and limit < _V1_UNLIMITED),
            LIMIT_HITS: _plus(
                number(memory / "memory.failcnt"), (number(above / "memory.failcnt") for above in binding)
            ),
            OOM_KILLS: table(memory / "memory.oom_control").get("oom_kill"),
            MAJOR_FAULTS: pages.get("total_pgmajfault"),
        }

    def quota(self) -> float | None:
        """The CPU quota that binds: the least of the cgroup's and its ancestors'.

        Returns:
            Cores; None where none has a quota.
        """
        return _least(
            _cores(number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us"))
            for folder in self.cpu
        )

    def cpu_seconds(self) -> float | None:
        """The same as :meth:`V2.cpu_seconds`; None in the root of the hierarchy."""
        own = self.cpuacct[0]
        if os.path.exists(own / "release_agent"):  # only the root of a hierarchy has it
            return None
        return _over(number(own / "cpuacct.usage"), 1e9)

    def resident(self) -> int | None:
        """The same as :meth:`V2.resident`; None in the root of the hierarchy."""
        own = self.memory[0]
        if os.path.exists(own / "release_agent"):
            return None
        pages = table(own / "memory.stat")
        return _plus(pages.get("total_rss"), [pages.get("total_mapped_file")])

    def memory_limits(self) -> list[MemoryLimit]:
        """The same as :meth:`V2.memory_limits`, where each of them may leave out those above it (``use_hierarchy``).

        Returns:
            The own one first.
        """
        own, *above = self.memory
        binding = [own, *(folder for folder in above if number(folder / "memory.use_hierarchy") == 1)]
        files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
        found = [each for folder in binding if (each := _memory_limit(self.memory, folder, *files))]
        hidden = table(own / "memory.stat").get("hierarchical_memory_limit", _V1_UNLIMITED)
        used = number(own / "memory.usage_in_bytes")
        # Of a cgroup above that is not visible here only the limit is known: what others in it use is not.
        if used is not None and hidden < min([_V1_UNLIMITED, *(each.limit for each in found)]):
            pages = table(own / "memory.stat")
            cached = pages.get("total_inactive_file", 0), pages.get("total_active_file", 0)
            found.append(MemoryLimit("", hidden, used, *cached))
        return found

    def cpuset(self) -> Iterable[str]:
        """The lists of CPUs that the container may use, the best source first.

        Returns:
            Texts such as ``0-3,8``; empty ones where a file is missing.
        """
        return (text(self.cpusets[0] / name) for name in ("cpuset.effective_cpus", "cpuset.cpus"))

    def pressure(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """Nothing: v1 keeps no pressure of a cgroup.

        Returns:
            An empty mapping.
        """
        return {}


def own_cgroup(root: Path, proc: Path) -> V1 | V2:
    """Find the cgroup of this process.

    Args:
        root: Where cgroups are mounted.
        proc: The process's folder in ``/proc``.

    Returns:
        The cgroup, in whichever version is mounted.

    Raises:
        Unavailable: No cgroup is mounted there.
    """
    paths = _own_paths(proc / "cgroup")
    if os.path.exists(root / "cgroup.controllers"):
        return V2(_lineage(root, paths.get("", "/")))
    # The process's list names what the kernel counts by, which need not be mounted here.
    mounts = _v1_mounts(root, proc)
    if any(name in paths and os.path.isdir(mounts[name]) for name in _V1_CONTROLLERS):
        return V1(*(_lineage(mounts[name], paths.get(name, "/")) for name in _V1_CONTROLLERS))
    raise Unavailable(f"no cgroup is mounted at {root}")


def _v1_mounts(root: Path, proc: Path) -> dict[str, Path]:
    """Controller → its hierarchy: the folder or link of its name, else where the mount table has it (proc(5))."""
    mounts = {name: root / name for name in _V1_CONTROLLERS}
    missing = {name for name, folder in mounts.items() if not os.path.isdir(folder)}
    for line in text(proc / "mountinfo").splitlines() if missing else ():
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        if not source.startswith("cgroup ") or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        folder = point if point.is_relative_to(root) else root / point.name
        if os.path.isdir(folder):
            mounts |= dict.fromkeys(missing.intersection(source.split(" ")[-1].split(",")), folder)
    return mounts


def _own_paths(file: Path) -> dict[str, str]:
    """Controller → path from /proc/self/cgroup; v2's single line has the controller ""."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        raise Unavailable(f"{file} cannot be read ({error.strerror})") from None
    paths = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _lineage(mount: Path, path: str) -> Lineage:
    """The own cgroup: under a private namespace, or a container's bind mount, it is the mount point itself."""
    names = [name for name in path.split("/") if name]
    # "/.." is how a cgroup outside the namespace is written; it is no path here.
    if ".." in names or not os.path.isdir(mount.joinpath(*names)):
        return [mount]
    return [mount.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def _memory_limit(lineage: Lineage, folder: Path, limit: str, usage: str, *caches: str) -> MemoryLimit | None:
    """Of one cgroup, by the names of its files; None where it has no limit, or the kernel does not say it."""
    most, used = number(folder / limit), number(folder / usage)
    if most is None or used is None or most >= _V1_UNLIMITED:
        return None
    above = "" if folder == lineage[0] else f"/{'/'.join(folder.relative_to(lineage[-1]).parts)}"
    pages = table(folder / "memory.stat")
    return MemoryLimit(above, most, used, *(pages.get(cache, 0) for cache in caches))


def _waited(files: Mapping[str, str], kind: str) -> dict[tuple[str, ...], float]:
    """Resource → seconds from the line ``some avg10=0.00 … total=123`` (µs); empty where the kernel keeps no PSI."""
    found: dict[tuple[str, ...], float] = {}
    for resource, content in files.items():
        if total := re.search(rf"^{kind} .*\btotal=(\d{{1,20}})$", content, re.ASCII | re.MULTILINE):
            found[(resource,)] = int(total[1]) / 1e6
    return found


def _cores(quota: int | None, period: int | None) -> float | None:
    return quota / period if quota is not None and period and quota > 0 and period > 0 else None


def _over(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _less(value: int | None, part: int | None) -> int | None:
    # The two are read one after the other.
    return None if value is None or part is None else max(0, value - part)


def _plus(own: int | None, others: Iterable[int | None]) -> int | None:
    return None if own is None else own + sum(filter(None, others))


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
