"""*Host*: was it the host? Canaries and reference work on one axis, then CPUs, memory, threads, and the GPU."""

from __future__ import annotations

from grafana.dashboards import colours, gpu, marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    BY,
    CONTAINER,
    change,
    level,
    on_hosts,
    rate,
    reference_work,
    replicas,
    series,
    worst_gauges,
    worst_rates,
)
from grafana.dashboards.tables import Column, rows
from grafana.dashboards.variables import CONTAINERS, INSTANCE, SERVICES

_PROCESS = 'scope="process"'
_SAME_AXIS = 0.3


def board() -> Board:
    """The dashboard."""
    return Board(
        "host",
        "Host",
        "Was it the host? Reference work, CPU limit, pressure, memory, threads, and the GPU.",
        [
            variables.datasource(),
            variables.instance(multi=False),
            variables.namespace(INSTANCE),
            variables.service(INSTANCE),
            variables.container(INSTANCE),
        ],
        [marks.upgrades(on_hosts(series(marks.UPGRADE, SERVICES)))],
        [
            Row("Was it the host", [_canaries(), _reference(), _throttled(), _cpu()]),
            Row("CPU and memory", [_waiting(), _pressure(), _memory(), _shortages()]),
            Row("Threads", [_threads(), _stalls(), _affinity()]),
            Row("GPU", gpu.panels(), collapsed=True),
        ],
    )


def _canaries() -> Panel:
    now = f"quantile_over_time(0.5, {series('infercanary_run_median_seconds', CONTAINERS)}[$__rate_interval])"
    # By this host's exporter; by the judge's where several share a store.
    own = (
        f"infercanary_{side}_seconds{{{INSTANCE}, {SERVICES}}} @ end()" for side in ("baseline", "current")
    )
    before = f"(max by ({BY}) ({' or '.join(own)}) or {level(SERVICES)})"
    return lines(
        About(
            "Canaries",
            "Change of each replica's latency from the level before the last upgrade: 0 is as before. Of several "
            "canaries the slowest counts.",
            "If the reference work is slower too, it is the host: look below. If only canaries are slower, it is the "
            "image: see *Service*.",
            "percentunit",
        ),
        Query(f"max by ({CONTAINER}) ({change(now, before)})", "{{replica}}"),
        centred=True,
        calm=_SAME_AXIS,
    )


def _reference() -> Panel:
    work = reference_work(f"{CONTAINER}, control", CONTAINERS, 'control!~".*_python"')
    return lines(
        About(
            "Reference work",
            "Change of the reference work's time from before the last upgrade, the mean of the replicas: 0 is as "
            "before. It is the same work in every image.",
            "cpu_spin and gpu_fma follow the clock. memory_copy, gpu_copy, gpu_transfer and page_io follow memory, bus "
            "and kernel, which a neighbour may use too.",
            "percentunit",
        ),
        Query(f"avg by (control) ({work})", "{{control}}"),
        centred=True,
        calm=_SAME_AXIS,
        named=colours.CONTROLS,
    )


def _throttled() -> Panel:
    throttled = worst_rates("infercanary_cgroup_cpu_throttled_periods_total", CONTAINERS)
    periods = rate("infercanary_cgroup_cpu_periods_total", CONTAINERS)
    return lines(
        About(
            "Throttled by the CPU limit",
            "Share of the periods in which the container used up its CPU limit. Latencies then jump by up to a period "
            "of 100 ms.",
            "Above a few percent: raise the limit, or use fewer threads.",
            "percentunit",
        ),
        Query(f"({throttled}) / ({periods} > 0)", "{{replica}}"),
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
    waiting = worst_gauges("infercanary_canary_waiting_ratio", CONTAINERS)
    return lines(
        About(
            "Waiting for a CPU",
            "Share of the canary's latency that is CPU wait caused by other processes on the host, over ten minutes. "
            "Of several canaries the highest counts.",
            "Above 20 %: give the container its own cpuset, or move a neighbour, which may have no probe.",
            "percentunit",
        ),
        Query(f"max by ({CONTAINER}) ({waiting})", "{{replica}}"),
        minimum=0,
        maximum=1,
    )


def _pressure() -> Panel:
    tasks = {"some": "waiting", "all": "stalled"}
    rates = {
        word: rate(f"infercanary_cgroup_pressure_{name}_seconds_total", CONTAINERS)
        for word, name in tasks.items()
    }
    return lines(
        About(
            "Pressure",
            "Share of the time in which some tasks of a container waited for the resource (dashed: all of its tasks), "
            "for the worst container.",
            "cpu: too few CPUs. memory: near the limit. io: the disk. Give the container more, or move a neighbour.",
            "percentunit",
        ),
        *(Query(f"max by (resource) ({each})", f"{{{{resource}}}} {word}") for word, each in rates.items()),
        minimum=0,
        named=colours.RESOURCES,
    )


def _memory() -> Panel:
    used = worst_gauges("infercanary_cgroup_memory_working_set_bytes", CONTAINERS)
    limit = series("infercanary_cgroup_memory_limit_bytes", CONTAINERS)
    return lines(
        About(
            "Memory used of the limit",
            "Memory that is hard to reclaim, divided by the container's limit.",
            "From 90 % on, allocations wait; near 100 %, the kernel kills: raise the limit, or look for a leak.",
            "percentunit",
        ),
        Query(f"({used}) / {limit}", "{{replica}}"),
        minimum=0,
        maximum=1,
    )


def _shortages() -> Panel:
    kinds = {"major faults": "major_page_faults", "limit hits": "memory_limit_hits", "OOM kills": "oom_kills"}
    hues = (colours.BLUE, colours.ORANGE, colours.VERMILLION)
    return lines(
        About(
            "Major faults, limit hits, OOM kills",
            "Page faults that waited for a disk, moments at the memory limit, and processes that the kernel killed, in "
            "all containers. While serving there should be none.",
            "Raise the limit, or look for a leak. Faults alone: the model is read from disk again, so lock or warm it.",
            "/min",
        ),
        *(
            Query(f"60 * sum({rate(f'infercanary_cgroup_{name}_total', CONTAINERS)})", legend, hue)
            for (legend, name), hue in zip(kinds.items(), hues, strict=True)
        ),
        minimum=0,
    )


def _threads() -> Panel:
    return lines(
        About(
            "Threads per CPU",
            "The engine's computing threads divided by the CPUs that limit, cpuset and affinity give it.",
            "Above 100 % threads wait for one another: set OMP_NUM_THREADS to the number of CPUs, or raise the limit.",
            "percentunit",
        ),
        Query(worst_gauges("infercanary_thread_oversubscription_ratio", CONTAINERS), "{{replica}}"),
        minimum=0,
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
    gauges = {
        "Allowed CPUs": ("allowed_cpus", _PROCESS),
        "Shared with others": ("container_shared_cpus", ""),
        "Pinned threads": ("process_pinned_threads", ""),
        "GPU's NUMA node": ("gpu_numa_node", ""),
        "Threads off it": ("off_node_threads", _PROCESS),
    }
    rates = {
        "Migrations": ("migrations_total", _PROCESS),
        "Preemptions": ("context_switches_total", f'{_PROCESS}, kind="involuntary"'),
        "Threads waiting": ("run_queue_seconds_total", _PROCESS),
    }
    selected = [series(f"infercanary_{name}", CONTAINERS, more) for name, more in gauges.values()]
    selected += [
        f"rate({series(f'infercanary_{name}', CONTAINERS, more)}[5m])" for name, more in rates.values()
    ]
    first, *others = (f"max by ({CONTAINER}) ({each})" for each in selected)
    units = ["none"] * len(gauges) + ["/s", "/s", "none"]
    return rows(
        About(
            "Thread affinity",
            "CPUs on which the process may run, and those that another container may use too; threads that are pinned "
            "to some of them; threads that last ran off the GPU's NUMA node. Over five minutes: moves to another CPU, "
            "preemptions by other threads, and threads that wait for a CPU.",
            "Fewer CPUs than granted, or pinned threads: the image sets an affinity. Threads off the node: give the "
            "container the GPU's CPUs by --cpuset-cpus. Preemptions: too many threads, or neighbours.",
            "none",
            width=24,
            height=8,
        ),
        [
            Column("replica", "Replica", least=160),
            *(
                Column(f"Value #{letter}", heading, unit, width=120, decimals=2 if heading in rates else 0)
                for letter, heading, unit in zip("ABCDEFGH", [*gauges, *rates], units, strict=True)
            ),
        ],
        Query(replicas(first)),
        *map(Query, others),
        sort=("Replica",),
    )
