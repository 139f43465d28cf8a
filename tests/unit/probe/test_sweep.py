"""Sweeps: plan, time, and result of a load, with scripted targets."""

import itertools
import math
import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watching import until

from infercanary.command.settings import UsageError, convert
from infercanary.probe import Probe, Sweep, schedule
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load, Measured, Measurement
from infercanary.probe.pool import Pool
from infercanary.probe.rounds import Rounds
from infercanary.probe.sampling import Sampling
from infercanary.probe.schedule import SWEEP_SHARE, keep_for_sweeps
from infercanary.probe.sweep import INTERVAL, LATENCY, PEAK, RATE, TIMESTAMP, Sweeping
from infercanary.probe.targets import DeviceMemory, Unsized
from infercanary.probe.watcher import Memory
from tests.scenarios import mistakes, refused, typed
from tests.targets import Scripted, opened, points

# Schedule, and share of the cap -----------------------------------------------------------------------------------

_SWEEPS = st.lists(st.tuples(st.floats(0.1, 600), st.floats(1, 604_800)), min_size=1, max_size=6)


@given(_SWEEPS, st.floats(0.0001, 1.0))
def test_sweeps_have_half_of_the_cap_at_most_and_are_never_early(sweeps, cap):
    kept, intervals = keep_for_sweeps(sweeps, cap)
    assert 0 < kept <= SWEEP_SHARE * cap * (1 + 1e-9)
    pairs = [*zip(intervals, sweeps, strict=True)]
    assert all(interval >= every * (1 - 1e-9) for interval, (_, every) in pairs)
    assert sum(seconds / interval for interval, (seconds, _) in pairs) == pytest.approx(kept)


# A minute each hour would be 1.7 %, but half of the cap is 0.5 %. If two sweeps do not fit, both are delayed
# equally.
CAPPED = """
[]                             | 0.0         | []
[[10.0, 3600.0]]               | 0.002777778 | [3600.0]
[[60.0, 3600.0]]               | 0.005       | [12000.0]
[[18.0, 3600.0], [18.0, 1800]] | 0.005       | [10800.0, 5400.0]
"""


@pytest.mark.parametrize(("sweeps", "kept", "intervals"), typed(CAPPED))
def test_the_share_of_a_sweep_in_a_cap_of_one_percent(sweeps, kept, intervals):
    assert keep_for_sweeps(sweeps, 0.01) == (pytest.approx(kept), pytest.approx(intervals))


def test_a_probe_keeps_their_share_for_its_sweeps():
    sweeps = {"a": Sweep(batches=(1, 16), seconds=0.4, every_seconds=2)}
    probe = Probe({"a": Sized()}, duty_cap=0.2, sweeps=sweeps)
    assert probe._runs_cap == 0.1
    assert points(probe._tally, INTERVAL) == {("a",): 4.0}


# Settings --------------------------------------------------------------------------------------------------------


def test_batches_go_one_at_a_time_and_concurrency_with_the_canarys_own_inputs():
    sweep = Sweep(batches=(8, 1, 8, 2), concurrency=(1, 4, 2))
    assert sweep.loads(1) == [(1, 1), (2, 1), (8, 1), (1, 2), (1, 4)]
    assert sweep.loads(2) == [(1, 1), (2, 1), (8, 1), (2, 2), (2, 4)]
    assert Sweep(concurrency=(2,)).loads(16) == [(16, 2)]
    assert Load(4, 2).is_at_least(Load(4, 1))
    assert not Load(4, 1).is_at_least(Load(2, 2))


MISTAKES = """
{}                                         | nothing to sweep
{batches: [0]}                             | batches[0]: | >= 1
{batches: [4097]}                          | batches[0]: | <= 4096
{batches: [1, 2, 3, 4, 5, 6, 7, 8, 9]}     | batches: | length <= 8
{concurrency: [65]}                        | concurrency[0]: | <= 64
{batches: [1], seconds: 0}                 | seconds: | >= 0.1
{batches: [1], every_seconds: 0}           | every_seconds: | >= 1
{batch: [1]}                               | unknown key `batch` | did you mean `batches`?
"""


@pytest.mark.parametrize(("given", "words"), mistakes(MISTAKES))
def test_a_sweep_that_cannot_be_meant_is_one_line(given, words):
    with refused(["sweep: ", *words]):
        convert(given, Sweep, "sweep")
    if "batch" not in given:
        with pytest.raises((UsageError, ValueError), match=re.escape(words[0])):
            Probe({"a": Sized()}, sweeps={"a": Sweep(**given)})


# A load ------------------------------------------------------------------------------------------------------------


class Sized(Scripted):
    """Takes ``seconds``, and a tenth more for each further sample; ``acts`` has the behaviour for a batch."""

    is_sweepable = True
    batch = 1
    unsized = 0
    busy = False

    def __init__(self, seconds=0.002, acts=None):
        super().__init__(lambda: time.sleep(seconds))
        self.seconds, self.acts = seconds, acts or {}
        self.copies: list[Sized] = []
        self.threads: set[int] = set()

    def copy_with_batch(self, batch):
        if batch == self.unsized:
            raise Unsized(f"not with {batch}")
        other = type(self)(self.seconds * (1 + (batch - 1) / 10), self.acts)
        other.batch, other.clock = batch, self.clock
        self.copies.append(other)
        return other

    def is_busy(self):
        return self.busy

    def run(self, phase):
        self.threads.add(threading.get_ident())
        act = self.acts.get(self.batch)
        if isinstance(act, BaseException):
            raise act
        if act is not None:
            act()
        super().run(phase)


WRONG = [
    (Sized(), {"b": Sweep(batches=(1,))}, "sweeps: no canary `b`; there are a"),
    (Sized(), {"a": {"batches": [1]}}, r"canaries\.a\.sweep: give a Sweep"),
    (Scripted(), {"a": Sweep(batches=(1,))}, "Scripted cannot be swept"),
]


@pytest.mark.parametrize(("target", "sweeps", "why"), WRONG)
def test_a_sweep_of_what_cannot_be_swept_is_one_line(target, sweeps, why):
    with pytest.raises(UsageError, match=why):
        Probe({"a": target}, sweeps=sweeps)


def measured(target, batch, concurrency=1, pool=None):
    return Measurement("a", target, Load(batch, concurrency), 0.5, pool).measure()


@pytest.mark.parametrize("inferences", [1, 4])
def test_one_at_a_time_the_rate_is_the_batch_over_the_latency(monkeypatch, inferences):
    """Only requests advance the clock: on a busy machine, real time would also pass between requests."""
    now, takes = [1000.0], itertools.cycle((0.004, 0.004, 0.010))

    def request():
        now[0] += next(takes)

    monkeypatch.setattr("infercanary.probe.load.perf_counter", lambda: now[0])
    target = Sized(0.0, {10: request})
    target.clock.batch = inferences
    measurement = Measurement("a", target, Load(10, 1), 0.5, None)
    found = measurement.measure()
    assert isinstance(found, Measured)
    assert found.peak_bytes is None
    [latencies] = measurement.latencies
    assert len(latencies) > 50
    assert found.latency == statistics.median(latencies)
    assert found.latency == pytest.approx(0.004 / inferences)
    assert found.rate == pytest.approx(10 / statistics.fmean(latencies))
    [copy] = target.copies
    assert copy.closed == 1
    assert target.closed == 0


class Watched(Sized):
    peak = 7

    def reset_memory_peak(self):
        self.peak = 0

    def memory(self):
        return DeviceMemory(0, self.peak + 1000 * len(self.copies))


def test_several_at_a_time_each_have_a_copy_and_a_thread():
    target = Watched(0.01)
    found = measured(target, 1, concurrency=4)
    assert found.latency >= 0.01
    assert found.peak_bytes == 4000
    assert [copy.closed for copy in target.copies] == [1, 1, 1, 1]
    assert len({thread for copy in target.copies for thread in copy.threads}) == 4
    assert not [thread for thread in threading.enumerate() if "infercanary-a-load" in thread.name]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "out_of_memory"),
        (ValueError("no such size\nand more"), "raised"),
        (SystemExit(3), "raised"),
        (lambda: time.sleep(0.2), "too_slow"),
    ],
)
def test_a_point_without_numbers_has_its_reason(error, reason):
    target = Sized(acts={4: error})
    for concurrency in (1, 3):
        found = measured(target, 4, concurrency)
        assert found.reason == reason
        assert "\n" not in found.detail
        assert reason == "too_slow" or found.detail.startswith(type(error).__name__)
    assert all(copy.closed == 1 for copy in target.copies)


def test_in_the_servers_pool_each_request_takes_its_turn():
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(threading.get_ident).result()
        target = Sized(0.01)
        found = measured(target, 1, concurrency=2, pool=Pool(pool, None))
    assert found.latency >= 0.019, "two wait for one thread"
    assert {thread for copy in target.copies for thread in copy.threads} == {serving}


# A sweep -----------------------------------------------------------------------------------------------------------


class Swept:
    def __init__(self, target, sweep, pool=None, timeout=30.0):
        self.tally, self.memory = Tally(), Memory({})
        self.canary = opened(target, pool, tally=self.tally, timeout=timeout)
        self.memory.stop()
        self.sweeping = Sweeping(self.canary, sweep, 1e-6, self.tally, self.memory)

    def step(self):
        return self.sweeping.step(time.monotonic())

    def whole(self):
        self.step()
        while self.sweeping._left is not None:
            self.step()
            time.sleep(0.01)

    def again(self):
        self.sweeping.next_at = 0.0
        self.whole()

    def rounds(self, *others):
        canaries, sampling = [self.canary, *others], Sampling((), self.tally)
        return Rounds(canaries, [self.sweeping], None, sampling, self.memory, self.tally, threading.Event())

    def value(self, metric, *labels):
        return points(self.tally, metric).get(("a", *labels))

    def close(self):
        assert self.sweeping.close(5.0)
        assert self.canary.close(5.0)
        # A released thread ends by itself after a short time.
        until(lambda: not [t for t in threading.enumerate() if t.name.startswith("infercanary")])


@pytest.fixture
def swept():
    made = []

    def make(target, pool=None, timeout=30.0, **sweep):
        made.append(Swept(target, Sweep(**sweep), pool, timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_sweep_goes_point_by_point_and_gives_each_throughput(swept):
    target, before = Sized(), time.time()
    target.unsized = 4
    one = swept(target, batches=(1, 2, 4), concurrency=(2,), seconds=4)
    assert one.value(TIMESTAMP) is None
    assert 0.5 < one.step() < 2
    rates = {"throughput@1x1": one.value(RATE, "1", "1")}
    assert one.sweeping.measures == rates
    assert one.value(RATE, "2", "1") is None, "one step measures one point"
    one.whole()
    assert one.sweeping.measures.keys() == {"throughput@1x1", "throughput@2x1", "throughput@1x2"}
    assert before <= one.value(TIMESTAMP) <= time.time()
    assert one.value(LATENCY, "2", "1") > one.value(LATENCY, "1", "1") > 0
    assert one.value(RATE, "4", "1") is None
    assert one.value(PEAK, "1", "1") is None, "a sweep on a CPU has no peak memory"


def test_out_of_memory_is_reported_once_and_not_tried_again(swept, caplog):
    tried = []

    def full():
        tried.append(4)
        raise MemoryError

    one = swept(Sized(acts={4: full, 8: full}), batches=(1, 4, 8), seconds=3)
    one.whole()
    assert one.value(RATE, "1", "1") is not None
    assert one.value(RATE, "4", "1") is None
    assert one.canary.state in ("steady", "warming"), "a failed point is not a failure of the canary"
    one.again()
    assert tried == [4], "larger points are not tried, because each attempt uses the server's memory"
    assert [r.getMessage() for r in caplog.records if "sweep" in r.getMessage()] == [
        "canary a: sweep of batch 4: out_of_memory: MemoryError",
        "canary a: sweep of batch 8: out_of_memory: as for the smaller load batch 4",
    ]


def test_a_point_that_hangs_is_given_up_and_costs_what_it_took(swept, caplog):
    go_on = threading.Event()
    one = swept(Sized(acts={2: lambda: go_on.wait(60)}), batches=(1, 2, 4), seconds=3)
    one.step()
    assert 1.0 <= one.step() < 20.0
    assert one.sweeping.is_running, "the sweep is running, so runs are tagged"
    assert caplog.text.count("until the point ends, runs are tagged beside_canary and are not judged") == 1
    assert one.step() == 0.0, "no other point starts meanwhile"
    [[run], _] = one.rounds().run([(one.canary, 3)], time.monotonic())
    assert run.outcome == "ok" and "beside_canary" in run.tags, "the canary continues"
    assert not one.sweeping.close(0.3), "nor does it hold up the end"
    assert "canary a: the sweep still hangs" in caplog.text
    go_on.set()
    until(lambda: not one.sweeping.is_running)
    assert one.step() >= 0.3, "the time of the hang counts as a cost"
    assert one.value(RATE, "4", "1") is None


def test_no_sweep_beside_a_canary_that_opens(swept):
    one, slow = swept(Sized(), batches=(1,), seconds=0.2), Scripted(blocks="open")
    other = Canary("b", slow, Tally(), 30.0, 300.0)
    other.open(0)
    assert not one.rounds(other).work_between()
    slow.goes_on.set()
    other.open(30)
    assert one.rounds(other).work_between()
    assert other.close(5)


def test_a_busy_device_puts_the_sweep_off(swept):
    target = Sized()
    one = swept(target, batches=(1, 2), seconds=2)
    one.step()
    target.busy = True
    one.step()
    target.busy = False
    assert one.step() == 0.0 and one.sweeping.next_at > time.monotonic() + 50, (
        "the next sweep is not within a minute"
    )
    one.again()
    assert one.value(RATE, "2", "1") is not None, "the same sweep continues, and its cost counts once"


def test_a_canary_that_fails_is_not_swept_and_its_failed_runs_take_no_throughput(swept):
    """A failed run reports no throughput, because the judge would never use this value."""
    target = Sized()
    one = swept(target, batches=(1,), seconds=0.2)
    rounds = one.rounds()
    one.step()

    def ran():
        [run], _ = rounds.run([(one.canary, 3)], time.monotonic())
        return run.outcome, {name for name in run.measures if "@" in name}

    target.output = [math.nan]
    assert ran() == ("not_finite", set())
    one.sweeping.next_at = 0.0
    assert one.step() == 0.0
    assert len(target.copies) == 1
    target.output = [1.0]
    assert [ran(), ran()] == [("ok", {"throughput@1x1"}), ("ok", set())]


def test_sweeps_are_an_interval_apart_and_replicas_do_not_keep_step(swept, monkeypatch):
    sweeping = swept(Sized(), batches=(1,), seconds=10).sweeping
    sweeping._interval = 3600.0

    def next_at(start):
        sweeping._plan_next(0.0, start)
        return sweeping.next_at

    schedule._random.seed(1)
    first = sorted(next_at(100.0) for _ in range(200))
    assert 3700.0 <= first[0] < first[-1] - 600 <= 100.0 + 1.2 * 3600.0 - 600
    monkeypatch.setattr(schedule, "JITTER", 0.0)
    found = [next_at(0.0)]
    for took, at in ((9.0, 3700.0), (30.0, 7400.0), (1e9, 20_000.0)):
        sweeping._plan_next(took, at)
        found.append(sweeping.next_at)
    assert found == [3600.0, 7300.0, 7400.0 + 3 * 3600.0, 20_000.0 + 86_400], (
        "the interval grows with the cost"
    )
    sweeping.put_off(21_000.0)
    assert sweeping.next_at == 21_060.0


def test_a_sweep_is_rarer_while_requests_wait(swept, monkeypatch):
    monkeypatch.setattr(schedule, "JITTER", 0.0)
    one = swept(Sized(), batches=(1,), seconds=1, every_seconds=100)
    one.sweeping._interval = 100.0
    one.sweeping.next_at = 0.0
    one.canary.crowding = 8.0
    took = one.step()
    assert one.sweeping.next_at - time.monotonic() == pytest.approx(100.0 * 8 * took, rel=0.05)


def test_a_target_whose_samples_are_no_number_is_swept_as_if_it_had_one(swept):
    class Odd(Sized):
        samples = "many"  # type: ignore[assignment]

    one = swept(Odd(), concurrency=(2,), seconds=0.5)
    one.whole()
    assert one.value(RATE, "1", "2") is not None


def test_a_stop_ends_the_measurement_immediately(swept):
    one = swept(Sized(), batches=(1,), seconds=600)
    threading.Timer(0.3, one.sweeping.interrupt).start()
    begin = time.monotonic()
    one.step()
    assert time.monotonic() - begin < 60
