"""Rules of the tags: a table of made samples with the tags of each, and what a metric that is missing does to them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest

from infercanary.contract.bottleneck import QUEUED
from infercanary.contract.report import Metric
from infercanary.contract.vocabulary import CANARY_STATES, NOT_JUDGED, TAGS, labelled_tags
from infercanary.probe import samplers
from infercanary.probe import tags as rules
from infercanary.probe.contention import Inside
from infercanary.probe.result import RunResult
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.tags import Values, Window, clock_reason, gpus_at, state_tags, tags
from infercanary.probe.timing import Timing

Sample: TypeAlias = "Mapping[str, float | Mapping[tuple[str, ...], float]]"

BUSY = 0.1  # seconds: 5 % of it are 5 ms
STALLED = "infercanary_stalled_seconds_total"
THROTTLED = "infercanary_cgroup_cpu_throttled_seconds_total"
CPUS = "infercanary_cgroup_cpuset_cpus"
CPU_LIST = "infercanary_cgroup_cpuset_info"
LIMIT_HITS = "infercanary_cgroup_memory_limit_hits_total"
OOM_KILLS = "infercanary_cgroup_oom_kills_total"
WAITING = "infercanary_cgroup_pressure_waiting_seconds_total"
PAUSES = "infercanary_gc_pause_seconds_total"
HELD_DOWN = "infercanary_gpu_clock_event_seconds_total"
CLOCK, HIGHEST_CLOCK = "infercanary_gpu_sm_clock_hertz", "infercanary_gpu_sm_clock_max_hertz"
UTILIZATION = "infercanary_gpu_utilization_ratio"
REASONS = ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown", "idle")


def sample(numbers: Sample) -> Values:
    return {
        name: dict(value) if isinstance(value, Mapping) else {(): value} for name, value in numbers.items()
    }


def around(
    before: Sample,
    after: Sample,
    *,
    previous: Sample | None = None,
    first: Sample | None = None,
    quiet: Sample | None = None,
    busy: float = BUSY,
    waited: float | None = 0.0,
    inside: Inside | None = None,
    helpers: bool = False,
    lateness: float = 0.0,
    output_error: float | None = None,
) -> Window:
    """A run of ``busy`` seconds between two samples. Nothing happened before it, unless that is given."""
    usage = ThreadUsage(run_queue_seconds=waited)
    done = RunResult("ok", busy=busy, usage=usage, inside=inside, helpers=helpers, output_error=output_error)
    return Window(
        done=done,
        lateness=lateness,
        first=sample(before if first is None else first),
        previous=sample(before if previous is None else previous),
        quiet=sample(before if quiet is None else quiet),
        before=sample(before),
        after=sample(after),
    )


def held_down(**seconds: float) -> Sample:
    """What the driver counted of GPU 1: seconds of each reason."""
    return {HELD_DOWN: {("1", reason): 7.0 + seconds.get(reason, 0.0) for reason in REASONS}}


def clocks(of_highest: float) -> Sample:
    return {CLOCK: {("0",): 2e9, ("1",): of_highest * 1e9}, HIGHEST_CLOCK: {("0",): 2e9, ("1",): 1e9}}


def limited(reason: str) -> tuple[Window, tuple[str, ...]]:
    return around(held_down(), held_down(**{reason: 0.001})), (f"gpu_clock_limited ({reason})",)


TWO: Sample = {CPUS: 2, CPU_LIST: {("0-1",): 1}}
OTHER_TWO: Sample = {CPUS: 2, CPU_LIST: {("4-5",): 1}}
IDLE: Sample = {UTILIZATION: {("0",): 0.0, ("1",): 0.1}}
IN_USE: Sample = {UTILIZATION: {("0",): 0.0, ("1",): 0.11}}

# Each by one metric, or by a gauge and its greatest value.
BY_METRIC: dict[str, tuple[Window, tuple[str, ...]]] = {
    "it stood still": (around({STALLED: 1.0}, {STALLED: 1.6}), ("stalled",)),
    "it stood still before": (around({STALLED: 2}, {STALLED: 2}, previous={STALLED: 1}), ("stalled",)),
    "throttled": (around({THROTTLED: 1.0}, {THROTTLED: 1.001}), ("cgroup_throttled",)),
    "fewer CPUs": (around({CPUS: 96}, {CPUS: 64}), ("cpuset_changed",)),
    "other CPUs": (around({CPU_LIST: {("0-1",): 1}}, {CPU_LIST: {("4-5",): 1}}), ("cpuset_changed",)),
    "at the limit": (around({LIMIT_HITS: 3}, {LIMIT_HITS: 4}), ("memory_limit",)),
    "at the limit before": (
        around({LIMIT_HITS: 2}, {LIMIT_HITS: 2}, previous={LIMIT_HITS: 1}),
        ("memory_limit",),
    ),
    "killed": (around({OOM_KILLS: 0}, {OOM_KILLS: 1}), ("memory_limit",)),
    "killed before": (around({OOM_KILLS: 2}, {OOM_KILLS: 2}, previous={OOM_KILLS: 1}), ("memory_limit",)),
    "disk": (around({WAITING: {("io",): 1.0}}, {WAITING: {("io",): 1.006}}), ("io_pressure",)),
    "garbage": (around({PAUSES: 1.0}, {PAUSES: 1.006}), ("gc",)),
    **{reason: limited(reason) for reason in REASONS[:5]},
    "low clock": (around({}, clocks(0.74)), ("gpu_clock_limited (low_clock)",)),
    "GPU in use": (around(IN_USE, {}), ("gpu_busy",)),
}
SCENARIOS = {
    **BY_METRIC,
    "nothing known": (around({}, {}, waited=None), ()),
    "late": (around({}, {}, lateness=0.26), ("stalled",)),
    "hardly late": (around({}, {}, lateness=0.25), ()),
    "stood still before the previous run": (
        around({STALLED: 2}, {STALLED: 2}, previous={STALLED: 2}, first={STALLED: 1}), (),
    ),
    # A short run has some noise; of a long one, 5 % count.
    **{
        f"waited {seconds} s of {busy}": (around({}, {}, waited=seconds, busy=busy), ("cpu_wait_outside",) * counts)
        for seconds, busy, counts in [(0.0019, 0.001, 0), (0.0021, 0.001, 1), (0.049, 1.0, 0), (0.051, 1.0, 1)]
    },
    # The kernel counts a thread that its quota holds back as waiting too; all threads' time counts.
    "throttled for as long as it waited": (
        around({THROTTLED: 1.0}, {THROTTLED: 1.06}, waited=0.06), ("cgroup_throttled",),
    ),
    "throttled, waiting unknown": (around({THROTTLED: 1.0}, {THROTTLED: 1.5}, waited=None), ("cgroup_throttled",)),
    "throttled for less than it waited": (
        around({THROTTLED: 1.0}, {THROTTLED: 1.02}, waited=0.06), ("cpu_wait_outside", "cgroup_throttled"),
    ),
    "throttled before": (around({THROTTLED: 2}, {THROTTLED: 2}, previous={THROTTLED: 1}), ()),
    **{
        f"waited beside {inside}, helpers {helpers}": (
            around({}, {}, waited=0.06, inside=inside, helpers=helpers),
            (*["cpu_wait_outside"] * outside, *["cpu_wait_inside"] * within),
        )
        for inside, helpers, outside, within in [
            (Inside(0.0, 0.0, BUSY, BUSY), False, True, False),
            (Inside(0.06, 0.06, BUSY, BUSY), False, False, True),
            (Inside(0.06, 0.0, BUSY, BUSY), False, False, True),  # by threads of the own process
            (Inside(0.06, 0.0, BUSY, BUSY), True, True, False),  # an engine's own threads crowd nobody
            (Inside(0.06, 0.02, BUSY, BUSY), True, True, True),
            (Inside(0.03, 0.03, BUSY, BUSY), False, True, True),
            # As much between the repeats: that is not what they waited for.
            (Inside(0.06, 0.06, 2 * BUSY, 2 * BUSY), False, True, True),
        ]
    },
    "busy inside, and no waiting": (around({}, {}, inside=Inside(0.06, 0.06, BUSY, BUSY)), ()),
    # Compared with the first sample until the end: the process's threads were made for those CPUs.
    "other CPUs, as many": (around(TWO, OTHER_TWO), ("cpuset_changed",)),
    "other CPUs since long": (around({CPUS: 1}, {CPUS: 1}, first=TWO), ("cpuset_changed",)),
    "the first CPUs again": (around(OTHER_TWO, TWO, first=TWO), ()),
    "a list that is new": (around({CPUS: 96}, {CPUS: 96, CPU_LIST: {("0-95",): 1}}), ()),
    "the same limit hits": (around({LIMIT_HITS: 3, OOM_KILLS: 3}, {LIMIT_HITS: 3, OOM_KILLS: 3}), ()),
    "pressure of others": (
        around({WAITING: {("io",): 1.0, ("cpu",): 1.0}}, {WAITING: {("io",): 1.004, ("cpu",): 2.0}}), (),
    ),
    "little garbage": (around({PAUSES: 1.0}, {PAUSES: 1.004}), ()),
    "garbage before": (around({PAUSES: 2}, {PAUSES: 2}, previous={PAUSES: 1}, first={PAUSES: 0}), ()),
    # The container was moved to another cgroup.
    **{
        f"{metric} fell": (around({metric: 9}, {metric: 2}), ())
        for metric in (STALLED, THROTTLED, LIMIT_HITS, OOM_KILLS, PAUSES)
    },
    "no limit": (around(held_down(), held_down(idle=0.1, hw_slowdown=0.1)), ()),
    "the longest reason": (
        around(held_down(), held_down(sw_power_cap=0.2, hw_thermal=0.1)), ("gpu_clock_limited (sw_power_cap)",),
    ),
    "the gravest of two": (
        around(held_down(), held_down(sw_power_cap=0.2, hw_thermal=0.2)), ("gpu_clock_limited (hw_thermal)",),
    ),
    "held down before": (around(held_down(hw_thermal=0.1), held_down(hw_thermal=0.1), previous=held_down()), ()),
    "a GPU that is new": (
        around({HELD_DOWN: {("0", "hw_thermal"): 5}}, {HELD_DOWN: {("1", "hw_thermal"): 9}}), (),
    ),
    "nearly the highest clock": (around(clocks(0.74), clocks(0.75)), ()),
    "another GPU's highest clock": (around({}, {CLOCK: {("0",): 1e6}, HIGHEST_CLOCK: {("1",): 2e9}}), ()),
    "GPU hardly in use": (around(IDLE, IN_USE), ()),
    # The driver looks back by up to a second: at the canary that ran just before.
    "GPU used by the probe": (around(IN_USE, IN_USE, quiet=IDLE), ()),
    "GPU used before the round": (around(IDLE, IDLE, quiet=IN_USE), ("gpu_busy",)),
    "other output": (around({}, {}, output_error=0.011), ("output_changed",)),
    "the same output": (around({}, {}, output_error=0.01), ()),
    "several": (
        around({OOM_KILLS: 0, STALLED: 1}, {OOM_KILLS: 1, STALLED: 2}, lateness=1.0, waited=0.1),
        ("stalled", "cpu_wait_outside", "memory_limit"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("window", "expected"), SCENARIOS.values(), ids=SCENARIOS)
def test_the_tags_of_a_run(window: Window, expected: tuple[str, ...]) -> None:
    assert labelled_tags(tags(window), clock_reason(window)) == expected


def test_every_tag_has_its_scenario() -> None:
    shown = {tag.partition(" ")[0] for _, expected in SCENARIOS.values() for tag in expected}
    assert shown == TAGS.keys() - NOT_JUDGED


def test_the_state_of_the_canaries_gives_tags() -> None:
    assert {state: state_tags(state, is_beside=False) for state in CANARY_STATES} == {
        "opening": (), "warming": ("warming",), "steady": (), "failing": ("failing",), "out_of_memory": ("failing",),
        "busy": ("failing",),
    }  # fmt: skip
    assert state_tags("warming", is_beside=True) == ("warming", "beside_canary")


@pytest.mark.parametrize("window", [window for window, _ in BY_METRIC.values()], ids=BY_METRIC)
def test_a_metric_that_is_missing_gives_no_tag(window: Window) -> None:
    """In all samples, in those before the run, and in the one after it: a sampler may fail at any time."""
    for metric in {*window.before, *window.after}:
        without: dict[str, Any] = {
            field: {name: points for name, points in getattr(window, field).items() if name != metric}
            for field in ("first", "previous", "quiet", "before", "after")
        }
        after: dict[str, Any] = {"after": without.pop("after")}
        assert tags(window._replace(**without, **after)) == ()
        if metric not in (CLOCK, HIGHEST_CLOCK):  # a low clock is seen in the sample after the run alone
            assert tags(window._replace(**without)) == ()
        if metric != UTILIZATION:  # and this in the one before the round
            assert tags(window._replace(**after)) == ()


def test_only_the_canarys_own_gpu_counts() -> None:
    """One that idles beside it has a low clock, and one that another tenant uses is busy."""
    of_gpu = [window for window, expected in BY_METRIC.values() if expected[0].startswith("gpu_")]
    assert len(of_gpu) == 7
    for window in of_gpu:
        assert tags(window._replace(gpus=frozenset("02"))) == ()
        assert tags(window._replace(gpus=frozenset("1"))) == tags(window) != ()


def test_what_the_container_received_is_a_rate_since_the_previous_run() -> None:
    metric = "infercanary_tcp_received_segments_total"
    window = around({}, {metric: 160.0}, previous={metric: 100.0})
    assert window.received is None, "it is the first run"
    assert window._replace(elapsed=30.0).received == 2.0
    assert around({}, {metric: 160.0})._replace(elapsed=30.0).received is None


def _info(index: str, bus_id: str) -> tuple[str, ...]:
    return (index, "GPU", f"uuid-{index}", bus_id, "", "", "")


def test_the_clock_is_that_of_the_canarys_gpu_after_the_run() -> None:
    window = around({CLOCK: {("0",): 0.2e9, ("1",): 0.3e9}}, {CLOCK: {("0",): 1.9e9, ("1",): 0.3e9}})
    assert window._replace(gpus=frozenset("0")).sm_clock == 1.9e9
    assert window._replace(gpus=frozenset()).sm_clock is None
    assert window.sm_clock == 1.1e9


def test_gpus_are_found_by_their_pci_address() -> None:
    """CUDA writes four digits of the domain, NVML eight; a MIG device has that of its GPU."""
    shown = sample({
        "infercanary_gpu_info": {
            _info("0", "00000000:41:00.0"): 1,
            _info("1", "00000000:C1:00.0"): 1,
            _info("1:0", "00000000:C1:00.0"): 1,
            _info("2", "00000001:41:00.0"): 1,
        }
    })  # fmt: skip
    assert gpus_at("0000:41:00.0", shown) == {"0"}
    assert gpus_at("0000:c1:00.0", shown) == {"1"}
    assert gpus_at("0001:41:00.0", shown) == {"2"}
    assert gpus_at("0000:42:00.0", shown) is None


def test_every_metric_that_a_rule_names_is_some_samplers() -> None:
    """A misspelt or renamed one is a rule that is silent for ever."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(samplers.__path__, f"{samplers.__name__}.")
    ]
    declared = {
        metric.name for module in modules for metric in vars(module).values() if isinstance(metric, Metric)
    }
    named = set(re.findall(r'"(infercanary_\w+)"', inspect.getsource(rules)))
    assert len(named) >= 11
    assert named <= declared


def test_every_tag_of_a_run_stands_in_the_vocabulary_in_its_order() -> None:
    assert (*TAGS,) == ("warming", "failing", "beside_canary", *rules._RULES)


@pytest.mark.parametrize(
    ("throttled", "waits", "crowds", "queued", "known"),
    [
        # Without waiting: 20, 20 and 30 ms of 20, 50 and 30. The median is 10 ms lower, whatever the mean of the waits.
        (0.0, (0.0, 0.03, 0.0), (0.0,) * 3, (), (0.01, 0.0)),
        (
            0.1,
            (0.0, 0.03, 0.0),
            (0.0,) * 3,
            (),
            (None, None),
        ),  # the kernel does not say how long it waited in all
        (0.0, (0.0, None, 0.0), (None,) * 3, (), (None, None)),
        (0.1, (0.0, 0.02, 0.0), (0.0,) * 3, (0.0, 0.02, 0.0), (0.0, 0.0)),  # the median run was not held back
        (0.1, (0.0008,) * 3, (0.0,) * 3, (0.0008,) * 3, (0.0, 0.0)),  # next to nothing of 30 ms
        (0.1, (0.0008,) * 3, (None,) * 3, (0.0008,) * 3, (0.0, None)),
        (0.1, (0.002,) * 3, (0.0,) * 3, (0.002,) * 3, (None, None)),
    ],
)
def test_waiting_is_known_where_no_quota_can_have_made_it(
    throttled: float, waits: Any, crowds: Any, queued: Any, known: tuple[float | None, float | None]
) -> None:
    """A slow model that reaches its quota in each run would else never be compared without its neighbours."""
    timings = [Timing(seconds, {}) for seconds in (0.02, 0.05, 0.03)]
    window = around({THROTTLED: 1.0}, {THROTTLED: 1.0 + throttled})
    assert window.waited is None, "it did not run"
    off_cpu = [{QUEUED: seconds} for seconds in queued]
    done = window.done._replace(timings=timings, waits=waits, crowds=crowds, off_cpu=off_cpu)
    window = window._replace(done=done)
    assert (window.waited, window.crowded) == tuple(None if x is None else pytest.approx(x) for x in known)
