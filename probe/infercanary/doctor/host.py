"""Checks of the host: clock, cores, NUMA nodes, and the kernel's counters of threads."""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter_ns
from timeit import repeat

from infercanary.contract.cpus import numbers, parse_cpus
from infercanary.doctor.ability import Ability, Machine, check, limited, ok
from infercanary.probe.samplers.cgroup.files import text
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code

_SLOW_CLOCK_NS = 500.0
"""A clock is slow if one reading takes longer. Through the vDSO, tsc takes 20 to 50 ns; a system call or hpet takes a
microsecond.
"""
_READINGS = 1000


def _reading_ns() -> float:
    return median(repeat(perf_counter_ns, number=_READINGS, repeat=21)) / _READINGS * 1e9


@check("host", "clock source")
def _clock_source(machine: Machine) -> Ability:
    folder = machine.sysfs / "devices/system/clocksource/clocksource0"
    source, cost = text(folder / "current_clocksource"), _reading_ns()
    found = f"{source or 'unknown source'}: a reading takes {cost:.0f} ns"
    if cost <= _SLOW_CLOCK_NS:
        return ok(found)
    return limited(
        found,
        "reading the clock is slow, and adds to each measured time",
        f"on the host: choose another clock source in {folder}/current_clocksource (available: "
        f"{text(folder / 'available_clocksource')}); if the kernel rejected tsc, add tsc=reliable to "
        "the kernel's command line",
    )


@check("host", "cores")
def _cores(machine: Machine) -> Ability:
    allowed = os.sched_getaffinity(0)
    folder = machine.sysfs / "devices/system/cpu"
    siblings = {text(folder / f"cpu{cpu}/topology/thread_siblings_list") for cpu in allowed}
    if "" in siblings:
        return limited(
            f"{len(allowed)} CPUs are allowed",
            "the kernel does not report which CPUs share a core",
            "mount /sys in the container",
        )
    found = f"{len(allowed)} CPUs are allowed, on {len(siblings)} cores"
    outside = {cpu for core in siblings for cpu in numbers(parse_cpus(core))} - allowed
    if outside:
        return limited(
            found,
            f"their SMT siblings {', '.join(map(str, sorted(outside)))} are not allowed, so other processes can slow "
            "the same cores",
            "give the container whole cores (--cpuset-cpus with both siblings)",
        )
    return ok(found)


@check("host", "NUMA nodes")
def _numa(machine: Machine) -> Ability:
    folder = machine.sysfs / "devices/system/node"
    nodes = {path.name: numbers(parse_cpus(text(path / "cpulist"))) for path in folder.glob("node[0-9]*")}
    if not nodes:
        return limited(
            "", f"{folder} cannot be read, so the nodes of threads are unknown", "mount /sys in the container"
        )
    allowed = os.sched_getaffinity(0)
    own = sorted(node for node, cpus in nodes.items() if cpus & allowed)
    found = f"{len(nodes)} on this host; this process may run on {', '.join(own)}"
    if len(own) > 1:
        return limited(
            found,
            "threads may run on a node far from the GPU or from their memory",
            "bind the container to one node (--cpuset-cpus, --cpuset-mems); for the GPU's node, see the "
            "check `NUMA node` of the section GPU",
        )
    return ok(found)


@check("host", "NUMA balancing")
def _balancing(machine: Machine) -> Ability:
    if text(machine.proc / "sys/kernel/numa_balancing") in ("", "0"):
        return ok("off")
    return limited(
        "on",
        "the kernel moves memory pages between nodes during runs, which adds occasional latency",
        "on the host: sysctl kernel.numa_balancing=0, for servers that are bound to one node",
    )


@check("host", "threads")
def _threads(machine: Machine) -> Ability:
    folder = machine.proc / "self"
    missing = [name for name in ("schedstat", "sched", "status") if not text(folder / name)]
    if missing:
        return limited(
            "",
            f"{', '.join(missing)} cannot be read, so CPU wait and migrations are unknown",
            "use a kernel with CONFIG_SCHED_INFO and CONFIG_SCHED_DEBUG, and mount /proc",
        )
    if text(folder / "schedstat").endswith(" 0"):
        return limited(
            "",
            "the kernel does not measure the CPU wait of threads",
            "on the host: sysctl kernel.task_delayacct=1, or delayacct on the kernel's command line",
        )
    return ok("CPU wait and migrations are counted")


@check("host", "launches of controls")
def _launches(machine: Machine) -> Ability:
    try:
        mapped_code()
    except Refused as error:
        return limited(
            "by Python",
            f"{error}; controls of different Python or libc versions are not compared",
            "allow executable memory in the security policy (SELinux: execmem)",
        )
    return ok("by machine code, so the controls contain no Python time")
