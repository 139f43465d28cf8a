"""The host: its clock, its cores and NUMA nodes, and what the kernel says of threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from time import clock_getres, perf_counter_ns

import infercanary
from infercanary.contract.cpus import numbers, parse_cpus
from infercanary.doctor.ability import Ability, Machine, check, first_line, limited, ok
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code

_SLOW_CLOCK_NS = 500.0
"""A reading of tsc takes 20 to 50 ns by the vDSO; one that needs a system call, or asks hpet, a microsecond."""
_READINGS, _BLOCKS = 1000, 21
_OF_THREADS = ("schedstat", "sched", "status")


@check("host", "system")
def _system(machine: Machine) -> Ability:
    return ok(
        f"infercanary {infercanary.__version__}, Python {platform.python_version()}, Linux {platform.release()}, "
        f"{platform.machine()}"
    )


def _reading_ns() -> float:
    blocks = []
    for _ in range(_BLOCKS):
        begin = perf_counter_ns()
        for _ in range(_READINGS):
            perf_counter_ns()
        blocks.append((perf_counter_ns() - begin) / _READINGS)
    return median(blocks)


@check("host", "clock source")
def _clock_source(machine: Machine) -> Ability:
    folder = machine.sysfs / "devices/system/clocksource/clocksource0"
    source, cost = first_line(folder / "current_clocksource"), _reading_ns()
    found = (
        f"{source or 'of unknown name'}: a reading takes {cost:.0f} ns with Python's call, resolution "
        f"{clock_getres(0) * 1e9:.0f} ns"
    )
    if cost <= _SLOW_CLOCK_NS:
        return ok(found)
    better = first_line(folder / "available_clocksource") or "unknown"
    return limited(
        found,
        "each reading of the clock is slow, and is part of what is timed",
        f"on the host: choose another clock source in {folder}/current_clocksource (available: {better}); "
        "tsc=reliable on the kernel's command line where tsc was rejected",
    )


@check("host", "cores")
def _cores(machine: Machine) -> Ability:
    allowed = os.sched_getaffinity(0)
    cpus = machine.sysfs / "devices/system/cpu"
    of_cores, unknown = set(), 0
    for cpu in allowed:
        siblings = first_line(cpus / f"cpu{cpu}/topology/thread_siblings_list")
        of_cores.add(numbers(parse_cpus(siblings)) if siblings else frozenset({cpu}))
        unknown += not siblings
    found = f"CPUs {listed(allowed)} are allowed, on {len(of_cores)} cores"
    if unknown:
        return limited(
            found, "the kernel does not say which of them share a core", "mount /sys in the container"
        )
    if outside := frozenset().union(*of_cores) - allowed:
        return limited(
            found,
            f"their SMT siblings {listed(outside)} are not: others' work on those slows the same cores",
            "give the container whole cores (--cpuset-cpus with both siblings)",
        )
    shared = any(len(core) > 1 for core in of_cores)
    return ok(f"{found}{', with all of their SMT siblings' if shared else ', without SMT siblings'}")


@check("host", "NUMA nodes")
def _numa(machine: Machine) -> Ability:
    folder = machine.sysfs / "devices/system/node"
    nodes = {
        path.name.removeprefix("node"): numbers(parse_cpus(first_line(path / "cpulist")))
        for path in folder.glob("node[0-9]*")
    }
    if not nodes:
        return limited("", f"{folder} cannot be read, so a thread's node is not known", "mount /sys")
    allowed = os.sched_getaffinity(0)
    own = sorted(node for node, cpus in nodes.items() if cpus & allowed)
    memory = _memory_nodes(machine.proc / "self/status")
    found = f"{len(nodes)} on this host; this process may run on {', '.join(own)}, with memory of {memory or 'all'}"
    if len(own) > 1:
        return limited(
            found,
            "threads may move to another node than the GPU's or the memory's",
            "bind the container to one node (--cpuset-cpus, --cpuset-mems), that of the GPU: see GPU, NUMA node",
        )
    return ok(found)


def _memory_nodes(status: Path) -> str:
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split()[1] for line in lines if line.startswith("Mems_allowed_list:")), "")


@check("host", "NUMA balancing")
def _balancing(machine: Machine) -> Ability:
    value = first_line(machine.proc / "sys/kernel/numa_balancing")
    if value not in ("", "0"):
        return limited(
            f"kernel.numa_balancing is {value}",
            "the kernel moves pages between nodes while a model runs, which shows as latency now and then",
            "on the host: sysctl kernel.numa_balancing=0, for servers that are bound to one node",
        )
    return ok("off")


@check("host", "threads")
def _threads(machine: Machine) -> Ability:
    folder = machine.proc / "self"
    missing = [name for name in _OF_THREADS if not first_line(folder / name)]
    found = f"{folder}: {', '.join(name for name in _OF_THREADS if name not in missing) or 'nothing'}"
    if missing:
        return limited(
            found,
            f"{', '.join(missing)} cannot be read, so time spent waiting for a CPU and migrations are not known",
            "a kernel with CONFIG_SCHED_INFO and CONFIG_SCHED_DEBUG; mount /proc",
        )
    if first_line(folder / "schedstat").split()[-1:] == ["0"]:
        return limited(
            found,
            "the kernel does not count how long threads wait for a CPU",
            "on the host: sysctl kernel.task_delayacct=1, or delayacct on the kernel's command line",
        )
    return ok(found)


@check("host", "launches of controls")
def _launches(machine: Machine) -> Ability:
    try:
        mapped_code()
    except Refused as error:
        return limited(
            "by Python",
            f"not by machine code: {error}; launch times then include Python's, in controls named …_python",
            "allow memory that is executable, where a policy refuses it (SELinux: execmem)",
        )
    return ok("by machine code, so that Python's time is not in them")


def listed(cpus: frozenset[int] | set[int]) -> str:
    """The CPUs as the kernel writes lists: ``0-3,8``.

    Args:
        cpus: Their numbers.
    """
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
