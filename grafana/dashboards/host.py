"""Dashboard *Host*: was the host the cause?

The panels of canaries and of reference work have equal axes. Panels on CPUs, memory, threads and GPUs follow.
"""

from __future__ import annotations

from grafana.dashboards import colours, gpu, marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.charts import plot
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    CONTAINER,
    change,
    level,
    reference_work,
    replicas,
    worst_gauges,
    worst_rates,
)
from grafana.dashboards.tables import Column, rows
from grafana.dashboards.variables import CONTAINERS, INSTANCE, SERVICES

_REPLICA = "{{replica}}"
_FAR = 0.3
"""Smallest upper end of the axis in both panels, so that the panels can be compared."""


def board() -> Board:
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
        [marks.upgrades(f"{marks.UPGRADE}{{SERVICE}} HERE")],
        [
            Row("Was it the host", _first_screen()),
            Row("CPU and memory", _cpu_and_memory()),
            Row("Threads", _threads()),
            Row("GPU", gpu.panels(), collapsed=True),
        ],
    )


def _first_screen() -> list[Panel]:
    now = "quantile_over_time(0.5, infercanary_run_median_seconds{CONTAINERS}[$__rate_interval])"
    # The values come from this host's exporter, or from another exporter that shares its store.
    own = "max by (BY) (infercanary_baseline_seconds{HOST, SERVICE} or infercanary_current_seconds{HOST, SERVICE})"
    canaries = change(now, f"({own} or {level(SERVICES)})")
    work = reference_work(f"{CONTAINER}, control", CONTAINERS, host=INSTANCE)
    throttled = worst_rates("infercanary_cgroup_cpu_throttled_periods_total", CONTAINERS)
    used = 'sum by (CONTAINER) (rate(infercanary_cpu_seconds_total{CONTAINERS, scope!="canary"}[$__rate_interval]))'
    return [
        plot(
            "Canaries",
            "Change of each replica's latency from the level before the last upgrade: 0 is no change. With "
            "several canaries, the slowest counts.",
            "If the reference work is slower too, the host is the cause: look below. If only canaries are slower, the "
            "image is: see *Service*.",
            "percentunit",
            (f"max by (CONTAINER) ({canaries})", _REPLICA),
            centred=True,
            calm=_FAR,
        ),
        plot(
            "Reference work",
            "Change of the reference work's time since before the last upgrade (mean of the replicas): 0 is no "
            "change. Reference work is the same in every image.",
            "cpu_spin and gpu_fma depend on the clock. memory_copy, gpu_copy, gpu_transfer and page_io depend on "
            "memory, bus and kernel, which a neighbour may also use.",
            "percentunit",
            (f"avg by (control) ({work})", "{{control}}"),
            centred=True,
            calm=_FAR,
            named=colours.CONTROLS,
        ),
        plot(
            "Throttled by the CPU limit",
            "Share of the periods in which the container used up its CPU limit. Latencies then jump by up to a period "
            "of 100 ms.",
            "Above a few percent: raise the limit, or use fewer threads.",
            "percentunit",
            (
                f"({throttled}) / (rate(infercanary_cgroup_cpu_periods_total{{CONTAINERS}}[$__rate_interval]) > 0)",
                _REPLICA,
            ),
            minimum=0,
        ),
        plot(
            "CPU used of the limit",
            "CPU time of the probe's process and of the container's other processes, divided by the granted CPUs.",
            "Near 100 %, the container needs more CPU: raise the limit, or reduce the load.",
            "percentunit",
            (f"{used} / on (CONTAINER) infercanary_process_granted_cpus{{CONTAINERS}}", _REPLICA),
            minimum=0,
        ),
    ]


def _cpu_and_memory() -> list[Panel]:
    waiting = worst_gauges("infercanary_canary_waiting_ratio", CONTAINERS)
    used = worst_gauges("infercanary_cgroup_memory_working_set_bytes", CONTAINERS)
    pressure = "max by (resource) (rate(infercanary_cgroup_pressure_{}{{CONTAINERS}}[$__rate_interval]))"
    events = "60 * sum(rate(infercanary_cgroup_{}_total{{CONTAINERS}}[$__rate_interval]))"
    return [
        plot(
            "Waiting for a CPU",
            "Share of the canary's latency that is CPU wait caused by other processes on the host, over ten minutes. "
            "With several canaries, the highest share counts.",
            "Above 20 %: give the container its own cpuset, or move a neighbour, which may have no probe.",
            "percentunit",
            (f"max by (CONTAINER) ({waiting})", _REPLICA),
            minimum=0,
            maximum=1,
        ),
        plot(
            "Pressure",
            "Share of the time in which some tasks of a container waited for the resource (dashed: all of its tasks), "
            "for the worst container.",
            "cpu: too few CPUs. memory: near the limit. io: the disk. Give the container more, or move a neighbour.",
            "percentunit",
            (pressure.format("waiting_seconds_total"), "{{resource}} some"),
            (pressure.format("stalled_seconds_total"), "{{resource}} all"),
            minimum=0,
            named=colours.RESOURCES,
        ),
        plot(
            "Memory used of the limit",
            "Memory that is hard to reclaim, divided by the container's limit.",
            "From 90 % on, allocations wait; near 100 %, the kernel kills processes: raise the limit, or look for a "
            "leak.",
            "percentunit",
            (f"({used}) / infercanary_cgroup_memory_limit_bytes{{CONTAINERS}}", _REPLICA),
            minimum=0,
            maximum=1,
        ),
        plot(
            "Major faults, limit hits, OOM kills",
            "Page faults that waited for a disk, hits of the memory limit, and processes that the kernel killed, in "
            "all containers. There should be none while the server answers requests.",
            "Raise the limit, or look for a leak. Only faults: the model's files are read from disk "
            "again, so lock them in memory.",
            "/min",
            (events.format("major_page_faults"), "major faults", colours.BLUE),
            (events.format("memory_limit_hits"), "limit hits", colours.ORANGE),
            (events.format("oom_kills"), "OOM kills", colours.VERMILLION),
            minimum=0,
        ),
    ]


def _threads() -> list[Panel]:
    share = "max(rate(infercanary_{}_seconds_total{{CONTAINERS}}[$__rate_interval]))"
    return [
        plot(
            "Threads per CPU",
            "The engine's computing threads divided by the CPUs granted.",
            "Above 100 %, threads wait for each other: set OMP_NUM_THREADS to the number of CPUs, or raise the limit.",
            "percentunit",
            (worst_gauges("infercanary_thread_oversubscription_ratio", CONTAINERS), _REPLICA),
            minimum=0,
        ),
        plot(
            "Stalls and garbage collection",
            "Share of the time in which the process did not run (paused, frozen, or one thread held the interpreter), "
            "and in which Python collected garbage, for the worst container.",
            "Stalled: a debugger, a frozen cgroup, or C code that keeps the interpreter's lock. Garbage: gc.freeze() "
            "after loading.",
            "percentunit",
            (share.format("stalled"), "stalled", colours.VERMILLION),
            (share.format("gc_pause"), "garbage collection", colours.BLUE),
            minimum=0,
        ),
        _affinity(),
    ]


def _affinity() -> Panel:
    columns = {
        "Allowed CPUs": 'allowed_cpus{CONTAINERS, scope="process"}',
        "Shared with others": "container_shared_cpus{CONTAINERS}",
        "Pinned threads": "process_pinned_threads{CONTAINERS}",
        "GPU's NUMA node": "gpu_numa_node{CONTAINERS}",
        "Threads off this node": 'off_node_threads{CONTAINERS, scope="process"}',
        "Migrations": 'migrations_total{CONTAINERS, scope="process"}[5m]',
        "Preemptions": 'context_switches_total{CONTAINERS, scope="process", kind="involuntary"}[5m]',
        "CPU wait": 'run_queue_seconds_total{CONTAINERS, scope="process"}[5m]',
    }
    units = {"Migrations": "/s", "Preemptions": "/s", "CPU wait": "threads"}
    first, *others = (
        f"max by (CONTAINER) ({'rate' if '[' in text else ''}(infercanary_{text}))"
        for text in columns.values()
    )
    return rows(
        About(
            "Thread affinity",
            "CPUs on which the process may run, and how many of them another container may also use; threads that "
            "are pinned "
            "to some of them; threads that last ran off the GPU's NUMA node. Over five minutes: moves to another CPU, "
            "preemptions by other threads, and the mean number of threads that wait for a CPU.",
            "Fewer CPUs than granted, or pinned threads: the image sets an affinity. Threads off the node: give the "
            "container the GPU's CPUs by --cpuset-cpus. Preemptions: too many threads, or neighbours.",
            "none",
            width=24,
            height=14,
        ),
        [
            Column("replica", "Replica", least=190),
            *(
                Column(
                    f"Value #{letter}",
                    heading,
                    units.get(heading, "none"),
                    width=120,
                    decimals=int(heading in units),
                )
                for letter, heading in zip("ABCDEFGH", columns, strict=True)
            ),
        ],
        Query(replicas(first)),
        # The rate of a removed container lasts for some more minutes.
        *(Query(f"{query} and on (CONTAINER) {first}") for query in others),
        sort=("Replica",),
    )
