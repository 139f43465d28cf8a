"""Panels of *Service* for what not every service has, in rows that are folded: starts, streamed completions, sweeps."""

from __future__ import annotations

from grafana.dashboards.board import link
from grafana.dashboards.charts import against, lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import series, worst_gauges
from grafana.dashboards.tables import Column, rows
from grafana.dashboards.variables import CANARIES, CONTAINERS

NO_SWEEP = "No canary is swept: its `sweep` is off by default"
NO_STREAM = "No canary streams completions here"


def cold_start() -> Panel:
    """Steps of each container's last start.

    Returns:
        A new panel.
    """
    about = About(
        "Cold start",
        "Seconds of each step of each container's last start: loading, the first run, warm-up, and the time from the "
        "container's start until it could answer and until it was steady.",
        "load: a larger model or a slower disk. first run and warm-up: compiling and autotuning, so put their cache "
        "into the image.",
        "none",
        width=14,
        empty="No container has started here yet",
    )
    steps = {
        "load": series("infercanary_load_seconds", CANARIES),
        "first run": series("infercanary_first_run_seconds", CANARIES),
        "warm-up": series("infercanary_warm_up_seconds", CANARIES),
        "reports": series("infercanary_time_to_report_seconds", CONTAINERS),
        "steady": series("infercanary_time_to_steady_seconds", CANARIES),
    }
    columns = [
        Column("container", "Container"),
        *(
            Column(f"Value #{letter}", step.capitalize(), "s", width=90)
            for letter, step in zip("ABCDE", steps, strict=True)
        ),
    ]
    queries = (Query(f"max by (pod, container) ({step})") for step in steps.values())
    return rows(about, columns, *queries, sort=("Container",), paged=True)


def time_to_steady() -> Panel:
    """How long starts took.

    Returns:
        A new panel.
    """
    about = About(
        "Time until steady",
        "How long each start took until latencies were comparable.",
        "A rollout should wait this long before it continues.",
        "s",
        width=10,
        empty="No canary was steady yet",
    )
    query = worst_gauges("infercanary_time_to_steady_seconds", CANARIES)
    return lines(about, Query(query, "{{replica}}"), minimum=0, steps=True)


def first_token() -> Panel:
    """Time to the first token.

    Returns:
        A new panel.
    """
    about = About(
        "Time to the first token",
        "Time from a request to the first text, in the last run, mean over the containers. salted is a prompt that "
        "is new to the server. plain is the prompt from the settings; the prefix cache may have a part of it.",
        "If salted rises, the cause is the queue, or prefill. If both are about the same, the prefix cache is off, "
        "or other prompts push the prompt out.",
        "s",
        empty=NO_STREAM,
    )
    query = f"avg by (prompt) ({series('infercanary_first_token_seconds', CANARIES)})"
    return lines(about, Query(query, "{{prompt}}"), minimum=0)


def tokens() -> Panel:
    """Time between tokens.

    Returns:
        A new panel.
    """
    about = About(
        "Time between tokens",
        "The reader's pace for each container: the time from the first token to the last, divided by the number of "
        "tokens after the first.",
        "It grows with the number of requests that the server decodes in one batch, and with slower memory or "
        "clocks: see *GPU and host*.",
        "s",
        empty=NO_STREAM,
    )
    query = worst_gauges("infercanary_between_tokens_seconds", CANARIES)
    return lines(about, Query(query, "{{replica}}"), minimum=0)


def trade_off() -> Panel:
    """Throughput against latency.

    Returns:
        A new panel.
    """
    about = About(
        "Throughput against latency",
        "A point for each batch size (one request at a time) and each number of requests at a time in the last sweep, "
        "mean over the containers. Up and to the left is better.",
        "If points go to the right and no longer up, the device is full: keep the load below that point.",
        "short",
        width=9,
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


def points() -> Panel:
    """What the last sweep measured.

    Returns:
        A new panel.
    """
    about = About(
        "Points of the last sweep",
        "The values that each container measured, and when its sweep ended. Device memory is the peak in its "
        "process, on a GPU only.",
        "If a point is missing, it did not fit, was too slow or raised: the probe's log says which.",
        "none",
        width=15,
        empty=NO_SWEEP,
    )
    by = "instance, namespace, service, pod, container, batch, concurrency"
    columns = [
        Column("batch", "Batch", width=70),
        Column("concurrency", "At a time", width=85),
        Column("Value #A", "Latency", "s", width=90),
        Column("Value #B", "Samples/s", "short", width=95),
        Column("Value #C", "Memory", "bytes", width=85),
        Column("Value #D", "Swept", "dateTimeFromNow", width=140),
        Column("container", "Container", link=link("gpu-host", "instance", "service", "container")),
        Column("service", "Service", hidden=True),
        Column("instance", "Host", hidden=True),
    ]
    names = ("latency_seconds", "samples_per_second", "peak_memory_bytes")
    queries = [Query(f"max by ({by}) ({series(f'infercanary_sweep_{name}', CANARIES)})") for name in names]
    ended = series("infercanary_sweep_timestamp_seconds", CANARIES)
    each = series("infercanary_sweep_latency_seconds", CANARIES)
    joined = f"{each} * 0 + on (instance, namespace, service, pod, container, canary) group_left () {ended}"
    return rows(
        about,
        columns,
        *queries,
        Query(f"max by ({by}) ({joined}) * 1000"),
        sort=("Container", "Latency"),
        paged=True,
    )
