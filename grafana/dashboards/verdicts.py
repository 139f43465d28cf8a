"""Panels about verdicts, which the fleet, a service and an upgrade all show.

A verdict is the service's on one host, whose exporter judges, and is published with each of its containers:
`max by (instance, service, canary)` counts it once.

Of all functions but :func:`of`:

Returns:
    A new panel.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.models.common import BigValueTextMode

from grafana.dashboards import colours
from grafana.dashboards.board import link
from grafana.dashboards.panels import About, Column, Panel, Query, bars, lines, rows, tiles, timeline
from grafana.dashboards.promql import newest, states
from grafana.dashboards.variables import INSTANCE, SERVICES
from infercanary.judge.policy import LIVE

CANARY = f'{INSTANCE}, {SERVICES}, canary=~"$canary"'
BY = "instance, service, canary"

NAME_ONLY = BigValueTextMode.NAME

EFFECT = f"{100 * LIVE.smallest_effect:g} %"
NO_VERDICT = f"No verdict yet: the judge needs {LIVE.looks[0]} runs of a start"


def of(name: str, by: str = BY, *matchers: str) -> str:
    """One of the judge's numbers, once for each service and canary of a host.

    Args:
        name: Of the metric.
        by: Labels, with commas between them.
        matchers: Besides those of the chosen canary.
    """
    return f"max by ({by}) ({name}{{{', '.join([CANARY, *matchers])}}})"


def count() -> Panel:
    """How many services have which verdict."""
    about = About(
        "Verdicts",
        "Services and canaries by the verdict on their last image: regressed is an alert, equivalent is as good an "
        "answer as improved, confirming, inconclusive and settling ask for more runs, and no_baseline has "
        "seen one image only.",
        "none",
        width=14,
        height=4,
        empty=NO_VERDICT,
    )
    query = f"sum by (verdict) ({of('infercanary_verdict', f'{BY}, verdict')})"
    return tiles(
        about, Query(query, "{{verdict}}"), named=colours.VERDICTS, text=BigValueTextMode.VALUE_AND_NAME
    )


def table() -> Panel:
    """Which service changed, by how much, and why."""
    latest = (
        f"max by ({BY}, image) (topk by ({BY}) (1, "
        f"(infercanary_verdict{{{CANARY}}} == 1) "
        "* on (instance, service, container) group_left () infercanary_probe_start_timestamp_seconds "
        f"* on (instance, service, container) group_left (image) {newest('infercanary_container_info', SERVICES)}))"
    )
    queries: Sequence[Query] = [
        Query(f"{of('infercanary_verdict', f'{BY}, verdict')} == 1"),
        Query(of("infercanary_shift_ratio")),
        Query(of("infercanary_shift_low_ratio")),
        Query(of("infercanary_shift_high_ratio")),
        Query(f"{of('infercanary_shift_cause', f'{BY}, cause')} == 1"),
        Query(of("infercanary_shift_image_ratio")),
        Query(of("infercanary_shift_host_ratio")),
        Query(f"{of('infercanary_upgrade_timestamp_seconds')} * 1000"),
        Query(latest),
        Query(f"quantile by ({BY}) (0.5, infercanary_run_median_seconds{{{CANARY}}})"),
        Query(of("infercanary_drift_ratio")),
    ]
    to_service, to_upgrade = (
        link(board, "service", "instance", "canary") for board in ("service", "upgrade")
    )
    columns = [
        Column("service", "service", link=to_service),
        Column("canary", "canary", link=to_upgrade),
        Column("verdict", "Verdict", named=colours.VERDICTS, link=to_upgrade),
        # Narrower than a column is by itself, so that all fit on a screen.
        Column("Value #B", "Shift", "percentunit", width=80, decimals=1),
        Column("Value #C", "From", "percentunit", width=80, decimals=1),
        Column("Value #D", "To", "percentunit", width=80, decimals=1),
        Column("cause", "Cause", named=colours.CAUSES, width=90),
        Column("Value #F", "Image's part", "percentunit", width=110, decimals=1),
        Column("Value #G", "Host's part", "percentunit", width=110, decimals=1),
        Column("Value #K", "Drift", "percentunit", width=80, decimals=1),
        Column("Value #J", "Latency", "s", width=100),
        Column("Value #H", "Upgraded", "dateTimeFromNow", width=130),
        Column("image", "Image"),
        Column("instance", "Host"),
    ]
    about = About(
        "What the last upgrade did",
        "New latency over old, minus 1, with its interval: +5 % is slower. Image's and host's part say who made it; "
        "drift is a change without an upgrade (the worst container's). The image is that of the newest start. Follow "
        "the service or the verdict for more.",
        "short",
        width=24,
        height=9,
        empty="No canary reports: is a container labelled infercanary.enable=true, and the exporter up?",
    )
    return rows(about, columns, *queries, sort="-Shift")


def measures() -> Panel:
    """What the upgrade did to memory, energy and throughput."""
    about = About(
        "Memory, energy and throughput",
        "The verdict on each measure that runs of both images have, its shift with the interval, and the medians "
        f"before and after. Called at {100 * LIVE.measure_effect:g} % or more: less throughput and more of the others "
        "is regressed. throughput@8x1 is a sweep's, at a batch of 8 with one request at a time.",
        "short",
        width=24,
        height=6,
        empty="No upgrade yet, or runs of one image have no such measure",
    )
    by = f"{BY}, measure"
    queries = [
        Query(f"{of('infercanary_measure_verdict', f'{by}, verdict')} == 1"),
        Query(of("infercanary_measure_shift_ratio", by)),
        Query(of("infercanary_measure_shift_low_ratio", by)),
        Query(of("infercanary_measure_shift_high_ratio", by)),
        Query(of("infercanary_measure_baseline", by)),
        Query(of("infercanary_measure_current", by)),
    ]
    columns = [
        Column("service", "service"),
        Column("canary", "canary"),
        Column("measure", "Measure"),
        Column("verdict", "Verdict", named=colours.VERDICTS),
        Column("Value #B", "Shift", "percentunit", decimals=1),
        Column("Value #C", "From", "percentunit", decimals=1),
        Column("Value #D", "To", "percentunit", decimals=1),
        Column("Value #E", "Before", "short"),
        Column("Value #F", "After", "short"),
    ]
    return rows(about, columns, *queries, sort="Measure")


def over_time() -> Panel:
    """Verdicts as they came."""
    about = About(
        "Verdicts over time",
        "The verdict that held at each moment. It falls back to settling when an image changes.",
        "none",
        width=24,
        height=6,
        empty=NO_VERDICT,
    )
    query = states("infercanary_verdict", "verdict", colours.VERDICTS, BY, CANARY)
    return timeline(about, Query(query, "{{service}} {{canary}} {{instance}}"), colours.VERDICTS)


def shift(width: int = 12) -> Panel:
    """The effect with its interval.

    Args:
        width: 24 is the whole width.
    """
    about = About(
        "Shift of the last upgrade",
        "New latency over old, minus 1, as the judge saw it at each look "
        f"(from {LIVE.looks[0]} to {LIVE.looks[-1]} runs), with its interval. It is called a change at {EFFECT} or "
        f"more and beyond doubt, and is being confirmed where its interval is clear of ±{100 * LIVE.clear_zone:g} %; "
        f"it is equivalent where the whole interval is within ±{EFFECT}.",
        "percentunit",
        width=width,
        empty=NO_VERDICT,
    )
    return lines(
        about,
        Query(of("infercanary_shift_ratio"), "shift"),
        Query(of("infercanary_shift_low_ratio"), "low"),
        Query(of("infercanary_shift_high_ratio"), "high"),
        named={"shift": colours.BLUE, "low": colours.SKY, "high": colours.SKY},
        band=("low", "high"),
        steps=True,
    )


def parts() -> Panel:
    """How much of the effect is the host's and how much the image's."""
    about = About(
        "Host or image",
        "The shift, and the parts of it: what controls and sibling containers made too is the host's, what is left "
        "the image's. Missing parts: no control and no sibling ran, so that nobody can know.",
        "percentunit",
        width=8,
        height=6,
        empty=NO_VERDICT,
    )
    return bars(
        about,
        Query(of("infercanary_shift_ratio"), "shift"),
        Query(of("infercanary_shift_image_ratio"), "image's part"),
        Query(of("infercanary_shift_host_ratio"), "host's part"),
    )


def before_and_after() -> Panel:
    """What the judge compared, beside what runs now."""
    about = About(
        "Before and after each upgrade",
        "The old image's and the new image's median, which the verdict compares, and the last run of each container. "
        "Each upgrade begins a new pair of levels.",
        "s",
        empty=NO_VERDICT,
    )
    return lines(
        about,
        Query(of("infercanary_baseline_seconds"), "old image"),
        Query(of("infercanary_current_seconds"), "new image"),
        Query(
            f'avg by ({BY}) (infercanary_run_median_seconds{{{CANARY}, container=~"$container"}})', "last run"
        ),
        named={"old image": colours.ORANGE, "new image": colours.BLUE, "last run": colours.GREY},
        steps=True,
    )
