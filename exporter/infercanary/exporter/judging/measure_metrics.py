"""The verdicts on measures as metrics: those on latency with one label more."""

from __future__ import annotations

from collections.abc import Callable

from infercanary.contract.report import Family, Metric
from infercanary.exporter.judging.findings import Findings
from infercanary.judge.measures import MeasureVerdict, measure_words
from infercanary.judge.model import STATES
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED

_MEASURE = ("canary", "measure")
_EFFECT = f"{100 * LIVE.measure_effect:g} %"
VERDICT = Metric(
    "infercanary_measure_verdict",
    "gauge",
    "The verdict on a measure after the last change of the service's image, as a state set: 1 for the current "
    "verdict. `measure` is host_memory, device_memory, energy, or throughput@BxC: throughput in a sweep, with a "
    "batch of B and C requests at a time.",
    ("canary", "measure", "verdict"),
    reading=f"`regressed` is worse by {_EFFECT} or more: more memory, less throughput. Missing without an upgrade, "
    "or if runs of one image do not have the measure. For latency, see `infercanary_verdict`. For throughput and "
    "energy, it is `inconclusive` if controls or siblings changed too.",
    experimental=True,
)
INFO = Metric(
    "infercanary_measure_verdict_info",
    "gauge",
    "Always 1; the sentence about a measure that changed with the service's image.",
    ("canary", "measure", "sentence"),
    reading="For example `host memory regressed +31.0 % [+28.0, +34.0]`, as on the status page. Present only if the "
    "verdict is `regressed` or `improved`.",
    experimental=True,
)
SHIFT = Metric(
    "infercanary_measure_shift_ratio",
    "gauge",
    "The measure with the new image divided by the measure with the old image, minus 1, at the judge's last look.",
    _MEASURE,
    reading="0.31 is 31 % more memory; -0.2 is 20 % less throughput, which is worse. The verdict says whether the "
    "change is better or worse.",
    experimental=True,
)
LOW = Metric(
    "infercanary_measure_shift_low_ratio",
    "gauge",
    "The lower end of the shift's interval.",
    _MEASURE,
    reading="Together with `infercanary_measure_shift_high_ratio`, it is the interval over all looks together, at 95 "
    "%. The possible effect of restarts is included, even if all values are the same to the byte.",
    experimental=True,
)
HIGH = Metric(
    "infercanary_measure_shift_high_ratio",
    "gauge",
    "The upper end of the shift's interval.",
    _MEASURE,
    reading="See `infercanary_measure_shift_low_ratio`.",
    experimental=True,
)
BASELINE = Metric(
    "infercanary_measure_baseline",
    "gauge",
    "Median of the old image's values that the verdict rests on: bytes, joules, or samples a second.",
    _MEASURE,
    reading="For memory, these are values at the same age of the process as the new image's values.",
    experimental=True,
)
CURRENT = Metric(
    "infercanary_measure_current",
    "gauge",
    "Median of the new image's values that the verdict rests on: bytes, joules, or samples a second.",
    _MEASURE,
    reading="It uses the values up to the judge's last look. The probe's own metrics have the values of the last "
    "run.",
    experimental=True,
)
_PLAIN: dict[Metric, Callable[[MeasureVerdict], float | None]] = {
    SHIFT: lambda v: v.shift,
    LOW: lambda v: v.low,
    HIGH: lambda v: v.high,
    BASELINE: lambda v: v.before,
    CURRENT: lambda v: v.after,
}
METRICS = (VERDICT, INFO, *_PLAIN)


def families(found: Findings) -> list[Family]:
    """The verdicts on the measures of a service.

    Args:
        found: Of the service.

    Returns:
        Families, also those without points.
    """
    each = {(canary, name): v for canary, known in found.measures.items() for name, v in known.items()}
    return [
        VERDICT.family(
            {(*key, state): float(state == v.state) for key, v in each.items() for state in STATES}
        ),
        INFO.family({(*key, measure_words(key[1], v)): 1.0 for key, v in each.items() if v.state in CHANGED}),
        *(
            metric.family({key: x for key, v in each.items() if (x := value(v)) is not None})
            for metric, value in _PLAIN.items()
        ),
    ]
