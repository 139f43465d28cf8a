"""Dashboard *Service*: one service.

First the verdict on its last upgrade and the next action, then causes, then replicas.

The judge reports levels, images and components at the end of the time range, so a range that starts after the
upgrade has the same values. A service name in two namespaces means two services, each with its own row or
line.
"""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import lines, timeline
from grafana.dashboards.panels import NO_CHANGE, NONE, NOTHING_YET, About, Query
from grafana.dashboards.promql import (
    change,
    level,
    newest,
    numbered,
    reference_work,
    replicas,
    services,
    signed,
    text,
    worst_gauges,
)
from grafana.dashboards.tables import Column, rows
from infercanary.contract.vocabulary import CAUSES

_OLD = "service_canary:infercanary_baseline_seconds:max{CANARY}"
_NEW = "service_canary:infercanary_current_seconds:max{CANARY}"
_LATENCY = 'CANARY, measure="latency"'
_SPOKEN = 'CANARY, measure=~"latency|benchmark"'
_SAID = (
    "max by (instance, BY, named, sentence) "
    f"({services(newest('infercanary_verdict_info', _SPOKEN, by='instance, BY, measure'))})"
)
_OF_SHIFT = f" / max by (BY) (infercanary_shift_ratio{{{_LATENCY}}} OF_JUDGE)"
_STARTS = "quantile by (namespace, step) (0.5, infercanary_cold_start_seconds{CANARY})"
_SLOWER = (
    'max by (namespace, step) (label_replace(infercanary_shift_ratio{CANARY, measure=~"cold_start_.*"} OF_JUDGE, '
    '"step", "$1", "measure", "cold_start_(.*)"))'
)
_MEASURES = 'measure!~"latency|cold_start_.*"'
_MIB = " / 1048576"
_GIGA = " / 1e9"
_REACHED = "{CANARY} / infercanary_run_median_seconds{CANARY}"

_NAMESPACE = Column("namespace", "Namespace", width=100)
_HOST = Column("instance", "Host", width=130)
_REPLICA = (
    Column(
        "replica", "Replica", link=link("host", "instance", "namespace", "service", "container"), least=120
    ),
    _NAMESPACE,
    Column("service", "Service", hidden=True),
    Column("container", "Container", hidden=True),
)

_SAME = {"1": ("same", colours.WELL)}
_DO = {
    "device": "no GPU: restore it, or roll back",
    "answers": "output differs: roll back",
    "equivalent": "nothing to do",
    "no_baseline": "nothing to do",
    "settling": "wait",
    "inconclusive": "wait for more runs",
    "unconfirmed": "wait, or restart a replica",
    "regressed": "see below",
    "regressedimage": "image: roll back",
    "regressedhost": "host: see Host",
    "regressedboth": "image, host: roll back, see Host",
    "regressedload": "load: wait for usual load",
    "regressedunknown": "see below",
    **{f"improved{cause}": "nothing to do" for cause in ("", *CAUSES)},
}
"""Cause and next action, by verdict and cause. A lost GPU (`device`) or a changed output (`answers`) has priority."""


def _change(end: str, unit: str) -> str:
    return signed(f"service_canary:infercanary_{end}_ratio:max{{CANARY}}", end, unit=unit)


def _milliseconds(side: str, label: str, unit: str) -> str:
    return text(f"1000 * service_canary:infercanary_{side}_seconds:max{{CANARY}}", label, unit=unit)


def _by_measure(side: str, label: str) -> str:
    """Return the medians of the measures with the old or the new image, each in its unit."""
    kinds = {
        "energy": ("", " J"),
        "spread": (" * 100", " %"),
        "throughput.*": ("", " /s"),
        ".+_memory": (_MIB, " MiB"),
    }
    by = "namespace, measure"
    return " or ".join(
        text(
            f'max by ({by}) (infercanary_measure_{side}{{CANARY, measure=~"{kind}"}} OF_JUDGE){to}',
            label,
            by,
            unit,
        )
        for kind, (to, unit) in kinds.items()
    )


def _last(measure: str, metric: str, to: str, unit: str) -> str:
    """Return a measure in the last run, as the median over replicas."""
    run = text(f"quantile by (namespace) (0.5, infercanary_{metric}){to}", "last", "namespace", unit)
    return f'label_replace({run}, "measure", "{measure}", "", "")'


def _in_order(expression: str) -> str:
    """Number the steps of a cold start."""
    for place, step in enumerate(("load", "first_run", "warm_up", "time_to_steady"), 1):
        expression = f'label_replace({expression}, "step", "{place}. {colours.word(step)}", "step", "{step}")'
    return expression


_VERDICT = [
    rows(
        About(
            "Verdict",
            "Median latency with the old image → with the new image, the change with its 95 % interval, its cause, "
            "and what to do. First image: nothing to compare with. Unconfirmed: changed, but by no more than a "
            "restart may cause.",
            "Follow the last column. docs/verdicts.md explains each verdict.",
            "none",
            width=24,
            height=6,
            empty=NOTHING_YET,
        ),
        [
            Column("named", "Service", least=68),
            Column("verdict", "Verdict", named=colours.VERDICTS, width=98),
            Column("latency", "Latency", least=66),
            Column("change", "Change", least=66),
            Column("do", "Cause: what to do", words={key: (do, "") for key, do in _DO.items()}, least=66),
        ],
        Query(services("max by (BY, verdict) (service_canary_verdict:infercanary_verdict:max{CANARY} == 1)")),
        Query(
            "max by (BY, do) ("
            'label_replace(service_canary:infercanary_cpu_fallback:holds{CANARY}, "do", "device", "", "") or on (BY) '
            "label_replace(service_canary:infercanary_upgrade_output_error_ratio:max{CANARY} > "
            'scalar(infercanary:threshold:output_error_ratio), "do", "answers", "", "") or on (BY) '
            "label_join((service_canary_verdict:infercanary_verdict:max{CANARY} == 1) * on (BY) group_left (cause) "
            "(service_canary_cause:infercanary_shift_cause:max{CANARY} == 1) or on (BY) "
            '(service_canary_verdict:infercanary_verdict:max{CANARY} == 1), "do", "", "verdict", "cause"))'
        ),
        Query(
            f"label_join({_milliseconds('baseline', 'old', ' ms → ')} * on (BY) group_left (new) "
            f"{_milliseconds('current', 'new', ' ms')} or on (BY) {_milliseconds('current', 'new', ' ms')}, "
            '"latency", "", "old", "new")'
        ),
        Query(
            f"label_join({_change('shift', ' % [')} * on (BY) group_left (shift_low) {_change('shift_low', ', ')} "
            f"* on (BY) group_left (shift_high) {_change('shift_high', ']')}, "
            '"change", "", "shift", "shift_low", "shift_high")'
        ),
        sort=("Service",),
    ),
    rows(
        About(
            "In words",
            "The old image → the new image, with the first digits of their ids; then the judge's sentence: change, "
            "cause, components that changed, and where the time grew. A second row has the image's recorded benchmark.",
            "If the new image is not the image that you deployed, its tag was moved.",
            "none",
            width=14,
            height=9,
            empty=NOTHING_YET,
        ),
        [Column("said", "Images and finding")],
        Query(
            "max by (BY, said) (label_join(label_join("
            f"{_SAID} * on (instance, BY) group_left (images) max by (instance, BY, images) (label_replace(label_join("
            f"label_replace(label_replace({newest('infercanary_upgrade_info', 'CANARY', by='instance, BY')}, "
            '"old", "$1$2", "baseline_image", "IMAGE_NAME"), "new", "$1$2", "candidate_image", "IMAGE_NAME"), '
            f'"images", " → ", "old", "new"), "images", "$1: ", "images", "(.*)")) or on (instance, BY) {_SAID}, '
            '"said", "", "images", "sentence"), "said", ": ", "named", "said") OF_JUDGE)'
        ),
        sort=("Images and finding",),
    ),
    rows(
        About(
            "Answers, device, and size of the evidence",
            "Answers: for the same input, both images give the same output, except for rounding. Device: no "
            "canary fell back from GPU to CPU. Then the new image's runs, the container starts of both images, "
            "and the spread between starts of one image.",
            "Answers changed: compare weights and preprocessing first. Fell back to CPU: the image has a CPU-only "
            "wheel, or the container has no GPU. A wide spread: find what differs between starts.",
            "none",
            width=10,
            height=9,
            empty=NOTHING_YET,
        ),
        [
            _NAMESPACE,
            Column("Value #A", "Answers", words={**_SAME, "0": ("changed", colours.TROUBLE)}, least=72),
            Column(
                "Value #B", "Device", words={**_SAME, "0": ("fell back to CPU", colours.TROUBLE)}, least=72
            ),
            Column("Value #C", "Runs", "none", least=58),
            Column("Value #D", "Container starts", "none", least=84),
            Column("Value #E", "Spread between starts", "percentunit", least=84),
        ],
        Query(
            "service_canary:infercanary_upgrade_output_error_ratio:max{CANARY} <= bool "
            "scalar(infercanary:threshold:output_error_ratio)"
        ),
        Query("1 - max by (BY) (infercanary_cpu_fallback{CANARY} OF_JUDGE)"),
        Query("max by (BY) (infercanary_judged_runs{CANARY} OF_JUDGE)"),
        Query("max by (BY) (infercanary_judged_generations{CANARY} OF_JUDGE)"),
        Query("max by (BY) (infercanary_restart_deviation_ratio{CANARY} OF_JUDGE)"),
        sort=("Namespace",),
    ),
    lines(
        About(
            "Latency by image",
            "The last run's median, for each image the median of its containers. Dashed: the old and the new level "
            "that the verdict compares.",
            "A lasting rise at the upgrade came with the image. For a temporary rise, see *Host*.",
            "s",
            width=14,
            height=13,
        ),
        Query(
            "quantile by (namespace, image, image_id) (0.5, "
            "label_replace(label_replace(infercanary_run_median_seconds{CANARY} * on (CONTAINER) group_left (image, "
            "image_id) "
            f"{newest('infercanary_container_info', 'SERVICE')}, "
            '"image", "$1", "image", "IMAGE_NAME"), "image_id", "$1", "image_id", "(?:sha256:)?(.{12}).*"))',
            "{{image}} {{image_id}} {{namespace}}",
        ),
        Query(_OLD, "old level {{namespace}}", colours.OLD, (10, 8)),
        Query(_NEW, "new level {{namespace}}", colours.NEW, (4, 6)),
    ),
    rows(
        About(
            "Components that changed",
            "Components of the environment that differ between the two images that the judge compares: libraries, "
            "variables, limits, the driver.",
            "Begin with torch, CUDA, cuDNN and the variables of threads. Revert one, and check whether the "
            "latency recovers.",
            "none",
            width=10,
            height=13,
            empty=NO_CHANGE,
        ),
        [
            Column("component", "Component", width=209),
            Column("old", "Old", least=96),
            Column("new", "New", least=96),
            _NAMESPACE,
        ],
        Query("max by (BY, component, old, new) (infercanary_upgrade_component_info{CANARY} OF_JUDGE)"),
        sort=("Component", "Namespace"),
    ),
    rows(
        About(
            "Where the extra time is",
            "Share of the slowdown: due to the image and to the host, by resource, by phase, and by operator of the "
            "model (profiled repeats). Above 100 %: another part became faster.",
            "compute: kernels, precision, flags. memory: batch, layout, a neighbour. launch, scheduling: threads "
            "and the CPU limit. io, h2d, d2h: the bus. An operator that is new or has another kernel: see the "
            "components.",
            "percentunit",
            height=12,
            empty=NO_CHANGE,
        ),
        [
            _NAMESPACE,
            Column("by", "By", width=80),
            Column("what", "Where"),
            Column("change", "How", width=80),
            Column("Value", "Share of the slowdown", "percentunit", width=110),
        ],
        Query(
            " or ".join(
                f"(label_replace(label_replace(max by (BY, {label}) (infercanary_shift_{name}{{CANARY}} OF_JUDGE)"
                f'{share}, "what", "{what}", "{label}", "(.*)"), "by", "{by}", "", "") and on (BY) '
                "service_canary_cause:infercanary_shift_cause:max{CANARY})"
                for by, what, label, name, share in (
                    ("due to", "image", "canary", "image_ratio", _OF_SHIFT),
                    ("due to", "host", "canary", "host_ratio", _OF_SHIFT),
                    ("resource", "$1", "bottleneck", "bottleneck_ratio", " != 0"),
                    ("phase", "$1", "phase", "phase_ratio", ""),
                    (
                        "operator",
                        "$1",
                        "operator",
                        "operator_seconds",
                        f" / on (BY) group_left () ({_NEW} - {_OLD})",
                    ),
                )
            )
        ),
        sort=("By", "-Share of the slowdown"),
    ),
    lines(
        About(
            "Was it the host",
            "Change since before the upgrade: 0 % is the level before, whatever time range is shown. The canary; "
            "reference work, which is the same in every image; and the canaries of other services on the same "
            "hosts, against their own level.",
            "If reference work or other services rise with the canary, the host is the cause: see *Host*. If the "
            "canary rises alone, the image or the load is.",
            "percentunit",
            height=12,
        ),
        Query(
            change("service_canary:infercanary_run_median_seconds:p50{CANARY}", level("CANARY")),
            "canary {{canary}} {{namespace}}",
            colours.NEW,
            (),
        ),
        Query(
            reference_work("namespace, service, control", "SERVICE"),
            "{{control}} {{namespace}}",
        ),
        Query(
            'quantile(0.5, (infercanary_run_median_seconds{service!~"$service"} and on (instance) '
            "instance_service_container:infercanary_up:max{SERVICE}) / on (BY) group_left () "
            'service_canary:infercanary_current_seconds:max{service!~"$service"} - 1)',
            "other services",
            colours.GREY,
        ),
        named=colours.CONTROLS,
        centred=True,
        right=True,
        calm=0.05,
    ),
]

_REPLICAS = [
    rows(
        About(
            "Replicas",
            "State, the last run's median, CPUs that the process uses (is the load balanced?), the share of "
            "uncontended runs among the last 100, image, host, and start of each replica.",
            "Failing: the probe's log says why. Few uncontended runs: see the contended runs below. Click the replica "
            "to see its host.",
            "none",
            width=24,
            height=13,
        ),
        [
            *_REPLICA,
            Column("state", "State", named=colours.CANARY_STATES, width=120),
            Column("Value #B", "Latency", "s", width=100),
            Column("Value #C", "CPUs used", "none", decimals=2, width=90),
            Column("Value #D", "Uncontended runs", "percentunit", width=90),
            Column("tag", "Image"),
            _HOST,
            Column("Value #F", "Started", "dateTimeFromNow", width=140),
        ],
        Query(replicas("max by (CONTAINER, state) (infercanary_canary_state{CANARY} == 1)")),
        Query("max by (CONTAINER) (infercanary_run_median_seconds{CANARY})"),
        Query(
            'sum by (CONTAINER) (rate(infercanary_cpu_seconds_total{SERVICE, scope="process"}[$__rate_interval]))'
        ),
        Query("max by (CONTAINER) (infercanary_eligible_ratio{CANARY})"),
        Query(
            f"max by (CONTAINER, tag) (label_replace({newest('infercanary_container_info', 'SERVICE')}, "
            '"tag", "$1", "image", "IMAGE_NAME"))'
        ),
        Query("max by (CONTAINER) (infercanary_probe_start_timestamp_seconds{SERVICE}) * 1000"),
        sort=("Namespace", "Replica"),
    ),
    lines(
        About(
            "Latency of each replica",
            "The last run's median.",
            "If replicas of one image stay different, their placement (cores, NUMA node, GPU) or their load "
            "differs: see the table above and *Host*.",
            "s",
            height=13,
        ),
        Query(worst_gauges("infercanary_run_median_seconds", "CANARY"), "{{replica}}"),
    ),
    lines(
        About(
            "Runs by outcome",
            "Runs per minute. Only ok is healthy. A busy run got no turn in time, because the server is loaded.",
            "raised, timed_out, not_finite: the probe's log has the reason.",
            "runs/min",
            height=13,
        ),
        Query(
            "60 * max by (namespace, outcome) (service_canary_outcome:infercanary_runs:rate5m{CANARY})",
            "{{outcome}} {{namespace}}",
        ),
        stacked=True,
        minimum=0,
        named=colours.OUTCOMES,
    ),
]

_LATENCY_IN_DETAIL = [
    lines(
        About(
            "All measured latencies",
            "Quantiles of all repeats, of five minutes (p99: of an hour), interpolated within buckets that are 19 % "
            "wide: for trends, not for verdicts.",
            "If only the high quantiles rise, some runs are contended. If all quantiles rise, see the time per phase.",
            "s",
        ),
        Query(
            "service_canary:infercanary_latency_seconds:p50_rate5m{CANARY}", "p50 {{namespace}}", colours.BLUE
        ),
        Query(
            "service_canary:infercanary_latency_seconds:p90_rate5m{CANARY}",
            "p90 {{namespace}}",
            colours.ORANGE,
        ),
        Query(
            "service_canary:infercanary_latency_seconds:p99_rate1h{CANARY}",
            "p99 {{namespace}}",
            colours.PURPLE,
        ),
    ),
    lines(
        About(
            "Time per phase",
            "Mean time of each phase of a repeat, and of each part of a server's own time. Phases overlap, so they "
            "are not stacked. h2d, compute and d2h use the device's clock.",
            "compute: clocks, kernels, a neighbour on the device. launch: threads and the CPU limit. h2d, d2h: the "
            "bus. queue: a busy device. wait, first_token: the server.",
            "s",
        ),
        Query(
            "sum by (namespace, phase) (rate(infercanary_phase_seconds_sum{CANARY}[$__rate_interval])) / sum by "
            "(namespace, phase) (rate(infercanary_phase_seconds_count{CANARY}[$__rate_interval]))",
            "{{phase}} {{namespace}}",
        ),
        Query(
            "avg by (namespace, part) (infercanary_server_seconds{CANARY})", "server: {{part}} {{namespace}}"
        ),
        minimum=0,
        right=True,
        named=colours.PHASES,
    ),
    lines(
        About(
            "Contended runs, by cause",
            "Share of the runs with each tag.",
            "A tag that came with an image: see the image. A tag on all services of a host: see *Host*. "
            "docs/metrics.md#tags-of-a-run explains each tag.",
            "percentunit",
            width=24,
            empty=NONE,
        ),
        Query(
            "(sum by (namespace, tag) (rate(infercanary_tagged_runs_total{CANARY}[$__rate_interval])) > 0) / on "
            "(namespace) group_left () sum by (namespace) (rate(infercanary_runs_total{CANARY}[$__rate_interval]))",
            "{{tag}} {{namespace}}",
        ),
        minimum=0,
        maximum=1,
        right=True,
    ),
    lines(
        About(
            "Jitter within a run",
            "Interquartile range of a run's repeats divided by their median.",
            "If jitter rises, something slows some of the repeats: throttling, preemption, garbage collection, other "
            "work on the GPU. The contended runs show the reason.",
            "percentunit",
            height=13,
        ),
        Query(
            "infercanary_run_iqr_seconds{CANARY} / infercanary_run_median_seconds{CANARY} and "
            f"{worst_gauges('infercanary_run_iqr_seconds', 'CANARY')}",
            "{{replica}}",
        ),
        minimum=0,
    ),
    lines(
        About(
            "Output drift",
            "Relative error of the last run's output against the first steady output of the container. Below 1 %, "
            "the error is rounding.",
            "A larger error means that the same input gets another answer: look for a change of weights or code in "
            "the running container.",
            "percentunit",
            height=13,
        ),
        Query(worst_gauges("infercanary_output_error_ratio", "CANARY"), "{{replica}}"),
        minimum=0,
        calm=0.02,
    ),
]

_RESOURCES = [
    rows(
        About(
            "Memory, energy and throughput",
            "Verdict on each measure, change, old and new median, and the last run. throughput@8x1: of a sweep, "
            "with a batch of 8 and one request at a time. arithmetic, bandwidth: what the model reaches at least, "
            "by its last profile; not judged.",
            "More memory: check the limit on *Host* before the rollout continues. Less throughput: plan more "
            "replicas, or roll back. arithmetic, bandwidth: near their ceilings (`infercanary doctor --limits`), "
            "only less work or another device is faster; far below, see the time per phase.",
            "none",
            width=14,
            height=10,
        ),
        [
            Column("measure", "Measure", least=130),
            _NAMESPACE,
            Column("verdict", "Verdict", named=colours.VERDICTS, width=110),
            Column("change", "Change", width=90),
            Column("old", "Old", width=100),
            Column("new", "New", width=100),
            Column("last", "Last run", width=100),
        ],
        Query(
            " or ".join(
                _last(*measure)
                for measure in (
                    ("energy", "run_energy_joules{CANARY}", "", " J"),
                    ("throughput", "run_samples_per_second{CANARY}", "", " /s"),
                    ("host_memory", 'run_memory_peak_bytes{CANARY, where="host"}', _MIB, " MiB"),
                    ("device_memory", 'run_memory_peak_bytes{CANARY, where="device"}', _MIB, " MiB"),
                    ("arithmetic", f"inference_flops{_REACHED}", _GIGA, " GFLOP/s"),
                    ("bandwidth", f"inference_bytes{_REACHED}", _GIGA, " GB/s"),
                )
            )
        ),
        Query(
            f"max by (namespace, measure, verdict) (infercanary_verdict{{CANARY, {_MEASURES}}} OF_JUDGE) == 1"
        ),
        Query(
            signed(
                f"max by (namespace, measure) (infercanary_shift_ratio{{CANARY, {_MEASURES}}} OF_JUDGE)",
                "change",
                "namespace, measure",
            )
        ),
        Query(_by_measure("baseline", "old")),
        Query(_by_measure("current", "new")),
        sort=("Measure", "Namespace"),
    ),
    rows(
        About(
            "Cold start",
            "Each step of the last start with the new image, as the median over the replicas. For a clearly "
            "slower step, the panel also shows the time with the old image, and the change.",
            "load: a larger model or a slower disk. first run, warm up: compiling and autotuning, so put their "
            "cache into the image. A rollout should wait until the container is steady.",
            "s",
            width=10,
            height=10,
        ),
        [
            Column("step", "Step"),
            _NAMESPACE,
            Column("Value #A", "Old", "s", width=90),
            Column("Value #B", "New", "s", width=90),
            Column("Value #C", "Change", "percentunit", width=90),
        ],
        Query(_in_order(f"{_STARTS} / (1 + {_SLOWER})")),
        Query(_in_order(_STARTS)),
        Query(_in_order(_SLOWER)),
        sort=("Step", "Namespace"),
    ),
]

_BY_REPLICA = [
    rows(
        About(
            "Where replicas differ",
            "Components of the environment that are not the same in all replicas.",
            "During a rollout, this is normal. Otherwise give all replicas one image and one set of limits.",
            "none",
            height=13,
            empty=NONE,
        ),
        [Column("component", "Component"), Column("version", "Version"), *_REPLICA, _HOST],
        Query(
            replicas(
                "(max by (CONTAINER, component, version) (infercanary_environment_info{SERVICE}) and on (namespace, "
                "component) count by (namespace, component) (count by (namespace, component, version) "
                "(infercanary_environment_info{SERVICE})) > 1)"
            )
        ),
        sort=("Component", "Version", "Replica"),
    ),
    timeline(
        About(
            "State of each canary",
            "opening, warming, steady, busy (no turn in the server's pool or on the GPU), out of memory (too little "
            "is left for the canary), failing.",
            "If warming lasts, latencies never settle. failing, out of memory: the probe's log and the status page "
            "say why.",
            "none",
            height=13,
        ),
        Query(
            numbered("infercanary_canary_state", "state", colours.CANARY_STATES, "CONTAINER", "CANARY"),
            "{{replica}}",
        ),
        colours.CANARY_STATES,
    ),
]

_STREAMED = [
    lines(
        About(
            "Time to the first token",
            "From a request to the first text, in the last run. salted: a prompt that is new to the server. plain: "
            "the prompt from the settings, part of which may be in the prefix cache.",
            "salted rises: the queue, or prefill. Both are equal: the prefix cache is off, or other prompts "
            "displace its entries.",
            "s",
            height=13,
        ),
        Query(
            "avg by (namespace, prompt) (infercanary_first_token_seconds{CANARY})", "{{prompt}} {{namespace}}"
        ),
        minimum=0,
    ),
    lines(
        About(
            "Time between tokens",
            "Time from the first token to the last, divided by the number of tokens after the first.",
            "The time grows with the number of requests in a batch, and with slower memory or clocks: see *Host*.",
            "s",
            height=13,
        ),
        Query(worst_gauges("infercanary_between_tokens_seconds", "CANARY"), "{{replica}}"),
        minimum=0,
    ),
]

_SWEEP = rows(
    About(
        "Last sweep",
        "For each batch size and number of requests at a time the medians of the replicas, the peak memory in the "
        "canary's process (on a GPU: of the device), and the age of the oldest values.",
        "If the latency grows and the throughput does not, the device is full: keep the load below that point. A "
        "missing point did not fit, was too slow or raised an error: see the probe's log.",
        "none",
        width=24,
        height=12,
    ),
    [
        _NAMESPACE,
        Column("batch", "Batch"),
        Column("concurrency", "Concurrency"),
        Column("Value #A", "Samples per second", "none", decimals=1),
        Column("Value #B", "Latency", "s"),
        Column("Value #C", "Peak memory", "bytes"),
        Column("Value #D", "Age", "s", decimals=0),
    ],
    Query("quantile by (namespace, batch, concurrency) (0.5, infercanary_sweep_samples_per_second{CANARY})"),
    Query("quantile by (namespace, batch, concurrency) (0.5, infercanary_sweep_latency_seconds{CANARY})"),
    Query("quantile by (namespace, batch, concurrency) (0.5, infercanary_sweep_peak_memory_bytes{CANARY})"),
    Query(
        "max by (namespace, batch, concurrency) (time() - infercanary_sweep_timestamp_seconds{CANARY} + on "
        "(CONTAINER, canary) group_right () 0 * infercanary_sweep_latency_seconds{CANARY})"
    ),
    sort=("Namespace", "Batch", "Concurrency"),
)


def board() -> Board:
    return Board(
        "service",
        "Service",
        "One service: what its last upgrade did, why, and what to do; then its replicas.",
        [
            variables.datasource(),
            variables.namespace(),
            variables.service('namespace=~"$namespace"', multi=False),
            variables.canary(multi=False),
        ],
        [marks.upgrades(f"{marks.UPGRADE}{{CANARY}}")],
        [
            Row("Verdict on the last upgrade", _VERDICT),
            Row("Replicas", _REPLICAS),
            Row("Latency in detail", _LATENCY_IN_DETAIL, collapsed=True),
            Row("Memory, energy, throughput, cold start", _RESOURCES, collapsed=True),
            Row("Differences and states of replicas", _BY_REPLICA, collapsed=True),
            Row("Streamed completions of a language model", _STREAMED, collapsed=True),
            Row("Sweep: throughput against latency", [_SWEEP], collapsed=True),
        ],
    )
