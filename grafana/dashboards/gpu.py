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
        "Whether the driver answers, by container. No driver is well on a host without GPUs.",
        "no permission: recreate the container. version mismatch: restart it after the driver's upgrade. lost: the GPU "
        "needs a reset. hanging: the kernel's log.",
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
        "XIDs, ECC errors that lost work and those that did not, rows that wait for a reset or could not be replaced, "
        "PCIe packets that were sent again, and GPUs that do not answer. Healthy is 0, but for a replay now and then.",
        "Rows to be replaced: reset the GPU when it is idle. Rows not replaced, uncorrected ECC: have it exchanged. An "
        "XID: NVIDIA's list of them says whose fault it is.",
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
        "The clock that kernels run at, in short strokes the highest there is, and dotted the memory's. An idle GPU "
        "lowers it.",
        "Low under load: the time held back says by what.",
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
        "Time held back, by reason",
        "Share of the time in which the driver held the clocks back, the mean of these GPUs; nothing is lost between "
        "samples. The power cap is common under full load.",
        "Heat or the power brake: cooling or supply. The power cap: raise it, or expect this clock.",
        "percentunit",
        empty=NO_GPU,
    )
    query = f"avg by (reason) ({rate('infercanary_gpu_clock_event_seconds_total', GPUS)})"
    return lines(about, Query(query, "{{reason}}"), stacked=True, minimum=0, named=colours.CLOCK_EVENTS)


def _power() -> Panel:
    about = About(
        "Power",
        "Mean power, by the energy used, and in strokes the driver's limit for the GPU.",
        "Near the limit clocks are held back: raise it where cooling allows.",
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
        "Of the die, and in strokes of the memory where it has a sensor.",
        "A steady rise over weeks at the same load is dust, a fan, or the room. Above 85 °C expect throttling.",
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
        "Share of the driver's last window with a kernel running, right around a run. Time with a kernel, not how "
        "full the GPU was.",
        "High while the canary is slow: somebody else computes there, see who else is on the GPU.",
        "percentunit",
        empty=NO_GPU,
    )
    query = worst_gauges("infercanary_gpu_utilization_ratio", GPUS)
    return lines(about, Query(query, ONE), minimum=0, maximum=1)


def _neighbours() -> Panel:
    about = About(
        "Who else is on the GPU",
        "Other monitored containers on the same GPU or MIG instance, and in strokes processes there that are in none.",
        "What they compute, the canary waits for: move one of them, or give each a MIG instance.",
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
        "Share of the device's memory, by anyone.",
        "Near 1 the next allocation fails, or an engine frees its cache and becomes slow: a smaller batch or cache. "
        "Growth at constant load is a leak.",
        "percentunit",
        empty=NO_GPU,
    )
    used, size = (series(f"infercanary_gpu_memory_{what}_bytes", GPUS) for what in ("used", "size"))
    most = worst_gauges("infercanary_gpu_memory_used_bytes", GPUS)
    return lines(about, Query(f"{used} / {size} and {most}", ONE), minimum=0, maximum=1)


def _bus() -> Panel:
    about = About(
        "PCIe",
        "Bytes a second over the link, from the GPU (tx) and in strokes to it (rx), whoever sends them. A lane of "
        "generation 4 carries about 2 GB/s.",
        "Near what the link can carry, the canary's copies wait for others': move a neighbour.",
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
        "PCIe link, of what it could be",
        "Lanes of the link over the most that GPU and slot can do, and in strokes its generation. An idle GPU lowers "
        "the generation: judge it under load.",
        "Fewer lanes: seat, riser, slot.",
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
        "Threads away from the GPU",
        "Threads that last ran outside the NUMA nodes of the container's GPUs.",
        "Where it moves together with launch, h2d or d2h, their place is the reason: pin with --cpuset-cpus.",
        "none",
        empty="No GPU, or its NUMA node is not known",
    )
    query = worst_gauges("infercanary_process_off_node_threads", CONTAINERS)
    return lines(about, Query(query, "{{replica}}"), minimum=0)
