"""Panels of *GPU and host* about the GPU, in rows that are folded, for most hosts have none."""

from __future__ import annotations

from grafana.dashboards import colours
from grafana.dashboards.charts import lines, timeline
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    ever,
    increase,
    numbered,
    rate,
    replicas,
    series,
    states,
    worst_gauges,
    worst_rates,
)
from grafana.dashboards.tables import tiles
from grafana.dashboards.variables import CONTAINERS

GPUS = f'{CONTAINERS}, gpu=~"$gpu"'

NO_GPU = "No GPU in these containers"
ONE = "{{replica}} GPU {{gpu}}"


def clocks() -> list[Panel]:
    """Whether the driver answers, and clocks, power and heat.

    Returns:
        New panels, in their order.
    """
    return [_state(), _errors(), _clock(), _throttled(), _power(), _temperature()]


def use() -> list[Panel]:
    """Who uses it, memory, the bus, and threads that are far from it.

    Returns:
        New panels, in their order.
    """
    return [_use(), _memory(), _bus(), _link(), _neighbours(), _placement()]


def _state() -> Panel:
    about = About(
        "NVML",
        "Whether the driver answers, for each container. On a host without GPUs, it is normal that there is no "
        "driver.",
        "no permission: recreate the container. version mismatch: restart it after the driver's upgrade. lost: the "
        "GPU needs a reset. hanging: see the kernel's log.",
        "none",
        height=7,
        empty="No container reported in this time range",
    )
    name = "infercanary_nvml_state"
    now = replicas(numbered(name, "state", colours.NVML_STATES, "instance, pod, container", CONTAINERS))
    return timeline(
        about,
        Query(states(now, ever(series(name, CONTAINERS)), "replica"), "{{replica}}"),
        colours.NVML_STATES,
    )


def _errors() -> Panel:
    about = About(
        "Errors of the GPU in this time range",
        "XIDs, ECC errors that lost work and ECC errors that did not, rows that wait for a reset or could not be "
        "replaced, PCIe packets that were sent again, and GPUs that do not answer. Healthy is 0, except for a rare "
        "replay.",
        "Rows to be replaced: reset the GPU when it is idle. Rows not replaced, or uncorrected ECC errors: exchange "
        "the GPU. XIDs: NVIDIA's list says what caused them.",
        "short",
        height=7,
    )
    window = "$__range"
    xids = increase("infercanary_gpu_xid_events_total", GPUS, window=window)
    lost = increase("infercanary_gpu_ecc_errors_total", GPUS, 'severity="uncorrected"', window=window)
    corrected = increase("infercanary_gpu_ecc_errors_total", GPUS, 'severity="corrected"', window=window)
    replays = increase("infercanary_gpu_pcie_replays_total", GPUS, window=window)
    up = series("infercanary_gpu_up", GPUS)
    return tiles(
        about,
        Query(f"count({up} == 0) or sum({up}) * 0", "GPUs lost"),
        Query(f"sum({xids})", "XIDs"),
        Query(f"sum({lost})", "ECC, uncorrected"),
        Query(f"sum({series('infercanary_gpu_row_remap_failed', GPUS)})", "rows not replaced"),
        Query(f"sum({series('infercanary_gpu_row_remap_pending', GPUS)})", "rows to be replaced"),
        Query(f"sum({corrected})", "ECC, corrected"),
        Query(f"sum({replays})", "PCIe replays"),
        named={"ECC, corrected": colours.NEUTRAL, "PCIe replays": colours.NEUTRAL},
        bad_from=1,
        decimals=0,
    )


def _clock() -> Panel:
    about = About(
        "SM clock",
        "The clock of the kernels. The line with short dashes is the highest clock that is possible, and the dotted "
        "line is the memory clock. An idle GPU lowers its clock.",
        "If it is low under load, the panel for the time held back shows the reason.",
        "hertz",
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(worst_gauges("infercanary_gpu_sm_clock_hertz", GPUS), ONE),
        Query(f"max by (gpu) ({series('infercanary_gpu_sm_clock_max_hertz', GPUS)})", "GPU {{gpu}} highest"),
        Query(f"max by (gpu) ({series('infercanary_gpu_memory_clock_hertz', GPUS)})", "GPU {{gpu}} memory"),
        minimum=0,
    )


def _throttled() -> Panel:
    about = About(
        "Clocks held back, by reason",
        "Share of the time in which the driver held the clocks back, the mean of these GPUs. The driver counts all "
        "the time, also between samples. The power cap is common under full load.",
        "Heat or the power brake: check the cooling or the power supply. The power cap: raise it, or accept this "
        "clock.",
        "percentunit",
        empty=NO_GPU,
    )
    query = f"avg by (reason) ({rate('infercanary_gpu_clock_event_seconds_total', GPUS)})"
    return lines(about, Query(query, "{{reason}}"), stacked=True, minimum=0, named=colours.CLOCK_EVENTS)


def _power() -> Panel:
    about = About(
        "Power",
        "Mean power, calculated from the energy used. The dashed line is the driver's limit for the GPU.",
        "Near the limit, the driver holds the clocks back: raise the limit if the cooling allows it.",
        "watt",
        empty=NO_GPU,
    )
    return lines(
        about,
        Query(worst_rates("infercanary_gpu_energy_joules_total", GPUS), ONE),
        Query(f"max by (gpu) ({series('infercanary_gpu_power_limit_watts', GPUS)})", "GPU {{gpu}} limit"),
        minimum=0,
    )


def _temperature() -> Panel:
    about = About(
        "Temperature",
        "Temperature of the die. The dashed line is the memory, if it has a sensor.",
        "A steady rise over weeks at the same load means dust, a bad fan, or a warm room. Above 85 °C expect "
        "throttling.",
        "celsius",
        empty=NO_GPU,
    )
    memory = series("infercanary_gpu_memory_temperature_celsius", GPUS)
    return lines(
        about,
        Query(worst_gauges("infercanary_gpu_temperature_celsius", GPUS), ONE),
        Query(f"max by (gpu) ({memory})", "GPU {{gpu}} memory"),
    )


def _use() -> Panel:
    about = About(
        "GPU in use",
        "Share of the driver's last window in which a kernel ran, right before and after a run. It is the time with "
        "a kernel. It does not show how full the GPU was.",
        "If it is high while the canary is slow, somebody else computes there: see who else is on the GPU.",
        "percentunit",
        empty=NO_GPU,
    )
    query = worst_gauges("infercanary_gpu_utilization_ratio", GPUS)
    return lines(about, Query(query, ONE), minimum=0, maximum=1)


def _neighbours() -> Panel:
    about = About(
        "Others on the GPU",
        "Other monitored containers on the same GPU or MIG instance. The dashed line is processes there that are in "
        "no monitored container.",
        "The canary waits while they compute: move one of them, or give each a MIG instance.",
        "none",
        empty=NO_GPU,
    )
    shared, unknown = (series(f"infercanary_gpu_{name}", GPUS) for name in ("shared", "unknown_processes"))
    return lines(
        about,
        Query(f"max by (gpu) ({shared})", "GPU {{gpu}} containers"),
        Query(f"max by (gpu) ({unknown})", "GPU {{gpu}} processes"),
        minimum=0,
        steps=True,
    )


def _memory() -> Panel:
    about = About(
        "Device memory in use",
        "Share of the device's memory that all processes together use.",
        "Near 1, the next allocation fails, or an engine frees its cache and becomes slow: use a smaller batch or "
        "cache. Growth at constant load is a leak.",
        "percentunit",
        empty=NO_GPU,
    )
    used, size = (series(f"infercanary_gpu_memory_{what}_bytes", GPUS) for what in ("used", "size"))
    most = worst_gauges("infercanary_gpu_memory_used_bytes", GPUS)
    return lines(about, Query(f"{used} / {size} and {most}", ONE), minimum=0, maximum=1)


def _bus() -> Panel:
    about = About(
        "PCIe",
        "Bytes a second over the link, from the GPU (tx) and to the GPU (rx, the dashed line), from all senders. A "
        "lane of generation 4 carries about 2 GB/s.",
        "Near the capacity of the link, the canary's copies wait for the copies of others: move a neighbour.",
        "Bps",
        empty=NO_GPU,
    )
    moved = "infercanary_gpu_pcie_bytes_total"
    directions = {name: rate(moved, GPUS, f'direction="{name}"') for name in ("tx", "rx")}
    return lines(
        about,
        *(Query(f"max by (gpu) ({each})", f"GPU {{{{gpu}}}} {name}") for name, each in directions.items()),
        minimum=0,
    )


def _link() -> Panel:
    about = About(
        "PCIe link, share of its maximum",
        "Lanes of the link divided by the most lanes that the GPU and the slot support. The dashed line is its "
        "generation, in the same way. An idle GPU lowers the generation: look at it under load.",
        "If there are fewer lanes, check the seat, the riser and the slot.",
        "percentunit",
        empty=NO_GPU,
    )
    shares = [
        Query(
            f"min by (gpu) ({series(name, GPUS)} / {series(f'{name}_max', GPUS)})",
            f"GPU {{{{gpu}}}} {name.rpartition('_')[2]}",
        )
        for name in ("infercanary_gpu_pcie_link_lanes", "infercanary_gpu_pcie_link_generation")
    ]
    return lines(about, *shares, minimum=0, maximum=1, steps=True)


def _placement() -> Panel:
    about = About(
        "Threads far from the GPU",
        "Threads that last ran outside the NUMA nodes of the container's GPUs.",
        "If it changes together with launch, h2d or d2h, the place of the threads is the reason: pin with "
        "--cpuset-cpus.",
        "none",
        empty="No GPU, or its NUMA node is not known",
    )
    query = worst_gauges("infercanary_process_off_node_threads", CONTAINERS)
    return lines(about, Query(query, "{{replica}}"), minimum=0)
