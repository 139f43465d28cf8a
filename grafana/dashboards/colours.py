"""The colours: those of Okabe and Ito, which people of all kinds of colour vision can distinguish.

No meaning hangs on red against green: what is well is blue, trouble is vermillion, and a word or a number says it too.
Names that are known here have one of these on every panel; those of services and containers have the one that
:mod:`.names` finds for them, the same on every panel too. What made a change is neither good nor bad: no colour.
"""

from __future__ import annotations

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#999999"
OLIVE = "#999933"
"""Of Paul Tol's muted scheme, for lines and large digits: yellow cannot be seen on a light page."""

WELL, DOUBT, TROUBLE, NEUTRAL = BLUE, ORANGE, VERMILLION, GREY

HEAT = "Cividis"  # one of Grafana's schemes for heatmaps, made for the same purpose

OLD, NEW = GREY, BLUE
"""The image before the last upgrade, and the one since: left and right on every panel that compares them."""

VERDICTS = {
    "no_baseline": GREY,
    "settling": GREY,
    "equivalent": BLUE,
    "improved": SKY,
    "inconclusive": OLIVE,
    "confirming": ORANGE,
    "regressed": VERMILLION,
}
"""In the order of how much they ask of the reader, which is also the number of each, from 1 on: on a time line, and in
the rule that records it."""

SEVERITIES = {"warning": ORANGE, "critical": VERMILLION}

PHASES = {"h2d": SKY, "compute": BLUE, "d2h": GREEN, "launch": ORANGE, "queue": PURPLE}

BOTTLENECKS = {"compute": BLUE, "memory": ORANGE, "io": SKY, "scheduling": PURPLE, "unknown": GREY}

CONTROLS = {
    "cpu_spin": BLUE,
    "memory_copy": ORANGE,
    "page_io": PURPLE,
    "thread_wake": GREEN,
    "gpu_fma": SKY,
    "gpu_copy": VERMILLION,
    "gpu_transfer": OLIVE,
    "gpu_launch": GREY,
}

CLOCK_EVENTS = {
    "sw_power_cap": YELLOW,
    "sync_boost": GREY,
    "sw_thermal": ORANGE,
    "hw_thermal": VERMILLION,
    "hw_power_brake": PURPLE,
}

CANARY_STATES = {
    "opening": GREY,
    "warming": YELLOW,
    "steady": BLUE,
    "busy": ORANGE,
    "out_of_memory": PURPLE,
    "failing": VERMILLION,
}

NVML_STATES = {
    "ok": BLUE,
    "no_driver": GREY,
    "no_permission": YELLOW,
    "version_mismatch": ORANGE,
    "failing": PURPLE,
    "hanging": PURPLE,
    "lost": VERMILLION,
}

OUTCOMES = {"ok": BLUE, "busy": YELLOW, "raised": VERMILLION, "timed_out": ORANGE, "not_finite": PURPLE}

RESOURCES = {"cpu": BLUE, "memory": ORANGE, "io": PURPLE}
