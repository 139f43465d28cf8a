"""The judge's findings as metrics. A verdict is the service's, and is shown with each of its containers, so that it
joins with everything else that is known about a container.

`measure` is ``latency``, the name of another measure, or ``cold_start_`` and a step of the cold start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

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
from infercanary.pages.sentence import SENTENCE_BYTES, distinct, listed, measure_words, operators_words

LATENCY = "latency"
_NAMED = 3  # containers of a service: an alert is read on a phone
_COMPONENTS = 20  # of an upgrade, the most interesting ones
_DRIFT_RUNS = 2 * LIVE.drift.block_runs * LIVE.drift.blocks
_CANARY = ("canary",)
_MEASURE = ("canary", "measure")

VERDICT = Metric(
    "infercanary_verdict",
    "gauge",
    "Verdict on the last upgrade, as a state set, for the latency (`latency`), memory, energy, throughput "
    "(`throughput@BATCHxCONCURRENCY`) and run-to-run spread (`spread`).",
    ("canary", "measure", "verdict"),
    reading="`regressed` is an alert. `unconfirmed`: changed, but by no more than a restart may cause. `no_baseline`: "
    "no comparable image ran before.",
)
VERDICT_INFO = Metric(
    "infercanary_verdict_info",
    "gauge",
    "Always 1; the judge's sentence on the last upgrade, at most 300 bytes. Of other measures, only if they "
    "changed.",
    ("canary", "measure", "sentence"),
    reading="Query it in an alert's annotation. As a label of the alert, each new wording would be a new alert.",
)
UPGRADE = Metric(
    "infercanary_upgrade_info",
    "gauge",
    "Always 1; both images of the last upgrade, what it changed, and which containers run the new image.",
    ("canary", "baseline_image", "candidate_image", "changed", "candidate_containers"),
    reading="`changed` is `model` if the weights are new and the image is the same. Missing before the first upgrade.",
)
COMPONENT = Metric(
    "infercanary_upgrade_component_info",
    "gauge",
    f"Always 1; a component of the environment that differs between the old and the new image, {_COMPONENTS} at "
    "most.",
    ("canary", "component", "old", "new"),
    reading="`none`: that image does not have the component. Of long values, the part that differs.",
)
SHIFT = Metric(
    "infercanary_shift_ratio",
    "gauge",
    "Change since the upgrade: the new image's median divided by the old image's, minus 1.",
    _MEASURE,
    reading="0.05 is 5 % more. Steps of the cold start (`cold_start_load`) are shown only if they became clearly "
    "slower.",
)
LOW = Metric(
    "infercanary_shift_low_ratio",
    "gauge",
    "Lower end of the interval of the change.",
    _MEASURE,
    reading=f"Above {LIVE.decide.clear_zone:g} (the dead band) it is slower; the verdict says "
    "whether that is confirmed.",
)
HIGH = Metric(
    "infercanary_shift_high_ratio",
    "gauge",
    "Upper end of the interval of the change.",
    _MEASURE,
    reading="For the latency, it is the largest slowdown that the runs do not exclude.",
)
MEASURE_BASELINE = Metric(
    "infercanary_measure_baseline",
    "gauge",
    "Median of a measure with the old image: bytes, joules, samples per second, or a ratio.",
    _MEASURE,
    reading="Memory is compared at the same age of the process.",
)
MEASURE_CURRENT = Metric(
    "infercanary_measure_current",
    "gauge",
    "Median of a measure with the new image: bytes, joules, samples per second, or a ratio.",
    _MEASURE,
    reading="Updated when the judge looks. The probe's own metrics have the last run.",
)
HOST_PART = Metric(
    "infercanary_shift_host_ratio",
    "gauge",
    "Part of the latency change due to the host: controls or siblings changed too, or other containers took the "
    "CPUs.",
    _CANARY,
    reading="Near the whole change, the image is not the cause. Missing without controls and siblings.",
)
IMAGE_PART = Metric(
    "infercanary_shift_image_ratio",
    "gauge",
    "Part of the latency change due to the image: the rest after the host's part.",
    _CANARY,
    reading="Near the whole change, the content of the image is the cause: see "
    "`infercanary_upgrade_component_info`.",
)
CAUSE = Metric(
    "infercanary_shift_cause",
    "gauge",
    "Cause of the latency change, as a state set; `image` is what was upgraded, `load` is more or fewer requests.",
    ("canary", "cause", "changed"),
    reading="`unknown`: too little evidence; the sentence says why. Missing if nothing changed.",
)
PHASE = Metric(
    "infercanary_shift_phase_ratio",
    "gauge",
    f"Share of a phase in the latency change. Only phases with {100 * LIVE.attribute.phase_share:g} % or more.",
    ("canary", "phase"),
    reading="Above 1 if another phase became shorter. Missing if nothing changed.",
)
BOTTLENECK = Metric(
    "infercanary_shift_bottleneck_ratio",
    "gauge",
    "Share of a resource in the latency change: compute, memory, I/O, scheduling (queues, locks, CPU wait) or "
    "unknown.",
    ("canary", "bottleneck"),
    reading="Shares add up to 1. A faster resource has a negative share, and others may exceed 1.",
)
CONTROL = Metric(
    "infercanary_shift_control_ratio",
    "gauge",
    "Change of a control since the upgrade: its time divided by its time before, minus 1.",
    ("canary", "control"),
    reading="A control is the same work in every image: the host or the limits changed. Missing if no control "
    "changed.",
)
OPERATOR = Metric(
    "infercanary_shift_operator_seconds",
    "gauge",
    f"Time of an operator per inference now, minus its time before the upgrade. The {MOST} largest changes of a "
    "service.",
    ("canary", "operator", "change"),
    reading="Below 0 is faster. Missing if profiles are off, or if no operator explains the change.",
)
BASELINE = Metric(
    "infercanary_baseline_seconds",
    "gauge",
    "Median latency of the old image's runs that the verdict rests on.",
    _CANARY,
    reading="The level before the upgrade. Missing without an upgrade.",
)
CURRENT = Metric(
    "infercanary_current_seconds",
    "gauge",
    "Median latency of the new image's runs that the verdict rests on; without an upgrade, of the only image's "
    "runs.",
    _CANARY,
    reading="Updated when the judge looks. `infercanary_run_median_seconds` is the last run.",
)
CONTROL_BASELINE = Metric(
    "infercanary_control_baseline_seconds",
    "gauge",
    "Median time of a control in the old image's runs; without an upgrade, in the only image's runs.",
    ("canary", "control"),
    reading="The level before the upgrade, for `infercanary_control_seconds`.",
)
ONSET = Metric(
    "infercanary_upgrade_timestamp_seconds",
    "gauge",
    "When the first container of the service started with the new image, Unix time.",
    _CANARY,
    reading="Missing before the first upgrade.",
)
RESTART_SD = Metric(
    "infercanary_restart_deviation_ratio",
    "gauge",
    "Restart SD: how much two starts of one image differ, learned from the service's restarts.",
    _CANARY,
    reading="Above 0.02, small changes stay `inconclusive` or `unconfirmed`: find what differs between starts (thread "
    "placement, autotuning).",
)
RUNS = Metric(
    "infercanary_judged_runs",
    "gauge",
    "Runs of the new image that the verdict rests on.",
    _CANARY,
    reading="A change is called as early as the evidence allows, "
    f"from {LIVE.decide.looks[0]} to {LIVE.decide.looks[-1]} runs of a start.",
)
GENERATIONS = Metric(
    "infercanary_judged_generations",
    "gauge",
    "Container starts, of both images, that the verdict rests on.",
    _CANARY,
    reading="Two replicas are more evidence than twice the runs of one.",
)
OUTPUT = Metric(
    "infercanary_upgrade_output_error_ratio",
    "gauge",
    "Relative error of the new image's first steady output against the old image's, for the same input.",
    _CANARY,
    reading="Above 0.01, the upgrade changed the answers: weights, preprocessing or numerics.",
)
FALLBACK = Metric(
    "infercanary_cpu_fallback",
    "gauge",
    "1 if the canary ran on a GPU before the upgrade and runs on the CPU now, else 0.",
    _CANARY,
    reading="1 is an alert: the image has a CPU-only wheel, or the container has no GPU.",
)
DRIFT = Metric(
    "infercanary_drift_ratio",
    "gauge",
    "Latency now divided by the latency of the image's first day in this container, minus 1; 0 without a drift.",
    _CANARY,
    reading=f"A change without an upgrade: heat, a neighbour, a leak. Missing before {_DRIFT_RUNS} steady runs.",
)
DRIFT_HOST = Metric(
    "infercanary_drift_host_ratio",
    "gauge",
    "Part of the drift due to the host: controls or siblings drifted too.",
    _CANARY,
    reading="Near the whole drift, look at the host. Near 0, look at the process: memory, threads, requests.",
)
DRIFT_ONSET = Metric(
    "infercanary_drift_timestamp_seconds",
    "gauge",
    "When the drift began, or could first be seen, Unix time.",
    _CANARY,
    reading="Check what else happened then. Missing without a drift.",
)
DRIFT_INFO = Metric(
    "infercanary_drift_info",
    "gauge",
    "Always 1; how the environment of a drifted container changed since the image's first day, and its slower "
    "operators.",
    ("canary", "changes"),
    reading="Shows limits and variables that changed without a new image (`CPU quota 4 → 2`), or a new host kernel.",
)
TRIED = Metric(
    "infercanary_judge_aa_tests",
    "gauge",
    "Restarts of one image on which the judge tested itself: nothing changed there.",
    _CANARY,
    reading="Restarts that are still stored. The denominator of `infercanary_judge_aa_alarms`.",
)
ALARMS = Metric(
    "infercanary_judge_aa_alarms",
    "gauge",
    "Restarts of one image that the judge called a change when it tested itself: false alarms.",
    _CANARY,
    reading="Divided by `infercanary_judge_aa_tests`, about 0.01 or less is healthy. Count a service once, not "
    "each container.",
)

_Found = TypeVar("_Found")
_OF_LATENCY: dict[Metric, Callable[[Result], float | None]] = {
    HOST_PART: lambda j: j.causes.host.shift if j.causes.host else None,
    IMAGE_PART: lambda j: j.causes.image.shift if j.causes.image else None,
    BASELINE: lambda j: j.baseline,
    CURRENT: lambda j: j.current,
    ONSET: lambda j: j.upgraded_at,
    RESTART_SD: lambda j: j.restart.sd,
    RUNS: lambda j: float(j.runs),
    GENERATIONS: lambda j: float(j.starts),
    OUTPUT: lambda j: j.causes.output_error,
    FALLBACK: lambda j: float(j.causes.cpu_fallback),
}
_OF_MEASURES: dict[Metric, Callable[[MeasureVerdict], float | None]] = {
    MEASURE_BASELINE: lambda v: v.before,
    MEASURE_CURRENT: lambda v: v.after,
}
_OF_BOTH: dict[Metric, Callable[[Result | MeasureVerdict], float | None]] = {
    SHIFT: lambda v: v.shift,
    LOW: lambda v: v.low,
    HIGH: lambda v: v.high,
}
_OF_DRIFTS: dict[Metric, Callable[[Drift], float | None]] = {
    DRIFT: lambda d: d.shift,
    DRIFT_HOST: lambda d: d.host.shift if d.host else None,
    DRIFT_ONSET: lambda d: d.onset,
}
METRICS = (
    *(
        VERDICT,
        VERDICT_INFO,
        UPGRADE,
        COMPONENT,
        CAUSE,
        PHASE,
        BOTTLENECK,
        CONTROL,
        CONTROL_BASELINE,
        OPERATOR,
    ),
    *_OF_BOTH,
    *_OF_MEASURES,
    *_OF_LATENCY,
    *_OF_DRIFTS,
    *(DRIFT_INFO, TRIED, ALARMS),
)


def families(found: Findings, container: str, *, publishes: bool = True) -> list[Family]:
    """What is known of a service, as one of its containers shows it: by canary the verdict on its service, the drift in
    this container, the A/A trials on the service's restarts, and the verdicts on its measures.

    Args:
        found: Of the service.
        container: The stable name of one of its containers.
        publishes: Whether this exporter shows what is the service's; if not, the drift alone: another one judges it.

    Returns:
        Families, also those without points.
    """
    judgements = {c: each.result for c, each in found.items()} if publishes else {}
    upgraded = {c: j for c, j in judgements.items() if j.upgraded_at}
    changed = {c: j for c, j in judgements.items() if j.state in CHANGED}
    drifts: dict[tuple[str, ...], Drift] = {
        (c,): drift for c, each in found.items() if (drift := each.drifts.get(container)) is not None
    }
    measures: dict[tuple[str, ...], MeasureVerdict] = {
        (c, name): v for c in judgements for name, v in found[c].measures.items()
    }
    both: dict[tuple[str, ...], Result | MeasureVerdict] = {
        **{(c, LATENCY): j for c, j in judgements.items()},
        **measures,
    }
    sentences = {(c, LATENCY): label_text(found[c].sentence) for c in judgements} | {
        key: measure_words(key[1], v) for key, v in measures.items() if v.state in CHANGED
    }
    shifts = {metric: _values(both, value) for metric, value in _OF_BOTH.items()}
    shifts[SHIFT] |= {
        (c, f"cold_start_{step}"): after / before - 1
        for c, j in judgements.items()
        for step, (before, after) in j.causes.cold_start.items()
    }
    return [
        VERDICT.family({(*key, s): float(s == v.state) for key, v in both.items() for s in STATES}),
        VERDICT_INFO.family({(*key, words): 1.0 for key, words in sentences.items()}),
        UPGRADE.family(
            {
                (c, j.baseline_image, j.candidate_image, j.changed, _new_containers(found[c])): 1.0
                for c, j in upgraded.items()
            }
        ),
        COMPONENT.family(
            {
                (c, *map(label_text, (change.component, *distinct(change.before, change.after)))): 1.0
                for c, j in upgraded.items()
                for change in j.causes.changes[:_COMPONENTS]
            }
        ),
        CAUSE.family(
            {
                (c, cause, j.changed): float(cause == j.causes.cause)
                for c, j in changed.items()
                for cause in CAUSES
            }
        ),
        PHASE.family({(c, phase): x for c, j in changed.items() for phase, x in j.causes.phases.items()}),
        BOTTLENECK.family(
            {(c, name): x for c, j in changed.items() for name, x in j.causes.bottlenecks.items()}
        ),
        CONTROL.family({(c, name): x for c, j in changed.items() for name, x in j.causes.controls.items()}),
        CONTROL_BASELINE.family(
            {(c, name): x for c, j in judgements.items() for name, x in j.controls.items()}
        ),
        OPERATOR.family(_operators(changed)),
        *(metric.family(points) for metric, points in shifts.items()),
        *(metric.family(_values(measures, value)) for metric, value in _OF_MEASURES.items()),
        *(
            metric.family(_values({(c,): j for c, j in judgements.items()}, value))
            for metric, value in _OF_LATENCY.items()
        ),
        *(metric.family(_values(drifts, value)) for metric, value in _OF_DRIFTS.items()),
        DRIFT_INFO.family(
            {
                (*key, label_text(words)): 1.0
                for key, d in drifts.items()
                if d.shift and (words := _changes(d))
            }
        ),
        TRIED.family({(c,): float(len(found[c].trials)) for c in judgements}),
        ALARMS.family({(c,): float(sum(t.called for t in found[c].trials.values())) for c in judgements}),
    ]


def _values(
    found: Mapping[tuple[str, ...], _Found], value: Callable[[_Found], float | None]
) -> dict[tuple[str, ...], float]:
    """The points of a metric that is one number of each finding, where that number is known."""
    return {key: x for key, each in found.items() if (x := value(each)) is not None}


def _new_containers(finding: Finding) -> str:
    """The containers that run what the verdict is about; of many that there are: each name would be a new series."""
    names = sorted({container for container, _ in finding.sides.new})
    return label_text(", ".join(names) if len(names) <= _NAMED else f"more than {_NAMED} containers")


def _operators(changed: Mapping[str, Result]) -> dict[tuple[str, ...], float]:
    """The operators that explain the changes of a service, the largest differences."""
    gained = {
        (canary, bounded(shift.operator), shift.change): shift.after - shift.before
        for canary, judgement in changed.items()
        if judgement.causes.operators is not None and judgement.causes.operators.state == "explained"
        for shift in judgement.causes.operators.shifts
    }
    return {labels: gained[labels] for labels in sorted(gained, key=lambda key: -abs(gained[key]))[:MOST]}


def label_text(text: str, most_bytes: int = SENTENCE_BYTES) -> str:
    """``text`` as a label's value: printable, and of at most ``most_bytes`` bytes of UTF-8, cut between characters.

    Prometheus refuses a whole scrape for one value over its ``label_value_length_limit``.

    Args:
        text: Anything.
        most_bytes: Of UTF-8; 3 or more, for the ellipsis.
    """
    shown = printable(text, replacement=REPLACEMENT)
    encoded = shown.encode()
    if len(encoded) <= most_bytes:
        return shown
    cut = encoded[: most_bytes - len("…".encode())].decode(
        errors="ignore"
    )  # a character cut in two is left out
    return cut + "…"


def _changes(drift: Drift) -> str:
    """Differences from the first day."""
    return "; ".join(filter(None, (listed(drift.changes), operators_words(drift.operators))))
