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

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}  # number of the system call perf_event_open, by machine
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
            "mount /sys/fs/cgroup read-only in the container; Docker does so by default, unless another "
            "volume covers /sys",
        )
    given = ", ".join(f"{name} {value}" for name, value in limits(*place).items())
    found = f"version {cgroup.version}: {given}"
    facts = cgroup.facts()
    missing = [metric.name for metric in facts if facts[metric] is None and metric is not MEMORY_LIMIT]
    if missing:
        return limited(
            found,
            f"the cgroup's files have no values for {', '.join(missing)}",
            "enable the cgroup's controllers for the container; the root cgroup never has these files",
        )
    return ok(found)


@check("container", "pressure (PSI)", needs="cgroup")
def _pressure(machine: Machine) -> Ability:
    cgroup = own_cgroup(machine.sysfs / "fs/cgroup", machine.proc / "self")
    waiting = cgroup.pressure().get(WAITING)
    if waiting:
        return ok(f"pressure of the container: {', '.join(resource for (resource,) in waiting)}")
    if text(machine.proc / "pressure/cpu"):
        return limited(
            "pressure of the host only",
            "this cgroup has no pressure files (cgroup v1, or the root cgroup), so the container's own "
            "waiting is unknown",
            "for cgroup v2, add systemd.unified_cgroup_hierarchy=1 to the kernel's command line",
        )
    return refused(
        "the kernel reports no pressure, so waiting for CPU, memory or disk is unknown",
        "add psi=1 to the kernel's command line (needs CONFIG_PSI)",
    )


_PERF_REFUSALS = {
    errno.EPERM: (
        "the container's seccomp filter forbids hardware counters (EPERM), as Docker's default filter does",
        "to use a profiler, start the container with --cap-add PERFMON (with older Docker: SYS_ADMIN), or with a "
        "seccomp profile that allows perf_event_open",
    ),
    errno.EACCES: (
        "this level forbids hardware counters without CAP_PERFMON (EACCES)",
        "to use a profiler, start the container with --cap-add PERFMON, or on the host: "
        "sysctl kernel.perf_event_paranoid=2",
    ),
}
"""Reason and fix for each error number."""


@check("container", "perf events")
def _perf(machine: Machine) -> Ability:
    level = f"perf_event_paranoid is {text(machine.proc / 'sys/kernel/perf_event_paranoid') or 'unknown'}"
    error = _perf_error()
    if not error:
        return ok(f"{level}; this process is allowed to count its own instructions")
    if error not in _PERF_REFUSALS:
        return limited(
            level, f"hardware counters do not work ({os.strerror(error)}), as on most virtual machines"
        )
    why, fix = _PERF_REFUSALS[error]
    return refused(f"{why}; profilers such as perf need hardware counters, the probe does not", fix, level)


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
        return ok("the peak of this process can be reset before each run")
    return limited(
        "peak since the start of the process only",
        "this process is not allowed to write /proc/self/clear_refs",
        "use a kernel with CONFIG_PROC_PAGE_MONITOR, and do not mount /proc read-only",
    )


@check("container", "who ends first")
def _ends_first(machine: Machine) -> Ability:
    if os.access(machine.proc / "self/oom_score_adj", os.W_OK):
        return ok("a probe can raise its oom_score_adj, so that the kernel kills the probe before the server")
    return limited(
        "",
        "a probe cannot raise its oom_score_adj: if memory runs out, the kernel may kill the server first",
        "do not mount /proc read-only: the probe writes /proc/self/oom_score_adj",
    )
