"""Finds the cgroup of this process. Version 2 has one hierarchy; version 1 has one hierarchy for each controller."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from infercanary.contract.cpus import parse_cpus
from infercanary.contract.report import Metric
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.files import integer, number, table, text
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

N = TypeVar("N", int, float)

_V1_UNLIMITED = 1 << 60  # v1 writes 2^63, rounded to pages, for "no limit"
_V1_CONTROLLERS = ("cpu", "cpuset", "memory", "cpuacct")

Lineage = list[Path]
"""A cgroup and its visible ancestors."""


class MemoryLimit(NamedTuple):
    """Memory limit of this process's cgroup or of an ancestor, in bytes."""

    above: str
    """Path of the cgroup below the mount point; empty for the process's own cgroup."""
    limit: int
    used: int
    inactive: int
    """Inactive page cache, which the kernel reclaims first."""
    active: int = 0
    """Active page cache, which the kernel reclaims next."""


class _Names(NamedTuple):
    """Names of files and of keys in these files. The names differ between v1 and v2."""

    version: int
    quota: tuple[str, ...]
    """Files with quota and period: one file in v2, two files in v1."""
    throttled: str
    throttled_unit: float
    cpuset: str
    memory_used: str
    memory_limit: str
    kills: str
    below: str
    """Prefix of the keys in memory.stat whose values include descendant cgroups."""
    anonymous: str
    mapped: str


_V2 = _Names(
    2,
    quota=("cpu.max",),
    throttled="throttled_usec",
    throttled_unit=1e6,
    cpuset="cpuset.cpus.effective",
    memory_used="memory.current",
    memory_limit="memory.max",
    kills="memory.events",
    below="",
    anonymous="anon",
    mapped="file_mapped",
)
_V1 = _Names(
    1,
    quota=("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    throttled="throttled_time",
    throttled_unit=1e9,
    cpuset="cpuset.cpus",
    memory_used="memory.usage_in_bytes",
    memory_limit="memory.limit_in_bytes",
    kills="memory.oom_control",
    below="total_",
    anonymous="total_rss",
    mapped="total_mapped_file",
)


class Cgroup(NamedTuple):
    """The process's cgroup in the hierarchy of each controller. Version 2 has only one hierarchy."""

    names: _Names
    cpu: Lineage
    cpusets: Lineage
    memory: Lineage
    cpuacct: Lineage

    @property
    def version(self) -> int:
        return self.names.version

    def facts(self) -> Mapping[Metric, float | None]:
        """Return limits and use of the container in seconds and bytes; None if unknown or unlimited."""
        names = self.names
        time: Counter[str] = Counter()
        for folder in self.cpu:
            time.update(table(folder / "cpu.stat"))  # each cgroup counts only its own throttling
        own, *above = _controlled(self.memory, names.memory_used)
        if self.version == 1:
            above = []  # memory.stat of the process's cgroup includes the limits of its ancestors
        pages, events = table(own / "memory.stat"), table(own / names.kills)
        used, inactive = number(own / names.memory_used), pages.get(f"{names.below}inactive_file")
        hits = events.get("max") if self.version == 2 else number(own / "memory.failcnt")
        if hits is not None:
            # The cgroup's own file includes descendant cgroups. For ancestors, read memory.events.local, because
            # their memory.events counts this cgroup a second time, and also its siblings.
            hits += sum(table(folder / "memory.events.local").get("max", 0) for folder in above)
        return {
            PERIODS: time.get("nr_periods"),
            THROTTLED: time.get("nr_throttled"),
            THROTTLED_SECONDS: _over(time.get(names.throttled), names.throttled_unit),
            # The two files are read one after the other, so the difference may be negative.
            WORKING_SET: None if used is None or inactive is None else max(0, used - inactive),
            MEMORY_LIMIT: _least([self._limit(own, pages), *(self._limit(folder, {}) for folder in above)]),
            LIMIT_HITS: hits,
            OOM_KILLS: events.get("oom_kill"),
            MAJOR_FAULTS: pages.get(f"{names.below}pgmajfault"),
        }

    def quota(self) -> float | None:
        """Return the effective CPU quota in cores: the lowest quota of the cgroup and its ancestors; None without a
        quota.
        """
        return _least(
            _cores(" ".join(text(folder / name) for name in self.names.quota)) for folder in self.cpu
        )

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds of the process's cgroup and its descendants; None for the root, which is the host."""
        own = self.cpuacct[0]
        if self._is_root(own):
            return None
        if self.version == 2:
            return _over(table(own / "cpu.stat").get("usage_usec"), 1e6)
        return _over(number(own / "cpuacct.usage"), 1e9)

    def resident(self) -> int | None:
        """Return the bytes mapped by processes of the process's cgroup and its descendants; None for the root."""
        own = self.memory[0]
        pages = {} if self._is_root(own) else table(own / "memory.stat")
        anonymous = pages.get(self.names.anonymous)
        mapped = pages.get(self.names.mapped, 0)
        return None if anonymous is None else anonymous + mapped

    def memory_limits(self) -> list[MemoryLimit]:
        """Return the memory limits of the process's cgroup and then of its ancestors, each with the memory in use."""
        own, *above = self.memory
        if self.version == 1:
            above = [folder for folder in above if number(folder / "memory.use_hierarchy") == 1]
        found = []
        for folder in (own, *above):
            pages, used = table(folder / "memory.stat"), number(folder / self.names.memory_used)
            limit = self._limit(folder, pages)
            if limit is not None and used is not None:
                below_mount = folder.relative_to(self.memory[-1]).parts
                path = "" if folder == own else f"/{'/'.join(below_mount)}"
                cached = (pages.get(f"{self.names.below}{kind}_file", 0) for kind in ("inactive", "active"))
                found.append(MemoryLimit(path, limit, used, *cached))
        return found

    def cpuset(self) -> tuple[str, int]:
        """Return the kernel's list of allowed CPUs, and their number; 0 if unknown."""
        cpus = text(_controlled(self.cpusets, self.names.cpuset)[0] / self.names.cpuset)
        with suppress(ValueError):
            return cpus, parse_cpus(cpus).bit_count()
        return "", 0

    def pressure(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """Return the time that tasks waited for each resource (PSI), from lines such as ``some avg10=0.00 … total=123``
        (µs).

        Returns:
            Metric → labels → seconds since the cgroup was made; empty for a kernel without PSI, and for v1.
        """
        found: dict[Metric, dict[tuple[str, ...], float]] = {WAITING: {}, STALLED: {}}
        for resource in RESOURCES if self.version == 2 else ():
            content = text(self.cpu[0] / f"{resource}.pressure")
            for metric, kind in ((WAITING, "some"), (STALLED, "full")):
                line = rf"^{kind} .*\btotal=(\d{{1,20}})$"
                if total := re.search(line, content, re.ASCII | re.MULTILINE):
                    found[metric][(resource,)] = int(total[1]) / 1e6
        return found

    def _limit(self, folder: Path, pages: Mapping[str, int]) -> int | None:
        """Return the memory limit. In v1, memory.stat also contains the limit of an invisible ancestor."""
        limits = (number(folder / self.names.memory_limit), pages.get("hierarchical_memory_limit"))
        limit = _least(limits)
        return None if limit is None or limit >= _V1_UNLIMITED else limit

    def _is_root(self, folder: Path) -> bool:
        if self.version == 2:
            return not os.path.exists(folder / "cgroup.events")  # every cgroup but the root has this file
        return os.path.exists(folder / "release_agent")  # only the root has this file


def own_cgroup(root: Path, proc: Path) -> Cgroup:
    """Find the cgroup of this process, in v2 or v1.

    Args:
        root: Mount point of cgroups.
        proc: The process's folder in ``/proc``.

    Raises:
        Unavailable: No cgroup is mounted there.
    """
    paths = _own_paths(proc / "cgroup")
    if os.path.exists(root / "cgroup.controllers"):
        lineage = _lineage(root, paths.get("", "/"))
        return Cgroup(_V2, lineage, lineage, lineage, lineage)
    mounts = {name: _v1_mount(root, name) for name in _V1_CONTROLLERS}
    if not any(os.path.isdir(mount) for mount in mounts.values()):
        raise Unavailable(f"no cgroup is mounted at {root}")
    return Cgroup(_V1, *(_lineage(mount, paths.get(name, "/")) for name, mount in mounts.items()))


def _v1_mount(root: Path, controller: str) -> Path:
    """Return the folder (or link) of a controller. A folder may serve several controllers, such as ``cpu,cpuacct``."""
    named = root / controller
    if os.path.isdir(named):
        return named
    return next((folder for folder in root.glob("*,*") if controller in folder.name.split(",")), named)


def _own_paths(file: Path) -> dict[str, str]:
    """Return controller → path from /proc/self/cgroup. In v2, the file has one line, with the controller ""."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        raise Unavailable(f"{file} cannot be read ({error.strerror})") from None
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _lineage(mount: Path, path: str) -> Lineage:
    """Return the process's cgroup with its ancestors. In a private namespace or behind a bind mount, return only the
    mount point.
    """
    names = [name for name in path.split("/") if name]
    # A path with "/.." is outside the namespace, so it does not exist here.
    if ".." in names or not os.path.isdir(mount.joinpath(*names)):
        return [mount]
    return [mount.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def _controlled(lineage: Lineage, file: str) -> Lineage:
    """Return the lineage from the first cgroup that has the file. If no cgroup has the file, its controller is
    disabled.
    """
    if len(lineage) == 1:  # a single cgroup leaves no choice, so do not access the file
        return lineage
    return next((lineage[i:] for i, folder in enumerate(lineage) if os.path.exists(folder / file)), lineage)


def _cores(quota_and_period: str) -> float | None:
    quota, period = (integer(part) or 0 for part in quota_and_period.partition(" ")[::2])
    return quota / period if quota > 0 and period > 0 else None


def _over(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _least(values: Iterable[N | None]) -> N | None:
    return min((value for value in values if value is not None), default=None)
