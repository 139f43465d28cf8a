"""What the container is granted, and how often it ran into that limit: cgroup v2 and v1, read by hand.

Files: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel. A container sees its own cgroup at the
mount point (a private cgroup namespace, Docker's default on v2) or at the path that /proc/self/cgroup gives. What is
above it binds it too: where ancestors are visible, the tightest limit counts. How often a limit was run into is counted
by the kernel in the cgroup that has it, and summed here.

A file that is not there, is switched off or holds what it should not leaves its metric out, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from infercanary.contract.cpus import parse_cpus
from infercanary.contract.report import Family, Metric
from infercanary.probe.samplers import Unavailable, register

QUOTA = Metric(
    "infercanary_cgroup_cpu_quota_cores",
    "gauge",
    "CPU quota in cores, the tightest of the container's and its visible ancestors'; missing where there is no limit.",
    reading="A change here is a change of limits, not of the image. Fewer than the threads that compute: "
    "expect throttling.",
)
WEIGHT = Metric(
    "infercanary_cgroup_cpu_weight_ratio",
    "gauge",
    "CPU weight over the default one: the share of busy CPUs that the container gets beside its neighbours.",
    reading="1 is the default. It matters only while the CPUs are all busy: then a neighbour of a higher "
    "weight gets more.",
)
PERIODS = Metric(
    "infercanary_cgroup_cpu_periods_total",
    "counter",
    "Enforcement periods of the container's CPU quota and of its visible ancestors', while there was something to run.",
    reading="The denominator for `infercanary_cgroup_cpu_throttled_periods_total`; it does not grow without a "
    "quota.",
)
THROTTLED = Metric(
    "infercanary_cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods that used up the CPU quota, the container's or that of a visible ancestor.",
    reading="Its `rate` over that of `infercanary_cgroup_cpu_periods_total` is the share of periods that ran "
    "out of quota, of all its quotas together. Above a few percent latencies jump by up to a period (100 ms): "
    "fewer threads, or more quota.",
)
THROTTLED_SECONDS = Metric(
    "infercanary_cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time that threads were held back by the container's CPU quota and by its visible ancestors'.",
    reading="Summed over CPUs, so that it may grow faster than time; an ancestor's (a pod's) holds back all "
    "that is in it. A run in which it grew is tagged `cgroup_throttled`; throttled in every run since an "
    "upgrade, the image uses more threads.",
)
CPUSET = Metric(
    "infercanary_cgroup_cpuset_cpus",
    "gauge",
    "CPUs in the container's effective cpuset.",
    reading="A change while the container runs is someone's (an orchestrator, `docker update`); all later runs "
    "are tagged `cpuset_changed`.",
)
CPUSET_INFO = Metric(
    "infercanary_cgroup_cpuset_info",
    "gauge",
    "1, with the CPUs of the container's effective cpuset as the kernel lists them, such as 0-3,8.",
    ("cpus",),
    reading="The exporter compares it between containers: `infercanary_container_shared_cpus`. A list of more "
    "than 256 characters is left out.",
)
MEMORY = Metric(
    "infercanary_cgroup_memory_bytes",
    "gauge",
    "Memory that the container uses, page cache included.",
    reading="Near the limit is normal, since page cache fills what is free: judge by "
    "`infercanary_cgroup_memory_working_set_bytes`.",
)
WORKING_SET = Metric(
    "infercanary_cgroup_memory_working_set_bytes",
    "gauge",
    "Memory that the container uses less page cache not used lately (inactive_file): what is hard to reclaim.",
    reading="Over `infercanary_cgroup_memory_limit_bytes`: from about 0.9 on reclaim slows allocations, and "
    "near 1 the kernel kills.",
)
MEMORY_PEAK = Metric(
    "infercanary_cgroup_memory_peak_bytes",
    "gauge",
    "Most memory that the container ever used.",
    reading="Since the container started: what a limit must leave room for, loading included. Missing on "
    "kernels before 5.19 (with cgroup v2).",
)
MEMORY_LIMIT = Metric(
    "infercanary_cgroup_memory_limit_bytes",
    "gauge",
    "Memory limit, the tightest of the container's and its visible ancestors'; missing where there is none.",
    reading="The denominator for `infercanary_cgroup_memory_working_set_bytes`. A change is a change of "
    "limits, not of the image.",
)
LIMIT_HITS = Metric(
    "infercanary_cgroup_memory_limit_hits_total",
    "counter",
    "Times that the container's memory limit, or that of a visible ancestor, was about to be exceeded, and memory was "
    "reclaimed.",
    reading="Each is a moment in which an allocation waited; steady growth is a limit that is too low. Runs "
    "meanwhile are tagged `memory_limit`.",
)
OOM_KILLS = Metric(
    "infercanary_cgroup_oom_kills_total",
    "counter",
    "Processes of the container killed for memory.",
    reading="`increase(infercanary_cgroup_oom_kills_total[1h]) > 0` is an alert, also where the server looks "
    "well: a worker or a child was killed. Runs meanwhile are tagged `oom_kill`.",
)
MAJOR_FAULTS = Metric(
    "infercanary_cgroup_major_page_faults_total",
    "counter",
    "Page faults of the container that waited for a disk.",
    reading="Normal while loading. While serving, pages of the model or of libraries were dropped and are read "
    "again: memory is short.",
)
SWAP = Metric(
    "infercanary_cgroup_swap_bytes",
    "gauge",
    "Swap that the container uses.",
    reading="0 is healthy. What is swapped out makes the first requests after a pause slow.",
)
WAITING = Metric(
    "infercanary_cgroup_pressure_waiting_seconds_total",
    "counter",
    "Time in which at least some task of the container waited for the resource (PSI `some`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time, 0 to 1. `cpu`: too few CPUs; `memory`: near the limit; "
    "`io`: disk. A run with more than 5 % of `io` is tagged `io_pressure`.",
)
STALLED = Metric(
    "infercanary_cgroup_pressure_stalled_seconds_total",
    "counter",
    "Time in which all tasks of the container that were not idle waited for the resource (PSI `full`).",
    ("resource",),
    reading="`rate(…[5m])` is a share of the time in which nothing went on at all: more than a percent is felt "
    "in latency.",
)
PIDS = Metric(
    "infercanary_cgroup_pids",
    "gauge",
    "Processes and threads of the container.",
    reading="Near `infercanary_cgroup_pids_limit` new threads fail (`can't start new thread`), the probe's "
    "among them.",
)
PIDS_LIMIT = Metric(
    "infercanary_cgroup_pids_limit",
    "gauge",
    "Limit on processes and threads, the tightest of the container's and its visible ancestors'; missing without one.",
    reading="The denominator for `infercanary_cgroup_pids`.",
)

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")
_V1_UNLIMITED = 1 << 60  # v1 says "no limit" with a page-rounded 2^63
_V1_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_RESOURCES = ("cpu", "io", "memory")
_MAX_LABEL = (
    256  # the exporter's own default, limits.label_bytes: it would refuse a longer list, and count that
)
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)  # 2^64 has 20 digits

_Facts = Mapping[Metric, "float | None"]
_Lineage = list[Path]  # a cgroup and its ancestors, as far as they are visible


@register()
class CgroupSampler:
    """Reads this process's cgroup; found anew at each sample, since a container may be moved."""

    name = "cgroup"

    def __init__(self, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._root = root
        self._proc = proc

    def sample(self) -> Iterable[Family]:
        """See :class:`~infercanary.probe.samplers.Sampler`."""
        cgroup = _own_cgroup(self._root, self._proc)
        yield from (metric.family(value) for metric, value in cgroup.facts().items() if value is not None)
        text, cpus = _cpuset(cgroup.cpuset())
        if cpus:
            yield CPUSET.family(cpus)
            if len(text) <= _MAX_LABEL:
                yield CPUSET_INFO.family({(text,): 1})
        for metric, waited in cgroup.pressure().items():
            if waited:
                yield metric.family(waited)


def granted_cpus(root: Path = _ROOT, proc: Path = _PROC) -> float | None:
    """Cores that the cgroup grants: the less of quota and cpuset. None where it limits neither, or is not visible."""
    try:
        cgroup = _own_cgroup(root, proc)
    except Unavailable:
        return None
    _, cpus = _cpuset(cgroup.cpuset())
    return min(filter(None, (cgroup.quota(), cpus)), default=None)


class _V2(NamedTuple):
    """The one hierarchy of v2."""

    lineage: _Lineage

    def facts(self) -> _Facts:
        cpu, memory, pids = map(self._controlled, ("cpu.max", "memory.current", "pids.current"))
        time = _summed(folder / "cpu.stat" for folder in self.lineage)
        events, pages = _table(memory / "memory.events"), _table(memory / "memory.stat")
        used = _number(memory / "memory.current")
        # The own file counts what is below too; an ancestor's would count us again, and all beside us. Since Linux 5.2.
        above = (folder / "memory.events.local" for folder in self.lineage[self.lineage.index(memory) + 1 :])
        return {
            QUOTA: self.quota(),
            WEIGHT: _over(_number(cpu / "cpu.weight"), 100),
            PERIODS: time.get("nr_periods"),
            THROTTLED: time.get("nr_throttled"),
            THROTTLED_SECONDS: _over(time.get("throttled_usec"), 1e6),
            MEMORY: used,
            WORKING_SET: _less(used, pages.get("inactive_file")),
            MEMORY_PEAK: _number(memory / "memory.peak"),
            MEMORY_LIMIT: _least(_number(folder / "memory.max") for folder in self.lineage),
            LIMIT_HITS: _plus(events.get("max"), (_table(file).get("max") for file in above)),
            OOM_KILLS: events.get("oom_kill"),
            MAJOR_FAULTS: pages.get("pgmajfault"),
            SWAP: _number(memory / "memory.swap.current"),
            PIDS: _number(pids / "pids.current"),
            PIDS_LIMIT: _least(_number(folder / "pids.max") for folder in self.lineage),
        }

    def quota(self) -> float | None:
        limits = ((_text(folder / "cpu.max") + " ").split(" ") for folder in self.lineage)
        return _least(_cores(_integer(quota), _integer(period)) for quota, period, *_ in limits)

    def cpuset(self) -> Iterable[str]:
        return [_text(self._controlled("cpuset.cpus.effective") / "cpuset.cpus.effective")]

    def pressure(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        files = {resource: _text(self.lineage[0] / f"{resource}.pressure") for resource in _RESOURCES}
        return {WAITING: _waited(files, "some"), STALLED: _waited(files, "full")}

    def _controlled(self, file: str) -> Path:
        """Where the controller of ``file`` counts: a cgroup for which it is not enabled is counted in its parent."""
        return next((folder for folder in self.lineage if os.path.exists(folder / file)), self.lineage[0])


class _V1(NamedTuple):
    """The hierarchies of v1, one for each controller; it keeps no pressure of a cgroup."""

    cpu: _Lineage
    cpusets: _Lineage
    memory: _Lineage
    pids: _Lineage

    def facts(self) -> _Facts:
        cpu, memory = self.cpu[0], self.memory[0]
        time = _summed(folder / "cpu.stat" for folder in self.cpu)
        pages = _table(memory / "memory.stat")
        used = _number(memory / "memory.usage_in_bytes")
        # The latter knows whether its ancestors bind it, which on v1 is a setting (memory.use_hierarchy).
        limits = (_number(memory / "memory.limit_in_bytes"), pages.get("hierarchical_memory_limit"))
        binding = (above for above in self.memory[1:] if _number(above / "memory.use_hierarchy") == 1)
        return {
            QUOTA: self.quota(),
            WEIGHT: _over(_number(cpu / "cpu.shares"), 1024),
            PERIODS: time.get("nr_periods"),
            THROTTLED: time.get("nr_throttled"),
            THROTTLED_SECONDS: _over(time.get("throttled_time"), 1e9),
            MEMORY: used,
            WORKING_SET: _less(used, pages.get("total_inactive_file")),
            MEMORY_PEAK: _number(memory / "memory.max_usage_in_bytes"),
            MEMORY_LIMIT: _least(limit for limit in limits if limit is not None and limit < _V1_UNLIMITED),
            LIMIT_HITS: _plus(
                _number(memory / "memory.failcnt"), (_number(above / "memory.failcnt") for above in binding)
            ),
            OOM_KILLS: _table(memory / "memory.oom_control").get("oom_kill"),
            MAJOR_FAULTS: pages.get("total_pgmajfault"),
            SWAP: pages.get("total_swap"),
            PIDS: _number(self.pids[0] / "pids.current"),
            PIDS_LIMIT: _least(_number(folder / "pids.max") for folder in self.pids),
        }

    def quota(self) -> float | None:
        return _least(
            _cores(_number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us"))
            for folder in self.cpu
        )

    def cpuset(self) -> Iterable[str]:
        return (_text(self.cpusets[0] / name) for name in ("cpuset.effective_cpus", "cpuset.cpus"))

    def pressure(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        return {}


def _own_cgroup(root: Path, proc: Path) -> _V1 | _V2:
    paths = _own_paths(proc / "cgroup")
    if os.path.exists(root / "cgroup.controllers"):
        return _V2(_lineage(root, paths.get("", "/")))
    if any(name in paths for name in _V1_CONTROLLERS):
        return _V1(*(_lineage(root / name, paths.get(name, "/")) for name in _V1_CONTROLLERS))
    raise Unavailable(f"no cgroup is mounted at {root}")


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


def _lineage(mount: Path, path: str) -> _Lineage:
    """The own cgroup: under a private namespace, or a container's bind mount, it is the mount point itself."""
    names = [name for name in path.split("/") if name]
    # "/.." is how a cgroup outside the namespace is written; it is no path here.
    if ".." in names or not os.path.isdir(mount.joinpath(*names)):
        return [mount]
    return [mount.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def _cpuset(texts: Iterable[str]) -> tuple[str, int]:
    """The first list that is given, and how many CPUs it names; 0 where it is no list."""
    text = next(filter(None, texts), "")
    with suppress(ValueError):
        return text, parse_cpus(text).bit_count()
    return "", 0


def _waited(files: Mapping[str, str], kind: str) -> dict[tuple[str, ...], float]:
    """Resource → seconds from the line ``some avg10=0.00 … total=123`` (µs); empty where the kernel keeps no PSI."""
    found: dict[tuple[str, ...], float] = {}
    for resource, text in files.items():
        if total := re.search(rf"^{kind} .*\btotal=(\d{{1,20}})$", text, re.ASCII | re.MULTILINE):
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


def _text(file: Path) -> str:
    """Empty where the controller is not there, or PSI is off (reading then fails with EOPNOTSUPP)."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _number(file: Path) -> int | None:
    return _integer(_text(file))


def _table(file: Path) -> dict[str, int]:
    lines = (line.split() for line in _text(file).splitlines())
    pairs = ((line[0], _integer(line[1])) for line in lines if len(line) == 2)
    return {key: value for key, value in pairs if value is not None}


def _summed(files: Iterable[Path]) -> Mapping[str, int]:
    """The sum for each key; one that no file has is missing."""
    total: Counter[str] = Counter()
    for file in files:
        total.update(_table(file))  # it adds
    return total
