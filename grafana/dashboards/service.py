"""*Service*: one service's latency: the verdict, where it lies, its replicas, what it is made of, and its runs."""

from __future__ import annotations

from grafana.dashboards import colours, marks, rare, variables, verdicts
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.charts import heat, lines, timeline
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    ever,
    newest,
    numbered,
    rate,
    replicas,
    series,
    states,
    worst_gauges,
)
from grafana.dashboards.tables import Column, rows
from grafana.dashboards.variables import CANARIES, CONTAINERS, JUDGED
from infercanary.contract.report import LADDER
from infercanary.contract.vocabulary import TAGS

NO_RUN = "The canary has not run in this time range"
BUCKETS = "service_canary_le:infercanary_latency_seconds_bucket:rate5m"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "service",
        "Service",
        "One service: did it change, where does its latency lie, do its replicas agree, and what is it made of.",
        [
            variables.datasource(),
            variables.namespace(),
            variables.service(multi=False),
            variables.instance(variables.SERVICES),
            variables.pod(),
            variables.container(),
            variables.canary(multi=False),
            variables.ceiling(),
        ],
        [marks.upgrades(), marks.images(), marks.environment(CONTAINERS)],
        [
            Row(
                "Did it change",
                [
                    verdicts.sentence(),
                    verdicts.numbers(14),
                    verdicts.rests_on(10),
                    verdicts.shift(),
                    verdicts.before_and_after(),
                ],
            ),
            Row(
                "Replicas side by side",
                [_replicas(), _by_container(), _disturbed(), _states(), _differences()],
            ),
            Row("Latency of all repeats", [_heatmap(), _quantiles()]),
            Row("Where the time goes", [_phases(), _phase_shares(), _bottlenecks()]),
            Row("Runs", [_outcomes(), _tags(), _intended(), _output()]),
            Row("Cold start", [rare.cold_start(), rare.time_to_steady()], collapsed=True),
            Row(
                "Streamed completions of a language model",
                [rare.first_token(), rare.tokens()],
                collapsed=True,
            ),
            Row("Sweeps: throughput against latency", [rare.trade_off(), rare.points()], collapsed=True),
        ],
    )


def _replicas() -> Panel:
    by = "instance, namespace, service, pod, container, canary"
    state = series("infercanary_canary_state", CANARIES)
    queries = [
        Query(f"max by ({by}, state) ({state} == 1)"),
        Query(f"max by ({by}) ({series('infercanary_run_median_seconds', CANARIES)})"),
        Query(f"max by ({by}) ({series('infercanary_eligible_ratio', CANARIES)})"),
        Query(
            f"max by ({by}, image) ({state} * on (instance, namespace, service, pod, container) group_left (image) "
            f"{newest('infercanary_container_info', CONTAINERS)})"
        ),
        Query(
            f"max by ({by}) ({state} * 0 + on (instance, namespace, service, pod, container) "
            "group_left () infercanary_probe_start_timestamp_seconds) * 1000"
        ),
    ]
    columns = [
        Column("container", "Container", link=link("gpu-host", "instance", "service", "container")),
        Column("state", "State", named=colours.CANARY_STATES, width=110),
        Column("Value #B", "Latency", "s", width=90),
        Column("Value #C", "Clean runs", "percentunit", decimals=0, width=100),
        Column("Value #E", "Started", "dateTimeFromNow", width=140),
        Column("image", "Image"),
        Column("canary", "Canary", link=link("upgrade", "service", "canary"), width=120),
        Column("instance", "Host", width=130),
        Column("service", "Service", hidden=True),
    ]
    about = About(
        "Replicas",
        "Each container of the service: its state, the last run's median, the share of its last 100 runs without a "
        "disturbance, when its probe started, and its image.",
        "If it is failing, the probe's log says why. If it has few clean runs, see the tags below. Click the "
        "container to see what it runs on.",
        "none",
        width=24,
        height=6,
        empty="No container of the service reports",
    )
    return rows(about, columns, *queries, sort=("Container",), paged=True)


_COARSE = "|".join(f"{bound!r}".replace(".", "[.]") for bound in LADDER[::3])
"""Every third bound of the ladder: of all there are more rows than there is room for their labels."""


def _heatmap() -> Panel:
    about = About(
        "Latency heatmap",
        "How many repeats a second took how long, in the last five minutes, for the service on all hosts. The rows "
        "end at 'Heatmap up to'.",
        "Two bands mean two states (clocks, replicas, or disturbed and undisturbed runs): see the replicas above.",
        "s",
        height=11,
        empty=NO_RUN,
    )
    selected = series(BUCKETS, JUDGED, 'le=~"$ceiling"', f'le=~"{_COARSE}|[+]Inf"')
    return heat(about, Query(f"sum by (le) ({selected}) > 0", "{{le}}"))


def _quantiles() -> Panel:
    about = About(
        "Quantiles",
        "Quantiles of all repeats of the service on all hosts, interpolated within buckets that are 19 % wide. Use "
        "them for trends, not for verdicts. p50 and p90 are of five minutes, p99 is of an hour. They need enough "
        "repeats: 64 and 640.",
        "If only the high ones rise, some repeats are disturbed: see the tags. If all rise, see what the latency is "
        "made of.",
        "s",
        height=11,
        empty="Too few repeats: a p50 needs five minutes of them",
    )
    name = "service_canary:infercanary_latency_seconds:p{}_rate{}"
    windows = {50: "5m", 90: "5m", 99: "1h"}
    return lines(
        about,
        *(Query(series(name.format(q, window), JUDGED), f"p{q}") for q, window in windows.items()),
        named={"p50": colours.BLUE, "p90": colours.ORANGE, "p99": colours.PURPLE},
    )


def _phases() -> Panel:
    about = About(
        "Phases, stacked",
        "Median of each phase over the last run's repeats, mean over the containers. h2d, compute and d2h use the "
        "device's clock, launch and queue use the host's clock. Phases overlap, so their sum is not the latency.",
        "If compute grew: clocks, kernels, a neighbour on the device. launch: threads and CPU quota. h2d, d2h: the "
        "bus. queue: a device that was busy. wait, first_token: the server.",
        "s",
        width=8,
        empty=NO_RUN,
    )
    query = f"avg by (phase) ({series('infercanary_run_phase_median_seconds', CANARIES)})"
    return lines(about, Query(query, "{{phase}}"), stacked=True, minimum=0, named=colours.PHASES)


def _phase_shares() -> Panel:
    about = About(
        "Each phase, relative to its mean",
        "1 is the mean of the time range that is shown. The phase that grew is easy to see, even if it is small.",
        "If a phase rises together with the latency, the latency grew there. *Phases, stacked* shows its part of the "
        "whole.",
        "percentunit",
        width=8,
        empty=NO_RUN,
    )
    name = "infercanary_run_phase_median_seconds"
    mean = f"avg by (phase) (avg_over_time({series(name, CANARIES)}[$__range] @ end()))"
    query = f"avg by (phase) ({series(name, CANARIES)}) / ({mean} > 0)"
    return lines(about, Query(query, "{{phase}}"), named=colours.PHASES, doubling=True)


def _bottlenecks() -> Panel:
    about = About(
        "Time by resource",
        "Shares of the last run's median latency, mean over the containers. compute: the CPU or the device works, or "
        "waits for memory. io: transfers, sockets and reading from a disk. scheduling: launching, queues, locks and "
        "waiting for a CPU. For a request to a server, the server's work is unknown to its client.",
        "If scheduling is not small, see waiting for a CPU on *GPU and host*. If io is not small, a model or its "
        "data is read again.",
        "percentunit",
        width=8,
        empty=NO_RUN,
    )
    query = f"avg by (bottleneck) ({series('infercanary_bottleneck_ratio', CANARIES)})"
    return lines(
        about, Query(query, "{{bottleneck}}"), stacked=True, minimum=0, maximum=1, named=colours.BOTTLENECKS
    )


def _intended() -> Panel:
    about = About(
        "Latency, with the wait for its start",
        "Mean latency, and mean time from a run's intended start to the end of its first repeat. The difference of "
        "the two is lateness and waiting.",
        "If the lines move apart, the server's pool is full, or the probe waits for a CPU.",
        "s",
        empty=NO_RUN,
    )
    means = {
        "latency": "infercanary_latency_seconds",
        "since the intended start": "infercanary_intended_latency_seconds",
    }
    return lines(
        about,
        *(
            Query(f"sum({rate(f'{name}_sum', CANARIES)}) / sum({rate(f'{name}_count', CANARIES)})", legend)
            for legend, name in means.items()
        ),
        minimum=0,
    )


def _by_container() -> Panel:
    about = About(
        "Latency of each replica",
        "The last run's median.",
        "If replicas of one image stay apart, they differ in place: cores, NUMA node, GPU. See where they differ "
        "below, and *GPU and host*.",
        "s",
        empty=NO_RUN,
    )
    return lines(about, Query(worst_gauges("infercanary_run_median_seconds", CANARIES), "{{replica}}"))


def _disturbed() -> Panel:
    about = About(
        "Scatter within a run",
        "Interquartile range of a run's repeats divided by their median, for each replica. It shows whether "
        "something disturbs some of the repeats.",
        "If it rises: throttling, preemption, the garbage collector, other work on the GPU. The tags below say "
        "which.",
        "percentunit",
        empty=NO_RUN,
    )
    iqr, median = (series(f"infercanary_run_{what}_seconds", CANARIES) for what in ("iqr", "median"))
    query = f"{iqr} / {median} and {worst_gauges('infercanary_run_iqr_seconds', CANARIES)}"
    return lines(about, Query(query, "{{replica}}"), minimum=0)


def _differences() -> Panel:
    about = About(
        "Where replicas differ now",
        "Components of the environment that are not the same in all of these containers, by container and version.",
        "During a rollout, this is normal. Otherwise give all of them one image and one set of limits.",
        "none",
        empty="All replicas have the same environment",
    )
    known = series("infercanary_environment_info", CONTAINERS)
    seen = f"max by (instance, pod, container, component, version) ({known})"
    several = f"count by (component) (count by (component, version) ({seen})) > 1"
    columns = [
        Column("component", "Component"),
        Column("version", "Version"),
        Column("container", "Container", link=link("gpu-host", "instance", "service", "container")),
        Column("instance", "Host", width=130),
        Column("service", "Service", hidden=True),
    ]
    by = "instance, namespace, service, pod, container, component, version"
    query = f"max by ({by}) ({series('infercanary_environment_info', CONTAINERS)})"
    return rows(
        about, columns, Query(f"{query} and on (component) ({several})"), sort=("Component",), paged=True
    )


def _states() -> Panel:
    about = About(
        "State of each canary",
        "Opening, warming, steady, busy (it got no turn in the server's pool or on the GPU), failing, out of memory "
        "(too little memory is left for it).",
        "If warming lasts, latencies never settle. For failing and out of memory, the probe's log and the status "
        "page say why.",
        "none",
        empty="No canary reported in this time range",
    )
    name = "infercanary_canary_state"
    now = replicas(numbered(name, "state", colours.CANARY_STATES, "instance, pod, container", CANARIES))
    query = states(now, ever(series(name, CANARIES)), "replica")
    return timeline(about, Query(query, "{{replica}}"), colours.CANARY_STATES)


def _outcomes() -> Panel:
    about = About(
        "Runs by outcome",
        "Runs a second. Only ok is healthy.",
        "busy means that a run got no turn in time. The canary is not at fault: the server is loaded. For raised, "
        "timed_out and not_finite, the probe's log has the reason.",
        "ops",
        empty=NO_RUN,
    )
    query = f"sum by (outcome) ({rate('infercanary_runs_total', CANARIES)})"
    return lines(about, Query(query, "{{outcome}}"), stacked=True, minimum=0, named=colours.OUTCOMES)


def _tags() -> Panel:
    about = About(
        "Tags: share of the runs",
        "What may have disturbed runs, as a share of all runs.",
        "If a tag comes with an image, look at the image. If it is on all containers of a host, look at the host. "
        "docs/signals.md says what each tag means.",
        "percentunit",
        empty="No run has a tag",
    )
    tagged = f"sum by (tag) ({rate('infercanary_tagged_runs_total', CANARIES)})"
    total = f"sum({rate('infercanary_runs_total', CANARIES)})"
    share = Query(f"({tagged} > 0) / on () group_left () {total}", "{{tag}}")
    return lines(about, share, minimum=0, maximum=1, known=[*TAGS])


def _output() -> Panel:
    about = About(
        "Output, compared with the first steady one",
        "Relative error of the last run's output. Below 1 % it is rounding.",
        "Above that, the same input gets another answer: look for what changed the weights or the code while it ran.",
        "percentunit",
        empty="No output is compared",
    )
    query = worst_gauges("infercanary_output_error_ratio", CANARIES)
    return lines(about, Query(query, "{{replica}}"), minimum=0, calm=0.02)
