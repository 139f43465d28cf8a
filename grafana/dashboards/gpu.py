"""GPU panels of the dashboard *Host*, in a collapsed row because most hosts have no GPU.

All containers on one GPU are one line.
"""

from __future__ import annotations

from grafana.dashboards import colours
from grafana.dashboards.charts import on_right, plot
from grafana.dashboards.panels import NONE, About, Panel, Query
from grafana.dashboards.promql import CONTAINER, newest
from grafana.dashboards.tables import YES_OR_NO, Column, rows
from grafana.dashboards.variables import CONTAINERS

_INFO = newest("infercanary_gpu_info", CONTAINERS, by=f"{CONTAINER}, gpu")
_NAMED = f'label_replace({_INFO}, "id", "$1", "uuid", "(.{{1,12}}).*")'
"""Info metric of GPUs with the label `id`, the beginning of the uuid. A GPU's index can differ between containers."""
_ACTIONS = "none, reset the GPU, reboot the node, drain peer-to-peer, drain and reset, recover IMEX, reset bus, reboot"
"""Actions in the order of the driver's numbers."""


def _of_gpu(text: str, by: str = "id", function: str = "max") -> str:
    return f"{function} by ({by}) (({text}) * on (CONTAINER, gpu) group_left (id) {_NAMED})"


def panels() -> list[Panel]:
    """Return the panels on driver, errors, clocks, power, use, bus, and neighbours."""
    rate = "rate(infercanary_gpu_{}_total{{CONTAINERS}}[$__rate_interval])"
    traffic = 'rate(infercanary_gpu_pcie_bytes_total{{CONTAINERS, direction="{}"}}[$__rate_interval])'
    return [
        _driver(),
        _errors(),
        plot(
            "Clock",
            "SM clock, its maximum, and memory clock. An idle GPU lowers its clocks.",
            "If the SM clock is low under load, *Throttling by reason* has the reason.",
            "hertz",
            (_of_gpu("infercanary_gpu_sm_clock_hertz{CONTAINERS}"), "{{id}} SM"),
            (_of_gpu("infercanary_gpu_sm_clock_max_hertz{CONTAINERS}"), "{{id}} SM highest"),
            (_of_gpu("infercanary_gpu_memory_clock_hertz{CONTAINERS}"), "{{id}} memory"),
            minimum=0,
        ),
        plot(
            "Throttling by reason",
            "Share of the time in which the driver limited the clocks; reasons without any time are left out. The "
            "power cap is common under full load.",
            "Heat or power brake: check cooling and power supply. Power cap: raise the cap, or accept this clock.",
            "percentunit",
            (f"{_of_gpu(rate.format('clock_event_seconds'), 'id, reason')} > 0", "{{id}} {{reason}}"),
            empty=NONE,
            minimum=0,
        ),
        on_right(
            plot(
                "Power and temperature",
                "Mean power and its limit; on the right axis the temperature of the die and of the memory.",
                "Near the limit, the driver lowers the clocks: raise the limit if the cooling allows. Above 85 °C, "
                "expect throttling: check for dust, a broken fan, or a warm room.",
                "watt",
                (_of_gpu(rate.format("energy_joules")), "{{id}} power"),
                (_of_gpu("infercanary_gpu_power_limit_watts{CONTAINERS}"), "{{id}} limit"),
                (
                    _of_gpu("infercanary_gpu_temperature_celsius{CONTAINERS}", "id, sensor"),
                    "{{id}} {{sensor}} temperature",
                ),
                minimum=0,
            ),
            "C",
            "celsius",
        ),
        plot(
            "GPU use and memory",
            "Use: share of the driver's last window in which a kernel ran, read around a run. Memory: "
            "share of the GPU memory in use by all processes together.",
            "High use while the canary is slow: see *Neighbours on the GPU*. Memory near 100 %: use a smaller "
            "batch or cache. Memory that grows at constant load: look for a leak.",
            "percentunit",
            (_of_gpu("infercanary_gpu_utilization_ratio{CONTAINERS}"), "{{id}} use"),
            (
                _of_gpu(
                    "infercanary_gpu_memory_used_bytes{CONTAINERS} / infercanary_gpu_memory_size_bytes{CONTAINERS}"
                ),
                "{{id}} memory",
            ),
            minimum=0,
            maximum=1,
        ),
        on_right(
            plot(
                "PCIe",
                "Traffic from the GPU (tx) and to the GPU (rx); on the right axis, the link's bandwidth as a share of "
                "its maximum. An idle GPU lowers the bandwidth.",
                "Low bandwidth under load: check the card's seat, riser and slot. Traffic near the bandwidth: move a "
                "neighbour.",
                "Bps",
                (_of_gpu(traffic.format("tx")), "{{id}} tx"),
                (_of_gpu(traffic.format("rx")), "{{id}} rx"),
                (_of_gpu("infercanary_gpu_pcie_link_ratio{CONTAINERS}"), "{{id}} link"),
                minimum=0,
            ),
            "C",
            "percentunit",
        ),
        plot(
            "Neighbours on the GPU",
            "Other monitored containers on the same GPU or MIG instance, and processes there that are in no monitored "
            "container.",
            "The canary waits while these processes compute: move some of them, or give each a MIG instance.",
            "none",
            (_of_gpu("infercanary_gpu_shared{CONTAINERS}"), "{{id}} containers"),
            (_of_gpu("infercanary_gpu_unknown_processes{CONTAINERS}"), "{{id}} other processes"),
            minimum=0,
            steps=True,
        ),
    ]


def _driver() -> Panel:
    gpus = f"(infercanary_nvml_state{{CONTAINERS}} == 1) * on (CONTAINER) group_right (state) {_NAMED}"
    none = "infercanary_nvml_state{CONTAINERS} == 1 unless on (CONTAINER) infercanary_gpu_info{CONTAINERS}"
    return rows(
        About(
            "Driver state",
            "Each GPU with its driver, the state of NVML in the replicas that see it, and whether the GPU answers. A "
            "replica without a GPU has no driver.",
            "no permission: recreate the container. version mismatch: restart it after the driver's upgrade. lost: "
            "reset the GPU. hanging: see the kernel's log.",
            "none",
            width=24,
            height=7,
        ),
        [
            Column("id", "GPU", width=130),
            Column("state", "NVML", named=colours.NVML_STATES, width=120),
            Column("Value #B", "Answers", words=YES_OR_NO, width=90),
            Column("Value #A", "Replicas", "none", width=90),
            Column("name", "Model"),
            Column("driver_version", "Driver", width=120),
        ],
        Query(f"count by (id, name, driver_version, state) ({gpus}) or count by (state) ({none})"),
        Query(_of_gpu("infercanary_gpu_up{CONTAINERS}", function="min")),
        sort=("GPU",),
    )


def _errors() -> Panel:
    # Totals, because an increase in a window would depend on the time range.
    totals = {
        "XIDs": "xid_events_total{CONTAINERS}",
        "ECC uncorrected": 'ecc_errors_total{CONTAINERS, severity="uncorrected"}',
        "ECC corrected": 'ecc_errors_total{CONTAINERS, severity="corrected"}',
        "Rows remapped": "remapped_rows_total{CONTAINERS}",
        "Remap pending": 'row_remap{CONTAINERS, state="pending"}',
        "Remap failed": 'row_remap{CONTAINERS, state="failed"}',
        "PCIe replays": "pcie_replays_total{CONTAINERS}",
    }
    actions = {
        str(i): (word, colours.VERMILLION if i else colours.BLUE)
        for i, word in enumerate(_ACTIONS.split(", "))
    }
    return rows(
        About(
            "GPU errors",
            "XIDs since the probe started, and the most frequent XID. ECC errors and PCIe replays since the driver "
            "was loaded. Remapped rows over the GPU's life. The action that the driver recommends.",
            "Remap pending: reset the GPU when it is idle. Remap failed, or uncorrected ECC errors: replace the GPU. "
            "XIDs: NVIDIA's list has the cause.",
            "none",
            width=24,
            height=7,
        ),
        [
            Column("id", "GPU", width=130),
            *(
                Column(f"Value #{letter}", total, "none", width=100)
                for letter, total in zip("ABCDEFG", totals, strict=True)
            ),
            Column("xid", "XID", width=60),
            Column("Value #H", "Recommended action", words=actions, width=120),
        ],
        *(Query(_of_gpu(f"sum without (severity) (infercanary_gpu_{text})")) for text in totals.values()),
        Query(_of_gpu("infercanary_gpu_recovery_action{CONTAINERS}")),
        Query(f"topk by (id) (1, {_of_gpu('infercanary_gpu_xid_errors_total{CONTAINERS}', 'id, xid')})"),
        sort=("GPU",),
    )
