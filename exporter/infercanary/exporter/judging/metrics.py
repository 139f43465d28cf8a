"""The judge's findings as metrics. All have `service`, `container` and `canary`: a verdict is the service's, and is
shown with each of its containers, so that it joins with all else that is known of them."""

from __future__ import annotations

from collections.abc import Callable

from infercanary.contract.report import Family, Metric
from infercanary.contract.text import REPLACEMENT, printable
from infercanary.contract.vocabulary import CAUSES
from infercanary.exporter.judging import measure_metrics, operator_metrics
from infercanary.exporter.judging.findings import Findings
from infercanary.judge import operator_words
from infercanary.judge.drift import Drift
from infercanary.judge.model import STATES, Judgement
from infercanary.judge.policy import LIVE
from infercanary.judge.sentence import SENTENCE_BYTES, listed
from infercanary.judge.shift import CHANGED

"""Prometheus refuses a whole scrape for one value over its ``label_value_length_limit`` (prometheus.yml: 500)."""


_CANARY = ("canary",)
_NAMED = 3  # containers of a service: an alert is read on a phone
_DRIFT_RUNS = LIVE.block_runs * (LIVE.drift_baseline_blocks + LIVE.drift_recent_blocks)
VERDICT = Metric(
    "infercanary_verdict",
    "gauge",
    "The verdict on the last change of the service's image or model, as a state set: 1 for the current verdict.",
    ("canary", "verdict"),
    reading='`infercanary_verdict{verdict="regressed"} == 1` is the alert after an upgrade. `inconclusive` and '
    "`settling` are real answers: there is not enough evidence yet. `unconfirmed`: it is slower or faster, but not "
    "yet by more than a restart may cause. `no_baseline`: no other image ran long enough before, or the canary's "
    "settings changed, so that earlier runs are not comparable.",
)
VERDICT_INFO = Metric(
    "infercanary_verdict_info",
    "gauge",
    "Always 1; the judge's sentence about the last change of the service's image or model, cut to 400 bytes.",
    ("canary", "sentence"),
    reading="The words are the same as on the status page and in the exporter's log. They change only with the "
    "finding. The judge's progress is `infercanary_judged_runs` of `infercanary_next_look_runs`. Read the sentence "
    "in an alert's annotation with a query, never as a label of the alert: each new wording would be another alert.",
)
UPGRADE = Metric(
    "infercanary_upgrade_info",
    "gauge",
    "Always 1; the two images that are compared (the one before the last upgrade, and the one since then), what was "
    "exchanged (image, model or both), and which containers run the new one.",
    ("canary", "baseline_image", "candidate_image", "changed", "candidate_containers"),
    reading="Each image has the first digits of its id, which differ if two images have one tag. If `changed` is "
    "`model`, both images are the same: the weights are new, and the sentence has their digests. Missing before the "
    "first upgrade.",
)
SHIFT = Metric(
    "infercanary_shift_ratio",
    "gauge",
    "New image's latency divided by the old image's latency, minus 1, at the judge's last look.",
    _CANARY,
    reading="0.05 is 5 % slower. `infercanary_shift_low_ratio` and `infercanary_shift_high_ratio` show how certain "
    "it is.",
)
LOW = Metric(
    "infercanary_shift_low_ratio",
    "gauge",
    "The lower end of the shift's interval.",
    _CANARY,
    reading=f"Above {LIVE.clear_zone:g} the slowdown is real. Its size is between this value and "
    "`infercanary_shift_high_ratio`.",
)
HIGH = Metric(
    "infercanary_shift_high_ratio",
    "gauge",
    "The upper end of the shift's interval.",
    _CANARY,
    reading="The worst possible effect of the upgrade, as far as the runs show it.",
)
HOST_PART = Metric(
    "infercanary_shift_host_ratio",
    "gauge",
    "The host's part of the shift: the part that the controls of the container or its siblings show too, or that was "
    "waiting for CPUs that others outside the container used.",
    _CANARY,
    reading="If it is near `infercanary_shift_ratio`, the host changed, and the image is not the cause. Missing if "
    "no control and no sibling ran.",
)
IMAGE_PART = Metric(
    "infercanary_shift_image_ratio",
    "gauge",
    "The part of the shift that remains for the image.",
    _CANARY,
    reading="If it is near `infercanary_shift_ratio`, the content of the image changed. The status page says which "
    "components changed.",
)
CAUSE = Metric(
    "infercanary_shift_cause",
    "gauge",
    "What caused the shift, as a state set: image, host, both, load (more or fewer requests than before) or unknown. "
    "Present only if the verdict is a change.",
    ("canary", "cause", "changed"),
    reading="`image` means what was upgraded: `changed` says image, model or both. `host` and `load` hold only if "
    "they explain the shift and if the image's part can only be small. `unknown`: there is not enough evidence, and "
    "the sentence says why.",
)
PHASE = Metric(
    "infercanary_shift_phase_ratio",
    "gauge",
    f"A phase's share of the change (seconds divided by seconds). Only phases that made {100 * LIVE.phase_share:g} % "
    "of it or more. Present only if the verdict is a change.",
    ("canary", "phase"),
    reading="It shows where the time grew: `compute` is the device or its kernels, `launch` is the host's side, "
    "`h2d` and `d2h` are the bus, `queue` is a device that was busy. It is over 1 if another phase became shorter at "
    "the same time.",
)
BOTTLENECK = Metric(
    "infercanary_shift_bottleneck_ratio",
    "gauge",
    "A resource's share of the change (seconds divided by seconds): compute, memory, io (transfers, sockets, reading "
    "from a disk), scheduling (launching, queues, locks, waiting for a CPU) and unknown. Present only if the verdict "
    "is a change.",
    ("canary", "bottleneck"),
    reading="It shows which resource grew. Time on the processor is `memory` if a control of the memory changed as "
    "the canary did, and clearly more than the controls that compute. It is `compute` if the controls that compute "
    "changed, or if no control changed: then the program computes more. A share is over 1 if another resource became "
    "shorter; the share of that one is below 0.",
)
CONTROL = Metric(
    "infercanary_shift_control_ratio",
    "gauge",
    "A control's time since the upgrade divided by its time before, minus 1. Only controls that changed. Present "
    "only if the verdict is a change.",
    ("canary", "control"),
    reading="A control is the same work in every image. If it changed, the cause is the host or the container's "
    "limits. If there is no series, no control changed, or none ran (`infercanary_control_up`).",
)
BASELINE = Metric(
    "infercanary_baseline_seconds",
    "gauge",
    "Median of the old image's runs that the verdict rests on.",
    _CANARY,
    reading="The difference between it and `infercanary_current_seconds` is the shift in seconds.",
)
CURRENT = Metric(
    "infercanary_current_seconds",
    "gauge",
    "Median of the new image's runs that the verdict rests on.",
    _CANARY,
    reading="It uses the runs up to the judge's last look. `infercanary_run_median_seconds` is the value of the last "
    "run.",
)
ONSET = Metric(
    "infercanary_upgrade_timestamp_seconds",
    "gauge",
    "When the first container of the service started with the image that the judge now judges, Unix time.",
    _CANARY,
    reading="`time() - infercanary_upgrade_timestamp_seconds` is the time since the upgrade.",
)
RESTART_SD = Metric(
    "infercanary_restart_deviation_ratio",
    "gauge",
    "How much two starts of one image differ (SD). The judge learns it from the service's own restarts.",
    _CANARY,
    reading="It is part of the shift's interval, once for each start. Above 0.02, the judge calls only large "
    "changes: find what differs between starts (thread placement, memory layout, autotuning).",
)
PRIOR = Metric(
    "infercanary_verdict_prior",
    "gauge",
    "Number of the prior that the verdict used for what the service's own restarts do not show; 0 for the assumed "
    "prior.",
    _CANARY,
    reading="`infercanary_restart_prior_info` has the newest number. The two differ if the upgrade came before the "
    "newest prior was learned. So the same runs always give the same verdict.",
)
RUNS = Metric(
    "infercanary_judged_runs",
    "gauge",
    "Runs of the new image that the verdict rests on.",
    _CANARY,
    reading=f"The judge first looks at {LIVE.looks[0]} runs of a start, then less and less often, up to "
    f"{LIVE.looks[-1]} runs. It calls a change as soon as there is enough evidence.",
)
NEXT_LOOK = Metric(
    "infercanary_next_look_runs",
    "gauge",
    "The number of runs of a start of the new image at which the judge looks again.",
    _CANARY,
    reading="`infercanary_judged_runs` of these runs are there now. Missing after the last look.",
)
GENERATIONS = Metric(
    "infercanary_judged_generations",
    "gauge",
    "Starts of containers, of both images, that the verdict rests on.",
    _CANARY,
    reading="A start counts as one sample, no matter how many runs it has: two replicas are more evidence than twice "
    "the runs of one replica.",
)
OUTPUT = Metric(
    "infercanary_upgrade_output_error_ratio",
    "gauge",
    "Relative error of the new image's first steady output against the old image's, for the same input.",
    _CANARY,
    reading="Above 0.01, the upgrade changed the answers: weights, preprocessing or numerics. Missing if one of the "
    "two outputs is not known.",
)
COLD_START = Metric(
    "infercanary_cold_start_shift_ratio",
    "gauge",
    "By how much a step of the cold start became slower with the upgrade. Only steps that became slower by "
    f"{100 * (LIVE.cold_start_ratio - 1):g} % and {LIVE.cold_start_seconds:g} s are shown.",
    ("canary", "step"),
    reading="The steps are `load`, `first_run` and `time_to_steady`. A slower start delays scaling and failover.",
)
FALLBACK = Metric(
    "infercanary_cpu_fallback",
    "gauge",
    "1 if the canary ran on a GPU before the upgrade and runs on the CPU since then, else 0.",
    _CANARY,
    reading="1 is an alert: the image has a CPU-only wheel, or the container was started without its GPU.",
)
DRIFT = Metric(
    "infercanary_drift_ratio",
    "gauge",
    "Latency now divided by the latency of the image's first day in this container, minus 1, if it drifted; else 0.",
    _CANARY,
    reading="A drift is a change without an upgrade: heat, a neighbour, a leak. `infercanary_drift_host_ratio` is "
    f"the host's part. Missing before {_DRIFT_RUNS} steady runs of the image.",
)
DRIFT_LOW = Metric(
    "infercanary_drift_low_ratio",
    "gauge",
    "The lower end of the drift's interval.",
    _CANARY,
    reading="Present only while there is a drift.",
)
DRIFT_HIGH = Metric(
    "infercanary_drift_high_ratio",
    "gauge",
    "The upper end of the drift's interval.",
    _CANARY,
    reading="Present only while there is a drift.",
)
DRIFT_HOST = Metric(
    "infercanary_drift_host_ratio",
    "gauge",
    "The host's part of the drift: the part that the controls or siblings show too.",
    _CANARY,
    reading="If it is near `infercanary_drift_ratio`, look at the host. If it is near 0, look at the process "
    "(memory, threads, requests).",
)
DRIFT_ONSET = Metric(
    "infercanary_drift_timestamp_seconds",
    "gauge",
    "When the drift began, Unix time. For a slow drift, it is when the drift could first be seen.",
    _CANARY,
    reading="Present only while there is a drift. Check what else happened at that time.",
)
DRIFT_INFO = Metric(
    "infercanary_drift_info",
    "gauge",
    "Always 1; for a container that drifted: the differences in its environment since the image's first day, and the "
    "operators that take longer, by profiles of both times.",
    ("canary", "changes"),
    reading="It names limits and variables that somebody changed without another image (CPU quota 4 → 2), or the "
    "kernel of another host, and operators: `conv2d 9.8 → 31.2 ms (84 % of the change)`. Present only while there is "
    "a drift and something is known about it.",
)
TRIED = Metric(
    "infercanary_judge_aa_tests",
    "gauge",
    "Restarts of one image that the judge was tested on. Nothing changed there, so it should not call a change.",
    _CANARY,
    reading="Only the service's starts that are still stored. The denominator of `infercanary_judge_aa_alarms`.",
)
ALARMS = Metric(
    "infercanary_judge_aa_alarms",
    "gauge",
    "Restarts of one image that the judge called a change when it tested itself on each of them: its own false "
    "alarms.",
    _CANARY,
    reading="Divided by `infercanary_judge_aa_tests`, it is the judge's rate of false alarms on your own restarts. "
    "The judge treats each restart as it would have at that time. Healthy is about 0.01 or less. If it is more, "
    f"starts differ by more than the {100 * LIVE.prior_restart_sd:g} % that the judge assumes before it has seen "
    "any. Once it has seen them, it learns the difference. Both metrics belong to the service: count them once, not "
    "for each container.",
)

Value = Callable[[Judgement], "float | None"]
_PLAIN: dict[Metric, Value] = {
    SHIFT: lambda j: j.shift,
    LOW: lambda j: j.low,
    HIGH: lambda j: j.high,
    HOST_PART: lambda j: j.causes.host.shift if j.causes.host else None,
    IMAGE_PART: lambda j: j.causes.image.shift if j.causes.image else None,
    BASELINE: lambda j: j.baseline_seconds,
    CURRENT: lambda j: j.current_seconds,
    ONSET: lambda j: j.upgraded_at,
    RESTART_SD: lambda j: j.restart_sd,
    PRIOR: lambda j: float(j.prior),
    RUNS: lambda j: float(j.runs),
    NEXT_LOOK: lambda j: j.next_look,
    GENERATIONS: lambda j: float(j.starts),
    OUTPUT: lambda j: j.causes.output_error,
    FALLBACK: lambda j: float(j.causes.cpu_fallback),
}
_DRIFT: dict[Metric, Callable[[Drift], float | None]] = {
    DRIFT: lambda c: c.shift,
    DRIFT_LOW: lambda c: c.low,
    DRIFT_HIGH: lambda c: c.high,
    DRIFT_HOST: lambda c: c.host.shift if c.host else None,
    DRIFT_ONSET: lambda c: c.onset,
}
METRICS = (
    VERDICT,
    VERDICT_INFO,
    UPGRADE,
    CAUSE,
    PHASE,
    BOTTLENECK,
    CONTROL,
    COLD_START,
    *_PLAIN,
    *_DRIFT,
    DRIFT_INFO,
    TRIED,
    ALARMS,
    operator_metrics.SECONDS,
    *measure_metrics.METRICS,
)


def _with_new(found: Findings, canary: str) -> str:
    """The containers that run what the verdict is about; of many that there are: each name would be a new series."""
    side = found.sides.get(canary)
    names = sorted({container for container, _ in side.new}) if side is not None else []
    return label_text(", ".join(names) if len(names) <= _NAMED else f"more than {_NAMED} containers")


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
    if not publishes:
        found = Findings(drifts=found.drifts)
    judgements = found.judgements
    changed = {c: j for c, j in judgements.items() if j.state in CHANGED}
    drifts = {c: drift for (name, c), drift in found.drifts.items() if name == container}
    return [
        VERDICT.family({(c, s): float(s == j.state) for c, j in judgements.items() for s in STATES}),
        VERDICT_INFO.family({(c, label_text(words)): 1.0 for c, words in found.sentences.items()}),
        UPGRADE.family(
            {
                (c, j.baseline_image, j.candidate_image, j.changed, _with_new(found, c)): 1.0
                for c, j in judgements.items()
                if j.upgraded_at
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
        COLD_START.family(
            {
                (c, step): b / a - 1
                for c, j in judgements.items()
                for step, (a, b) in j.causes.cold_start.items()
            }
        ),
        *(
            metric.family({(c,): x for c, j in judgements.items() if (x := value(j)) is not None})
            for metric, value in _PLAIN.items()
        ),
        *(
            metric.family({(c,): x for c, drift in drifts.items() if (x := value_of(drift)) is not None})
            for metric, value_of in _DRIFT.items()
        ),
        DRIFT_INFO.family(
            {(c, label_text(words)): 1.0 for c, d in drifts.items() if d.shift and (words := _known(d))}
        ),
        TRIED.family({(c,): float(len(tried)) for c, tried in found.trials.items()}),
        ALARMS.family(
            {(c,): float(sum(t.called for t in tried.values())) for c, tried in found.trials.items()}
        ),
        operator_metrics.family(changed),
        *measure_metrics.families(found),
    ]


def label_text(text: str, most_bytes: int = SENTENCE_BYTES) -> str:
    """``text`` as a label's value: printable, and of at most ``most_bytes`` bytes of UTF-8, cut between characters.

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


def _known(drift: Drift) -> str:
    """What is other than it was on the first day."""
    operators = operator_words.part(drift.operators) if drift.operators is not None else ""
    return "; ".join(filter(None, (listed(drift.changes), operators)))
