"""The clocks. CUDA's is tested on a scripted device: a stream that does its work later than the host asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infercanary.probe import timing
from infercanary.probe.timing import CudaClock, HostClock, Phase


def test_host_clock_measures_wall_and_phases() -> None:
    def run(phase: Phase) -> str:
        with phase("load"):
            time.sleep(0.02)
        with phase("compute"):
            time.sleep(0.04)
        with phase("load"):
            time.sleep(0.02)
        time.sleep(0.02)
        return "result"

    measured, result = HostClock().measure(run)
    assert result == "result"
    assert list(measured.phases) == ["load", "compute"]
    assert measured.phases["load"] >= 0.04  # entered twice, counted twice
    assert measured.phases["compute"] >= 0.04
    assert measured.wall >= sum(measured.phases.values()) + 0.02
    assert HostClock().measure(lambda _: None)[0].phases == {}


def test_host_clock_lets_errors_through_and_goes_on() -> None:
    clock = HostClock()

    def run(phase: Phase) -> None:
        with phase("compute"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clock.measure(run)
    assert list(clock.measure(lambda phase: phase("x").__enter__())[0].phases) == ["x"]


class Timeline:
    """A host clock and one device stream, both in ns, that move only as the test says."""

    def __init__(self) -> None:
        self.host = 5_000_000_000
        self.stream_free = 0  # host time at which the stream has done all that it was given
        self.events = 0
        self.waits: list[Event] = []

    def perf_counter_ns(self) -> int:
        return self.host

    def host_does(self, ns: int) -> None:
        self.host += ns

    def enqueue(self, ns: int) -> None:
        self.stream_free = max(self.stream_free, self.host) + ns


class Event:
    def __init__(self, line: Timeline, enable_timing: bool) -> None:
        assert enable_timing
        self.line = line
        self.at = -1
        line.events += 1

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream), "an event must be recorded on the probe's own stream"
        self.at = max(self.line.stream_free, self.line.host)
        self.line.host_does(1_000)

    def synchronize(self) -> None:
        self.line.waits.append(self)
        self.line.host = max(self.line.host, self.at) + 1_000

    def elapsed_time(self, other: Event) -> float:
        assert self.line.host >= self.at >= 0 and self.line.host >= other.at >= 0, (
            "not done yet: CUDA would raise"
        )
        return (other.at - self.at) / 1e6


class Stream:
    def __init__(self, device: str, priority: int) -> None:
        self.device, self.priority = device, priority


class FakeCuda:
    """As much of ``torch.cuda`` as the clock may use: no ``synchronize`` of the device among it."""

    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.entered: list[Stream] = []

    def Stream(self, device: str, priority: int) -> Stream:  # noqa: N802
        return Stream(device, priority)

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802
        return Event(self.line, enable_timing)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:  # type: ignore[valid-type]
        self.entered.append(stream)
        yield


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    line = Timeline()
    monkeypatch.setattr(timing, "perf_counter_ns", line.perf_counter_ns)
    return line


def inference(line: Timeline, before: int = 0, gap: int = 0, launch: int = 10_000) -> Callable[[Phase], str]:
    """2 ms in, 7 ms of compute, 1 ms out, each enqueued in ``launch`` ns; ``before`` and ``gap``: others' work."""

    def run(phase: Phase) -> str:
        line.enqueue(before)
        for name, work in (("h2d", 2_000_000), ("compute", 7_000_000), ("d2h", 1_000_000)):
            with phase(name):
                line.host_does(launch)
                line.enqueue(work)
            if name == "h2d":
                line.enqueue(gap)
        return "output"

    return run


def test_cuda_phases_are_the_devices_and_launch_is_the_hosts(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    measured, result = clock.measure(inference(line))
    assert result == "output"
    assert measured.phases["h2d"] == pytest.approx(2e-3, rel=0.02)
    assert measured.phases["compute"] == pytest.approx(7e-3)
    assert measured.phases["d2h"] == pytest.approx(1e-3)
    # Three launches of 10 µs, and the 1 µs that recording each of the six events took.
    assert measured.phases["launch"] == pytest.approx(36e-6, abs=1e-6)
    assert measured.phases["queue"] < 20e-6
    assert measured.wall == pytest.approx(10e-3, rel=0.02)
    assert set(measured.phases) == {"h2d", "compute", "d2h", "launch", "queue"}


def test_work_before_ours_is_queue_and_in_no_other_phase(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clear = clock.measure(inference(line))[0].phases
    waited = clock.measure(inference(line, before=30_000_000))[0]
    assert waited.phases["queue"] - clear["queue"] == pytest.approx(30e-3, rel=0.02)
    assert waited.phases["compute"] == pytest.approx(clear["compute"])
    assert waited.wall == pytest.approx(40e-3, rel=0.02)


def test_work_between_our_phases_is_queue(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clear = clock.measure(inference(line))[0].phases
    split = clock.measure(inference(line, gap=4_000_000))[0].phases
    assert split["queue"] - clear["queue"] == pytest.approx(4e-3, rel=0.02)
    assert split["compute"] == pytest.approx(clear["compute"])


def test_a_slow_launch_shows_as_launch(line: Timeline) -> None:
    """A host that takes 20 ms to enqueue a kernel: the device's own phases of that kernel begin when it is asked."""
    clock = CudaClock(FakeCuda(line), "cuda:0")
    measured = clock.measure(inference(line, launch=20_000_000))[0]
    assert measured.phases["launch"] == pytest.approx(60e-3, rel=0.01)


def test_a_phase_entered_twice_counts_both_times(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")

    def run(phase: Phase) -> None:
        for _ in range(3):
            with phase("compute"):
                line.enqueue(5_000_000)

    assert clock.measure(run)[0].phases["compute"] == pytest.approx(15e-3, rel=1e-3)


def test_only_the_last_event_is_waited_for(line: Timeline) -> None:
    """The host's other streams keep the device busy: FakeCuda has no synchronize() to call, and no other is."""
    cuda = FakeCuda(line)
    clock = CudaClock(cuda, "cuda:0")
    clock.measure(inference(line))
    line.waits.clear()
    clock.measure(inference(line))
    assert len(line.waits) == 1
    assert line.waits[0].at == line.stream_free  # it comes after all that was enqueued
    assert cuda.entered == [clock.stream, clock.stream]
    assert (clock.stream.device, clock.stream.priority) == ("cuda:0", 0)


def test_events_are_made_once(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clock.measure(inference(line))
    made = line.events
    for _ in range(5):
        line.host_does(2_000_000_000)  # the anchor is too old, and is dropped anew
        clock.measure(inference(line))
    assert line.events == made


def test_the_anchor_is_renewed_and_queue_stays_right(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clear = clock.measure(inference(line))[0].phases["queue"]
    anchored = len(line.waits)
    line.host_does(500_000_000)
    assert clock.measure(inference(line, before=1_000_000))[0].phases["queue"] - clear == pytest.approx(
        1e-3, rel=0.02
    )
    assert len(line.waits) == anchored + 1
    line.host_does(5_000_000_000)
    assert clock.measure(inference(line, before=1_000_000))[0].phases["queue"] - clear == pytest.approx(
        1e-3, rel=0.02
    )
    assert len(line.waits) > anchored + 2


def test_a_run_that_raises_leaves_the_clock_usable(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")

    def fail(phase: Phase) -> None:
        with phase("compute"):
            raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        clock.measure(fail)
    assert clock.measure(inference(line))[0].phases["compute"] == pytest.approx(7e-3)


def test_a_target_without_phases_has_its_wall_time(line: Timeline) -> None:
    measured, _ = CudaClock(FakeCuda(line), "cuda:0").measure(lambda phase: line.enqueue(3_000_000))
    assert measured.phases == {}
    assert measured.wall == pytest.approx(3e-3, rel=0.02)


def test_a_batch_is_timed_per_inference(line: Timeline) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clock.batch = 4

    def run(phase: Phase) -> None:
        with phase("compute"):
            for _ in range(clock.batch):
                line.enqueue(30_000)

    measured = clock.measure(run)[0]
    assert measured.phases["compute"] == pytest.approx(30e-6, rel=0.02)
    assert measured.wall == pytest.approx(30e-6, rel=0.2)
