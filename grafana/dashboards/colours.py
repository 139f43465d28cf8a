"""Colours by Okabe and Ito, which people with any colour vision can distinguish.

Blue means good, vermillion means trouble, orange means doubt. A word or a number always repeats the meaning. Fixed
names have the same colour on every panel; services and replicas get a colour from :mod:`.names`.
"""

from __future__ import annotations

from collections.abc import Mapping

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#999999"
OLIVE = "#999933"
"""From Paul Tol's muted scheme, for lines and large digits, because yellow is invisible on a light page."""

WELL, DOUBT, TROUBLE, NEUTRAL = BLUE, ORANGE, VERMILLION, GREY

CELLS = {
    SKY: "#1F73A8",
    GREEN: "#007A59",
    YELLOW: "#7A6A00",
    ORANGE: "#8A6000",
    VERMILLION: "#B84B00",
    PURPLE: "#A1487B",
    GREY: "#6B6B6B",
    OLIVE: "#6B6B24",
}
"""Darker shades for cells: Grafana's white text on them has a contrast of at least 4.5."""

OLD, NEW = GREY, PURPLE
"""Images before and since the last upgrade: neutral colours."""

VERDICTS = {
    "no_baseline": GREY,
    "settling": GREY,
    "equivalent": BLUE,
    "improved": GREEN,
    "inconclusive": OLIVE,
    "unconfirmed": ORANGE,
    "regressed": VERMILLION,
}
"""Verdicts, the most urgent last. A verdict's position, from 1 on, is its number in the rule that records verdicts."""

WORDS: Mapping[str, str] = {"no_baseline": "first image", "settling": "warming up"}
"""Words for values that need an explanation."""

SEVERITIES = {"warning": ORANGE, "critical": VERMILLION}

PHASES = {"h2d": SKY, "compute": BLUE, "d2h": GREEN, "launch": ORANGE, "queue": PURPLE}

CONTROLS = {
    "cpu_spin": BLUE,
    "memory_copy": ORANGE,
    "page_io": GREEN,
    "thread_wake": OLIVE,
    "gpu_fma": SKY,
    "gpu_copy": VERMILLION,
    "gpu_transfer": PURPLE,
    "gpu_launch": GREY,
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

OUTCOMES = {"ok": BLUE, "busy": OLIVE, "raised": VERMILLION, "timed_out": ORANGE, "not_finite": PURPLE}

RESOURCES = {"cpu": BLUE, "memory": ORANGE, "io": PURPLE}


def word(value: str) -> str:
    """Return a label's value in words.

    Args:
        value: For example ``no_baseline``.
    """
    return WORDS.get(value, value.replace("_", " "))
