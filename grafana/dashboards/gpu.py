"""Panels of *Host* about GPUs, in a row that is folded: most hosts have none. Containers on one GPU are one line."""

from __future__ import annotations

from grafana.dashboards import colours
from grafana.dashboards.charts import lines, on_right
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import CONTAINER, newest, rate, series
from grafana.dashboards.tables import YES_OR_NO, Column, rows
from grafana.dashboards.variables import CONTAINERS

_INFO = newest("infercanary_gpu_info", CONTAINERS, by=f"{CONTAINER}, gpu")
_NAMED = f'label_replace({_INFO}, "id", "$1", "uuid", "([^-]*-[^-]*).*")'
_RECOVERY = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain peer-to-peer",
    "drain and reset",
    "recover IMEX",
    "reset the bus",
    "reboot the system",
)
"""By the number that the driver gives."""


def panels() -> list[Panel]:
    """Driver, errors, clocks, power, use, bus, and neighbours."""
    return [
        _driver(),
        _errors(),
        _clock(),
        _throttling(),
        _power(),
        _use(),
        _bus(),
        _neighbours(),
    ]


def _of_gpu(expression: str, by: str = "id", function: str = "max") -> str:
    joined = f"({expression}) * on ({CONTAINER}, gpu) group_left (id) {_NAMED}"
    return f"{function} by ({by}) ({joined})"


def _gauge(name: str, *matchers: str, by: str = "id") -> str:
    return _of_gpu(series(f"infercanary_gpu_{name}", CONTAINERS, *matchers), by)


def _driver() -> Panel:
    state = f"{series('infercanary_nvml_state', CONTAINERS)} == 1"
    gpus = f"({state}) * on ({CONTAINER}) group_right (state) {_NAMED}"
    none = f"{state} unless on ({CONTAINER}) {series('infercanary_gpu_info', CONTAINERS)}"
    return rows(
        About(
            "Driver state",
            "Each GPU with its driver, the state of NVML in the replicas that see it, and whether the GPU answers. A "
            "replica without a GPU has no driver.",
            "no permission: recreate the container. version mismatch: restart it after the driver's upgrade. lost: "
            "reset the GPU. hanging: see the kernel's log.",
            "none",
        ),
        [
            Column("id", "GPU", width=130),
            Column("state", "NVML", named=colours.NVML_STATES, width=130),
            Column("Value #B", "Answers", words=YES_OR_NO, width=80),
            Column("Value #A", "Replicas", "none", width=90),
            Column("name", "Model"),
            Column("driver_version", "Driver", width=120),
        ],
        Query(f"count by (id, name, driver_version, state) ({gpus}) or count by (state) ({none})"),
        Query(_of_gpu(series("infercanary_gpu_up", CONTAINERS), function="min")),
        sort=("GPU",),
    )


def _errors() -> Panel:
    # Totals: a window of them would change with the time range.
    totals = {
        "XIDs": _gauge("xid_events_total"),
        "ECC uncorrected": _gauge("ecc_errors_total", 'severity="uncorrected"'),
        "ECC corrected": _gauge("ecc_errors_total", 'severity="corrected"'),
        "Rows remapped": f"sum by (id) ({_gauge('remapped_rows_total', by='id, severity')})",
        "Remap pending": _gauge("row_remap", 'state="pending"'),
        "Remap failed": _gauge("row_remap", 'state="failed"'),
        "PCIe replays": _gauge("pcie_replays_total"),
    }
    return rows(
        About(
            "GPU errors",
            "Totals: XIDs since the probe started with the most frequent one, ECC errors and PCIe replays since the "
            "driver was loaded, remapped rows over the GPU's life; and the action that the driver asks for.",
            "Remap pending: reset the GPU when it is idle. Remap failed, or uncorrected ECC errors: replace the GPU. "
            "XIDs: NVIDIA's list has the cause.",
            "none",
        ),
        [
            Column("id", "GPU", width=130),
            *(
                Column(f"Value #{letter}", total, "none", width=90)
                for letter, total in zip("ABCDEFG", totals, strict=True)
            ),
            Column("xid", "Most frequent XID", width=90),
            Column(
                "Value #H",
                "Driver asks for",
                words={str(i): (word, colours.VERMILLION if i else "") for i, word in enumerate(_RECOVERY)},
            ),
        ],
        *map(Query, totals.values()),
        Query(_gauge("recovery_action")),
        Query(f"topk by (id) (1, {_gauge('xid_errors_total', by='id, xid')})"),
        sort=("GPU",),
    )


def _clock() -> Panel:
    clocks = {"SM": "sm_clock", "SM highest": "sm_clock_max", "memory": "memory_clock"}
    return lines(
        About(
            "Clock",
            "Clock of the kernels, its highest value, and the memory's clock. An idle GPU lowers its clock.",
            "If it is low under load, *Throttling by reason* has the reason.",
            "hertz",
        ),
        *(Query(_gauge(f"{name}_hertz"), f"{{{{id}}}} {word}") for word, name in clocks.items()),
        minimum=0,
    )


def _throttling() -> Panel:
    held = rate("infercanary_gpu_clock_event_seconds_total", CONTAINERS)
    return lines(
        About(
            "Throttling by reason",
            "Share of the time in which the driver held the clocks back; reasons without any time are left out. The "
            "power cap is common under full load.",
            "Heat or power brake: check cooling and power supply. Power cap: raise it, or accept this clock.",
            "percentunit",
            empty="None",
        ),
        Query(f"{_of_gpu(held, 'id, reason')} > 0", "{{id}} {{reason}}"),
        minimum=0,
    )


def _power() -> Panel:
    power = rate("infercanary_gpu_energy_joules_total", CONTAINERS)
    panel = lines(
        About(
            "Power and temperature",
            "Mean power and its limit; on the right axis the temperature of the die and of the memory.",
            "Near the limit the driver lowers the clocks: raise it if the cooling allows. Above 85 °C expect "
            "throttling: dust, a fan, or a warm room.",
            "watt",
        ),
        Query(_of_gpu(power), "{{id}} power"),
        Query(_gauge("power_limit_watts"), "{{id}} limit"),
        Query(_gauge("temperature_celsius", by="id, sensor"), "{{id}} {{sensor}} temperature"),
        minimum=0,
    )
    return on_right(panel, "C", "celsius")


def _use() -> Panel:
    used, size = (series(f"infercanary_gpu_memory_{what}_bytes", CONTAINERS) for what in ("used", "size"))
    return lines(
        About(
            "GPU use and memory",
            "Share of the driver's last window in which a kernel ran, around a run; and share of the memory that all "
            "processes together use.",
            "High use while the canary is slow: see *Neighbours on the GPU*. Memory near 100 %: use a smaller batch or "
            "cache; growth at constant load is a leak.",
            "percentunit",
        ),
        Query(_gauge("utilization_ratio"), "{{id}} use"),
        Query(_of_gpu(f"{used} / {size}"), "{{id}} memory"),
        minimum=0,
        maximum=1,
    )


def _bus() -> Panel:
    traffic = rate("infercanary_gpu_pcie_bytes_total", CONTAINERS)
    panel = lines(
        About(
            "PCIe",
            "Traffic from the GPU (tx) and to it (rx); on the right axis the link's bandwidth as a share of its "
            "greatest one. An idle GPU lowers it.",
            "Little bandwidth under load: check seat, riser and slot. Traffic near it: move a neighbour.",
            "Bps",
        ),
        Query(_of_gpu(traffic, "id, direction"), "{{id}} {{direction}}"),
        Query(_gauge("pcie_link_ratio"), "{{id}} link"),
        minimum=0,
    )
    return on_right(panel, "B", "percentunit")


def _neighbours() -> Panel:
    kinds = {"containers": "shared", "other processes": "unknown_processes"}
    return lines(
        About(
            "Neighbours on the GPU",
            "Other monitored containers on the same GPU or MIG instance, and processes there that are in no monitored "
            "container.",
            "The canary waits while they compute: move one of them, or give each a MIG instance.",
            "none",
        ),
        *(Query(_gauge(name), f"{{{{id}}}} {word}") for word, name in kinds.items()),
        minimum=0,
        steps=True,
    )
