"""Metrics of the judge's findings.

Each container of a service exposes the service's verdict, to join the verdict with the container's other series. The
label `measure` is ``latency``, the name of another measure, or ``cold_start_`` and a step of the cold start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from infercanary.contract.profile import bounded
from infercanary.contract.report import Family, Metric
from infercanary.contract.text import REPLACEMENT, printable
from infercanary.contract.vocabulary import CAUSES
from infercanary.exporter.judging.findings import Finding, Findings
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import MOST
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES, Result
from infercanary.judge.shift import CHANGED
from infercanary.pages.sentence import (
    SENTENCE_BYTES,
    benchmark_words,
    distinct,
    listed,
    measure_words,
    operators_words,
)

LATENCY = "latency"
_NAMED = 3  # largest number of container names in one text; people read alerts on a phone
_COMPONENTS = 20  # largest number of listed components, the most interesting first
_DRIFT_RUNS = 2 * LIVE.drift.block_runs * LIVE.drift.blocks
_CANARY = ("canary",)
_MEASURE = ("canary", "measure")


T = TypeVar("T")
_Points: TypeAlias = Mapping[tuple[str, ...], float | None] | float | None
_Table: TypeAlias = Mapping[Metric, Callable[[T], _Points]]

# Function by metric. The function returns the points without the label `canary`, or a single value without labels. An
# unknown value is None.
_OF_FINDING: _Table[Finding] = {
    Metric(
        "infercanary_verdict",
        "gauge",
        "Verdict on the last upgrade, as a state set, for the latency (`latency`), memory, energy, throughput "
        "(`throughput@BATCHxCONCURRENCY`) and run-to-run spread (`spread`).",
        ("canary", "measure", "verdict"),
        reading="`regressed` is an alert. `unconfirmed`: changed, but by no more than a restart may cause. "
        "`no_baseline`: no comparable image ran before.",
    ): lambda f: {(name, s): float(s == v.state) for name, v in _both(f).items() for s in STATES},
    Metric(
        "infercanary_verdict_info",
        "gauge",
        "Always 1; the judge's sentence on the last upgrade, at most 300 bytes. Measures other than the latency have a "
        "sentence only if they changed. `benchmark` is the recorded benchmark of the image.",
        ("canary", "measure", "sentence"),
        reading="Use the sentence in an alert's annotation. In a label, each new wording would be a new alert.",
    ): lambda f: {
        (LATENCY, f.sentence): 1.0,
        **{("benchmark", label_text(words)): 1.0 for words in [benchmark_words(f.result)] if words},
        **{(name, measure_words(name, v)): 1.0 for name, v in f.measures.items() if v.state in CHANGED},
    },
    Metric(
        "infercanary_shift_ratio",
        "gauge",
        "Change since the upgrade: the new image's median divided by the old image's, minus 1.",
        _MEASURE,
        reading="0.05 is 5 % more. Steps of the cold start (`cold_start_load`) are shown only if they became clearly "
        "slower.",
    ): lambda f: {
        **{(name,): v.shift for name, v in _both(f).items()},
        **{(f"cold_start_{k}",): new / old - 1 for k, (old, new) in f.result.causes.cold_start.items()},
    },
    Metric(
        "infercanary_shift_low_ratio",
        "gauge",
        "Lower end of the interval of the change.",
        _MEASURE,
        reading=f"Above {LIVE.decide.clear_zone:g} (the dead band), the new image is slower; the verdict says "
        "whether that is confirmed.",
    ): lambda f: {(name,): v.low for name, v in _both(f).items()},
    Metric(
        "infercanary_shift_high_ratio",
        "gauge",
        "Upper end of the interval of the change.",
        _MEASURE,
        reading="For the latency: the largest slowdown that the runs do not exclude.",
    ): lambda f: {(name,): v.high for name, v in _both(f).items()},
    Metric(
        "infercanary_measure_baseline",
        "gauge",
        "Median of a measure with the old image: bytes, joules, samples per second, or a ratio.",
        _MEASURE,
        reading="Memory is compared at the same age of the process.",
    ): lambda f: {(name,): v.before for name, v in f.measures.items()},
    Metric(
        "infercanary_measure_current",
        "gauge",
        "Median of a measure with the new image: bytes, joules, samples per second, or a ratio.",
        _MEASURE,
        reading="Updated at each look of the judge. The probe's own metrics have the last run.",
    ): lambda f: {(name,): v.after for name, v in f.measures.items()},
    Metric(
        "infercanary_control_baseline_seconds",
        "gauge",
        "Median time of a control in the old image's runs; without an upgrade, in the only image's runs.",
        ("canary", "control"),
        reading="The baseline of `infercanary_control_seconds`.",
    ): lambda f: _labelled(f.result.controls),
    Metric(
        "infercanary_judge_aa_tests",
        "gauge",
        "Restarts of one image on which the judge tested itself (A/A tests). Only stored restarts count.",
        _CANARY,
        reading="The denominator for `infercanary_judge_aa_alarms`.",
    ): lambda f: len(f.trials),
    Metric(
        "infercanary_judge_aa_alarms",
        "gauge",
        "A/A tests in which the judge found a change: false alarms.",
        _CANARY,
        reading="Divided by `infercanary_judge_aa_tests`, about 0.01 or less is healthy. Count a service once, not "
        "each container.",
    ): lambda f: sum(trial.called for trial in f.trials.values()),
}
_OF_RESULT: _Table[Result] = {
    Metric(
        "infercanary_shift_host_ratio",
        "gauge",
        "Part of the latency change due to the host: controls or siblings also changed, or other containers took the "
        "CPUs.",
        _CANARY,
        reading="Near the whole change: the image is not the cause. Missing without controls and siblings.",
    ): lambda r: r.causes.host.shift if r.causes.host else None,
    Metric(
        "infercanary_shift_image_ratio",
        "gauge",
        "Part of the latency change due to the image: the change without the host's part.",
        _CANARY,
        reading="Near the whole change: the image is the cause; see `infercanary_upgrade_component_info`.",
    ): lambda r: r.causes.image.shift if r.causes.image else None,
    Metric(
        "infercanary_baseline_seconds",
        "gauge",
        "Median latency of the old image's runs that the verdict uses.",
        _CANARY,
        reading="The level before the upgrade. Missing without an upgrade.",
    ): lambda r: r.baseline,
    Metric(
        "infercanary_current_seconds",
        "gauge",
        "Median latency of the new image's runs that the verdict uses; without an upgrade, of the only image's runs.",
        _CANARY,
        reading="Updated at each look of the judge. `infercanary_run_median_seconds` is the last run.",
    ): lambda r: r.current,
    Metric(
        "infercanary_upgrade_timestamp_seconds",
        "gauge",
        "Unix time at which the first container of the service started with the new image.",
        _CANARY,
        reading="Missing before the first upgrade.",
    ): lambda r: r.upgraded_at,
    Metric(
        "infercanary_restart_deviation_ratio",
        "gauge",
        "Restart SD: relative standard deviation of the latency between starts of one image, learned from the "
        "service's restarts.",
        _CANARY,
        reading="Above 0.02, small changes stay `inconclusive` or `unconfirmed`: find what differs between starts "
        "(thread placement, autotuning).",
    ): lambda r: r.restart.sd,
    Metric(
        "infercanary_judged_runs",
        "gauge",
        "Runs of the new image that the verdict uses.",
        _CANARY,
        reading="A change is called as early as the evidence allows, "
        f"from {LIVE.decide.looks[0]} to {LIVE.decide.looks[-1]} runs of a start.",
    ): lambda r: r.runs,
    Metric(
        "infercanary_judged_generations",
        "gauge",
        "Container starts, of both images, that the verdict uses.",
        _CANARY,
        reading="Two replicas are more evidence than twice the runs of one.",
    ): lambda r: r.starts,
    Metric(
        "infercanary_upgrade_output_error_ratio",
        "gauge",
        "Relative error of the new image's first steady output against the old image's, for the same input.",
        _CANARY,
        reading="Above 0.01, the upgrade changed the answers: weights, preprocessing or numerics.",
    ): lambda r: r.causes.output_error,
    Metric(
        "infercanary_cpu_fallback",
        "gauge",
        "1 if the canary ran on a GPU before the upgrade and runs on the CPU now, else 0.",
        _CANARY,
        reading="1 is an alert: the image has a CPU-only wheel, or the container has no GPU.",
    ): lambda r: r.causes.cpu_fallback,
}
_OF_UPGRADE: _Table[Finding] = {
    Metric(
        "infercanary_upgrade_info",
        "gauge",
        "Always 1; both images of the last upgrade, the kind of change, and the containers with the new image.",
        ("canary", "baseline_image", "candidate_image", "changed", "candidate_containers"),
        reading="`changed` is `model` if the weights are new and the image is the same. Missing before the first "
        "upgrade.",
    ): lambda f: {
        (f.result.baseline_image, f.result.candidate_image, f.result.changed, _new_containers(f)): 1.0
    },
    Metric(
        "infercanary_upgrade_component_info",
        "gauge",
        f"Always 1; one series for each component of the environment (at most {_COMPONENTS}) that differs between the "
        "old and the new image.",
        ("canary", "component", "old", "new"),
        reading="`none`: that image does not have the component. Long values are cut to the part that differs.",
    ): lambda f: {
        tuple(map(label_text, (change.component, *distinct(change.before, change.after)))): 1.0
        for change in f.result.causes.changes[:_COMPONENTS]
    },
}
_OF_CHANGE: _Table[Result] = {
    Metric(
        "infercanary_shift_cause",
        "gauge",
        "Cause of the latency change, as a state set; `image` is the upgraded image or model, `load` is more or fewer "
        "requests.",
        ("canary", "cause", "changed"),
        reading="`unknown`: too little evidence; see the verdict's sentence. Missing if unchanged.",
    ): lambda r: {(cause, r.changed): float(cause == r.causes.cause) for cause in CAUSES},
    Metric(
        "infercanary_shift_phase_ratio",
        "gauge",
        f"Share of a phase in the latency change. Phases below {100 * LIVE.attribute.phase_share:g} % are not shown.",
        ("canary", "phase"),
        reading="Above 1 only if another phase changed in the opposite direction. Missing if nothing changed.",
    ): lambda r: _labelled(r.causes.phases),
    Metric(
        "infercanary_shift_bottleneck_ratio",
        "gauge",
        "Share of a resource in the latency change: compute, memory, I/O, scheduling (queues, locks, CPU wait) or "
        "unknown.",
        ("canary", "bottleneck"),
        reading="Shares add up to 1. A resource that changed in the opposite direction has a negative share; other "
        "shares may then exceed 1.",
    ): lambda r: {(name,): share for name, share in r.causes.bottlenecks.items()},
    Metric(
        "infercanary_shift_control_ratio",
        "gauge",
        "Change of a control since the upgrade: its time divided by its time before, minus 1.",
        ("canary", "control"),
        reading="A control is the same work in every image: if its time changed, the host or the limits changed. "
        "Missing if no control changed.",
    ): lambda r: _labelled(r.causes.controls),
    Metric(
        "infercanary_shift_operator_seconds",
        "gauge",
        f"Time of an operator per inference now, minus its time before the upgrade. The {MOST} largest changes of a "
        "canary.",
        ("canary", "operator", "change"),
        reading="Below 0 is faster. Missing if profiles are off, or if no operator explains the change.",
    ): lambda r: {
        (bounded(shift.operator), shift.change): shift.after - shift.before
        for shift in (r.causes.operators.shifts if r.causes.operators else ())
        if r.causes.operators and r.causes.operators.state == "explained"
    },
}
_OF_DRIFT: _Table[Drift] = {
    Metric(
        "infercanary_drift_ratio",
        "gauge",
        "Latency now divided by the latency of the image's first day in this container, minus 1; 0 without a drift.",
        _CANARY,
        reading=f"A change without an upgrade: heat, a neighbour or a leak. Missing before {_DRIFT_RUNS} "
        "steady runs.",
    ): lambda d: d.shift,
    Metric(
        "infercanary_drift_host_ratio",
        "gauge",
        "Part of the drift due to the host: controls or siblings also drifted.",
        _CANARY,
        reading="Near the whole drift: check the host. Near 0: check the process (memory, threads, requests).",
    ): lambda d: d.host.shift if d.host else None,
    Metric(
        "infercanary_drift_timestamp_seconds",
        "gauge",
        "Unix time at which the drift began, or could first be detected.",
        _CANARY,
        reading="Check what else happened then. Missing without a drift.",
    ): lambda d: d.onset,
    Metric(
        "infercanary_drift_info",
        "gauge",
        "Always 1; changes in the environment of a drifted container since the image's first day, and operators that "
        "became slower.",
        ("canary", "changes"),
        reading="Shows limits and variables that changed without a new image (`CPU quota 4 → 2`), or a new host "
        "kernel.",
    ): lambda d: {(label_text(words),): 1.0 for words in [_changes(d)] if d.shift and words},
}
METRICS = (*_OF_FINDING, *_OF_RESULT, *_OF_UPGRADE, *_OF_CHANGE, *_OF_DRIFT)


def families(findings: Findings, container: str, *, publishes: bool = True) -> list[Family]:
    """Return all families of a service's findings for one container of the service. A family may have no points.

    Args:
        findings: Findings on the service.
        container: Stable name of the container, whose own drift is shown.
        publishes: False to show only the drift, because another exporter judges the service.
    """
    points: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric in METRICS}
    for canary, finding in findings.items():
        for table, value in _shown(finding, container, publishes=publishes):
            for metric, points_of in table.items():
                shown = points_of(value)
                labelled = shown if isinstance(shown, Mapping) else {(): shown}
                points[metric] |= {(canary, *key): x for key, x in labelled.items() if x is not None}
    return [metric.family(labelled) for metric, labelled in points.items()]


def _shown(finding: Finding, container: str, *, publishes: bool) -> Iterator[tuple[_Table[Any], object]]:
    """Yield each table of metrics for a container, with the argument for the table's functions."""
    result = finding.result
    if container in finding.drifts:
        yield _OF_DRIFT, finding.drifts[container]
    if publishes:
        yield _OF_FINDING, finding
        yield _OF_RESULT, result
        if result.upgraded_at:
            yield _OF_UPGRADE, finding
        if result.state in CHANGED:
            yield _OF_CHANGE, result


def _both(finding: Finding) -> dict[str, Result | MeasureVerdict]:
    """Return the verdicts on the latency and on the other measures, by name."""
    return {LATENCY: finding.result, **finding.measures}


def _labelled(values: Mapping[str, float]) -> _Points:
    return {(label,): value for label, value in values.items()}


def _new_containers(finding: Finding) -> str:
    """Return the names of the containers with the new image. For many containers, return a text without names.

    Many names would be too long for a label, and each change of the names is a new series.
    """
    names = sorted({container for container, _ in finding.sides.new})
    return label_text(", ".join(names) if len(names) <= _NAMED else f"more than {_NAMED} containers")


def label_text(text: str) -> str:
    """Convert a text to a label value: printable, and cut to at most ``SENTENCE_BYTES`` bytes of UTF-8.

    If one value is longer than ``label_value_length_limit``, Prometheus rejects the whole scrape.
    """
    shown = printable(text, replacement=REPLACEMENT)
    cut = shown.encode()[: SENTENCE_BYTES - len("…".encode())].decode(errors="ignore")
    return shown if cut == shown else cut + "…"


def _changes(drift: Drift) -> str:
    return "; ".join(filter(None, (listed(drift.changes), operators_words(drift.operators))))
