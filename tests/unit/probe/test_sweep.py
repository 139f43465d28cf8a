"""Sweeps: what is planned and when, and what a load gives, with real targets that are scripted."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError, convert
from infercanary.contract.report import Run
from infercanary.probe import HostClock, Phase, Probe, Sweep, schedule
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load, Measured, Measurement, Missing
from infercanary.probe.pool import Pool
from infercanary.probe.rounds import Rounds
from infercanary.probe.sampling import Sampling
from infercanary.probe.schedule import SWEEP_SHARE, Budget, Schedule, Turns, keep_for_sweeps, plan
from infercanary.probe.sweep import LATENCY, PEAK, RATE, TIMESTAMP, Sweeping
from infercanary.probe.targets import DeviceMemory, Target, Unsized
from infercanary.probe.watcher import Memory

# When, and how much of the cap -----------------------------------------------------------------------------------

_SWEEPS = st.lists(st.tuples(st.floats(0.1, 600), st.floats(1, 604_800)), min_size=1, max_size=6)


@given(_SWEEPS, st.floats(0.0001, 1.0))
def test_sweeps_have_half_of_the_cap_at_most_and_are_never_early(
    sweeps: list[tuple[float, float]], cap: float
) -> None:
    kept, intervals = keep_for_sweeps(sweeps, cap)
    assert 0 < kept <= SWEEP_SHARE * cap * (1 + 1e-9)
    assert all(interval >= every * (1 - 1e-9) for interval, (_, every) in zip(intervals, sweeps, strict=True))
    taken = sum(seconds / interval for interval, (seconds, _) in zip(intervals, sweeps, strict=True))
    assert taken == pytest.approx(kept)


def test_what_the_default_sweep_takes_and_what_is_too_much() -> None:
    assert keep_for_sweeps([], 0.01) == (0.0, [])
    kept, intervals = keep_for_sweeps([(10.0, 3600.0)], 0.01)
    assert kept == pytest.approx(10 / 3600)
    assert intervals == [3600.0]
    # A minute each hour would be 1.7 %, and half of the cap is 0.5 %: 3 h 20 min apart, then.
    assert keep_for_sweeps([(60.0, 3600.0)], 0.01) == (0.005, [pytest.approx(12_000.0)])
    # Two that do not fit come later alike.
    assert keep_for_sweeps([(18.0, 3600.0), (18.0, 1800.0)], 0.01)[1] == [
        pytest.approx(10_800.0),
        pytest.approx(5_400.0),
    ]


def test_turns_are_an_interval_apart_and_replicas_do_not_keep_step(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule._random.seed(1)
    first = [Turns(3600.0, 10.0, 100.0).next_at for _ in range(200)]
    assert min(first) >= 3700.0 and max(first) <= 100.0 + 1.2 * 3600.0
    assert max(first) - min(first) > 600.0
    monkeypatch.setattr(schedule, "JITTER", 0.0)
    turns = Turns(3600.0, 10.0, 0.0)
    assert turns.next_at == 3600.0
    turns.ended(9.0, 3700.0)
    assert turns.next_at == 7300.0
    turns.ended(30.0, 7400.0)  # three times what it was to take
    assert turns.next_at == 7400.0 + 3 * 3600.0
    turns.ended(1e9, 20_000.0)
    assert turns.next_at == 20_000.0 + Turns.MAX_PAUSE
    turns.put_off(60.0, 21_000.0)
    assert turns.next_at == 21_060.0


@pytest.mark.parametrize(("seconds", "every", "points"), [(10.0, 3600.0, 8), (600.0, 60.0, 8), (2.0, 1.0, 3)])
@pytest.mark.parametrize("repeat", [0.0005, 0.01, 0.2])
@pytest.mark.parametrize("cap", [0.01, 0.2])
def test_the_cap_holds_for_a_simulated_day_and_runs_go_on(
    seconds: float, every: float, points: int, repeat: float, cap: float
) -> None:
    """The loop of the probe on a clock of its own: rounds, and one point of a sweep after a round."""
    schedule._random.seed(7)
    kept, [interval] = keep_for_sweeps([(seconds, every)], cap)
    slots, budget = Schedule(10.0, 0.0), Budget(cap - kept, 0.0)
    turns = Turns(interval, seconds, 0.0)
    now = busy = swept = longest = 0.0
    runs = sweeps = 0
    left, cost, last, began = 0, 0.0, 0.0, 0.0
    while now < 86_400.0:
        [repeats], needed = plan([repeat], 10.0, cap - kept)
        if abs(needed / slots.interval - 1) > 0.1:
            slots.stretch(needed, now)
        slot, _ = slots.next(now)
        took = repeats * repeat
        now = max(slot, budget.ready_at(took, now))
        longest, last = max(longest, now - last), now
        now += took
        busy += took
        budget.spend(took, now)
        runs += 1
        if not left and now >= turns.next_at:
            left, cost, began = points, 0.0, now
        if left:
            now += seconds / points
            busy += seconds / points
            swept += seconds / points
            cost += seconds / points
            left -= 1
            if not left:
                turns.ended(cost, began)
                sweeps += 1
        assert busy <= cap * now * (1 + 1e-9) + seconds / points, "at any moment, not only in the end"
    assert busy <= cap * now * 1.001
    assert swept <= kept * now * 1.001
    # And what was asked for comes: a point after each round, where it is time for a sweep.
    assert sweeps >= now / (1.2 * interval + points * now / runs) - 1
    # Runs are as many as with half of the cap, and none waits longer than for itself and a point of a sweep.
    _, alone = plan([repeat], 10.0, cap * (1 - SWEEP_SHARE))
    assert runs >= 0.8 * 86_400.0 / max(alone, 10.0 + seconds / points)
    assert longest <= 2.5 * max(alone, 10.0) + 2 * seconds / points


# What ------------------------------------------------------------------------------------------------------------


def test_batches_go_one_at_a_time_and_concurrency_with_the_canarys_own_inputs() -> None:
    sweep = Sweep(batches=(8, 1, 8, 2), concurrency=(1, 4, 2))
    assert sweep.loads(1) == [(1, 1), (2, 1), (8, 1), (1, 2), (1, 4)]
    assert sweep.loads(2) == [(1, 1), (2, 1), (8, 1), (2, 2), (2, 4)]
    assert Sweep(concurrency=(2,)).loads(16) == [(16, 2)]
    assert Load(4, 2).is_at_least(Load(4, 1)) and not Load(4, 1).is_at_least(Load(2, 2))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "nothing to sweep; give `batches` or `concurrency`"),
        ({"batches": [0]}, "batches[0]: expected a whole number >= 1"),
        ({"batches": [5000]}, "batches[0]: expected a whole number <= 4096"),
        ({"batches": list(range(1, 10))}, "batches: expected a list of length <= 8"),
        ({"concurrency": [65]}, "concurrency[0]: expected a whole number <= 64"),
        ({"batches": [1], "seconds": 0}, "seconds: expected a number >= 0.1"),
        ({"batches": [1], "seconds": 1e4}, "seconds: expected a number <= 600"),
        ({"batches": [1], "every_seconds": 0}, "every_seconds: expected a number >= 1"),
        ({"batches": ["1"]}, "batches[0]: expected a whole number, got text"),
        (
            {"batch": [1]},
            "unknown key `batch`; did you mean `batches`? known keys: batches, concurrency, seconds, every_seconds",
        ),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_one_line(given: Mapping[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as error:
        convert(given, Sweep, "sweep")
    assert str(error.value).startswith(f"sweep: {why}")


def test_a_sweep_made_in_code_is_held_to_the_same() -> None:
    with pytest.raises(ValueError, match="nothing to sweep"):
        Sweep()
    with pytest.raises(
        UsageError, match=r"canaries\.a\.sweep: batches\[0\]: expected a whole number <= 4096"
    ):
        Probe({"a": Sized()}, sweeps={"a": Sweep(batches=(4097,))}, samplers=())
    with pytest.raises(UsageError, match="sweeps: no canary `b`; there are a"):
        Probe({"a": Sized()}, sweeps={"b": Sweep(batches=(1,))}, samplers=())
    with pytest.raises(UsageError, match=r"canaries\.a\.sweep: give a Sweep\(batches="):
        Probe({"a": Sized()}, sweeps={"a": {"batches": [1]}}, samplers=())  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="Fixed cannot be swept; leave the sweep out"):
        Probe({"a": Fixed()}, sweeps={"a": Sweep(batches=(1,))}, samplers=())


# A load ------------------------------------------------------------------------------------------------------------


class Fixed(Target):
    """A target of one size, which takes ``seconds``."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.clock = HostClock()
        self.seconds = seconds

    def open(self) -> None: ...

    def run(self, phase: Phase) -> None:
        time.sleep(self.seconds)

    def values(self, result: Any) -> Sequence[float]:
        return [1.0]

    def environment(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None: ...


class Sized(Fixed):
    """Takes ``seconds`` and a tenth of that for each sample more, up to what ``acts`` says of a batch."""

    is_sweepable = True
    acts: Mapping[int, Callable[[], None]]

    def __init__(self, seconds: float = 0.002, acts: Mapping[int, Callable[[], None]] | None = None) -> None:
        super().__init__(seconds)
        self.acts = acts or {}
        self.batch = 1
        self.copies: list[Sized] = []
        self.closed = 0
        self.threads: set[int] = set()

    def copy_with_batch(self, batch: int) -> Sized:
        other = Sized(self.seconds * (1 + (batch - 1) / 10), self.acts)
        other.batch = batch
        self.copies.append(other)
        return other

    def run(self, phase: Phase) -> None:
        self.threads.add(threading.get_ident())
        self.acts.get(self.batch, lambda: None)()
        super().run(phase)

    def close(self) -> None:
        self.closed += 1


def measured(
    target: Any, batch: int, concurrency: int = 1, seconds: float = 0.5, pool: Any = None
) -> Measured | Missing:
    return Measurement("a", target, Load(batch, concurrency), seconds, pool).measure()


def raises(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_one_at_a_time_the_rate_is_the_batch_over_the_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the requests move: on a loaded machine time passes between two requests too."""
    now = 1000.0
    takes = itertools.cycle((0.004, 0.004, 0.010))

    def request() -> None:
        nonlocal now
        now += next(takes)

    monkeypatch.setattr("infercanary.probe.load.perf_counter", lambda: now)
    target = Sized(0.0, {10: request})
    measurement = Measurement("a", target, Load(10, 1), 0.5, None)
    found = measurement.measure()
    assert isinstance(found, Measured)
    [latencies] = measurement.latencies
    assert len(latencies) > 50
    assert found.latency == statistics.median(latencies) == pytest.approx(0.004)
    assert found.rate == pytest.approx(10 / statistics.fmean(latencies))
    assert found.peak_bytes is None
    [copy] = target.copies
    assert copy.closed == 1 and target.closed == 0


def test_several_at_a_time_each_have_a_copy_and_a_thread() -> None:
    target = Sized(0.01)
    found = measured(target, 1, concurrency=4)
    assert isinstance(found, Measured)
    assert len(target.copies) == 4 and [copy.closed for copy in target.copies] == [1, 1, 1, 1]
    assert len({thread for copy in target.copies for thread in copy.threads}) == 4
    assert found.latency >= 0.01
    assert found.rate == pytest.approx(4 / found.latency, rel=0.5), "they are side by side"
    assert not [thread for thread in threading.enumerate() if "infercanary-a-load" in thread.name]


def test_a_clock_of_several_inferences_counts_each() -> None:
    class Batched(Sized):
        def copy_with_batch(self, batch: int) -> Sized:
            other = super().copy_with_batch(batch)
            other.clock = HostClock()
            other.clock.batch = 4
            return other

        def run(self, phase: Phase) -> None:
            time.sleep(0.02)

    found = measured(Batched(0.02), 1)
    assert isinstance(found, Measured)
    assert 0.005 <= found.latency < 0.02
    assert found.rate == pytest.approx(1 / found.latency, rel=0.5)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA has none left"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        ),
    ],
)
def test_memory_that_does_not_suffice_is_an_answer(error: BaseException) -> None:
    target = Sized(acts={4: raises(error)})
    for concurrency in (1, 3):
        found = measured(target, 4, concurrency)
        assert isinstance(found, Missing) and found.reason == "out_of_memory"
        assert found.detail.startswith(type(error).__name__)
    assert all(copy.closed == 1 for copy in target.copies)


def test_what_raises_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ValueError("no such size\nand more"), SystemExit(3)):
        found = measured(Sized(acts={2: raises(error)}), 2)
        assert isinstance(found, Missing) and found.reason == "raised"
    assert measured(Sized(acts={2: raises(ValueError("no such size\nand more"))}), 2, 4) == Missing(
        "raised", "ValueError: no such size"
    )

    class One(Sized):
        def copy_with_batch(self, batch: int) -> Sized:
            raise Unsized("it has one size only")

    assert measured(One(), 2) == Missing("unsupported", "it has one size only")


def test_too_few_requests_are_too_slow() -> None:
    found = measured(Sized(0.2), 1)
    assert isinstance(found, Missing) and found.reason == "too_slow"
    assert "of at least 3 requests in 0.5 s; give the sweep more seconds" in found.detail
    slow = measured(Sized(0.2), 1, concurrency=3)
    assert isinstance(slow, Missing) and slow.reason == "too_slow"


def test_a_device_that_is_busy_is_left_to_the_host() -> None:
    class Busy(Sized):
        def is_busy(self) -> bool:
            return True

    target = Busy()
    found = measured(target, 1)
    assert isinstance(found, Missing) and found.reason == "busy"
    assert target.copies == []


def test_memory_is_watched_where_the_target_can() -> None:
    class Watched(Sized):
        peak = 7

        def reset_memory_peak(self) -> None:
            self.peak = 0

        def memory(self) -> DeviceMemory:
            return DeviceMemory(0, self.peak + 1000 * len(self.copies))

    found = measured(Watched(), 1, concurrency=2)
    assert isinstance(found, Measured) and found.peak_bytes == 2000


def test_in_the_servers_pool_each_request_takes_its_turn() -> None:
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(threading.get_ident).result()
        target = Sized(0.01)
        found = measured(target, 1, concurrency=2, pool=Pool(pool, None))
    assert isinstance(found, Measured)
    assert {thread for copy in target.copies for thread in copy.threads} == {serving}
    # Two wait for one thread: each request takes twice as long, and no more are done than by one.
    assert found.latency >= 0.019
    assert found.rate == pytest.approx(2 / found.latency, rel=0.5)


# A sweep -----------------------------------------------------------------------------------------------------------


class Swept:
    """A real canary, open, and the sweep of it."""

    def __init__(self, target: Any, sweep: Sweep, pool: Pool | None = None, timeout: float = 30.0) -> None:
        self.tally = Tally()
        self.canary = Canary("a", target, self.tally, timeout, 60.0, pool)
        self.canary.open(30.0)
        memory = Memory({})
        memory.stop()
        self.sweeping = Sweeping(self.canary, sweep, 1e-6, self.tally, memory)
        self.sweeping.start(time.monotonic() - 1)

    def step(self) -> float:
        return self.sweeping.step(time.monotonic())

    def whole(self) -> None:
        """All of one sweep."""
        self.step()
        while self.sweeping._left is not None:
            self.step()
            time.sleep(0.01)

    def value(self, metric: Any, *labels: str) -> float | None:
        for family in self.tally.families():
            if family.name == metric.name:
                return next((p.value for p in family.points if p.labels == ("a", *labels)), None)  # type: ignore[return-value]
        return None

    def close(self) -> None:
        assert self.sweeping.close(5.0) and self.canary.close(5.0)
        deadline = time.monotonic() + 10  # a thread that was let go ends by itself, a moment later
        while left := [t for t in threading.enumerate() if t.name.startswith("infercanary")]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)


@pytest.fixture
def swept() -> Iterator[Callable[..., Swept]]:
    made: list[Swept] = []

    def make(*arguments: Any, **options: Any) -> Swept:
        made.append(Swept(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_next_run_that_is_judged_has_what_a_point_gave(swept: Any) -> None:
    target = Sized()
    one = swept(target, Sweep(batches=(1,), seconds=1))
    rounds = Rounds(
        [one.canary], [one.sweeping], None, Sampling((), one.tally), Memory({}), one.tally,
        threading.Event(),
    )  # fmt: skip

    def run() -> Run:
        (ran,), _ = rounds.run([(one.canary, 5)], time.monotonic())
        return ran

    deadline = time.monotonic() + 30
    while one.canary.state != "steady":
        assert run() and time.monotonic() < deadline
    assert run().measures.keys() == {"throughput", "host_memory"}
    one.whole()
    target.acts = {1: raises(ValueError("broken on purpose"))}
    assert run().measures == {}
    target.acts = {}
    assert run().measures["throughput@1x1"] == one.value(RATE, "1", "1")
    assert run().measures.keys() == {"throughput", "host_memory"}


def test_each_throughput_is_given_once(swept: Any) -> None:
    class NoFours(Sized):
        def copy_with_batch(self, batch: int) -> Sized:
            if batch == 4:
                raise Unsized("not with 4")
            return super().copy_with_batch(batch)

    one = swept(NoFours(), Sweep(batches=(1, 4), concurrency=(2,), seconds=3))
    one.step()
    rates = {"throughput@1x1": one.value(RATE, "1", "1")}
    assert one.sweeping.take_measures() == rates and one.sweeping.take_measures() == {}
    one.whole()
    assert one.sweeping.take_measures() == {"throughput@1x2": one.value(RATE, "1", "2")}
    assert one.sweeping.take_measures() == {}


def test_a_sweep_goes_point_by_point(swept: Any) -> None:
    one = swept(Sized(), Sweep(batches=(1, 4), concurrency=(2,), seconds=3))
    before = time.time()
    assert one.value(TIMESTAMP) is None
    took = []
    for done in range(1, 4):
        took.append(one.step())
        assert (
            sum(one.value(RATE, *point) is not None for point in (("1", "1"), ("4", "1"), ("1", "2"))) == done
        )
        assert 0.5 < took[-1] < 2
    assert before <= one.value(TIMESTAMP) <= time.time()
    assert one.value(LATENCY, "4", "1") > one.value(LATENCY, "1", "1")
    assert one.value(PEAK, "1", "1") is None, "nothing is invented on a CPU"


def test_out_of_memory_is_reported_once_and_not_tried_again(
    swept: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def full() -> None:
        tried.append(4)
        raise MemoryError

    one = swept(Sized(acts={4: full, 8: full}), Sweep(batches=(1, 4, 8), seconds=3))
    one.whole()
    assert tried == [4], "what asks for more cannot fit either"
    assert one.value(RATE, "1", "1") is not None and one.value(RATE, "4", "1") is None
    assert one.canary.state == "steady" or one.canary.state == "warming", "it is no failure of the canary"
    one.sweeping._turns.put_off(0.0, time.monotonic())
    one.whole()
    assert tried == [4], "each attempt takes the server's memory"
    assert [r.getMessage() for r in caplog.records if "sweep" in r.getMessage()] == [
        "canary a: sweep of batch 4: out_of_memory: MemoryError",
        "canary a: sweep of batch 8: out_of_memory: batch 4 was already",
    ]


def test_a_point_that_hangs_is_given_up_and_costs_what_it_took(swept: Any) -> None:
    go_on = threading.Event()
    one = swept(Sized(acts={2: lambda: print(go_on.wait(60))}), Sweep(batches=(1, 2, 4), seconds=3))
    one.step()
    begin = time.monotonic()
    assert 1.0 <= one.step() < 5.0
    assert time.monotonic() - begin < 5.0
    assert one.sweeping.is_running, "so that runs beside it are tagged"
    assert one.step() == 0.0, "nothing is done beside it"
    assert one.canary.round(3).outcome == "ok", "the canary goes on"
    time.sleep(0.3)
    go_on.set()
    while one.sweeping.is_running:
        time.sleep(0.01)
    assert one.step() >= 0.3, "the hang is paid for"
    assert one.value(RATE, "4", "1") is None


def test_a_hang_in_the_servers_pool_is_reported_after_the_timeout(
    swept: Any, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    lost: list[int] = []
    with ThreadPoolExecutor(1) as executor:
        pool = Pool(executor, lambda: lost.append(1))
        acts = {2: lambda: print(go_on.wait(60))}
        one = swept(Sized(acts=acts), Sweep(batches=(2,), seconds=0.2), pool=pool, timeout=0.3)
        one.step()
        one.step()
        assert lost == [], "it may be slow only"
        time.sleep(0.4)
        one.step()
        one.step()
        assert lost == [1], "reported once"
        assert caplog.text.count("canary a: a point of its sweep hangs; while it does, runs are tagged") == 1
        go_on.set()
        while one.sweeping.is_running:
            time.sleep(0.01)


def test_a_busy_device_puts_the_sweep_off(swept: Any) -> None:
    class Shared(Sized):
        busy = False

        def is_busy(self) -> bool:
            return self.busy

    target = Shared()
    one = swept(target, Sweep(batches=(1, 2), seconds=2))
    one.step()
    target.busy = True
    one.step()
    target.busy = False
    assert one.step() == 0.0, "not within the minute"
    assert one.sweeping.next_at > time.monotonic() + 50
    one.sweeping._turns.put_off(0.0, time.monotonic())
    one.whole()
    assert one.value(RATE, "2", "1") is not None, "the same sweep goes on, and pays once"


def test_a_canary_that_fails_is_not_swept(swept: Any) -> None:
    class Failing(Sized):
        def values(self, result: Any) -> Sequence[float]:
            return [float("nan")]

    target = Failing()
    one = swept(target, Sweep(batches=(1,), seconds=0.2))
    assert one.canary.round(3).outcome == "not_finite"
    assert one.step() == 0.0 and target.copies == []


def test_where_requests_wait_a_sweep_comes_less_often(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "JITTER", 0.0)
    one = swept(Sized(), Sweep(batches=(1,), seconds=1, every_seconds=100))
    one.sweeping._interval = 100.0
    one.sweeping._turns = Turns(100.0, 1.0, time.monotonic() - 200)
    one.canary.crowding = 8.0
    took = one.step()
    pause = one.sweeping.next_at - time.monotonic()
    assert pause == pytest.approx(100.0 * 8 * took, rel=0.05)


def test_a_target_whose_samples_are_no_number_is_swept_as_if_it_had_one(swept: Any) -> None:
    class Odd(Sized):
        samples = "many"  # type: ignore[assignment]

    one = swept(Odd(), Sweep(concurrency=(2,), seconds=0.5))
    one.whole()
    assert one.value(RATE, "1", "2") is not None


def test_a_stop_ends_the_measurement_immediately() -> None:
    one = Swept(Sized(), Sweep(batches=(1,), seconds=60))
    threading.Timer(0.3, one.sweeping.interrupt).start()
    begin = time.monotonic()
    one.step()
    one.close()
    assert time.monotonic() - begin < 5.0


def test_latencies_are_medians_of_all_threads() -> None:
    """One slow request of many moves the rate, not the latency."""
    lock, count = threading.Lock(), [0]

    def sometimes() -> None:
        with lock:
            count[0] += 1
            late = count[0] % 10 == 0
        if late:
            time.sleep(0.05)

    found = measured(Sized(0.005, {1: sometimes}), 1, concurrency=2, seconds=1.0)
    assert isinstance(found, Measured)
    assert found.latency < 0.03
    assert found.rate < 2 / statistics.fmean([0.005] * 9 + [0.055]) * 1.05
