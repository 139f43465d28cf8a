"""*Upgrade*: what the judge says of the last upgrade, and the two images side by side: old left and grey, new right and
blue.

A container keeps its series through an upgrade, so images are distinguished by a join with
`infercanary_container_info` at each moment of the time range, which has to reach back to the old image. Old and new are
the two that the judge compares at its end; what else ran in it is in the table of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grafana.dashboards import colours, marks, variables, verdicts
from grafana.dashboards.board import Board, Row
from grafana.dashboards.charts import lines, spread
from grafana.dashboards.panels import About, Panel, Query
from grafana.dashboards.promql import (
    CONTAINER,
    OLD_AND_NEW,
    RUNNING,
    increase,
    newest,
    of_new,
    of_old,
    over_range,
    rounded,
    series,
    steady_of_range,
)
from grafana.dashboards.tables import YES_OR_NO, Column, compared, rows, tiles
from grafana.dashboards.variables import CANARIES, CONTAINERS, JUDGED
from infercanary.judge.operators import MOST
from infercanary.judge.policy import LIVE

MEDIAN = series("infercanary_run_median_seconds", CANARIES)
NO_IMAGES = "No upgrade in this time range: choose one that reaches back before it"
HUES = {"old": colours.OLD, "new": colours.NEW}


def board() -> Board:
    """The dashboard.

    Returns:
        The board, not yet built.
    """
    return Board(
        "upgrade",
        "Upgrade",
        "What the last upgrade did, and the two images of one service side by side: choose a time range that has both.",
        [
            variables.datasource(),
            variables.namespace(),
            variables.service(multi=False),
            variables.instance(variables.SERVICES),
            variables.pod(),
            variables.container(),
            variables.canary(multi=False),
        ],
        [marks.upgrades(), marks.images(), marks.environment(CONTAINERS)],
        [
            Row(
                "What the judge says",
                [
                    verdicts.sentence(),
                    verdicts.numbers(10),
                    verdicts.rests_on(7),
                    _well(),
                    verdicts.shift(),
                    _over_time(),
                ],
            ),
            Row("Old and new", [_images(), _levels(), _distributions()]),
            Row("Where the time grew", [_where(), _phases(), _beside(), _tags()]),
            Row(
                "What else changed with the image",
                [_components(), _cold_start(), verdicts.measures(), _operators()],
            ),
        ],
        since="now-24h",
    )


def _well() -> Panel:
    about = About(
        "Same answers, same device",
        "Whether the new image answers as the old image did: the relative error of its first steady output, for the "
        "same input, is at most 0.01. And whether a canary that ran on a GPU still runs on it.",
        "Other answers: compare weights and preprocessing before anything else, because a faster image is then no "
        "improvement. On the CPU: the image has a CPU-only wheel, or the container was started without its GPU.",
        "none",
        width=7,
        height=4,
    )
    error = f"max({series('service_canary:infercanary_upgrade_output_error_ratio:max', JUDGED)})"
    fallback = f"max({series('infercanary_cpu_fallback', JUDGED)})"
    return tiles(
        about,
        Query(f"{error} <= bool scalar(infercanary:threshold:output_error_ratio)", "same answers"),
        Query(f"1 - {fallback}", "same device"),
        words={"same answers": YES_OR_NO, "same device": YES_OR_NO},
    )


def _two(query: Callable[[str], str]) -> Iterator[Query]:
    """A query of each image: grey strokes are old, blue lines are new."""
    for which, dash in (("old", (10, 8)), ("new", ())):
        yield Query(query(which), f"{which} {{{{tag}}}} {{{{image_id}}}}", HUES[which], dash)


def _tagged(expression: str) -> str:
    """With the last part of the image's name, for a legend has little room."""
    return f'label_replace({expression}, "tag", "$1", "image", "(?:.*/)?([^/@]+)(?:@.*)?")'


def _medians(which: str) -> str:
    median = f"quantile by (image, image_id) (0.5, {OLD_AND_NEW[which](MEDIAN, CONTAINERS)})"
    return _tagged(median)


def _over_time() -> Panel:
    about = About(
        "Latency over time, by image",
        "The last run's median; for each image, the median over its containers. During a rollout, both images run.",
        "If the new image's line rises at the upgrade and stays there, the cause is the image or something that came "
        "with it. If it comes and goes, look at *GPU and host*.",
        "s",
        empty=NO_IMAGES,
    )
    return lines(about, *_two(_medians))


def _distributions() -> Panel:
    about = About(
        "Distribution of latencies, by image",
        "How often each median of a run occurred. Two peaks at different places mean a change; two peaks at the same "
        "place mean no change. An image with two peaks has two states (clocks, replicas).",
        "If one image has two peaks, see the replicas on *Service*, because an average hides them.",
        "s",
        empty=NO_IMAGES,
    )
    return spread(about, *_two(_medians))


def _changed(old: str, new: str) -> str:
    return rounded(f"{new} / {old} - 1")


def _levels() -> Panel:
    about = About(
        "Medians of runs",
        "Quantiles over the time range of the runs' medians, which are exact. They are the mean over the containers "
        "of each image.",
        "If all changed by about the same, the work costs more: see the phases and components. If only the high ones "
        "changed, it is disturbed: see the tags.",
        "s",
        empty=NO_IMAGES,
    )
    levels = {"lowest": 0, "25 %": 0.25, "50 %": 0.5, "75 %": 0.75, "highest": 1}

    def each(which: str) -> str:
        joined = OLD_AND_NEW[which](MEDIAN, CONTAINERS)
        return " or ".join(
            f'label_replace(avg(quantile_over_time({q}, ({joined})[$__range:$__interval])), "level", "{name}", "", "")'
            for name, q in levels.items()
        )

    old, new = each("old"), each("new")
    change = rounded(f"({new}) / on (level) ({old}) - 1")
    return compared(about, Column("level", "Level"), old, new, change)


def _images() -> Panel:
    about = About(
        "Images in this time range",
        "The images that ran, in the order in which they were last seen. Old and new are the two images that the "
        "judge compares. If an id changed under one name, someone moved the tag.",
        "Compare the image that you wanted to deploy with the new image's id.",
        "none",
        width=24,
        height=6,
        empty="No container of a known image ran in this time range",
    )
    info = series("infercanary_container_info", CONTAINERS)
    seen = f"max_over_time(timestamp({info})[$__range:$__interval]) * 1000"
    by = "image, image_id, image_digest"
    last = f'max by ({by}) (label_replace({seen}, "image_id", "$1", "image_id", "(?:sha256:)?(.{{12}}).*"))'
    roles = (
        f"label_replace(max by (image_id) (max_over_time(({OLD_AND_NEW[which](MEDIAN, CONTAINERS)})"
        f'[$__range:$__interval])) * 0 + 1, "which", "{which}", "", "")'
        for which in ("new", "old")
    )
    columns = [
        Column("which", "Which", width=80),
        Column("image", "Image"),
        Column("image_id", "Id", width=130),
        Column("Value", "Last seen", "dateTimeAsIso", width=180),
        Column("image_digest", "Digest"),
    ]
    # Where only the model was exchanged, one image is both.
    known = " or on (image_id) ".join(roles)
    query = f"{last} * on (image_id) group_left (which) ({known}) or on (image_id) {last}"
    return rows(about, columns, Query(query), sort=("Last seen",))


def _where() -> Panel:
    about = About(
        "Cause, and where the time grew",
        f"Shares of the change by resource and by phase (those that made {100 * LIVE.phase_share:g} % of it or "
        "more), and by how much the controls changed. Controls are work that is the same in every image. io is "
        "transfers, sockets and reading from a disk; scheduling is launching, queues, locks and waiting for a CPU. A "
        "share is over 100 % if another one became shorter.",
        "compute: kernels, precision, flags. memory: batch, layout, a neighbour. launch or scheduling: threads and "
        "the CPU quota. If a control changed, see *GPU and host*.",
        "percentunit",
        empty="Only a verdict of a change has them",
    )
    kinds = {
        "bottleneck": ("resource", "infercanary_shift_bottleneck_ratio"),
        "phase": ("phase", "infercanary_shift_phase_ratio"),
        "control": ("control", "infercanary_shift_control_ratio"),
    }
    named = (
        f'label_replace({verdicts.of(metric, label)}, "what", "{name} $1", "{label}", "(.*)")'
        for label, (name, metric) in kinds.items()
    )
    query = f"max by (what) ({' or '.join(named)})"
    columns = [
        Column("what", "What"),
        Column("Value", "Share, or moved by", "percentunit", decimals=0, width=150),
    ]
    return rows(about, columns, Query(query), sort=("What",))


def _phases() -> Panel:
    about = About(
        "Phases",
        "Mean over the time range of each phase's median. Phases overlap, so their sum is not the latency.",
        "If compute grew, the cause is the device or its kernels. launch is the host's side, h2d and d2h are the "
        "bus, queue is a device that was busy, wait and first_token are the server.",
        "s",
        empty=NO_IMAGES,
    )
    phases = series("infercanary_run_phase_median_seconds", CANARIES)
    old, new = (over_range(of(phases, CONTAINERS), "phase") for of in (of_old, of_new))
    return compared(about, Column("phase", "Phase"), old, new, _changed(old, new))


def _tags() -> Panel:
    about = About(
        "Tags: share of the runs",
        "Runs with a tag as a share of the image's runs. If only the new image has a tag, look at the image.",
        "preempted, crowded_inside: there are more threads than CPUs, so set OMP_NUM_THREADS. cgroup_throttled: "
        "raise the quota. gc: the garbage collector works more. gpu_…: see *GPU and host*.",
        "percentunit",
        empty="No run has a tag",
    )
    tagged, total = (
        increase(f"infercanary_{name}_total", CANARIES, window="1m") for name in ("tagged_runs", "runs")
    )

    def share(which: str) -> str:
        of = OLD_AND_NEW[which]
        with_tag, all_ = (
            f"sum by ({by}) (sum_over_time(({of(counted, CONTAINERS)})[$__range:1m]))"
            for by, counted in (("tag", tagged), ("", total))
        )
        return f"({with_tag} > 0) / on () group_left () {all_}"

    return compared(about, Column("tag", "Tag"), share("old"), share("new"), decimals=1)


def _beside() -> Panel:
    about = About(
        "Controls, and other services",
        "Each line is a time divided by its usual time (medians: of a step, and of the time range): work that is the "
        "same in every image in the same container, and the canaries of other services on the host, the mean of all.",
        "If they change at the upgrade too, the cause is the host: see *GPU and host*.",
        "percentunit",
        empty="No control and no other service ran",
    )
    own = f"avg by (canary) ({steady_of_range('infercanary_run_median_seconds', CANARIES)})"
    controls = steady_of_range("infercanary_control_seconds", CONTAINERS, 'control!~".*_python"')
    others = series(
        "instance_service_canary:infercanary_run_median_seconds:p50",
        variables.INSTANCE,
        'service!~"$service"',
    )
    beside = f"({others} and on (instance) {RUNNING})"
    # At steps: of a fleet, all samples of a day would be read before the hosts are known.
    usual = f"quantile_over_time(0.5, {beside}[$__range:$__interval] @ end())"
    return lines(
        about,
        Query(own, "{{canary}}", colours.NEW),
        Query(f"avg by (control) ({controls})", "{{control}}"),
        Query(f"avg({beside} / {usual})", "other services", colours.OLD),
        named=colours.CONTROLS,
        doubling=True,
    )


def _components() -> Panel:
    about = About(
        "Components that changed",
        "Versions that only one of the two images had, in any of its containers: libraries, variables, limits, the "
        "driver. A dash means that the image had none.",
        "If the judge's cause is the image, begin with torch, CUDA, cuDNN and the variables of threads. Change one "
        "back, and check whether the shift disappears.",
        "none",
        width=14,
        height=9,
        empty="The two images have the same environment, or there was no upgrade in this time range",
    )
    selected = newest("infercanary_environment_info", CONTAINERS, by=f"{CONTAINER}, component")
    old, new = (
        f"max by (component, version) (max_over_time(({of(selected, CONTAINERS)})[$__range:$__interval]))"
        for of in (of_old, of_new)
    )

    def only(here: str, there: str, which: str) -> str:
        differs = f"{here} unless on (component, version) {there}"
        # Of a container that ran with both images alone: nothing was seen of one of them.
        known = f"and on () {there}"
        return f'max by (component, {which}) (label_replace({differs} {known}, "{which}", "$1", "version", "(.*)"))'

    columns = [
        Column("component", "Component"),
        Column("old", "old"),
        Column("new", "new"),
    ]
    return rows(
        about, columns, Query(only(old, new, "old")), Query(only(new, old, "new")), sort=("Component",)
    )


def _cold_start() -> Panel:
    about = About(
        "Cold start",
        "Mean seconds of each step over the image's starts in the time range. The judge calls a step slower by "
        f"{100 * (LIVE.cold_start_ratio - 1):g} % and {LIVE.cold_start_seconds:g} s.",
        "load: a larger model or a slower disk. first run and warm-up: compiling and autotuning, so put their cache "
        "into the image. A rollout should wait until the container is steady.",
        "s",
        width=10,
        height=9,
        empty=NO_IMAGES,
    )
    steps = {
        "load": "infercanary_load_seconds",
        "first run": "infercanary_first_run_seconds",
        "warm-up": "infercanary_warm_up_seconds",
        "until steady": "infercanary_time_to_steady_seconds",
    }
    named = " or ".join(
        f'label_replace({series(name, CANARIES)}, "step", "{step}", "", "")' for step, name in steps.items()
    )
    old, new = (over_range(of(named, CONTAINERS), "step") for of in (of_old, of_new))
    return compared(about, Column("step", "Step"), old, new, _changed(old, new))


def _operators() -> Panel:
    about = About(
        "Operators that changed",
        "Time that the operators of the model take in an inference, more than before, in profiled repeats: at most "
        f"{MOST}, those that clearly changed. How: slower by the same work (grew), new, by another kernel or type, "
        "called more often, moved to another device.",
        "new or calls: a model that was fused is not fused any more. kernel: another library or instruction set, so "
        "see the components. type: a layer in float64. moved: it fell back to the CPU.",
        "s",
        width=24,
        height=7,
        empty="Only a verdict of a change that profiled repeats explain has them",
    )
    columns = [
        Column("operator", "Operator"),
        Column("change", "How", width=90),
        Column("Value", "Gained", "s", width=110),
    ]
    query = Query(verdicts.of("infercanary_shift_operator_seconds", "operator, change"))
    return rows(about, columns, query, sort=("-Gained",))
