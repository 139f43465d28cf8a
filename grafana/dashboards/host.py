"""*GPU and host*: what the canary ran on. Canary and controls on one time axis, then clocks, heat and power, then the
container's CPUs, memory and threads."""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables
from grafana.dashboards.board import Board, Row
from grafana.dashboards.panels import About, Panel, Query, lines, tiles, timeline
from grafana.dashboards.promql import increase, of_range, rate, series, states, steady_of_range
from grafana.dashboards.variables import INSTANCE

CONTAINERS = f"{INSTANCE}, {variables.CONTAINERS}"
CANARIES = f"{INSTANCE}, {variables.CANARIES}"
GPUS = f'{CONTAINERS}, gpu=~"$gpu"'

NO_GPU = "No GPU in these containers"
NO_CGROUP = "The kernel does not report it, or no container reports"
ONE = "{{container}} GPU {{gpu}}"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "gpu-host",
        "GPU and host",
        "What the canary ran on: clock, heat, power, neighbours, quota, and where threads ran.",
        [
            variables.datasource(),
            variables.instance(),
            variables.service(INSTANCE),
            variables.container(INSTANCE),
            variables.canary(INSTANCE),
            variables.gpu(),
        ],
        [marks.upgrades(CANARIES), marks.images(CONTAINERS)],
        [
            Row("Canary and controls on one time axis", [_canaries(), _controls(), _work(), _bandwidth()]),
            Row("GPU: clocks, power, heat", [_state(), _clock(), _throttled(), _power(), _temperature()]),
            Row(
                "GPU: use, bus, errors",
                [_use(), _memory(), _bus(), _link(), _replays(), _errors(), _neighbours()],
            ),
            Row("CPU quota and pressure", [_quota(), _cores(), _pressure(), _memory_limit()]),
            Row("Threads", [_run_queue(), _migrations(), _switches(), _threads(), _placement(), _shared()]),
            Row("The process", [_stalled(), _faults()]),
        ],
    )


def _canaries() -> Panel:
    about = About(
        "Canaries",
        "Each canary's latency over its own mean of the time range: 1 is as usual. Compare its moves with those of "
        "the controls below, clocks, and throttling.",
        "percentunit",
        width=24,
        height=7,
        empty="No canary has run in this time range",
    )
    query = of_range("infercanary_run_median_seconds", CANARIES)
    return lines(about, Query(query, "{{container}} {{canary}}"))


def _controls() -> Panel:
    about = About(
        "Controls",
        "Each control's time over its usual one (medians: of a step, and of the time range): work that is the same in "
        "every image, after each run. Canary and controls slower together is the host; the canary alone is what is in "
        "the image. Those in Python's own time are left out.",
        "percentunit",
        width=24,
        height=7,
        empty="No control has run in this time range",
    )
    query = steady_of_range("infercanary_control_seconds", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), endings=colours.CONTROLS, doubling=True)


def _by_control(query: str) -> Query:
    return Query(f"avg by (container, control) ({query})", "{{container}} {{control}}")


def _work() -> Panel:
    about = About(
        "Computing, by the controls",
        "Operations a second. gpu_fma falls in step with the SM clock, cpu_spin with the clock of its core. If the "
        "clock stands and it falls, something else computes there.",
        "flops",
        empty="No such control has run",
    )
    query = series("infercanary_control_flops_per_second", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), endings=colours.CONTROLS, minimum=0)


def _bandwidth() -> Panel:
    about = About(
        "Memory and bus, by the controls",
        "Bytes a second. memory_copy is the CPU's cache and memory, gpu_copy the GPU's, gpu_transfer the PCIe link, "
        "page_io the kernel. A fall is a neighbour on the same memory or bus.",
        "Bps",
        empty="No such control has run",
    )
    query = series("infercanary_control_bytes_per_second", CONTAINERS, 'control!~".*_python"')
    return lines(about, _by_control(query), endings=colours.CONTROLS, minimum=0)


def _state() -> Panel:
    about = About(
        "NVML",
        "Whether the driver answers, by container. No driver is well on a host without GPUs; no permission: recreate "
        "the container; version mismatch: restart it after the driver's upgrade; lost: the GPU needs a reset.",
        "none",
        width=24,
        height=5,
        empty="No container reports",
    )
    query = states("infercanary_nvml_state", "state", colours.NVML_STATES, "container", CONTAINERS)
    return timeline(about, Query(query, "{{container}}"), colours.NVML_STATES)


def _clock() -> Panel:
    about = About(
        "SM clock",
        "The clock that kernels run at, and the highest there is. An idle GPU lowers it; why it is low under load is "
        "in the time held back.",
        "hertz",
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(series("infercanary_gpu_sm_clock_hertz", GPUS), ONE),
        Query(series("infercanary_gpu_sm_clock_max_hertz", GPUS), f"{ONE} highest"),
        Query(series("infercanary_gpu_memory_clock_hertz", GPUS), f"{ONE} memory"),
        minimum=0,
    )


def _throttled() -> Panel:
    about = About(
        "Time held back, by reason",
        "Share of the time in which the driver held the clocks back, summed over these GPUs; nothing is lost between "
        "samples. The power cap is common under full load; heat and the power brake are cooling or supply.",
        "percentunit",
        empty=NO_GPU,
    )
    query = f"sum by (reason) ({rate('infercanary_gpu_clock_event_seconds_total', GPUS)})"
    return lines(about, Query(query, "{{reason}}"), stacked=True, minimum=0, named=colours.CLOCK_EVENTS)


def _power() -> Panel:
    about = About(
        "Power",
        "Mean power, by the energy used, and the driver's limit for the GPU. Near it clocks are held back.",
        "watt",
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(rate("infercanary_gpu_energy_joules_total", GPUS), ONE),
        Query(series("infercanary_gpu_power_limit_watts", GPUS), f"{ONE} limit"),
        minimum=0,
    )


def _temperature() -> Panel:
    about = About(
        "Temperature",
        "Of the die, and of the memory where it has a sensor. A steady rise over weeks at the same load is dust, a "
        "fan, or the room.",
        "celsius",
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(series("infercanary_gpu_temperature_celsius", GPUS), ONE),
        Query(series("infercanary_gpu_memory_temperature_celsius", GPUS), f"{ONE} memory"),
    )


def _use() -> Panel:
    about = About(
        "GPU in use",
        "Share of the driver's last window with a kernel running, right around a run. Time with a kernel, not how "
        "full the GPU was.",
        "percentunit",
        empty=NO_GPU,
    )
    return lines(about, Query(series("infercanary_gpu_utilization_ratio", GPUS), ONE), minimum=0, maximum=1)


def _neighbours() -> Panel:
    about = About(
        "Who else is on the GPU",
        "Other monitored containers on the same GPU or MIG instance, and processes there that are in none. What they "
        "compute, the canary waits for.",
        "none",
        width=24,
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(series("infercanary_gpu_shared", GPUS), f"{ONE} containers"),
        Query(series("infercanary_gpu_unknown_processes", GPUS), f"{ONE} unknown processes"),
        minimum=0,
        steps=True,
    )


def _memory() -> Panel:
    about = About(
        "Device memory in use",
        "Share of the device's memory, by anyone. Near 1 the next allocation fails, or an engine frees its cache and "
        "becomes slow. Growth at constant load is a leak.",
        "percentunit",
        empty=NO_GPU,
    )
    used, size = (series(f"infercanary_gpu_memory_{what}_bytes", GPUS) for what in ("used", "size"))
    return lines(about, Query(f"{used} / {size}", ONE), minimum=0, maximum=1)


def _bus() -> Panel:
    about = About(
        "PCIe",
        "Bytes a second over the link, from the GPU (tx) and to it (rx), whoever sends them. Near what the link can "
        "carry (a lane of generation 4 about 2 GB/s) the canary's copies wait for others'.",
        "Bps",
        empty=NO_GPU,
    )
    query = rate("infercanary_gpu_pcie_bytes_total", GPUS)
    return lines(about, Query(query, f"{ONE} {{{{direction}}}}"), minimum=0)


def _link() -> Panel:
    about = About(
        "PCIe link, of what it could be",
        "Lanes and generation of the link over the most that GPU and slot can do. An idle GPU lowers the generation: "
        "judge it under load. Fewer lanes: seat, riser, slot.",
        "percentunit",
        empty=NO_GPU,
    )
    shares = [
        Query(
            f"{series(name, GPUS)} / {series(f'{name}_max', GPUS)}",
            f"{ONE} {name.rpartition('_')[2]}",
        )
        for name in ("infercanary_gpu_pcie_link_lanes", "infercanary_gpu_pcie_link_generation")
    ]
    return lines(about, *shares, minimum=0, maximum=1, steps=True)


def _replays() -> Panel:
    about = About(
        "PCIe replays",
        "Packets that had to be sent again. One now and then is noise; a steady rate is a bad signal.",
        "short",
        empty=NO_GPU,
    )
    return lines(about, Query(increase("infercanary_gpu_pcie_replays_total", GPUS), ONE), minimum=0)


def _errors() -> Panel:
    about = About(
        "Errors of the GPU in this time range",
        "XIDs, ECC errors that lost work, rows that wait for a reset or could not be replaced, and GPUs that do not "
        "answer. Healthy is 0 everywhere.",
        "short",
        empty=NO_GPU,
    )
    window = "$__range"
    xids = increase("infercanary_gpu_xid_events_total", GPUS, window=window)
    lost = increase("infercanary_gpu_ecc_errors_total", GPUS, 'severity="uncorrected"', window=window)
    corrected = increase("infercanary_gpu_ecc_errors_total", GPUS, 'severity="corrected"', window=window)
    return tiles(
        about,
        Query(f"sum({xids})", "XIDs"),
        Query(f"sum({lost})", "ECC, uncorrected"),
        Query(f"sum({corrected})", "ECC, corrected"),
        Query(f"sum({series('infercanary_gpu_row_remap_pending', GPUS)})", "rows to be replaced"),
        Query(f"sum({series('infercanary_gpu_row_remap_failed', GPUS)})", "rows not replaced"),
        Query(
            f"count({series('infercanary_gpu_up', GPUS)} == 0) or sum({series('infercanary_gpu_up', GPUS)}) * 0",
            "GPUs lost",
        ),
        bad_from=1,
        decimals=0,
    )


def _quota() -> Panel:
    about = About(
        "Throttled by the CPU quota",
        "Share of the periods that ran out of quota, and seconds in which threads were held back, for each second "
        "(summed over CPUs). Above a few percent latencies jump by up to a period, 100 ms.",
        "percentunit",
        empty="No CPU quota, or no container reports",
    )
    periods = rate("infercanary_cgroup_cpu_throttled_periods_total", CONTAINERS)
    of = rate("infercanary_cgroup_cpu_periods_total", CONTAINERS)
    held = rate("infercanary_cgroup_cpu_throttled_seconds_total", CONTAINERS)
    return lines(
        about,
        Query(f"{periods} / ({of} > 0)", "{{container}} periods"),
        Query(held, "{{container}} time"),
        minimum=0,
    )


def _cores() -> Panel:
    about = About(
        "Cores used and granted",
        "CPU time of the process that the probe runs in, for each second, the cores that quota, cpuset and affinity "
        "leave it, and the CPUs that the canary's own thread may use: fewer where it is pinned.",
        "none",
        empty=NO_CGROUP,
    )
    return lines(
        about,
        Query(rate("infercanary_process_cpu_seconds_total", CONTAINERS), "{{container}} used"),
        Query(series("infercanary_process_granted_cpus", CONTAINERS), "{{container}} granted"),
        Query(series("infercanary_canary_allowed_cpus", CANARIES), "{{container}} {{canary}} may use"),
        minimum=0,
    )


def _pressure() -> Panel:
    about = About(
        "Pressure",
        "Share of the time in which some task of the container waited for the resource (PSI some), the worst "
        "container: cpu is too few CPUs, memory near its limit, io the disk. Stalled: nothing went on at all.",
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
        named={
            **colours.RESOURCES,
            "memory stalled": colours.YELLOW,
            "io stalled": colours.GREY,
            "cpu stalled": colours.SKY,
        },
    )


def _memory_limit() -> Panel:
    about = About(
        "Memory, of the limit",
        "Memory that is hard to reclaim over the container's limit. From about 0.9 on allocations wait; near 1 the "
        "kernel kills.",
        "percentunit",
        empty="No memory limit, or no container reports",
    )
    used = series("infercanary_cgroup_memory_working_set_bytes", CONTAINERS)
    limit = series("infercanary_cgroup_memory_limit_bytes", CONTAINERS)
    return lines(about, Query(f"{used} / {limit}", "{{container}}"), minimum=0, maximum=1)


def _of_repeats(name: str) -> str:
    """A counter of the canary's thread for each second that its repeats took: by the clock they are rare."""
    by = "instance, service, container, canary"
    seconds = f"sum by ({by}) ({rate('infercanary_latency_seconds_sum', CANARIES)})"
    return f"sum by ({by}) ({rate(name, CANARIES)}) / ({seconds} > 0)"


def _run_queue() -> Panel:
    about = About(
        "Waiting for a CPU",
        "How many of the process's threads wait for a CPU on average, and for how much of its repeats the canary's own "
        "thread waits. Near 0 is healthy; time under a quota's throttling is in it.",
        "none",
        empty="The kernel does not report it",
    )
    return lines(
        about,
        Query(rate("infercanary_process_run_queue_seconds_total", CONTAINERS), "{{container}} process"),
        Query(_of_repeats("infercanary_canary_run_queue_seconds_total"), "{{container}} {{canary}}"),
        minimum=0,
    )


def _migrations() -> Panel:
    about = About(
        "Moves between CPUs",
        "Threads that were moved to another CPU, for each second (the canary's own: of its repeats): cold caches after "
        "each. A rise with an image is another number of threads; without one, other neighbours.",
        "ops",
        empty="The kernel does not report it",
    )
    return lines(
        about,
        Query(rate("infercanary_process_migrations_total", CONTAINERS), "{{container}} process"),
        Query(_of_repeats("infercanary_canary_migrations_total"), "{{container}} {{canary}}"),
        minimum=0,
    )


def _switches() -> Panel:
    about = About(
        "Pushed off the CPU",
        "Involuntary context switches for each second of CPU time: competition for CPUs, inside the process or "
        "outside.",
        "ops",
        empty=NO_CGROUP,
    )
    switches = rate("infercanary_process_context_switches_total", CONTAINERS, 'kind="involuntary"')
    cpu = rate("infercanary_process_cpu_seconds_total", CONTAINERS)
    query = f"{switches} / on (instance, service, container) group_left () ({cpu} > 0)"
    return lines(about, Query(query, "{{container}}"), minimum=0)


def _threads() -> Panel:
    about = About(
        "Threads, and computing threads for each CPU",
        "Threads of the process, of the engine's pools, and the engine's computing threads over the granted CPUs: "
        "above 1 they wait for one another. Set OMP_NUM_THREADS, or raise the quota.",
        "none",
        empty=NO_CGROUP,
    )
    return lines(
        about,
        Query(series("infercanary_process_threads", CONTAINERS), "{{container}} threads"),
        Query(series("infercanary_thread_pool_size", CANARIES), "{{container}} {{canary}} {{pool}} pool"),
        Query(series("infercanary_thread_oversubscription_ratio", CONTAINERS), "{{container}} for each CPU"),
        minimum=0,
    )


def _placement() -> Panel:
    about = About(
        "Threads away from the GPU",
        "Threads that last ran outside the NUMA nodes of the container's GPUs, those that may, and whether the "
        "canary's own did (1). Where it moves together with launch, h2d or d2h, their place is the reason.",
        "none",
        empty="No GPU, or its NUMA node is not known",
    )
    return lines(
        about,
        Query(series("infercanary_process_off_node_threads", CONTAINERS), "{{container}} ran there"),
        Query(
            series("infercanary_process_off_node_allowed_threads", CONTAINERS), "{{container}} may run there"
        ),
        Query(series("infercanary_canary_off_node", CANARIES), "{{container}} {{canary}} ran there"),
        minimum=0,
    )


def _shared() -> Panel:
    about = About(
        "CPUs that a neighbour may use too",
        "CPUs of the container's cpuset that another monitored container of the host may use. 0 has its own; "
        "otherwise a neighbour's load may be felt: pin with --cpuset-cpus.",
        "none",
        empty="No container reports its cpuset",
    )
    query = series("infercanary_container_shared_cpus", CONTAINERS)
    return lines(about, Query(query, "{{container}}"), minimum=0, steps=True)


def _stalled() -> Panel:
    about = About(
        "Standing still",
        "Share of the time in which the process stood still in gaps of three quarters of a second or more (stopped, "
        "frozen, or one thread held the interpreter), and in which Python collected garbage.",
        "percentunit",
        empty="No container reports",
    )
    return lines(
        about,
        Query(rate("infercanary_stalled_seconds_total", CONTAINERS), "{{container}} stalled"),
        Query(rate("infercanary_gc_pause_seconds_total", CONTAINERS), "{{container}} garbage"),
        minimum=0,
    )


def _faults() -> Panel:
    about = About(
        "Memory that ran short",
        "Page faults that waited for a disk, moments at the memory limit, and processes that the kernel killed, in "
        "each step. While serving, healthy is none.",
        "short",
        empty=NO_CGROUP,
    )
    return lines(
        about,
        Query(
            increase("infercanary_cgroup_major_page_faults_total", CONTAINERS), "{{container}} page faults"
        ),
        Query(
            increase("infercanary_cgroup_memory_limit_hits_total", CONTAINERS), "{{container}} at the limit"
        ),
        Query(increase("infercanary_cgroup_oom_kills_total", CONTAINERS), "{{container}} killed"),
        minimum=0,
    )
