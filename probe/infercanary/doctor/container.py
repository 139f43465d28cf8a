"""The container: its cgroup, pressure (PSI), and what its permissions allow."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

from infercanary.doctor.ability import Ability, Machine, check, first_line, limited, ok, refused
from infercanary.probe.samplers.cgroup import limits
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_OWN_OOM_SCORE = "oom_score_adj"

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_EACCES, _EPERM = 13, 1
_SOFTWARE, _TASK_CLOCK = 1, 1  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK
_HARDWARE, _INSTRUCTIONS = 0, 1
_EXCLUDE_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6
_ATTRIBUTES = 64  # PERF_ATTR_SIZE_VER0


@check("container", "cgroup")
def _cgroup(machine: Machine) -> Ability:
    if (machine.proc / "self/cgroup").exists() and not any(machine.cgroups.glob("*")):
        return refused(
            f"nothing is mounted at {machine.cgroups}: quota, throttling and memory of the container are not known",
            "mount it in the container, read-only; Docker does so unless something else is mounted over /sys",
        )
    version = own_cgroup(machine.cgroups, machine.proc / "self").version
    given = ", ".join(
        f"{name} {value}" for name, value in limits(machine.cgroups, machine.proc / "self").items()
    )
    return ok(f"version {version}: {given}")


_CGROUP_FILES = {
    2: ("cpu.stat", "cpu.max", "cpuset.cpus.effective", "memory.current", "memory.max", "memory.stat",
        "memory.events"),
    1: ("cpu/cpu.stat", "cpu/cpu.cfs_quota_us", "cpuacct/cpuacct.usage", "cpuset/cpuset.cpus",
        "memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat",
        "memory/memory.failcnt"),
}  # fmt: skip
"""Version → the files that the cgroup sampler reads."""


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


@check("container", "cgroup files", needs="cgroup")
def _cgroup_files(machine: Machine) -> Ability:
    cgroup = own_cgroup(machine.cgroups, machine.proc / "self")
    names = _CGROUP_FILES[cgroup.version]
    if cgroup.version == 2:
        there = [name for name in names if any(_readable(folder / name) for folder in cgroup.cpu)]
    else:
        folders = {
            "cpu": cgroup.cpu, "cpuset": cgroup.cpusets, "memory": cgroup.memory, "cpuacct": cgroup.cpuacct,
        }  # fmt: skip
        there = [name for name in names if _readable(folders[name.split("/")[0]][0] / name.partition("/")[2])]
    missing = [name for name in names if name not in there]
    if not there:
        return refused(
            f"none of {', '.join(names)} can be read: throttling and memory of the container are not known",
            f"mount {machine.cgroups} in the container, read-only",
        )
    if missing:
        return limited(
            f"{len(there)} of {len(names)} files",
            f"without {', '.join(missing)}: their metrics are missing",
            "in the root cgroup that is as it should be; else enable the controllers for the container",
        )
    return ok(f"all {len(names)} files")


@check("container", "pressure (PSI)", needs="cgroup")
def _pressure(machine: Machine) -> Ability:
    cgroup = own_cgroup(machine.cgroups, machine.proc / "self")
    if sorted(resource for of in cgroup.pressure().values() for (resource,) in of):
        return ok("of the container's own cgroup: cpu, memory, io")
    if first_line(machine.proc / "pressure/cpu"):
        return limited(
            "of the host only",
            "this cgroup has none (cgroup v1, or the root), and the host's is not the container's",
            "cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        )
    return refused(
        "the kernel keeps none: that the container waited for CPU, memory or disk is not known",
        "psi=1 on the kernel's command line (CONFIG_PSI)",
    )


@check("container", "capabilities")
def _capabilities(machine: Machine) -> Ability:
    held = _effective(machine.proc / "self/status")
    names = [name for name, bit in _NAMED.items() if held >> bit & 1]
    user = f"uid {os.geteuid()}"
    return ok(
        f"{user}, {'with ' + ', '.join(names) if names else 'with none that matter'}; a probe needs none"
    )


# include/uapi/linux/capability.h
_NAMED = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_SYS_PTRACE": 19, "CAP_SYS_NICE": 23}


def _effective(status: Path) -> int:
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


@check("container", "perf events")
def _perf(machine: Machine) -> Ability:
    paranoid = first_line(machine.proc / "sys/kernel/perf_event_paranoid")
    level = f"perf_event_paranoid is {paranoid or 'not readable'}"
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return limited(level, f"not tried on {platform.machine()}")
    software, hardware = (
        _perf_error(number, *event) for event in ((_SOFTWARE, _TASK_CLOCK), (_HARDWARE, _INSTRUCTIONS))
    )
    unneeded = "the probe needs none of it; profilers such as perf do"
    if software == _EPERM:
        return refused(
            f"{level}, and a filter of system calls refuses a counter of its own (EPERM), as Docker's default does; "
            f"{unneeded}",
            "where you profile: a seccomp profile that has perf_event_open; Docker's own has it with "
            "--cap-add SYS_ADMIN, in newer releases with --cap-add PERFMON",
        )
    if software == _EACCES:
        return refused(
            f"{level}, which refuses a counter of its own without CAP_PERFMON (EACCES); {unneeded}",
            "where you profile: --cap-add PERFMON; or on the host sysctl kernel.perf_event_paranoid=2",
        )
    if software or hardware:
        lacking = os.strerror(hardware or software)
        return limited(
            f"{level}; time counts", f"hardware counters do not ({lacking}), as on most virtual machines"
        )
    return ok(f"{level}; this process may count its own time and instructions")


def _perf_error(number: int, kind: int, config: int) -> int:
    """The error of opening a counter of this process, which is closed again and never counts; 0 for none."""
    attributes = struct.pack(
        "IIQQQQQ", kind, _ATTRIBUTES, config, 0, 0, 0, 1 | _EXCLUDE_KERNEL_AND_HYPERVISOR
    ).ljust(_ATTRIBUTES, b"\0")
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.syscall(number, attributes, 0, -1, -1, 0)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


@check("container", "PID namespace")
def _pid_namespace(machine: Machine) -> Ability:
    try:
        inode = os.stat(machine.proc / "self/ns/pid").st_ino
    except OSError:
        return limited("", "it cannot be read", "mount /proc")
    if inode == _INITIAL_PID_NAMESPACE:
        return ok("the host's: processes of other containers can be named")
    return limited(
        "the container's own, which is all that a probe needs",
        "processes of other containers have no name here: tenants of a GPU are PIDs",
        "--pid host for this command alone, for names; a sidecar sees its server with --pid container:SERVER",
    )


@check("container", "memory peak")
def _memory_peak(machine: Machine) -> Ability:
    if os.access(machine.proc / "self/clear_refs", os.W_OK):
        return ok("the peak of this process can be set back, so that each run has its own")
    return limited(
        "the peak since the process began",
        "/proc/self/clear_refs may not be written",
        "a kernel with CONFIG_PROC_PAGE_MONITOR; /proc not mounted read-only",
    )


@check("container", "who ends first")
def _ends_first(machine: Machine) -> Ability:
    score = first_line(machine.proc / "self" / _OWN_OOM_SCORE)
    if os.access(machine.proc / "self" / _OWN_OOM_SCORE, os.W_OK):
        return ok(
            f"oom_score_adj is {score}, and a probe may raise its own, so that it ends before the server"
        )
    return limited(
        f"oom_score_adj is {score or 'unknown'}",
        "a probe may not raise it: where memory runs out, the kernel may end the server first",
        "mount /proc writable for the probe's own process",
    )


@check("container", "/sys")
def _sys(machine: Machine) -> Ability:
    if not (machine.sysfs / "devices/system/cpu").is_dir():
        return refused(
            f"{machine.sysfs} is not mounted: cores, NUMA nodes and the GPUs' places are not known",
            "mount /sys, read-only is enough",
        )
    is_read_only = bool(os.statvfs(machine.sysfs).f_flag & os.ST_RDONLY)
    return ok(f"{'read-only, which is enough' if is_read_only else 'writable, which a probe never uses'}")
