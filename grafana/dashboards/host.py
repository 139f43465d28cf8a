"""*Host*: was it the host? Canaries and reference work on one axis, then CPUs, memory and threads, then the GPU."""

from __future__ import annotations

from grafana.dashboards import colours, gpu, marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import CONTAINER, rate, series, worst, worst_gauges, worst_rates
from grafana.dashboards.tables import Column, rows
from grafana.dashboards.variables import CANARIES, CONTAINERS, INSTANCE, SERVICES

_BY = "namespace, service, canary"
_PROCESS = 'scope="process"'


def board() -> Board:
    """The dashboard."""
    return Board(
        "host",
        "Host",
        "Was it the host? Reference work, CPU quota, pressure, memory, threads, and the GPU.",
        [
            variables.datasource(),
            variables.instance(multi=False),
            variables.namespace(INSTANCE),
            variables.service(INSTANCE),
            variables.replica(INSTANCE),
        ],
        [marks.upgrades(with_canary=False)],
        [
            Row("Was it the host", [_canaries(), _reference(), _throttled(), _cpu()]),
            Row("CPU and memory", [_waiting(), _pressure(), _memory(), _shortages()]),
            Row("Threads", [_threads(), _stalls(), _affinity()]),
            Row("GPU", gpu.panels(), collapsed=True),
        ],
    )


def _canaries() -> Panel:
    now = f"quantile_over_time(0.5, {series('infercanary_run_median_seconds', CONTAINERS)}[$__rate_interval])"
    # Of this host's judge; where another exporter judges the service, of that one.
    levels = [f"infercanary_{side}_seconds" for side in ("baseline", "current")]
    own = [series(name, INSTANCE, SERVICES) for name in levels]
    of_service = [series(f"service_canary:{name}:max", SERVICES) for name in levels]
    level = " or ".join(f"max by ({_BY}) ({each} @ end())" for each in [*own, *of_service])
    change = f"max by ({CONTAINER}) ({now} / on ({_BY}) group_left () ({level}) - 1)"
    return lines(
        About(
            "Canaries",
            "Change of each replica's latency from the level before the last upgrade: 0 is as before. Of several "
            "canaries the slowest counts.",
            "If the reference work is slower too, it is the host: look below. If only canaries are slower, it is the "
            "image: see *Service*.",
            "percentunit",
        ),
        Query(change, "{{replica}}"),
        centred=True,
        calm=0.3,
    )


def _reference() -> Panel:
    now = f"quantile_over_time(0.5, {series('infercanary_control_seconds', CONTAINERS, 'control!~".*_python"')}[$__rate_interval])"
    before = series("infercanary_control_baseline_seconds", SERVICES)
    on = "namespace, service, control"
    change = f"{now} / on ({on}) group_left () (avg by ({on}) ({before} @ end())) - 1"
    return lines(
        About(
            "Reference work",
            "Change of the reference work's time from the level before the last upgrade, the mean of the replicas: 0 is "
            "as before. It is the same work in every image.",
            "cpu_spin and gpu_fma follow the clock. memory_copy, gpu_copy, gpu_transfer and page_io follow memory, bus "
            "and kernel, which a neighbour may use too.",
            "percentunit",
        ),
        Query(f"avg by (control) ({change})", "{{control}}"),
        centred=True,
        calm=0.3,
        named=colours.CONTROLS,
    )


def _throttled() -> Panel:
    throttled = "infercanary_cgroup_cpu_throttled_periods_total"
    periods = rate("infercanary_cgroup_cpu_periods_total", CONTAINERS)
    return lines(
        About(
            "Throttled by the CPU limit",
            "Share of the periods in which the container used up its CPU limit. Latencies then jump by up to a period "
            "of 100 ms.",
            "Above a few percent: raise the limit, or use fewer threads.",
            "percentunit",
        ),
        Query(f"{worst_rates(throttled, CONTAINERS)} / ({periods} > 0)", "{{replica}}"),
        minimum=0,
    )


def _cpu() -> Panel:
    used = worst_rates("infercanary_cpu_seconds_total", CONTAINERS, _PROCESS)
    granted = series("infercanary_process_granted_cpus", CONTAINERS)
    return lines(
        About(
            "CPU used of the limit",
            "CPU time of the probe's process, divided by the CPUs that limit, cpuset and affinity give it.",
            "Near 100 % it needs more than it has: raise the limit, or reduce the load.",
            "percentunit",
        ),
        Query(f"({used}) / on ({CONTAINER}) {granted}", "{{replica}}"),
        minimum=0,
    )


def _waiting() -> Panel:
    waiting = series("infercanary_canary_waiting_ratio", CONTAINERS)
    return lines(
        About(
            "Waiting for a CPU",
            "Share of the canary's latency that is CPU wait caused by other processes on the host, over ten minutes. "
            "Of several canaries the highest counts.",
            "Above 20 %: give the container its own cpuset, or move a neighbour. The neighbour may have no probe.",
            "percentunit",
        ),
        Query(f"max by ({CONTAINER}) ({waiting})", "{{replica}}"),
        minimum=0,
        maximum=1,
    )


def _pressure() -> Panel:
    waiting, stalled = (
        f"max by (resource) ({rate(f'infercanary_cgroup_pressure_{what}_seconds_total', CONTAINERS)})"
        for what in ("waiting", "stalled")
    )
    return lines(
        About(
            "Pressure",
            "Share of the time in which some tasks of a container waited for the resource (dashed: all tasks), for the "
            "worst container.",
            "cpu: too few CPUs. memory: near the limit. io: the disk. Give the container more, or move a neighbour.",
            "percentunit",
        ),
        Query(waiting, "{{resource}} some"),
        Query(stalled, "{{resource}} all"),
        minimum=0,
        named={f"{name} {tasks}": hue for tasks in ("some", "all") for name, hue in colours.RESOURCES.items()},
    )


def _memory() -> Panel:
    used = worst_gauges("infercanary_cgroup_memory_working_set_bytes", CONTAINERS)
    limit = series("infercanary_cgroup_memory_limit_bytes", CONTAINERS)
    return lines(
        About(
            "Memory used of the limit",
            "Memory that is hard to reclaim, divided by the container's limit.",
            "From 90 % on, allocations wait. Near 100 %, the kernel kills processes: raise the limit, or look for a leak.",
            "percentunit",
        ),
        Query(f"({used}) / {limit}", "{{replica}}"),
        minimum=0,
        maximum=1,
    )


def _shortages() -> Panel:
    kinds = {
        "major faults": ("infercanary_cgroup_major_page_faults_total", colours.BLUE),
        "limit hits": ("infercanary_cgroup_memory_limit_hits_total", colours.ORANGE),
        "OOM kills": ("infercanary_cgroup_oom_kills_total", colours.VERMILLION),
    }
    return lines(
        About(
            "Major faults, limit hits, OOM kills",
            "Page faults that waited for a disk, moments at the memory limit, and processes that the kernel killed, of "
            "all containers. While serving there should be none.",
            "Raise the limit, or look for a leak. Faults alone: the model is read from disk again, so lock or warm it.",
            "suffix:/min",
        ),
        *(
            Query(f"60 * sum({rate(name, CONTAINERS)})", legend, hue)
            for legend, (name, hue) in kinds.items()
        ),
        minimum=0,
    )


def _threads() -> Panel:
    return lines(
        About(
            "Threads per CPU",
            "The engine's computing threads divided by the CPUs that limit, cpuset and affinity give it.",
            "Above 1 threads wait for one another: set OMP_NUM_THREADS to the number of CPUs, or raise the limit.",
            "none",
        ),
        Query(worst_gauges("infercanary_thread_oversubscription_ratio", CONTAINERS), "{{replica}}"),
        minimum=0,
        decimals=2,
    )


def _stalls() -> Panel:
    kinds = {"stalled": ("stalled", colours.VERMILLION), "garbage collection": ("gc_pause", colours.BLUE)}
    return lines(
        About(
            "Stalls and garbage collection",
            "Share of the time in which the process stood still (paused, frozen, or one thread held the interpreter), "
            "and in which Python collected garbage, for the worst container.",
            "Stalled: a debugger, a frozen cgroup, or C code that keeps the interpreter's lock. Garbage: gc.freeze() "
            "after loading.",
            "percentunit",
        ),
        *(
            Query(f"max({rate(f'infercanary_{name}_seconds_total', CONTAINERS)})", legend, hue)
            for legend, (name, hue) in kinds.items()
        ),
        minimum=0,
    )


def _affinity() -> Panel:
    columns = {
        "Allowed CPUs": ("allowed_cpus", _PROCESS),
        "Shared CPUs": ("container_shared_cpus", ""),
        "Pinned threads": ("process_pinned_threads", ""),
        "GPU's NUMA node": ("gpu_numa_node", ""),
        "Threads off it": ("off_node_threads", _PROCESS),
    }
    rates = {
        "Migrations /s": ("migrations_total", _PROCESS),
        "Preempted /s": ("context_switches_total", f'{_PROCESS}, kind="involuntary"'),
        "Threads waiting": ("run_queue_seconds_total", _PROCESS),
    }
