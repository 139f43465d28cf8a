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
    "The verdict on what the last change of the service's image did to a measure, as a state set: 1 for the one that "
    "holds. `measure` is host_memory, device_memory, energy, or throughput@BxC: of a sweep, at a batch of B with C "
    "requests at a time.",
    ("canary", "measure", "verdict"),
    reading=f"`regressed` is worse by {_EFFECT} or more: more memory, less throughput. Missing without an upgrade, or "
    "where runs of one image do not have the measure; latency has `infercanary_verdict`. Of throughput and energy it "
    "is `inconclusive` where controls or siblings moved too.",
    experimental=True,
)
INFO = Metric(
    "infercanary_measure_verdict_info",
    "gauge",
    "Always 1; the sentence on a measure that changed with the service's image.",
    ("canary", "measure", "sentence"),
    reading="Such as `host memory regressed +31.0 % [+28.0, +34.0]`, as on the status page. Only where the verdict is "
    "`regressed` or `improved`.",
    experimental=True,
)
SHIFT = Metric(
    "infercanary_measure_shift_ratio",
    "gauge",
    "The measure with the new image over that with the old one, minus 1, at the judge's last look.",
    _MEASURE,
    reading="0.31 is 31 % more memory; -0.2 is 20 % less throughput, which is worse. The verdict says which is meant.",
    experimental=True,
)
LOW = Metric(
    "infercanary_measure_shift_low_ratio",
    "gauge",
    "The lower end of the shift's interval.",
    _MEASURE,
    reading="With `infercanary_measure_shift_high_ratio`: the interval at all looks together, at 95 %. What restarts "
    "may do is in it, also where all values are the same to the byte.",
    experimental=True,
)
HIGH = Metric(
    "infercanary_measure_shift_high_ratio",
    "gauge",
    "The upper end of the shift's interval.",
    _MEASURE,
    reading="As for `infercanary_measure_shift_low_ratio`.",
    experimental=True,
)
BASELINE = Metric(
    "infercanary_measure_baseline",
    "gauge",
    "Median of the old image's values that the verdict rests on: bytes, joules, or samples a second.",
    _MEASURE,
    reading="Of memory at the same age of the process as the new image's values.",
    experimental=True,
)
CURRENT = Metric(
    "infercanary_measure_current",
    "gauge",
    "Median of the new image's values that the verdict rests on: bytes, joules, or samples a second.",
    _MEASURE,
    reading="Of the values up to the judge's last look; the last run's are the probe's own metrics.",
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
