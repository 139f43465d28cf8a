"""*Upgrade*: two images side by side: how their latencies lie, what the judge says, and what came with the new one.

A container keeps its series through an upgrade, so images are distinguished by a join with
`infercanary_container_info` at each moment of the time range, which has to reach back to the old image.
"""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.models.common import BigValueTextMode

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row
from grafana.dashboards.panels import About, Column, Panel, Query, lines, matrix, rows, spread, tiles
from grafana.dashboards.promql import (
    CONTAINER,
    by_image,
    current_image,
    increase,
    newest,
    of_each_image,
    series,
    steady_of_range,
)
from grafana.dashboards.variables import CANARIES, CONTAINERS
from infercanary.judge.policy import LIVE

MEDIAN = series("infercanary_run_median_seconds", CANARIES)
NO_IMAGE = "No run of a known image in this time range: choose one that reaches back before the upgrade"
EACH = "{{image}} {{image_id}}"


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "upgrade",
        "Upgrade",
        "Two images of one service side by side: choose a time range that has both.",
        [
            variables.datasource(),
            variables.service(multi=False),
            variables.instance(variables.SERVICES, multi=False),
            variables.container(),
            variables.canary(multi=False),
        ],
        [
            marks.upgrades(verdicts.CANARY),
            marks.images(CONTAINERS),
            marks.environment(CONTAINERS),
        ],
        [
            Row("What the judge says", [_verdict(), verdicts.parts(), _rests_on(), verdicts.shift(24)]),
            Row("Two images side by side", [_distributions(), _over_time(), _quantiles(), _images()]),
            Row(
                "Where it grew", [_bottleneck(), _where(), _phases(), _phases_over_time(), _tags(), _beside()]
            ),
            Row("Beside latency", [verdicts.measures()]),
            Row("What came with the image", [_components(), _cold_start(), _cold_start_shift(), _output()]),
        ],
        since="now-24h",
    )


def _verdict() -> Panel:
    about = About(
        "Verdict and cause",
        "The verdict on the last image, who made the change, and whether a GPU model runs on the CPU since.",
        "none",
        width=8,
        height=6,
        empty=verdicts.NO_VERDICT,
    )
    verdict = f"{verdicts.of('infercanary_verdict', 'verdict')} == 1"
    cause = f"{verdicts.of('infercanary_shift_cause', 'cause')} == 1"
    fallback = f"max({verdicts.of('infercanary_cpu_fallback')}) == 1"
    return tiles(
        about,
        Query(verdict, "{{verdict}}"),
        Query(cause, "made by: {{cause}}"),
        Query(fallback, "CPU fallback"),
        named={
            **colours.VERDICTS,
            **{f"made by: {cause}": colour for cause, colour in colours.CAUSES.items()},
            "CPU fallback": colours.TROUBLE,
        },
        text=verdicts.NAME_ONLY,
    )


def _rests_on() -> Panel:
    about = About(
        "What the verdict rests on",
        "Runs of the new image, starts of both (a start is one replicate, however many runs it has), and how much two "
        "starts of one image differ, which is part of the interval.",
        "short",
        width=8,
        height=6,
        empty=verdicts.NO_VERDICT,
    )
    deviation = f"100 * max({verdicts.of('infercanary_restart_deviation_ratio')})"
    return tiles(
        about,
        Query(f"max({verdicts.of('infercanary_judged_runs')})", "runs"),
        Query(f"max({verdicts.of('infercanary_judged_generations')})", "starts"),
        Query(deviation, "restart deviation, %"),
    )


def _distributions() -> Panel:
    about = About(
        "How latencies lie, by image",
        "How often which median of a run was met, by image: blue runs now, orange is gone. Two humps apart: a change; "
        "two on each other: none. An image with two humps has two states (clocks, replicas).",
        "s",
        height=9,
        empty=NO_IMAGE,
    )
    return spread(about, *_now_and_before())


def _over_time() -> Panel:
    about = About(
        "Latency over time, by image",
        "The last run's median, median over the containers of each image: blue runs at the end of the time range, "
        "orange is gone by then. While a rollout is under way both run.",
        "s",
        height=9,
        empty=NO_IMAGE,
    )
    return lines(about, *_now_and_before())


def _now_and_before() -> Iterator[Query]:
    """In one hue the images that run at the end of the time range, in another those that are gone by then."""
    each = f"quantile by (image, image_id) (0.5, {by_image(MEDIAN, CONTAINERS)})"
    for operator in ("and", "unless"):
        yield Query(f"{each} {operator} on (image, image_id) {current_image(CONTAINERS)}", EACH)


def _quantiles() -> Panel:
    about = About(
        "Medians of runs, by image",
        "Quantiles over the time range of the runs' medians, which are exact: the mean over the containers of each "
        "image. Where all quantiles moved alike the work costs more; where only the high ones did, it is disturbed.",
        "s",
        height=9,
        empty=NO_IMAGE,
    )
    levels = {"lowest": 0, "10 %": 0.1, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "90 %": 0.9, "highest": 1}
    joined = by_image(MEDIAN, CONTAINERS)
    each = {
        name: f"avg by (image_id) (quantile_over_time({q}, ({joined})[$__range:$__interval]))"
        for name, q in levels.items()
    }
    query = " or ".join(f'label_replace({level}, "level", "{name}", "", "")' for name, level in each.items())
    return matrix(about, "level", "image_id", Query(query))


def _images() -> Panel:
    about = About(
        "Images in this time range",
        "Which images ran, by the first twelve digits of their ids, with when each was last seen. An id that changed "
        "under one reference is a tag that was moved.",
        "dateTimeAsIso",
        height=9,
        empty=NO_IMAGE,
    )
    seen = (
        f"max_over_time(timestamp({series('infercanary_container_info', CONTAINERS)})[$__range:$__interval])"
    )
    short = f'label_replace({seen}, "image_id", "$1", "image_id", "(?:sha256:)?(.{{12}}).*")'
    columns = [
        Column("image", "Image"),
        Column("image_id", "Id"),
        Column("image_digest", "Digest"),
        Column("Value", "Last seen", "dateTimeAsIso"),
    ]
    query = f"max by (image, image_id, image_digest) ({short}) * 1000"
    return rows(about, columns, Query(query), sort="-Last seen")


def _bottleneck() -> Panel:
    about = About(
        "Which resource made it",
        "Shares of the change. io is transfers, sockets and reading from a disk; scheduling is launching, queues, "
        "locks and waiting for a CPU. Time on the processor is memory where a control of the memory moved with it, "
        "and compute where controls that compute did, or none: then the program computes more.",
        "percentunit",
        width=12,
        height=4,
        empty="Only a verdict of a change has them",
    )
    return tiles(
        about,
        Query(verdicts.of("infercanary_shift_bottleneck_ratio", "bottleneck"), "{{bottleneck}}"),
        decimals=0,
        text=BigValueTextMode.VALUE_AND_NAME,
    )


def _where() -> Panel:
    about = About(
        "Where the judge saw it",
        f"Phases with their share of the change, those that made {100 * LIVE.phase_share:g} % of it or more, and the "
        "controls that moved, by how much: work that is the same in every image. With none here no control moved, "
        "or none ran.",
        "percentunit",
        width=12,
        height=4,
        empty="Only a verdict of a change has them",
    )
    return tiles(
        about,
        Query(verdicts.of("infercanary_shift_phase_ratio", "phase"), "phase {{phase}}"),
        Query(verdicts.of("infercanary_shift_control_ratio", "control"), "control {{control}}"),
        decimals=0,
        text=BigValueTextMode.VALUE_AND_NAME,
    )


def _phases() -> Panel:
    about = About(
        "Phases by image",
        "Mean over the time range of each phase's median. compute that grew is the device or its kernels, launch the "
        "host's side, h2d and d2h the bus, queue a device that was busy.",
        "s",
        empty=NO_IMAGE,
    )
    phases = series("infercanary_run_phase_median_seconds", CANARIES)
    query = f"avg by (image_id, phase) ({of_each_image(phases, 'phase', CONTAINERS)})"
    return matrix(about, "phase", "image_id", Query(query))


def _phases_over_time() -> Panel:
    about = About(
        "Phases, stacked",
        "Median of each phase over the last run's repeats, mean over the containers. Phases overlap, so their sum is "
        "not the latency: see which one grew at the upgrade.",
        "s",
        empty=NO_IMAGE,
    )
    query = f"avg by (phase) ({series('infercanary_run_phase_median_seconds', CANARIES)})"
    return lines(about, Query(query, "{{phase}}"), stacked=True, minimum=0, named=colours.PHASES)


def _tags() -> Panel:
    about = About(
        "Tags by image",
        "Runs with a tag as a share of the image's runs. A tag that only the new image has is a finding: more threads "
        "than its quota allows, more memory, a garbage collector that works harder.",
        "percentunit",
        empty="No run has a tag",
    )
    tagged = by_image(increase("infercanary_tagged_runs_total", CANARIES, window="1m"), CONTAINERS)
    total = by_image(increase("infercanary_runs_total", CANARIES, window="1m"), CONTAINERS)
    share = (
        f"(sum by (image_id, tag) (sum_over_time(({tagged})[$__range:1m])) > 0) / on (image_id) group_left () "
        f"(sum by (image_id) (sum_over_time(({total})[$__range:1m])) > 0)"
    )
    return matrix(about, "tag", "image_id", Query(share))


def _beside() -> Panel:
    about = About(
        "Beside it: controls, and other services",
        "Each over its usual time (medians: of a step, and of the time range). Work that is the same in every image, "
        "in the same container, and the canaries of other services: what they do at the upgrade too is the host's.",
        "percentunit",
        empty="No control and no other service ran",
    )
    own = f"avg by (canary) ({steady_of_range('infercanary_run_median_seconds', CANARIES)})"
    controls = steady_of_range("infercanary_control_seconds", CONTAINERS, 'control!~".*_python"')
    others = steady_of_range("infercanary_run_median_seconds", 'service!~"$service"')
    return lines(
        about,
        Query(own, "{{canary}}"),
        Query(f"avg by (control) ({controls})", "control {{control}}"),
        Query(f"avg by (service) ({others})", "service {{service}}"),
        doubling=True,
    )


def _components() -> Panel:
    about = About(
        "Components that changed in this time range",
        "Parts of the environment with more than one version, or that not every container has, with when each was "
        "last seen. An old version was last seen at the upgrade; two that are seen now are two containers that differ.",
        "dateTimeAsIso",
        width=24,
        empty="No component changed in this time range",
    )
    selected = series("infercanary_environment_info", CONTAINERS)
    versions = (
        f"count by (component) (count by (component, version) (last_over_time({selected}[$__range]))) > 1"
    )
    # What only some of the containers have had, such as a variable that is new, has one version.
    info = newest("infercanary_container_info", CONTAINERS)
    known = f"{selected} * on ({CONTAINER}) group_left (container_id) {info}"
    each = f"max by (component, container_id) (max_over_time(({known})[$__range:$__interval]))"
    partly = f"count by (component) ({each}) < on () group_left () count(count by (container_id) ({each}))"
    seen = f"max by (component, version) (max_over_time(timestamp({selected})[$__range:$__interval]))"
    columns = [
        Column("component", "Component"),
        Column("version", "Version"),
        Column("Value", "Last seen", "dateTimeAsIso"),
    ]
    return rows(
        about, columns, Query(f"{seen} * 1000 and on (component) ({versions} or {partly})"), sort="Component"
    )


def _cold_start() -> Panel:
    about = About(
        "Cold start by image",
        "Mean seconds of each step over the image's starts in the time range.",
        "s",
        width=8,
        empty=NO_IMAGE,
    )
    steps = {
        "load": "infercanary_load_seconds",
        "first run": "infercanary_first_run_seconds",
        "warm-up": "infercanary_warm_up_seconds",
        "until steady": "infercanary_time_to_steady_seconds",
    }
    each = (
        f'label_replace({of_each_image(series(name, CANARIES), "", CONTAINERS)}, "step", "{step}", "", "")'
        for step, name in steps.items()
    )
    return matrix(about, "step", "image_id", Query(f"avg by (image_id, step) ({' or '.join(each)})"))


def _cold_start_shift() -> Panel:
    about = About(
        "Slower steps of the start",
        "By how much a step became slower with the upgrade. Only steps that did, by "
        f"{100 * (LIVE.cold_start_ratio - 1):g} % and {LIVE.cold_start_seconds:g} s.",
        "percentunit",
        width=8,
        empty="No step of the start became slower",
    )
    query = verdicts.of("infercanary_cold_start_shift_ratio", "step")
    return tiles(about, Query(query, "{{step}}"), bad_from=LIVE.cold_start_ratio - 1, decimals=0)


def _output() -> Panel:
    about = About(
        "Does it answer the same",
        "Relative error of the new image's first steady output against the old one's, for the same input. Above 0.01 "
        "the upgrade changed the answers: then faster is no improvement.",
        "percentunit",
        width=8,
        empty="One of the two outputs is not known",
    )
    query = f"max({verdicts.of('infercanary_upgrade_output_error_ratio')})"
    return tiles(about, Query(query, "error"), bad_from=0.01, decimals=4)
