"""Panels about verdicts, which a service and an upgrade both show: the answer first.

A verdict is the service's. An exporter judges it, and may show it with each of its containers; where exporters share no
store, each judges what is on its host, and the worst of these verdicts is shown.

Of all functions but :func:`of`:

Returns:
    A new panel.
"""

from __future__ import annotations

from grafana.dashboards import colours
from grafana.dashboards.charts import lines
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import newest, of_judge, rounded, series
from grafana.dashboards.tables import Column, rows, tiles
from grafana.dashboards.variables import CANARIES, JUDGED
from infercanary.judge.policy import LIVE

BY = "namespace, service, canary"

EFFECT = f"{100 * LIVE.smallest_effect:g} %"
_SHIFT = "service_canary:infercanary_shift_{}ratio:max"
NO_VERDICT = f"No verdict yet: the judge needs {LIVE.looks[0]} runs of a start"


def of(name: str, by: str = BY, *matchers: str) -> str:
    """One of the judge's numbers, once for each service and canary.

    Args:
        name: Of the metric.
        by: Labels, with commas between them.
        matchers: Besides those of the chosen canary.
    """
    return f"max by ({by}) ({of_judge(series(name, JUDGED, *matchers))})"


def recorded(name: str) -> str:
    """One that the rules record of each service and canary.

    Args:
        name: Of the metric.
    """
    return f"max by ({BY}) ({series(name, JUDGED)})"


def sentence() -> Panel:
    """The verdict, and the judge's own words."""
    about = About(
        "What the judge says",
        "The verdict on the last image, and the reason in words: by how much, from which image to which, what caused "
        "it, and what came with it.",
        "If it is regressed and the image caused it, roll back or follow *Upgrade* to what changed. If the host "
        "caused it, follow *GPU and host*.",
        "none",
        width=24,
        height=4,
        empty=NO_VERDICT,
    )
    columns = [
        Column("verdict", "Verdict", named=colours.VERDICTS, width=120),
        Column("sentence", "In words"),
    ]
    verdict = f"{of('infercanary_verdict', 'verdict')} == 1"
    words = of_judge(newest("infercanary_verdict_info", JUDGED, by=f"instance, {BY}"))
    return rows(about, columns, Query(verdict), Query(f"max by (sentence) ({words})"))


def numbers(width: int) -> Panel:
    """The effect and its parts.

    Args:
        width: 24 is the whole width.
    """
    about = About(
        "Shift in numbers",
        "New latency divided by old latency, minus 1, and the two ends of its interval. Also the parts of it that "
        "the image and the host caused.",
        "If a part is missing, no control and no other service ran at the same time, so there is not enough "
        "evidence. See docs/verdicts.md.",
        "percentunit",
        width=width,
        height=4,
    )
    ratios = {
        "shift": recorded(_SHIFT.format("")),
        "at least": recorded(_SHIFT.format("low_")),
        "at most": recorded(_SHIFT.format("high_")),
        "image's part": of("infercanary_shift_image_ratio"),
        "host's part": of("infercanary_shift_host_ratio"),
    }
    return tiles(about, *(Query(rounded(f"max({ratio})"), legend) for legend, ratio in ratios.items()))


def rests_on(width: int) -> Panel:
    """What the verdict rests on.

    Args:
        width: 24 is the whole width.
    """
    about = About(
        "Evidence of the verdict",
        "Runs of the new image, starts of both images (a start counts as one sample, no matter how many runs it "
        "has), and by how much two starts of one image differ, which is part of the interval.",
        "If the interval is wide, wait for more runs, or start another replica. If starts differ by more than 2 %, "
        "find what differs between them (thread placement, autotuning).",
        "percentunit",
        width=width,
        height=4,
    )
    return tiles(
        about,
        Query(f"max({of('infercanary_judged_runs')})", "runs"),
        Query(f"max({of('infercanary_judged_generations')})", "starts"),
        Query(f"max({of('infercanary_restart_deviation_ratio')})", "starts differ by"),
        units={"runs": "short", "starts": "short"},
        decimals=1,
    )


def shift() -> Panel:
    """The effect with its interval."""
    about = About(
        "Shift of the last upgrade",
        f"New latency divided by old latency, minus 1, as the judge saw it at each look (from {LIVE.looks[0]} to "
        f"{LIVE.looks[-1]} runs), with its interval. The judge calls a change at {EFFECT} or more, when there is "
        f"enough evidence. It is being confirmed if its interval is clear of ±{100 * LIVE.clear_zone:g} %. It is "
        f"equivalent if the whole interval is within ±{EFFECT}. Early intervals are wide: the panel cuts off what is "
        "beyond twice the last interval, and marks it.",
        "If the band stays wide, starts differ: see the replicas on *Service*.",
        "percentunit",
        empty=NO_VERDICT,
    )
    ends = " or ".join(
        f'label_replace(abs({series(_SHIFT.format(end), JUDGED)} @ end()), "end", "{end}", "", "")'
        for end in ("low_", "high_")
    )
    bound = f"scalar(clamp_min(2 * max({ends}), 0.2) or vector(1))"
    shift, low, high = (recorded(_SHIFT.format(end)) for end in ("", "low_", "high_"))

    def clipped(ratio: str) -> str:
        return f"clamp({ratio}, -{bound}, {bound})"

    return lines(
        about,
        Query(clipped(shift), "shift", colours.BLUE),
        Query(clipped(low), "at least", colours.SKY, ()),
        Query(clipped(high), "at most", colours.SKY, (4, 4)),
        Query(f"({high} > {bound}) * 0 + {bound}", "▲ goes beyond", colours.ORANGE, ()),
        Query(f"({low} < -{bound}) * 0 - {bound}", "▼ goes beyond", colours.PURPLE, ()),
        band=("at least", "at most"),
        points=("▲ goes beyond", "▼ goes beyond"),
        centred=True,
        steps=True,
    )


def before_and_after() -> Panel:
    """What the judge compared, beside what runs now."""
    about = About(
        "Old and new latency",
        "The medians that the verdict compares, of the old image and of the new image, and the last run: the mean of "
        "the containers. Each upgrade starts a new pair of levels.",
        "If the last run leaves the new level although no image changed, it is a drift: see *GPU and host*.",
        "s",
        empty=NO_VERDICT,
    )
    last = f"avg({series('infercanary_run_median_seconds', CANARIES)})"
    return lines(
        about,
        Query(f"max({of('infercanary_baseline_seconds')})", "old", colours.OLD, (10, 8)),
        Query(f"max({of('infercanary_current_seconds')})", "new", colours.NEW, ()),
        Query(last, "last run", colours.ORANGE, ()),
        steps=True,
    )


def measures() -> Panel:
    """What the upgrade did to memory, energy and throughput."""
    about = About(
        "Memory, energy and throughput",
        "The verdict on each measure that runs of both images have, its shift with the interval, and the medians. "
        f"The judge calls a change at {100 * LIVE.measure_effect:g} % or more: regressed means less throughput, or "
        "more of any other measure. throughput@8x1 is the throughput of a sweep, at a batch of 8 with one request at "
        "a time, in samples a second. Energy is in joules.",
        "More memory: check the limit before the rollout continues, on *GPU and host*. Less throughput: plan for "
        "more replicas, or roll back.",
        "short",
        width=24,
        height=6,
        empty="No upgrade yet, or runs of one image have no such measure",
    )
    by = f"{BY}, measure"
    queries = [
        Query(f"{of('infercanary_measure_verdict', f'{by}, verdict')} == 1"),
        *(Query(rounded(of(f"infercanary_measure_shift_{end}ratio", by))) for end in ("", "low_", "high_")),
        *(
            Query(of(f"infercanary_measure_{side}", by, f'measure{sign}".+_memory"'))
            for sign in ("=~", "!~")
            for side in ("baseline", "current")
        ),
    ]
    columns = [
        Column("measure", "Measure"),
        Column("verdict", "Verdict", named=colours.VERDICTS, width=120),
        Column("Value #B", "Shift", "percentunit", width=100),
        Column("Value #C", "At least", "percentunit", width=100),
        Column("Value #D", "At most", "percentunit", width=100),
        Column("Value #E", "old memory", "bytes", width=110),
        Column("Value #F", "new memory", "bytes", width=110),
        Column("Value #G", "old", "short", width=110),
        Column("Value #H", "new", "short", width=110),
    ]
    return rows(about, columns, *queries, sort=("Measure",))
