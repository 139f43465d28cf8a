"""*Service*: one service's latency: where it lies, what it is made of, and what happened to it."""

from __future__ import annotations

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row, link
from grafana.dashboards.panels import (
    About,
    Column,
    Panel,
    Query,
    against,
    heat,
    lines,
    matrix,
    rows,
    tiles,
    timeline,
)
from grafana.dashboards.promql import newest, rate, series, states
from grafana.dashboards.variables import CANARIES, CONTAINERS

NO_RUN = "The canary has not run in this time range"
BUCKETS = "infercanary_latency_seconds_bucket"
NO_SWEEP = "No canary is swept: its `sweep` is off by default"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "service",
        "Service",
        "One service: latency and its phases, before and after each upgrade, replicas side by side.",
        [
            variables.datasource(),
            variables.service(multi=False),
            variables.instance(variables.SERVICES, multi=False),
            variables.container(),
            variables.canary(multi=False),
            variables.ceiling(),
        ],
        [
            marks.upgrades(verdicts.CANARY),
            marks.images(CONTAINERS),
            marks.environment(CONTAINERS),
        ],
        [
            Row("Now", [_verdict(), _numbers(), _replicas()]),
            Row("Latency", [_heatmap(), _quantiles(), verdicts.before_and_after(), verdicts.shift()]),
            Row("What it is made of", [_phases(), _phase_shares(), _bottlenecks(), _intended(), _scatter()]),
            Row("Replicas side by side", [_by_container(), _minimum(), _differences(), _states()]),
            Row("Runs", [_outcomes(), _tags(), _eligible(), _output()]),
            Row("Cold start", [_cold_start(), _time_to_steady()]),
            Row("Sweeps", [_trade_off(), _points()]),
        ],
    )


def _verdict() -> Panel:
    about = About(
        "Verdict on the last image",
        "Whether the last image changed the latency, and who made the change: image, host, both, or unknown.",
        "none",
        width=8,
        height=4,
        empty=verdicts.NO_VERDICT,
    )
    verdict = f"{verdicts.of('infercanary_verdict', 'verdict')} == 1"
    cause = f"{verdicts.of('infercanary_shift_cause', 'cause')} == 1"
    return tiles(
        about,
        Query(verdict, "{{verdict}}"),
        Query(cause, "made by: {{cause}}"),
        named=colours.VERDICTS | {f"made by: {cause}": colour for cause, colour in colours.CAUSES.items()},
        text=verdicts.NAME_ONLY,
    )


def _numbers() -> Panel:
    about = About(
        "In numbers",
        "The shift and the two ends of its interval, and the drift since the image's first day.",
        "percentunit",
        width=16,
        height=4,
        empty=verdicts.NO_VERDICT,
    )
    return tiles(
        about,
        Query(f"max({verdicts.of('infercanary_shift_ratio')})", "shift"),
        Query(f"max({verdicts.of('infercanary_shift_low_ratio')})", "at least"),
        Query(f"max({verdicts.of('infercanary_shift_high_ratio')})", "at most"),
        Query(f"max({verdicts.of('infercanary_drift_ratio')})", "drift"),
        decimals=1,
    )


def _replicas() -> Panel:
    by = "service, container, canary"
    queries = [
        Query(f"max by ({by}, state) ({series('infercanary_canary_state', CANARIES)} == 1)"),
        Query(f"max by ({by}) ({series('infercanary_run_median_seconds', CANARIES)})"),
        Query(f"max by ({by}) ({series('infercanary_eligible_ratio', CANARIES)})"),
        Query(
            f"max by ({by}, image) ({series('infercanary_canary_state', CANARIES)} "
            "* on (instance, service, container) group_left (image) "
            f"{newest('infercanary_container_info', CONTAINERS)})"
        ),
        Query(
            f"max by ({by}) ({series('infercanary_canary_state', CANARIES)} * 0 + on (instance, service, container) "
            "group_left () infercanary_probe_start_timestamp_seconds) * 1000"
        ),
    ]
    columns = [
        Column("container", "container", link=link("gpu-host", "service", "container")),
        Column("canary", "canary", link=link("upgrade", "service", "canary")),
        Column("state", "State", named=colours.CANARY_STATES),
        Column("Value #B", "Latency", "s"),
        Column("Value #C", "Clean runs", "percentunit", decimals=0),
        Column("Value #E", "Started", "dateTimeFromNow"),
        Column("image", "Image"),
        Column("service", "service"),
    ]
    about = About(
        "Replicas",
        "Each container of the service: its state, the last run's median, the share of its last 100 runs that nothing "
        "disturbed, when its probe started, and its image.",
        "short",
        width=24,
        height=6,
        empty="No container of the service reports",
    )
    return rows(about, columns, *queries)


def _heatmap() -> Panel:
    about = About(
        "Latency heatmap",
        "How many repeats a second took how long, on the ladder that all canaries share. Two bands are two states: "
        "clocks, replicas, or disturbed and undisturbed runs. Rows end at 'Heatmap up to'.",
        "s",
        height=9,
        empty=NO_RUN,
    )
    selected = rate(BUCKETS, CANARIES, 'le=~"$ceiling"')
    return heat(about, Query(f"sum by (le) ({selected}) > 0", "{{le}}"))


def _quantiles() -> Panel:
    about = About(
        "Quantiles",
        "Of all repeats, interpolated within buckets that are 19 % wide: for trends, not for verdicts. A p90 needs 64 "
        "repeats and a p99 662, so choose a long time range for it.",
        "s",
        height=9,
        empty=NO_RUN,
    )
    return lines(
        about,
        *(
            Query(
                f"histogram_quantile({q}, sum by (service, canary, le) ({rate(BUCKETS, CANARIES)}))",
                f"p{round(q * 100)}",
            )
            for q in (0.5, 0.9, 0.99)
        ),
        every="5m",
    )


def _phases() -> Panel:
    about = About(
        "Phases, stacked",
        "Median of each phase over the last run's repeats, mean over the containers. h2d, compute and d2h are by the "
        "device's clock, launch and queue by the host's. Phases overlap, so their sum is not the latency: see which "
        "one grew.",
        "s",
        width=8,
        empty=NO_RUN,
    )
    query = f"avg by (phase) ({series('infercanary_run_phase_median_seconds', CANARIES)})"
    return lines(about, Query(query, "{{phase}}"), stacked=True, minimum=0, named=colours.PHASES)


def _phase_shares() -> Panel:
    about = About(
        "Each phase over its own mean",
        "1 is the mean of the time range shown: the phase that grew stands out, however small it is.",
        "percentunit",
        width=8,
        empty=NO_RUN,
    )
    name = "infercanary_run_phase_median_seconds"
    mean = f"avg by (phase) (avg_over_time({series(name, CANARIES)}[$__range] @ end()))"
    query = f"avg by (phase) ({series(name, CANARIES)}) / ({mean} > 0)"
    return lines(about, Query(query, "{{phase}}"), named=colours.PHASES)


def _bottlenecks() -> Panel:
    about = About(
        "What the time went to",
        "Shares of the last run's median latency, mean over the containers. compute is the CPU or the device at work, "
        "its waiting for memory included; io is transfers, sockets and reading from a disk; scheduling is launching, "
        "queues, locks and waiting for a CPU. What a server does is unknown to its client.",
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
        "Waiting for a turn",
        "Mean latency, and mean time from a run's intended start to the end of its first repeat. What the second has "
        "over the first is lateness and waiting: for the server's pool, or for a CPU.",
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
            Query(
                f"sum by (service, canary) ({rate(f'{name}_sum', CANARIES)}) "
                f"/ sum by (service, canary) ({rate(f'{name}_count', CANARIES)})",
                legend,
            )
            for legend, name in means.items()
        ),
        minimum=0,
    )


def _scatter() -> Panel:
    about = About(
        "Scatter within a run",
        "Interquartile range of a run's repeats over their median. Where it rises and the minimum stays, something "
        "gets in the way at times: throttling, preemption, the garbage collector, other work on the GPU.",
        "percentunit",
        empty=NO_RUN,
    )
    iqr, median = (series(f"infercanary_run_{what}_seconds", CANARIES) for what in ("iqr", "median"))
    return lines(about, Query(f"{iqr} / {median}", "{{container}}"), minimum=0)


def _by_container() -> Panel:
    about = About(
        "Latency of each replica",
        "The last run's median. Replicas of one image that stay apart differ in place: cores, NUMA node, GPU.",
        "s",
        empty=NO_RUN,
    )
    return lines(about, Query(series("infercanary_run_median_seconds", CANARIES), "{{container}}"))


def _minimum() -> Panel:
    about = About(
        "Minimum and p90 of each replica",
        "The least disturbed repeat, and the 90th percentile of the last 64. Where the minimum moved the work costs "
        "more; where only the p90 did, some repeats are disturbed.",
        "s",
        empty=NO_RUN,
    )
    return lines(
        about,
        Query(series("infercanary_run_minimum_seconds", CANARIES), "{{container}} minimum"),
        Query(series("infercanary_recent_p90_seconds", CANARIES), "{{container}} p90"),
    )


def _differences() -> Panel:
    about = About(
        "Where replicas differ now",
        "Components of the environment that not all of these containers have alike, by container and version. Empty "
        "is well, except while a rollout is under way.",
        "none",
        empty="All replicas have the same environment",
    )
    seen = f"max by (container, component, version) ({series('infercanary_environment_info', CONTAINERS)})"
    several = f"count by (component) (count by (component, version) ({seen})) > 1"
    columns = [
        Column("component", "Component"),
        Column("version", "Version"),
        Column("container", "container", link=link("gpu-host", "service", "container")),
        Column("service", "service"),
    ]
    query = f"max by (service, container, component, version) ({series('infercanary_environment_info', CONTAINERS)})"
    return rows(about, columns, Query(f"{query} and on (component) ({several})"), sort="Component")


def _states() -> Panel:
    about = About(
        "State of each canary",
        "Opening, warming, steady, busy (no turn in the server's pool or on the GPU), failing, out of memory "
        "(too little is left for it). Warming that lasts: latencies never settle.",
        "none",
        empty="No canary reports",
    )
    query = states("infercanary_canary_state", "state", colours.CANARY_STATES, "container, canary", CANARIES)
    return timeline(about, Query(query, "{{container}}"), colours.CANARY_STATES)


def _outcomes() -> Panel:
    about = About(
        "Runs by outcome",
        "Runs a second. Healthy is ok only; busy found no turn in time, which is no fault of the canary.",
        "ops",
        empty=NO_RUN,
    )
    query = f"sum by (outcome) ({rate('infercanary_runs_total', CANARIES)})"
    return lines(about, Query(query, "{{outcome}}"), stacked=True, minimum=0, named=colours.OUTCOMES)


def _tags() -> Panel:
    about = About(
        "Tags: share of the runs",
        "What may have disturbed runs, as a share of all. A tag that comes with an image is a finding about the "
        "image; one on all containers of a host is the host.",
        "percentunit",
        empty="No run has a tag",
    )
    tagged = f"sum by (tag) ({rate('infercanary_tagged_runs_total', CANARIES)})"
    total = f"sum({rate('infercanary_runs_total', CANARIES)})"
    return lines(
        about, Query(f"({tagged} > 0) / on () group_left () {total}", "{{tag}}"), minimum=0, maximum=1
    )


def _eligible() -> Panel:
    about = About(
        "Clean runs",
        "Share of the last 100 runs that were ok, steady and without a tag. Below a half, comparisons rest on the "
        "minority of the runs.",
        "percentunit",
        empty=NO_RUN,
    )
    query = series("infercanary_eligible_ratio", CANARIES)
    return lines(about, Query(query, "{{container}}"), minimum=0, maximum=1)


def _output() -> Panel:
    about = About(
        "Output against the first steady one",
        "Relative error of the last run's output. Below 1 % it is rounding; above, the same input gets another answer.",
        "percentunit",
        empty="No output is compared",
    )
    return lines(about, Query(series("infercanary_output_error_ratio", CANARIES), "{{container}}"), minimum=0)


def _cold_start() -> Panel:
    about = About(
        "Cold start",
        "Seconds of each step of each container's last start: loading, the first run, warm-up, and from the "
        "container's start until it could be asked and was steady.",
        "s",
        empty="No container has started here yet",
    )
    steps = {
        "load": series("infercanary_load_seconds", CANARIES),
        "first run": series("infercanary_first_run_seconds", CANARIES),
        "warm-up": series("infercanary_warm_up_seconds", CANARIES),
        "until it could be asked": series("infercanary_time_to_report_seconds", CONTAINERS),
        "until steady": series("infercanary_time_to_steady_seconds", CANARIES),
    }
    query = " or ".join(f'label_replace({step}, "step", "{name}", "", "")' for name, step in steps.items())
    return matrix(about, "step", "container", Query(f"max by (step, container) ({query})"))


def _time_to_steady() -> Panel:
    about = About(
        "Time until steady",
        "How long each start took until latencies were comparable: what a rollout should wait.",
        "s",
        empty="No canary was steady yet",
    )
    query = series("infercanary_time_to_steady_seconds", CANARIES)
    return lines(about, Query(query, "{{container}}"), minimum=0, steps=True)


def _trade_off() -> Panel:
    about = About(
        "Throughput against latency",
        "A point for each batch size (one request at a time) and each number of requests at a time in the last sweep, "
        "mean over the containers. Up and to the left is better; where points go to the right and no longer up, the "
        "device is full.",
        "short",
        empty=NO_SWEEP,
    )
    by = ["batch", "concurrency"]
    latency, rate = (
        f"avg by ({', '.join(by)}) ({series(f'infercanary_sweep_{name}', CANARIES)})"
        for name in ("latency_seconds", "samples_per_second")
    )
    return against(
        about,
        by,
        Column("Value #A", "Latency of a request", "s"),
        Column("Value #B", "Samples a second", "short"),
        Query(latency),
        Query(rate),
    )


def _points() -> Panel:
    about = About(
        "Points of the last sweep",
        "What each container measured, and when its sweep ended. Device memory is the peak in its process, on a GPU "
        "only. A point that is missing did not fit, was too slow or raised: `infercanary_sweep_missing_points_total`.",
        "short",
        empty=NO_SWEEP,
    )
    by = "service, container, batch, concurrency"
    columns = [
        Column("container", "container", link=link("gpu-host", "service", "container")),
        Column("batch", "Batch"),
        Column("concurrency", "At a time"),
        Column("Value #A", "Latency", "s"),
        Column("Value #B", "Samples a second", "short"),
        Column("Value #C", "Device memory", "bytes"),
        Column("Value #D", "Swept", "dateTimeFromNow"),
        Column("service", "service"),
    ]
    names = ("latency_seconds", "samples_per_second", "peak_memory_bytes")
    queries = [Query(f"max by ({by}) ({series(f'infercanary_sweep_{name}', CANARIES)})") for name in names]
    ended = series("infercanary_sweep_timestamp_seconds", CANARIES)
    each = series("infercanary_sweep_latency_seconds", CANARIES)
    joined = f"{each} * 0 + on (instance, service, container, canary) group_left () {ended}"
    return rows(about, columns, *queries, Query(f"max by ({by}) ({joined}) * 1000"), sort="Latency")
