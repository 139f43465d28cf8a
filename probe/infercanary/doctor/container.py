"""Checks of the container: its cgroup, pressure (PSI), and permissions."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from infercanary.doctor.ability import Ability, Machine, check, limited, ok, refused
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup import limits
from infercanary.probe.samplers.cgroup.files import text
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup
from infercanary.probe.samplers.cgroup.metrics import MEMORY_LIMIT, WAITING

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # numbers of the system call
_HARDWARE, _INSTRUCTIONS = 0, 1  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS
_DISABLED, _EXCLUDE_KERNEL_AND_HYPERVISOR = 1, 1 << 5 | 1 << 6
_ATTRIBUTES = 64  # PERF_ATTR_SIZE_VER0


@check("container", "cgroup")
def _cgroup(machine: Machine) -> Ability:
    place = machine.sysfs / "fs/cgroup", machine.proc / "self"
    try:
        cgroup = own_cgroup(*place)
    except Unavailable as error:
        return refused(
            f"{error}: quota, throttling and memory of the container are unknown",
            "mount it in the container, read-only; Docker does so unless something else is mounted over /sys",
        )
    given = ", ".join(f"{name} {value}" for name, value in limits(*place).items())
    found = f"version {cgroup.version}: {given}"
    facts = cgroup.facts()
    missing = [metric.name for metric in facts if facts[metric] is None and metric is not MEMORY_LIMIT]
    if missing:
        return limited(
            found,
            f"its files lack {', '.join(missing)}",
            "in the root cgroup that is as it should be; else enable the controllers for the container",
        )
    return ok(found)


@check("container", "pressure (PSI)", needs="cgroup")
def _pressure(machine: Machine) -> Ability:
    cgroup = own_cgroup(machine.sysfs / "fs/cgroup", machine.proc / "self")
    waiting = cgroup.pressure().get(WAITING)
    if waiting:
        return ok(f"of the container's own cgroup: {', '.join(resource for (resource,) in waiting)}")
    if text(machine.proc / "pressure/cpu"):
        return limited(
            "of the host only",
            "this cgroup has none (cgroup v1, or the root), and the host's is not the container's",
            "cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        )
    return refused(
        "the kernel reports no pressure, so waiting for CPU, memory or disk is unknown",
        "psi=1 on the kernel's command line (CONFIG_PSI)",
    )


_PERF_REFUSALS = {
    errno.EPERM: (
        "a filter of system calls refuses a counter (EPERM), as Docker's default does",
        "where you profile: a seccomp profile that has perf_event_open; Docker's own has it with "
        "--cap-add SYS_ADMIN, in newer releases with --cap-add PERFMON",
    ),
    errno.EACCES: (
        "the level refuses a counter without CAP_PERFMON (EACCES)",
        "where you profile: --cap-add PERFMON; or on the host sysctl kernel.perf_event_paranoid=2",
    ),
}
"""Reason and fix, by error number."""


@check("container", "perf events")
def _perf(machine: Machine) -> Ability:
    level = f"perf_event_paranoid is {text(machine.proc / 'sys/kernel/perf_event_paranoid') or 'unknown'}"
    error = _perf_error()
    if not error:
        return ok(f"{level}; this process may count its own instructions")
    if error not in _PERF_REFUSALS:
        return limited(
            level, f"hardware counters do not work ({os.strerror(error)}), as on most virtual machines"
        )
    why, fix = _PERF_REFUSALS[error]
    return refused(f"{why}; the probe needs no counter, profilers such as perf do", fix, level)


def _perf_error() -> int:
    """Open a disabled counter of this process's instructions; return the error number, or 0."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    flags = _DISABLED | _EXCLUDE_KERNEL_AND_HYPERVISOR
    attributes = struct.pack("IIQQQQQ16x", _HARDWARE, _ATTRIBUTES, _INSTRUCTIONS, 0, 0, 0, flags)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


@check("container", "memory peak")
def _memory_peak(machine: Machine) -> Ability:
    if os.access(machine.proc / "self/clear_refs", os.W_OK):
        return ok("the peak of this process can be reset, so that each run has its own peak")
    return limited(
        "only the peak since the start of the process",
        "this process may not write /proc/self/clear_refs",
        "a kernel with CONFIG_PROC_PAGE_MONITOR; /proc not mounted read-only",
    )


@check("container", "who ends first")
def _ends_first(machine: Machine) -> Ability:
    if os.access(machine.proc / "self/oom_score_adj", os.W_OK):
        return ok("a probe may raise its oom_score_adj, so that the kernel kills it before the server")
    return limited(
        "",
        "a probe may not raise its oom_score_adj: if memory runs out, the kernel may kill the server first",
        "do not mount /proc read-only: the probe writes /proc/self/oom_score_adj",
    )
