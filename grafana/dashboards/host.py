"""*GPU and host*: what the canary ran on. Canary and controls on one time axis, then the container's CPUs, memory and
threads, then the GPU."""

from __future__ import annotations

from grafana.dashboards import colours, gpu, marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    increase,
    rate,
    series,
    steady_of_range,
    worst,
    worst_gauges,
    worst_rates,
)
from grafana.dashboards.variables import CANARIES, CONTAINERS, INSTANCE

NO_CGROUP = "The kernel does not report it, or no container reports"
_BY = "instance, namespace, service, pod, container"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "gpu-host",
        "GPU and host",
        "What the canary ran on: was it the host? Neighbours, quota, where threads ran, clock, heat and power.",
        [
            variables.datasource(),
            # By the service first: links from it come with all of its hosts, and the first of those is shown.
            variables.namespace(),
            variables.service(),
            variables.instance(variables.SERVICES, multi=False),
            variables.pod(INSTANCE),
            variables.container(INSTANCE),
            variables.canary(INSTANCE),
            variables.gpu(),
        ],
        [marks.upgrades(), marks.images()],
        [
            Row("Canary and controls on one time axis", [_canaries(), _controls(), _work(), _bandwidth()]),
            Row("CPU quota, pressure and memory", [_quota(), _cores(), _pressure(), _memory_limit()]),
            Row("Threads", [_run_queue(), _switches(), _threads(), _shared()]),
            Row("The process", [_stalled(), _faults()]),
            Row("GPU: driver, clocks, power, heat", gpu.clocks(), collapsed=True),
            Row("GPU: use, memory, bus", gpu.use(), collapsed=True),
        ],
    )


def _canaries() -> Panel:
    about = About(
        "Canaries",
        "Latency of each container's canary divided by its usual latency (medians: of a step, of the time range, and "
        "of several canaries): 1 is as usual.",
        "Compare its changes with those of the controls below. If both change together, it is the host.",
        "percentunit",
        width=24,
        height=7,
        empty="No canary has run in this time range",
    )
    name = "infercanary_run_median_seconds"
    selected = series(name, CANARIES)
    moved = f"stddev_over_time({selected}[$__range] @ end()) / avg_over_time({selected}[$__range] @ end())"
    query = worst(
        f"quantile by ({_BY}) (0.5, {steady_of_range(name, CANARIES)})", _BY, f"max by ({_BY}) ({moved})"
    )
    return lines(about, Query(query, "{{replica}}"), doubling=True)


def _controls() -> Panel:
    about = About(
        "Controls",
        "Each control's time divided by its usual time (medians: of a step, and of the time range), the mean of the "
        "containers. A control is work that is the same in every image, after each run. Controls in Python's own "
        "time are left out.",
        "If canary and controls are slower together, it is the host: look below for quota, neighbours and clocks. If "
        "only the canary is slower, it is the image: see *Upgrade*.",
        "percentunit",
        width=24,
        height=7,
        empty="No control has run in this time range",
    )
    query = steady_of_range("infercanary_control_seconds", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), named=colours.CONTROLS, doubling=True)


def _by_control(query: str) -> Query:
    return Query(f"avg by (control) ({query})", "{{control}}")


def _work() -> Panel:
    about = About(
        "Compute speed, by the controls",
        "Operations a second, the mean of the containers. gpu_fma falls together with the SM clock, and cpu_spin "
        "falls together with the clock of its core.",
        "If it falls and the clock does not, something else computes there. Find the neighbour.",
        "flops",
        empty="No such control has run",
    )
    query = series("infercanary_control_flops_per_second", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), named=colours.CONTROLS, minimum=0)


def _bandwidth() -> Panel:
    about = About(
        "Memory and bus speed, by the controls",
        "Bytes a second, the mean of the containers. memory_copy is the CPU's cache and memory, gpu_copy is the "
        "GPU's memory, gpu_transfer is the PCIe link, page_io is the kernel.",
        "If it falls, a neighbour uses the same memory or bus: move it, or pin both.",
        "Bps",
        empty="No such control has run",
    )
    query = series("infercanary_control_bytes_per_second", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), named=colours.CONTROLS, minimum=0)


def _quota() -> Panel:
    about = About(
        "Throttled by the CPU quota",
        "Share of the periods that ran out of quota. Latencies then jump by up to a period, 100 ms.",
        "Above a few percent: raise the quota, or use fewer threads.",
        "percentunit",
        empty="No CPU quota, or no container reports",
    )
    name = "infercanary_cgroup_cpu_throttled_periods_total"
    periods = rate("infercanary_cgroup_cpu_periods_total", CONTAINERS)
    query = f"{rate(name, CONTAINERS)} / ({periods} > 0) and {worst_rates(name, CONTAINERS)}"
    return lines(about, Query(query, "{{replica}}"), minimum=0)


def _cores() -> Panel:
    about = About(
        "CPUs used, share of those granted",
        "CPU time of the process that the probe runs in, divided by the cores that quota, cpuset and affinity give "
        "it.",
        "Near 1 it needs more than it has: raise the quota, or reduce the load.",
        "percentunit",
        empty=NO_CGROUP,
    )
    used = worst_rates("infercanary_process_cpu_seconds_total", CONTAINERS)
    granted = series("infercanary_process_granted_cpus", CONTAINERS)
    return lines(about, Query(f"({used}) / {granted}", "{{replica}}"), minimum=0)


def _pressure() -> Panel:
    about = About(
        "Pressure",
        "Share of the time in which at least one task of the container waited for the resource (PSI some), for the "
        "worst container. The dashed lines: no task made progress.",
        "cpu means too few CPUs, memory means that it is near its limit, io means the disk. Give the container more "
        "of it, or move a neighbour.",
        "percentunit",
        empty=NO_CGROUP,
    )
    waiting = rate("infercanary_cgroup_pressure_waiting_seconds_total", CONTAINERS)
    stalled = rate("infercanary_cgroup_pressure_stalled_seconds_total", CONTAINERS)
    return lines(
        about,
        Query(f"max by (resource) ({waiting})", "{{resource}}"),
        Query(f"max by (resource) ({stalled})", "{{resource}} stalled"),
        minimum=0,
        wide=0.01,
        named=colours.RESOURCES | {f"{name} stalled": hue for name, hue in colours.RESOURCES.items()},
    )


def _memory_limit() -> Panel:
    about = About(
        "Memory, share of the limit",
        "Memory that is hard to reclaim, divided by the container's limit.",
        "From about 0.9 on, allocations wait. Near 1, the kernel kills processes. Raise the limit, or look for a "
        "leak.",
        "percentunit",
        empty="No memory limit, or no container reports",
    )
    name = "infercanary_cgroup_memory_working_set_bytes"
    limit = series("infercanary_cgroup_memory_limit_bytes", CONTAINERS)
    query = f"{series(name, CONTAINERS)} / {limit} and {worst_gauges(name, CONTAINERS)}"
    return lines(about, Query(query, "{{replica}}"), minimum=0, maximum=1)


def _run_queue() -> Panel:
    about = About(
        "Waiting for a CPU",
        "Share of the canary's latency that was waiting for CPUs that others on the host used, over the runs of ten "
        "minutes. Others in its own container do not count, and its quota does not count.",
        "Above 0.2 it is an alert: give the container its own cpuset, or move a neighbour away. The neighbour may be "
        "a process without a probe.",
        "percentunit",
        empty="The kernel does not report it",
    )
    most = f"max by ({_BY}) ({worst_gauges('infercanary_canary_waiting_ratio', CANARIES)})"
    return lines(about, Query(most, "{{replica}}"), minimum=0, wide=0.01)


def _switches() -> Panel:
    about = About(
        "Preempted by other threads",
        "Involuntary context switches for each second of CPU time. Threads of the process or other processes cause "
        "them.",
        "Threads compete for CPUs. If it rises with an image, the number of threads changed. If it rises without "
        "one, the neighbours changed.",
        "ops",
        empty=NO_CGROUP,
    )
    name = "infercanary_process_context_switches_total"
    involuntary = (CONTAINERS, 'kind="involuntary"')
    cpu = rate("infercanary_process_cpu_seconds_total", CONTAINERS)
    switches = f"({worst_rates(name, *involuntary)}) / on ({_BY}) group_left () ({cpu} > 0)"
    return lines(about, Query(switches, "{{replica}}"), minimum=0)


def _threads() -> Panel:
    about = About(
        "Computing threads for each CPU",
        "The engine's computing threads divided by the granted CPUs.",
        "Above 1, the threads wait for one another: set OMP_NUM_THREADS to the number of CPUs, or raise the quota.",
        "none",
        empty=NO_CGROUP,
    )
    query = worst_gauges("infercanary_thread_oversubscription_ratio", CONTAINERS)
    return lines(about, Query(query, "{{replica}}"), minimum=0)


def _shared() -> Panel:
    about = About(
        "CPUs shared with a neighbour",
        "CPUs of the container's cpuset that another monitored container of the host may use. 0 means that it has "
        "its own CPUs.",
        "A neighbour's load may slow the canary: pin with --cpuset-cpus.",
        "none",
        empty="No container reports its cpuset",
    )
    query = worst_gauges("infercanary_container_shared_cpus", CONTAINERS)
    return lines(about, Query(query, "{{replica}}"), minimum=0, steps=True)


def _stalled() -> Panel:
    about = About(
        "Stalls and garbage collection",
        "Share of the time in which the process stood still in gaps of three quarters of a second or more (stopped, "
        "frozen, or one thread held the interpreter), and in which Python collected garbage. For the worst "
        "container.",
        "Stalled: a debugger, a frozen cgroup, or C code that keeps the interpreter's lock. Garbage: use fewer "
        "objects, or gc.freeze() after loading.",
        "percentunit",
        empty="No container reports",
    )
    return lines(
        about,
        Query(f"max({rate('infercanary_stalled_seconds_total', CONTAINERS)})", "stalled", colours.VERMILLION),
        Query(f"max({rate('infercanary_gc_pause_seconds_total', CONTAINERS)})", "garbage", colours.BLUE),
        minimum=0,
    )


def _faults() -> Panel:
    about = About(
        "Memory shortages",
        "Page faults that waited for a disk, moments at the memory limit, and processes that the kernel killed, in "
        "each step, for all containers together. While serving, there should be none.",
        "Raise the limit, or look for a leak. If there are only page faults, the model is read from disk again: lock "
        "it or warm it.",
        "short",
        empty=NO_CGROUP,
    )
    kinds = {
        "page faults": "infercanary_cgroup_major_page_faults_total",
        "at the limit": "infercanary_cgroup_memory_limit_hits_total",
        "killed": "infercanary_cgroup_oom_kills_total",
    }
    named = dict(zip(kinds, (colours.BLUE, colours.ORANGE, colours.VERMILLION), strict=True))
    return lines(
        about,
        *(Query(f"sum({increase(name, CONTAINERS)})", legend) for legend, name in kinds.items()),
        minimum=0,
        named=named,
    )
