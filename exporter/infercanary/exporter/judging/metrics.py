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
_DRIFT_RUNS = LIVE.block_runs * (LIVE.drift_baseline_blocks + LIVE.drift_recent_blocks)
VERDICT = Metric(
    "infercanary_verdict",
    "gauge",
    "The verdict on the last change of the service's image or model, as a state set: 1 for the one that holds.",
    ("canary", "verdict"),
    reading='`infercanary_verdict{verdict="regressed"} == 1` is the alert after an upgrade. `inconclusive` and '
    "`settling` are real answers: not enough is known yet. `confirming`: it is slower or faster, but not yet by more "
    "than a restart may do. `no_baseline`: no other image ran long enough before, or the canary's settings changed, so "
    "that runs before are not comparable.",
)
VERDICT_INFO = Metric(
    "infercanary_verdict_info",
    "gauge",
    "Always 1; the judge's sentence on the last change of the service's image or model, cut to 400 bytes.",
    ("canary", "sentence"),
    reading="The same words as on the status page and in the exporter's log. They change only with the finding: how "
    "far the judge has come is `infercanary_judged_runs` of `infercanary_next_look_runs`. Read it in an alert's "
    "annotation with a query, never as a label of the alert: each new wording would be another alert.",
)
UPGRADE = Metric(
    "infercanary_upgrade_info",
    "gauge",
    "Always 1; the images that are compared: the one before the last upgrade, and the one since; and what was "
    "exchanged: image, model or both.",
    ("canary", "baseline_image", "candidate_image", "changed"),
    reading="Each with the first digits of its id, which differ where two images have one tag. With `changed` `model` "
    "they are the same: the weights are new, and the sentence has their digests. Missing before the first upgrade.",
)
SHIFT = Metric(
    "infercanary_shift_ratio",
    "gauge",
    "New image's latency over the old one's, minus 1, at the judge's last look.",
    _CANARY,
    reading="0.05 is 5 % slower. Believe it as far as `infercanary_shift_low_ratio` and "
    "`infercanary_shift_high_ratio` allow.",
)
LOW = Metric(
    "infercanary_shift_low_ratio",
    "gauge",
    "The lower end of the shift's interval.",
    _CANARY,
    reading=f"Above {LIVE.clear_zone:g} the slowdown is real; how much is between this and "
    "`infercanary_shift_high_ratio`.",
)
HIGH = Metric(
    "infercanary_shift_high_ratio",
    "gauge",
    "The upper end of the shift's interval.",
    _CANARY,
    reading="The worst that the upgrade may have done, as far as the runs show.",
)
HOST_PART = Metric(
    "infercanary_shift_host_ratio",
    "gauge",
    "The part of the shift that the controls of the container, or its siblings, made too, or that was waiting for CPUs "
    "that others outside the container had: the host's.",
    _CANARY,
    reading="Near `infercanary_shift_ratio`: the host changed, and the image is not to blame. Missing where neither "
    "a control nor a sibling ran.",
)
IMAGE_PART = Metric(
    "infercanary_shift_image_ratio",
    "gauge",
    "The part of the shift that is left for the image.",
    _CANARY,
    reading="Near `infercanary_shift_ratio`: what is in the image changed; the status page says which components.",
)
CAUSE = Metric(
    "infercanary_shift_cause",
    "gauge",
    "What made the shift, as a state set: image, host, both, load (more or fewer requests than before) or unknown. "
    "Only where there is a verdict of a change.",
    ("canary", "cause", "changed"),
    reading="`image` is what was upgraded: `changed` says image, model or both. `host` and `load` only where they "
    "explain the shift, and the image's part can be small at most. `unknown`: that cannot be said, and the sentence "
    "says why.",
)
PHASE = Metric(
    "infercanary_shift_phase_ratio",
    "gauge",
    f"A phase's share of the change, seconds of seconds: those that made {100 * LIVE.phase_share:g} % of it or more. "
    "Only where there is a verdict of a change.",
    ("canary", "phase"),
    reading="Where it grew: `compute` is the device or its kernels, `launch` the host's side, `h2d` and `d2h` the bus, "
    "`queue` a device that was busy. Over 1 where another phase became shorter meanwhile.",
)
BOTTLENECK = Metric(
    "infercanary_shift_bottleneck_ratio",
    "gauge",
    "A resource's share of the change, seconds of seconds: compute, memory, io (transfers, sockets, reading from a "
    "disk), scheduling (launching, queues, locks, waiting for a CPU) and unknown. Only where there is a verdict of a "
    "change.",
    ("canary", "bottleneck"),
    reading="What grew. Time on the processor is `memory` where a control of the memory moved as the canary did, and "
    "clearly more than those that compute; `compute` where those moved, or where all were flat, for then the program "
    "computes more. Over 1 where another one became shorter meanwhile, and that is below 0.",
)
CONTROL = Metric(
    "infercanary_shift_control_ratio",
    "gauge",
    "A control's time since the upgrade over that before, minus 1: those that moved. Only where there is a verdict of "
    "a change.",
    ("canary", "control"),
    reading="Work that is the same in every image: what moved it is the host, or the container's limits. None: "
    "no control moved, or none ran (`infercanary_control_up`).",
)
BASELINE = Metric(
    "infercanary_baseline_seconds",
    "gauge",
    "Median of the old image's runs that the verdict rests on.",
    _CANARY,
    reading="Beside `infercanary_current_seconds` it is the shift in seconds.",
)
CURRENT = Metric(
    "infercanary_current_seconds",
    "gauge",
    "Median of the new image's runs that the verdict rests on.",
    _CANARY,
    reading="Of the runs up to the judge's last look; `infercanary_run_median_seconds` is the last run's.",
)
ONSET = Metric(
    "infercanary_upgrade_timestamp_seconds",
    "gauge",
    "When the first container of the service started with the image that is judged, Unix time.",
    _CANARY,
    reading="`time() - infercanary_upgrade_timestamp_seconds` is how long ago the upgrade was.",
)
RESTART_SD = Metric(
    "infercanary_restart_deviation_ratio",
    "gauge",
    "How much two starts of one image differ (SD), as learned from the service's own restarts.",
    _CANARY,
    reading="It is part of the shift's interval, for each start anew. Above 0.02 only large changes are called: find "
    "what differs between starts (thread placement, memory layout, autotuning).",
)
PRIOR = Metric(
    "infercanary_verdict_prior",
    "gauge",
    "Number of the prior that the verdict used for what the service's own restarts do not show; 0 for the assumed one.",
    _CANARY,
    reading="The newest one is `infercanary_restart_prior_info`. It differs where the upgrade came before that was "
    "learned: the same runs give the same verdict again.",
)
RUNS = Metric(
    "infercanary_judged_runs",
    "gauge",
    "Runs of the new image that the verdict rests on.",
    _CANARY,
    reading=f"The judge looks from {LIVE.looks[0]} runs of a start on, ever more rarely up to {LIVE.looks[-1]}, and "
    "calls a change as soon as it is beyond doubt.",
)
NEXT_LOOK = Metric(
    "infercanary_next_look_runs",
    "gauge",
    "Runs of a start of the new image at which the judge looks again.",
    _CANARY,
    reading="`infercanary_judged_runs` of them are there. Missing after the last look.",
)
GENERATIONS = Metric(
    "infercanary_judged_generations",
    "gauge",
    "Starts of containers, of both images, that the verdict rests on.",
    _CANARY,
    reading="A start is one replicate, however many runs it has: two replicas show more than twice the runs of one.",
)
OUTPUT = Metric(
    "infercanary_upgrade_output_error_ratio",
    "gauge",
    "Relative error of the new image's first steady output against the old one's, for the same input.",
    _CANARY,
    reading="Above 0.01 the upgrade changed the answers: weights, preprocessing or numerics. Missing where one of "
    "them is not known.",
)
COLD_START = Metric(
    "infercanary_cold_start_shift_ratio",
    "gauge",
    "By how much a step of the cold start became slower with the upgrade; only steps that did, by "
    f"{100 * (LIVE.cold_start_ratio - 1):g} % and {LIVE.cold_start_seconds:g} s.",
    ("canary", "step"),
    reading="`load`, `first_run` or `time_to_steady`; a slower start delays scaling and failover.",
)
FALLBACK = Metric(
    "infercanary_cpu_fallback",
    "gauge",
    "1 if the canary ran on a GPU before the upgrade, and runs on the CPU since, else 0.",
    _CANARY,
    reading="1 is an alert: a CPU-only wheel, or a container started without its GPU.",
)
DRIFT = Metric(
    "infercanary_drift_ratio",
    "gauge",
    "Latency now over that of the image's first day in this container, minus 1, where it moved away; else 0.",
    _CANARY,
    reading="A drift without an upgrade: heat, a neighbour, a leak. `infercanary_drift_host_ratio` is the host's "
    f"part. Missing before {_DRIFT_RUNS} steady runs of the image.",
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
    "The part of the drift that the controls or siblings made too: the host's.",
    _CANARY,
    reading="Near `infercanary_drift_ratio`: look at the host. Near 0: at the process (memory, threads, requests).",
)
DRIFT_ONSET = Metric(
    "infercanary_drift_timestamp_seconds",
    "gauge",
    "When the drift began, Unix time; of a slow one, when it could first be seen.",
    _CANARY,
    reading="Present only while there is a drift. Look what else happened then.",
)
DRIFT_INFO = Metric(
    "infercanary_drift_info",
    "gauge",
    "Always 1; of a container that drifted: what was different in its environment on the image's first day, and which "
    "operators take longer by profiles of both times.",
    ("canary", "changes"),
    reading="Limits and variables that somebody changed without another image (CPU quota 4 → 2), another host's "
    "kernel; `conv2d 9.8 → 31.2 ms (84 % of the change)`. Present only while there is a drift, and something is known.",
)
TRIED = Metric(
    "infercanary_judge_aa_tests",
    "gauge",
    "Restarts of one image that the judge was tried on: nothing changed there, so it should call nothing.",
    _CANARY,
    reading="Of the service's starts that are still kept. The denominator of `infercanary_judge_aa_alarms`.",
)
ALARMS = Metric(
    "infercanary_judge_aa_alarms",
    "gauge",
    "Restarts of one image that the judge, tried on each by itself, called a change: its own false alarms.",
    _CANARY,
    reading="Over `infercanary_judge_aa_tests` it is the judge's rate of false alarms on your own restarts, each "
    "judged as it would have been then: about 0.01 or less. More: starts differ by more than the "
    f"{100 * LIVE.prior_restart_sd:g} % that is assumed "
    "before any was seen; once seen it is learned. Both are the service's: count them once, not for each container.",
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
                (c, j.baseline_image, j.candidate_image, j.changed): 1.0
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
