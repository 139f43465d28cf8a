"""What the container is granted, and how often it ran into that limit: cgroup v2 and v1, read by hand.

Files: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel. A container sees its own cgroup at the
mount point (a private cgroup namespace, Docker's default on v2) or at the path that /proc/self/cgroup gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from infercanary.probe.report import Family, Metric
from infercanary.probe.samplers import Unavailable

QUOTA = Metric(
    "infercanary_cgroup_cpu_quota_cores", "gauge", "CPU quota in cores; missing where there is no limit."
)
PERIODS = Metric(
    "infercanary_cgroup_cpu_periods_total",
    "counter",
    "Enforcement periods in which the container was runnable.",
)
THROTTLED = Metric(
    "infercanary_cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods in which the container hit its CPU quota.",
)
THROTTLED_SECONDS = Metric(
    "infercanary_cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time that the container's threads were held back.",
)
CPUSET = Metric("infercanary_cgroup_cpuset_cpus", "gauge", "CPUs in the container's effective cpuset.")
MEMORY = Metric(
    "infercanary_cgroup_memory_bytes", "gauge", "Memory that the container uses, page cache included."
)
MEMORY_LIMIT = Metric(
    "infercanary_cgroup_memory_limit_bytes", "gauge", "Memory limit; missing where there is none."
)
OOM_KILLS = Metric(
    "infercanary_cgroup_oom_kills_total", "counter", "Processes of the container killed for memory."
)
PRESSURE = Metric(
    "infercanary_cgroup_pressure_waiting_seconds_total",
    "counter",
    "Time in which at least some task of the container waited for the resource (PSI `some`).",
    ("resource",),
)

_V1_UNLIMITED = 1 << 60  # v1 says "no limit" with a page-rounded 2^63


class CgroupSampler:
    """Reads this process's cgroup; found anew at each sample, since a container may be moved."""

    name = "cgroup"

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self")) -> None:
        self._root = root
        self._proc = proc

    def sample(self) -> Iterable[Family]:
        """See :class:`~infercanary.probe.samplers.Sampler`."""
        paths = _own_paths(self._proc / "cgroup")
        if (self._root / "cgroup.controllers").exists():
            return self._v2(self._folder(self._root, paths.get("", "/")))
        if any(name in paths for name in ("cpu", "cpuset", "memory")):
            return self._v1(
                {
                    name: self._folder(self._root / name, paths.get(name, "/"))
                    for name in ("cpu", "cpuset", "memory")
                }
            )
        raise Unavailable(f"no cgroup is mounted at {self._root}")

    @staticmethod
    def _folder(mount: Path, path: str) -> Path:
        """The own cgroup: under a private namespace, or a container's bind mount, it is the mount point itself."""
        inside = mount / path.lstrip("/")
        # "/.." is how a cgroup outside the namespace is written; it is no path here.
        return inside if ".." not in inside.parts and inside.is_dir() else mount

    def _v2(self, folder: Path) -> Iterable[Family]:
        quota, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
        if quota != "max":
            yield QUOTA.family(int(quota) / int(period))
        cpu = _table(folder / "cpu.stat")
        yield from _cpu_stat(cpu, cpu.get("throttled_usec"), 1e6)
        yield from _cpuset(folder / "cpuset.cpus.effective")
        yield from _memory(folder / "memory.current", folder / "memory.max")
        if (kills := _table(folder / "memory.events").get("oom_kill")) is not None:
            yield OOM_KILLS.family(kills)
        waited: dict[tuple[str, ...], float] = {
            (resource,): seconds
            for resource in ("cpu", "io", "memory")
            if (seconds := _pressure(folder / f"{resource}.pressure")) is not None
        }
        if waited:
            yield PRESSURE.family(waited)

    def _v1(self, folders: dict[str, Path]) -> Iterable[Family]:
        quota = _number(folders["cpu"] / "cpu.cfs_quota_us")
        period = _number(folders["cpu"] / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            yield QUOTA.family(quota / period)
        cpu = _table(folders["cpu"] / "cpu.stat")
        yield from _cpu_stat(cpu, cpu.get("throttled_time"), 1e9)
        yield from _cpuset(folders["cpuset"] / "cpuset.effective_cpus", folders["cpuset"] / "cpuset.cpus")
        yield from _memory(
            folders["memory"] / "memory.usage_in_bytes", folders["memory"] / "memory.limit_in_bytes"
        )
        if (kills := _table(folders["memory"] / "memory.oom_control").get("oom_kill")) is not None:
            yield OOM_KILLS.family(kills)


def parse_cpu_list(text: str) -> int:
    """How many CPUs a kernel list such as ``0-3,8`` names."""
    count = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _own_paths(file: Path) -> dict[str, str]:
    """Controller → path from /proc/self/cgroup; v2's single line has the controller ""."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise Unavailable(f"{file} cannot be read ({error.strerror})") from None
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _cpu_stat(stat: dict[str, int], throttled: int | None, per_second: float) -> Iterable[Family]:
    if "nr_periods" in stat:
        yield PERIODS.family(stat["nr_periods"])
        yield THROTTLED.family(stat["nr_throttled"])
    if throttled is not None:
        yield THROTTLED_SECONDS.family(throttled / per_second)


def _cpuset(*files: Path) -> Iterable[Family]:
    text = next((text for file in files if (text := _text(file))), None)
    if text:
        yield CPUSET.family(parse_cpu_list(text))


def _memory(used: Path, limit: Path) -> Iterable[Family]:
    if (bytes_used := _number(used)) is not None:
        yield MEMORY.family(bytes_used)
    if (bytes_allowed := _number(limit)) is not None and bytes_allowed < _V1_UNLIMITED:
        yield MEMORY_LIMIT.family(bytes_allowed)


def _pressure(file: Path) -> float | None:
    """Seconds from ``some avg10=0.00 … total=123`` (µs); None where the kernel keeps no PSI."""
    first = (_text(file) or "").partition("\n")[0]
    total = first.rpartition("total=")[2]
    return int(total) / 1e6 if first.startswith("some") and total.isdecimal() else None


def _text(file: Path) -> str | None:
    """None where the controller is not there, or PSI is off (reading then fails with EOPNOTSUPP)."""
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.lstrip("-").isdecimal() else None


def _table(file: Path) -> dict[str, int]:
    lines = (line.split() for line in (_text(file) or "").splitlines())
    return {key: int(value) for key, value in (line for line in lines if len(line) == 2)}
