"""Every rule of the table, with made samples: it fires, alone; it stays silent below; what is not known is silence."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import pytest

from infercanary.contract.bottleneck import QUEUED
from infercanary.contract.report import LADDER, HistogramValue, Metric
from infercanary.contract.vocabulary import CANARY_STATES, NOT_JUDGED, TAGS
from infercanary.probe import samplers
from infercanary.probe import tags as rules
from infercanary.probe.crowd import Inside
from infercanary.probe.round import Round
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.tags import Values, Window, gpus_at, state_tags, tags, values
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
HELD_BACK = "infercanary_gpu_clock_event_seconds_total"
CLOCK, HIGHEST_CLOCK = "infercanary_gpu_sm_clock_hertz", "infercanary_gpu_sm_clock_max_hertz"
UTILIZATION = "infercanary_gpu_utilization_ratio"
XIDS = "infercanary_gpu_xid_events_total"


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
    done = Round("ok", busy=busy, usage=usage, inside=inside, helpers=helpers, output_error=output_error)
    return Window(
        done=done,
        lateness=lateness,
        first=sample(before if first is None else first),
        previous=sample(before if previous is None else previous),
        quiet=sample(before if quiet is None else quiet),
        before=sample(before),
        after=sample(after),
    )


def held_back(reason: str, seconds: float) -> Sample:
    return {HELD_BACK: {("0", reason): 7.0 + seconds, ("0", "hw_slowdown"): 7.0}}


def clocks(of_highest: float) -> Sample:
    return {CLOCK: {("0",): 2e9, ("1",): of_highest * 1e9}, HIGHEST_CLOCK: {("0",): 2e9, ("1",): 1e9}}


class Case(NamedTuple):
    fires: Window
    silent: Window


CASES = {
    "late": Case(around({}, {}, lateness=0.26), around({}, {}, lateness=0.25)),
    "stalled": Case(around({STALLED: 1.0}, {STALLED: 1.6}), around({STALLED: 1.6}, {STALLED: 1.6})),
    "preempted": Case(around({}, {}, waited=0.006), around({}, {}, waited=0.005)),
    "crowded_inside": Case(
        around({}, {}, waited=0.006, inside=Inside(0.006, 0.0, BUSY, BUSY)),
        around({}, {}, waited=0.006, inside=Inside(0.003, 0.0, BUSY, BUSY)),
    ),
    "cgroup_throttled": Case(
        around({THROTTLED: 1.0}, {THROTTLED: 1.001}), around({THROTTLED: 1.0}, {THROTTLED: 1.0})
    ),
    "cpuset_changed": Case(
        around({CPUS: 2, CPU_LIST: {("0-1",): 1}}, {CPUS: 1, CPU_LIST: {("0",): 1}}),
        around({CPUS: 2, CPU_LIST: {("0-1",): 1}}, {CPUS: 2, CPU_LIST: {("0-1",): 1}}),
    ),
    "memory_limit": Case(around({LIMIT_HITS: 3}, {LIMIT_HITS: 4}), around({LIMIT_HITS: 3}, {LIMIT_HITS: 3})),
    "oom_kill": Case(around({OOM_KILLS: 0}, {OOM_KILLS: 1}), around({OOM_KILLS: 1}, {OOM_KILLS: 1})),
    "io_pressure": Case(
        around({WAITING: {("io",): 1.0}}, {WAITING: {("io",): 1.006}}),
        around(
            {WAITING: {("io",): 1.0, ("cpu",): 1.0, ("memory",): 1.0}},
            {WAITING: {("io",): 1.004, ("cpu",): 2.0, ("memory",): 2.0}},
        ),
    ),
    "gc": Case(around({PAUSES: 1.0}, {PAUSES: 1.006}), around({PAUSES: 1.0}, {PAUSES: 1.004})),
    **{
        tag: Case(
            around(held_back(reason, 0), held_back(reason, 0.001)),
            around(held_back(reason, 0), held_back("another", 0.001)),
        )
        for tag, reason in {
            "gpu_power_cap": "sw_power_cap",
            "gpu_sync_boost": "sync_boost",
            "gpu_sw_thermal": "sw_thermal",
            "gpu_hw_thermal": "hw_thermal",
            "gpu_power_brake": "hw_power_brake",
        }.items()
    },
    "gpu_clock_low": Case(around({}, clocks(0.74)), around(clocks(0.74), clocks(0.75))),
    "gpu_busy": Case(
        around({UTILIZATION: {("0",): 0.0, ("1",): 0.11}}, {}),
        around({UTILIZATION: {("0",): 0.1}}, {UTILIZATION: {("0",): 0.9}}),
    ),
    "gpu_xid": Case(
        around({XIDS: {("0",): 0, ("1",): 2}}, {XIDS: {("0",): 0, ("1",): 3}}),
        around({XIDS: {("0",): 0, ("1",): 2}}, {XIDS: {("0",): 0, ("1",): 2}}),
    ),
    "output_changed": Case(around({}, {}, output_error=0.011), around({}, {}, output_error=0.01)),
}


def test_every_rule_has_its_case_in_the_tables_order() -> None:
    assert [tag for tag in TAGS if tag in CASES] == [*CASES]
    assert TAGS.keys() - CASES == NOT_JUDGED


def test_a_state_that_is_not_judged_is_a_tag_and_so_is_what_others_did_meanwhile() -> None:
    found = {state: state_tags(state, beside_opening=False, beside_sweep=False) for state in CANARY_STATES}
    assert found == {
        "opening": (), "warming": ("warming",), "steady": (), "failing": ("failing",), "out_of_memory": ("failing",),
        "busy": ("busy",),
    }  # fmt: skip
    assert state_tags("warming", beside_opening=True, beside_sweep=True) == (
        "warming", "beside_opening", "beside_sweep",
    )  # fmt: skip


@pytest.mark.parametrize("tag", CASES)
def test_it_fires_and_no_other_does(tag: str) -> None:
    assert tags(CASES[tag].fires) == (tag,)


@pytest.mark.parametrize("tag", CASES)
def test_it_stays_silent(tag: str) -> None:
    assert tags(CASES[tag].silent) == ()


@pytest.mark.parametrize(
    "tag", [t for t in CASES if t not in ("late", "preempted", "crowded_inside", "output_changed")]
)
def test_a_metric_that_is_missing_is_silence(tag: str) -> None:
    """In all samples, in those before the run, and in the one after it: a sampler may fail at any time."""
    fires = CASES[tag].fires
    for metric in {*fires.before, *fires.after}:
        if metric in (CPUS, CPU_LIST):
            continue  # either of them is enough
        without: dict[str, Any] = {
            field: {name: points for name, points in getattr(fires, field).items() if name != metric}
            for field in ("first", "previous", "quiet", "before", "after")
        }
        after: dict[str, Any] = {"after": without.pop("after")}
        assert tags(fires._replace(**without, **after)) == ()
        if tag != "gpu_clock_low":  # it looks at the sample after the run alone
            assert tags(fires._replace(**without)) == ()
        if tag != "gpu_busy":  # and this one at that before the round
            assert tags(fires._replace(**after)) == ()


def test_what_the_run_does_not_know_is_silence() -> None:
    assert tags(around({}, {}, waited=None)) == ()
    assert tags(around({THROTTLED: 1.0}, {THROTTLED: 1.5}, waited=None)) == ("cgroup_throttled",)
    assert tags(around({}, {}, output_error=None)) == ()


def test_several_apply_in_the_tables_order() -> None:
    window = around({OOM_KILLS: 0, LIMIT_HITS: 1}, {OOM_KILLS: 1, LIMIT_HITS: 2}, lateness=1.0, waited=0.1)
    assert tags(window) == ("late", "preempted", "memory_limit", "oom_kill")


@pytest.mark.parametrize(
    ("metric", "tag"),
    [(STALLED, "stalled"), (LIMIT_HITS, "memory_limit"), (OOM_KILLS, "oom_kill"), (XIDS, "gpu_xid")],
)
def test_what_leaves_traces_counts_from_the_end_of_the_previous_run(metric: str, tag: str) -> None:
    """After a stall, a reclaim or a kill, caches are cold: it need not have happened in the run itself."""
    assert tags(around({metric: 2}, {metric: 2}, previous={metric: 1})) == (tag,)
    assert tags(around({metric: 2}, {metric: 2}, previous={metric: 2}, first={metric: 1})) == ()


@pytest.mark.parametrize("metric", [THROTTLED, PAUSES])
def test_what_takes_time_counts_in_the_run_alone(metric: str) -> None:
    assert tags(around({metric: 2}, {metric: 2}, previous={metric: 1}, first={metric: 0})) == ()


@pytest.mark.parametrize("metric", [STALLED, THROTTLED, LIMIT_HITS, OOM_KILLS, PAUSES])
def test_a_counter_that_fell_did_not_grow(metric: str) -> None:
    """The container was moved to another cgroup."""
    assert tags(around({metric: 9}, {metric: 2})) == ()


def test_gpus_are_kept_apart() -> None:
    """Counters of different GPUs are not held against one another, nor is one that was not there before."""
    assert tags(around({XIDS: {("0",): 5}}, {XIDS: {("1",): 9}})) == ()
    assert tags(around({XIDS: {("0",): 5}}, {XIDS: {("0",): 5, ("1",): 9}})) == ()
    assert tags(around({XIDS: {("0",): 5, ("1",): 0}}, {XIDS: {("0",): 0, ("1",): 1}})) == ("gpu_xid",)


def test_a_thread_that_its_quota_held_back_was_not_preempted() -> None:
    """The kernel counts it as waiting for a CPU all the same."""
    assert tags(around({THROTTLED: 1.0}, {THROTTLED: 1.06}, waited=0.06)) == ("cgroup_throttled",)
    # All threads' time counts, also that of those the run did not wait for.
    assert tags(around({THROTTLED: 1.0}, {THROTTLED: 1.20}, waited=0.06)) == ("cgroup_throttled",)
    assert tags(around({THROTTLED: 1.0}, {THROTTLED: 1.02}, waited=0.06)) == ("preempted", "cgroup_throttled")


@pytest.mark.parametrize(
    ("inside", "helpers", "expected"),
    [
        (None, False, ("preempted",)),
        (Inside(0.0, 0.0, BUSY, BUSY), False, ("preempted",)),
        (Inside(0.06, 0.06, BUSY, BUSY), False, ("crowded_inside",)),
        (Inside(0.06, 0.0, BUSY, BUSY), False, ("crowded_inside",)),  # by threads of the own process
        (Inside(0.06, 0.0, BUSY, BUSY), True, ("preempted",)),  # an engine's own threads crowd nobody
        (Inside(0.06, 0.02, BUSY, BUSY), True, ("preempted", "crowded_inside")),
        (Inside(0.03, 0.03, BUSY, BUSY), False, ("preempted", "crowded_inside")),
        # As much between the repeats: that is not what they waited for.
        (Inside(0.06, 0.06, 2 * BUSY, 2 * BUSY), False, ("preempted", "crowded_inside")),
    ],
)
def test_who_had_the_cpu_that_the_canary_waited_for(
    inside: Inside | None, helpers: bool, expected: tuple[str, ...]
) -> None:
    assert tags(around({}, {}, waited=0.06, inside=inside, helpers=helpers)) == expected


def test_what_the_container_received_is_a_rate_since_the_previous_run() -> None:
    metric = "infercanary_tcp_received_segments_total"
    window = around({}, {metric: 160.0}, previous={metric: 100.0})
    assert window.received is None, "it is the first run"
    assert window._replace(elapsed=30.0).received == 2.0
    assert around({}, {metric: 160.0})._replace(elapsed=30.0).received is None


@pytest.mark.parametrize("tag", ["preempted", "gc", "io_pressure"])
@pytest.mark.parametrize(
    ("seconds", "busy", "counts"),
    [
        (0.0019, 0.001, False),  # a short run: some noise is always there
        (0.0021, 0.001, True),
        (0.049, 1.0, False),
        (0.051, 1.0, True),
    ],
)
def test_waiting_counts_from_a_share_of_the_run_on(
    tag: str, seconds: float, busy: float, counts: bool
) -> None:
    metric = {"gc": PAUSES, "io_pressure": WAITING}.get(tag)
    labels = ("io",) if tag == "io_pressure" else ()
    window = (
        around({}, {}, waited=seconds, busy=busy)
        if metric is None
        else around({metric: {labels: 0.0}}, {metric: {labels: seconds}}, busy=busy)
    )
    assert (tag in tags(window)) == counts


def test_a_cpuset_is_compared_with_the_first() -> None:
    """Until the end of the process: its threads were made for other CPUs."""
    two: Sample = {CPUS: 2, CPU_LIST: {("0-1",): 1}}
    other_two: Sample = {CPUS: 2, CPU_LIST: {("4-5",): 1}}
    one: Sample = {CPUS: 1, CPU_LIST: {("4",): 1}}
    assert tags(around(one, one, first=two)) == ("cpuset_changed",)
    assert tags(around(one, two, first=two)) == ()
    # As many as before, but on another node, maybe.
    assert tags(around(two, other_two)) == ("cpuset_changed",)
    # The list is left out where it is too long for a label, the number is not.
    assert tags(around({CPUS: 96}, {CPUS: 64})) == ("cpuset_changed",)
    assert tags(around({CPUS: 96}, {CPUS: 96, CPU_LIST: {("0-95",): 1}})) == ()


def test_what_a_gpu_is_busy_with_within_the_round_is_the_probes_own() -> None:
    """The driver looks back by up to a second: at the canary that ran just before."""
    idle: Sample = {UTILIZATION: {("0",): 0.0}}
    busy: Sample = {UTILIZATION: {("0",): 0.9}}
    assert tags(around(busy, busy, quiet=idle)) == ()
    assert tags(around(idle, idle, quiet=busy)) == ("gpu_busy",)


def _info(index: str, bus_id: str) -> tuple[str, ...]:
    return (index, "GPU", f"uuid-{index}", bus_id, "", "", "")


def test_only_the_canarys_own_gpu_disturbs_it() -> None:
    """One that idles beside it has a low clock, and one that another tenant uses is busy."""
    fires = [case.fires for tag, case in CASES.items() if tag.startswith("gpu_")]
    assert len(fires) == 8
    for window in fires:
        assert tags(window._replace(gpus=frozenset())) == ()
        assert tags(window._replace(gpus=frozenset("2"))) == ()
        assert tags(window._replace(gpus=frozenset("01"))) == tags(window) != ()


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


def test_a_clock_without_its_highest_is_not_low() -> None:
    assert tags(around({}, {CLOCK: {("0",): 1e6}, HIGHEST_CLOCK: {("1",): 2e9}})) == ()


def test_values_are_the_plain_numbers() -> None:
    gauge = Metric("infercanary_x", "gauge", "X.", ("what",)).family({("a",): 1, ("b",): 2.5})
    histogram = Metric("infercanary_y", "histogram", "Y.").family(
        HistogramValue((0,) * (len(LADDER) + 1), 0.0)
    )
    assert values([gauge, histogram]) == {"infercanary_x": {("a",): 1.0, ("b",): 2.5}, "infercanary_y": {}}


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
    assert len(named) >= 12
    assert named <= declared


def test_waiting_for_others_is_not_known_where_a_quota_held_the_thread_back() -> None:
    timings = [Timing(seconds, {}) for seconds in (0.02, 0.05, 0.03)]
    window = around({THROTTLED: 1.0}, {THROTTLED: 1.0})
    # Without waiting: 0.02, 0.02 and 0.03. The median is 10 ms lower, whatever the mean of the waits.
    window = window._replace(done=window.done._replace(timings=timings, waits=[0.0, 0.03, 0.0]))
    assert window.waited == pytest.approx(0.01)
    held_back = window._replace(after=sample({THROTTLED: 1.1}))
    assert held_back.waited is None
    unknown = window._replace(done=window.done._replace(waits=[0.0, None, 0.0]))
    assert unknown.waited is None
    assert around({}, {}).waited is None, "it did not run"


@pytest.mark.parametrize(
    ("queued", "known"),
    [
        ([0.0, 0.0, 0.02], 0.0),  # the median run was not held back
        ([0.001, 0.001, 0.001], 0.0),  # 1 ms of 40
        ([0.002, 0.002, 0.002], None),
    ],
)
def test_waiting_that_a_quota_may_have_made_is_none_where_there_is_next_to_none(
    queued: list[float], known: float | None
) -> None:
    """A slow model that reaches its quota in each run would else never be compared without its neighbours."""
    window = around({THROTTLED: 1.0}, {THROTTLED: 1.1})
    done = window.done._replace(
        timings=[Timing(0.04, {}) for _ in queued],
        waits=queued,
        crowds=[0.0 for _ in queued],
        off_cpu=[{QUEUED: seconds} for seconds in queued],
    )
    window = window._replace(done=done)
    assert (window.waited, window.crowded) == (known, known)
    unsplit = window._replace(done=done._replace(crowds=[None for _ in queued]))
    assert (unsplit.waited, unsplit.crowded) == (known, None)
    assert window._replace(done=done._replace(off_cpu=())).waited is None, "the kernel does not count it"
