"""Rules of tags: a table of samples with their tags, and missing metrics."""

import importlib
import inspect
import pkgutil
import re

import pytest

from infercanary.contract.bottleneck import QUEUED
from infercanary.contract.report import Metric
from infercanary.contract.vocabulary import CANARY_STATES, NOT_JUDGED, TAGS, labelled_tags
from infercanary.probe import samplers
from infercanary.probe import tags as rules
from infercanary.probe.contention import Inside
from infercanary.probe.result import RunResult
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.tags import Sample, Values, Window, clock_reason, gpus_at, state_tags, tags
from infercanary.probe.timing import Timing
from tests.scenarios import typed

NAMES = {
    "stalled": "infercanary_stalled_seconds_total",
    "throttled": "infercanary_cgroup_cpu_throttled_seconds_total",
    "cpus": "infercanary_cgroup_cpuset_cpus",
    "list": "infercanary_cgroup_cpuset_info",
    "hits": "infercanary_cgroup_memory_limit_hits_total",
    "kills": "infercanary_cgroup_oom_kills_total",
    "wait": "infercanary_cgroup_pressure_waiting_seconds_total",
    "gc": "infercanary_gc_pause_seconds_total",
    "held": "infercanary_gpu_clock_event_seconds_total",
    "clock": "infercanary_gpu_sm_clock_hertz",
    "highest": "infercanary_gpu_sm_clock_max_hertz",
    "use": "infercanary_gpu_utilization_ratio",
}


SAMPLES = ("first", "previous", "quiet", "before", "after")


def window(row):
    """Return a run of 0.1 s between two samples from words ``metric.label=before>after``, or
    ``previous:metric=value`` for an earlier sample.

    Without such a word, nothing happened before the run.
    """
    values = {"waited": "0", "busy": "0.1"}
    samples: dict[str, dict[str, dict[tuple[str, ...], float]]] = {"before": {}, "after": {}}
    for word in row.split():
        key, _, text = word.partition("=")
        sample, _, metric = key.rpartition(":")
        name, *labels = metric.split(".")
        if name not in NAMES:
            values[name] = text
            continue
        for where, number in zip((sample,) if sample else ("before", "after"), text.split(">"), strict=True):
            points = samples.setdefault(where, {})
            if number:
                points.setdefault(NAMES[name], {})[tuple(labels)] = float(number)
    waited, inside = values["waited"], values.get("inside")
    done = RunResult(
        "ok", busy=float(values["busy"]), helpers="helpers" in values,
        usage=ThreadUsage(run_queue_seconds=None if waited == "?" else float(waited)),
        inside=None if inside is None else Inside(*map(float, inside.split(","))),
        output_error=float(values["output"]) if "output" in values else None,
    )  # fmt: skip
    first, previous, quiet, before, after = (Sample(samples.get(name, samples["before"])) for name in SAMPLES)
    return Window(done, float(values.get("late", 0)), first, previous, quiet, before, after)


# Tags from one metric, or from a gauge and its highest value; then the others.
BY_METRIC = """
stalled=1>1.6 -> stalled
stalled=2>2 previous:stalled=1 -> stalled
throttled=1>1.001 -> cgroup_throttled
cpus=96>64 -> cpuset_changed
list.0-1=1> list.4-5=>1 -> cpuset_changed
hits=3>4 -> memory_limit
hits=2>2 previous:hits=1 -> memory_limit
kills=0>1 -> memory_limit
kills=2>2 previous:kills=1 -> memory_limit
wait.io=1>1.006 -> io_pressure
gc=1>1.006 -> gc
held.1.sw_power_cap=7>7.001 -> gpu_clock_limited (sw_power_cap)
held.1.sync_boost=7>7.001 -> gpu_clock_limited (sync_boost)
held.1.sw_thermal=7>7.001 -> gpu_clock_limited (sw_thermal)
held.1.hw_thermal=7>7.001 -> gpu_clock_limited (hw_thermal)
held.1.hw_power_brake=7>7.001 -> gpu_clock_limited (hw_power_brake)
clock.0=>2e9 highest.0=>2e9 clock.1=>.74e9 highest.1=>1e9 -> gpu_clock_limited (low_clock)
use.0=0> use.1=.11> -> gpu_busy
"""


OTHERS = """
waited=? ->
late=0.26 -> stalled
late=0.25 ->
stalled=2>2 previous:stalled=2 first:stalled=1 ->
# A short run has some noise; in a long run, 5 % count.
waited=0.0019 busy=0.001 ->
waited=0.0021 busy=0.001 -> cpu_wait_outside
waited=0.049 busy=1 ->
waited=0.051 busy=1 -> cpu_wait_outside
# The kernel counts throttled time as CPU wait, too; the time of all threads counts.
throttled=1>1.06 waited=0.06 -> cgroup_throttled
throttled=1>1.5 waited=? -> cgroup_throttled
throttled=1>1.02 waited=0.06 -> cpu_wait_outside cgroup_throttled
throttled=2>2 previous:throttled=1 ->
# Inside the container: CPU seconds of all processes, of other processes, seconds, and seconds without the canary.
waited=0.06 inside=0,0,.1,.1 -> cpu_wait_outside
waited=0.06 inside=.06,.06,.1,.1 -> cpu_wait_inside
waited=0.06 inside=.06,0,.1,.1 -> cpu_wait_inside
waited=0.06 inside=.06,0,.1,.1 helpers -> cpu_wait_outside
waited=0.06 inside=.06,.02,.1,.1 helpers -> cpu_wait_outside cpu_wait_inside
waited=0.06 inside=.03,.03,.1,.1 -> cpu_wait_outside cpu_wait_inside
# The same CPU time between the repeats: then the repeats did not wait for it.
waited=0.06 inside=.06,.06,.2,.2 -> cpu_wait_outside cpu_wait_inside
inside=.06,.06,.1,.1 ->
# Always compared with the first sample, because the process made its threads for those CPUs.
cpus=2>2 list.0-1=1> list.4-5=>1 -> cpuset_changed
cpus=1>1 first:cpus=2 -> cpuset_changed
cpus=3>2 first:cpus=2 ->
cpus=96>96 list.0-95=>1 ->
hits=3>3 kills=3>3 ->
wait.io=1>1.004 wait.cpu=1>2 ->
gc=1>1.004 ->
gc=2>2 previous:gc=1 first:gc=0 ->
# The container was moved to another cgroup.
stalled=9>2 throttled=9>2 hits=9>2 kills=9>2 gc=9>2 ->
held.1.idle=7>7.1 held.1.hw_slowdown=7>7.1 ->
held.1.sw_power_cap=7>7.2 held.1.hw_thermal=7>7.1 -> gpu_clock_limited (sw_power_cap)
held.1.sw_power_cap=7>7.2 held.1.hw_thermal=7>7.2 -> gpu_clock_limited (hw_thermal)
held.1.hw_thermal=7.1>7.1 previous:held.1.hw_thermal=7 ->
held.0.hw_thermal=5> held.1.hw_thermal=>9 ->
clock.1=>.75e9 highest.1=>1e9 ->
clock.0=>1e6 highest.1=>2e9 ->
# The driver's utilization covers up to the last second, and may include the previous canary.
use.1=.1>.11 ->
use.1=.11>.11 quiet:use.1=.1 ->
use.1=.1>.1 quiet:use.1=.11 -> gpu_busy
output=0.011 -> output_changed
output=0.01 ->
kills=0>1 stalled=1>2 late=1 waited=0.1 -> stalled cpu_wait_outside memory_limit
"""


def rows(text):
    split = [row.partition("->") for row in text.strip().splitlines() if not row.startswith("#")]
    return [(row.strip(), expected.strip()) for row, _, expected in split]


@pytest.mark.parametrize(("row", "expected"), rows(BY_METRIC + OTHERS))
def test_the_tags_of_a_run(row, expected):
    run = window(row)
    assert " ".join(labelled_tags(tags(run), clock_reason(run))) == expected


def test_every_tag_has_its_scenario_and_a_place_in_the_vocabulary():
    shown = {word for _, expected in rows(BY_METRIC + OTHERS) for word in expected.split() if word[0] != "("}
    assert shown == TAGS.keys() - NOT_JUDGED
    assert (*TAGS,) == ("warming", "failing", "beside_canary", *rules._RULES)


def test_the_state_of_the_canaries_gives_tags():
    assert {state: state_tags(state, is_beside=False) for state in CANARY_STATES} == {
        "opening": (), "warming": ("warming",), "steady": (), "failing": ("failing",), "out_of_memory": ("failing",),
        "busy": ("failing",),
    }  # fmt: skip
    assert state_tags("warming", is_beside=True) == ("warming", "beside_canary")


@pytest.mark.parametrize("row", [row for row, _ in rows(BY_METRIC)])
def test_a_metric_that_is_missing_gives_no_tag(row):
    run = window(row)
    for metric in {*run.before, *run.after}:
        without = {
            field: Sample({name: points for name, points in getattr(run, field).items() if name != metric})
            for field in SAMPLES
        }
        after = {"after": without.pop("after")}
        assert tags(run._replace(**without, **after)) == ()
        # a low clock needs only the sample after the run
        if metric not in (NAMES["clock"], NAMES["highest"]):
            assert tags(run._replace(**without)) == ()
        if metric != NAMES["use"]:  # utilization needs only the sample before the round
            assert tags(run._replace(**after)) == ()


def test_only_the_canarys_own_gpu_counts():
    """An idle GPU beside the canary's GPU has a low clock, and a GPU of another tenant is busy."""
    of_gpu = [window(row) for row, expected in rows(BY_METRIC) if expected.startswith("gpu_")]
    assert len(of_gpu) == 7
    for run in of_gpu:
        assert tags(run._replace(gpus=frozenset("02"))) == ()
        assert tags(run._replace(gpus=frozenset("1"))) == tags(run) != ()


def test_received_segments_are_a_rate_since_the_previous_run():
    metric = "infercanary_tcp_received_segments_total"
    run = window("")._replace(previous=Sample({metric: {(): 100.0}}), after=Sample({metric: {(): 160.0}}))
    assert run.received is None, "no time has passed"
    run.after.ended = 30.0
    assert run.received == 2.0
    assert run._replace(previous=Sample()).received is None


def test_the_clock_is_that_of_the_canarys_gpu_after_the_run():
    run = window("clock.0=0.2e9>1.9e9 clock.1=0.3e9>0.3e9")
    clocks = [run._replace(gpus=gpus).sm_clock for gpus in (frozenset("0"), frozenset[str](), None)]
    assert clocks == [1.9e9, None, 1.1e9]


def test_gpus_are_found_by_their_pci_address():
    """CUDA writes the PCI domain with four digits, NVML with eight. A MIG device has the address of its GPU."""
    labels = {
        "0": "00000000:41:00.0",
        "1": "00000000:C1:00.0",
        "1:0": "00000000:C1:00.0",
        "2": "00000001:41:00.0",
    }
    shown: Values = {"infercanary_gpu_info": {(index, "GPU", "u", bus): 1.0 for index, bus in labels.items()}}
    expected = {"0000:41:00.0": {"0"}, "0000:c1:00.0": {"1"}, "0001:41:00.0": {"2"}, "0000:42:00.0": None}
    assert {bus_id: gpus_at(bus_id, shown) for bus_id in expected} == expected


def test_every_metric_that_a_rule_names_is_some_samplers():
    """A misspelt or renamed metric would silence its rule for ever."""
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


# Three repeats of 20, 50 and 30 ms, which without CPU wait are 20, 20 and 30 ms: the median is 10 ms lower,
# for any mean wait. Then: no total of the kernel's CPU wait; a median run without throttling; a wait of
# almost nothing of 30 ms.
WAITS = """
0.0 | [0.0, 0.03, 0.0]         | [0.0, 0.0, 0.0] | []                       | 0.01 | 0.0
0.1 | [0.0, 0.03, 0.0]         | [0.0, 0.0, 0.0] | []                       | ~    | ~
0.0 | [0.0, ~, 0.0]            | [~, ~, ~]       | []                       | ~    | ~
0.1 | [0.0, 0.02, 0.0]         | [0.0, 0.0, 0.0] | [0.0, 0.02, 0.0]         | 0.0  | 0.0
0.1 | [0.0008, 0.0008, 0.0008] | [0.0, 0.0, 0.0] | [0.0008, 0.0008, 0.0008] | 0.0  | 0.0
0.1 | [0.0008, 0.0008, 0.0008] | [~, ~, ~]       | [0.0008, 0.0008, 0.0008] | 0.0  | ~
0.1 | [0.002, 0.002, 0.002]    | [0.0, 0.0, 0.0] | [0.002, 0.002, 0.002]    | ~    | ~
"""


@pytest.mark.parametrize(("throttled", "waits", "crowds", "queued", "waited", "crowded"), typed(WAITS))
def test_waiting_is_known_where_no_quota_can_have_made_it(throttled, waits, crowds, queued, waited, crowded):
    """Otherwise, a slow model that reaches its CPU quota in each run could never be compared without its neighbours."""
    run = window(f"throttled=1>{1 + throttled}")
    assert run.waited is None, "a run without repeats has no CPU wait"
    done = run.done._replace(
        timings=[Timing(seconds, {}) for seconds in (0.02, 0.05, 0.03)], waits=waits, crowds=crowds,
        off_cpu=[{QUEUED: seconds} for seconds in queued],
    )  # fmt: skip
    run = run._replace(done=done)
    assert (run.waited, run.crowded) == (pytest.approx(waited), pytest.approx(crowded))
