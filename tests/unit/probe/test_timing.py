"""The clocks. CUDA's is tested on a scripted device: a stream that does its work later than the host asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infercanary.probe import timing
from infercanary.probe.timing import CudaClock, HostClock, Phase


def test_host_clock_measures_wall_and_phases() -> None:
    clock = HostClock()

    def run(phase: Phase) -> str:
        for name in ("load", "compute", "load"):
            with phase(name):
                time.sleep(0.02)
        time.sleep(0.02)
        return "result"

    def fail(phase: Phase) -> None:
        with phase("compute"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clock.measure(fail)
    measured, result = clock.measure(run)
    assert result == "result" and list(measured.phases) == ["load", "compute"]
    assert measured.phases["load"] >= 0.04, "entered twice, counted twice"
    assert measured.wall >= sum(measured.phases.values()) + 0.02
    assert clock.measure(lambda _: None)[0].phases == {}


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


def inference(
    line: Timeline, before: int = 0, gap: int = 0, launch: int = 10_000, times: int = 1
) -> Callable[[Phase], None]:
    """2 ms in, 7 ms of compute, 1 ms out, each enqueued in ``launch`` ns; ``before`` and ``gap``: others' work."""

    def run(phase: Phase) -> None:
        line.enqueue(before)
        for name, work in times * (("h2d", 2_000_000), ("compute", 7_000_000), ("d2h", 1_000_000)):
            with phase(name):
                line.host_does(launch)
                line.enqueue(work)
            if name == "h2d":
                line.enqueue(gap)

    return run


@pytest.mark.parametrize(
    ("options", "batch", "launch", "queue", "wall"),
    [
        # Three launches of 10 µs, and the 1 µs that recording each of the six events took.
        ({}, 1, 36e-6, 15e-6, 10e-3),
        ({"before": 30_000_000}, 1, 36e-6, 30e-3, 40e-3),
        ({"gap": 4_000_000}, 1, 36e-6, 4e-3, 14e-3),
        ({"launch": 20_000_000}, 1, 60e-3, None, None),  # the device's own phases begin when it is asked
        ({"times": 3}, 3, 36e-6, 5e-6, 10e-3),  # entered again, counted again; timed per inference
    ],
)
def test_cuda_phases_are_the_devices_and_launch_is_the_hosts(
    line: Timeline,
    options: dict[str, int],
    batch: int,
    launch: float,
    queue: float | None,
    wall: float | None,
) -> None:
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clock.batch = batch
    measured, _ = clock.measure(inference(line, **options))
    assert measured.phases["launch"] == pytest.approx(launch, rel=0.05)
    if queue is not None:
        assert measured.wall == pytest.approx(wall, rel=0.02)
        assert {name: seconds for name, seconds in measured.phases.items() if name != "launch"} == {
            "h2d": pytest.approx(2e-3, rel=0.02), "compute": pytest.approx(7e-3), "d2h": pytest.approx(1e-3),
            "queue": pytest.approx(queue, rel=0.02, abs=20e-6),
        }  # fmt: skip


def test_only_the_last_event_is_waited_for_and_events_are_made_once(line: Timeline) -> None:
    """The host's other streams keep the device busy: FakeCuda has no synchronize() to call, and no other is."""
    cuda = FakeCuda(line)
    clock = CudaClock(cuda, "cuda:0")

    def fail(phase: Phase) -> None:
        with phase("compute"):
            raise RuntimeError("CUDA out of memory")

    clear = clock.measure(inference(line))[0].phases["queue"]
    with pytest.raises(RuntimeError, match="out of memory"):
        clock.measure(fail)
    made = line.events
    for pause, waits in (
        (500_000_000, 1),
        (5_000_000_000, 7),
    ):  # then the anchor is too old, and is dropped anew
        line.waits.clear()
        line.host_does(pause)
        queue = clock.measure(inference(line, before=1_000_000))[0].phases["queue"]
        assert queue - clear == pytest.approx(1e-3, rel=0.02)
        assert len(line.waits) == waits and line.waits[-1].at == line.stream_free
    assert line.events == made and set(cuda.entered) == {clock.stream}
    assert (clock.stream.device, clock.stream.priority) == ("cuda:0", 0)
    measured, _ = clock.measure(lambda phase: line.enqueue(3_000_000))
    assert measured.phases == {} and measured.wall == pytest.approx(3e-3, rel=0.02)
