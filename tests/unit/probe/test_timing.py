"""The clocks. The test of CUDA's clock simulates a device, whose stream runs later than the host enqueues."""

import time
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from infercanary.probe import timing
from infercanary.probe.timing import CudaClock, HostClock
from tests.scenarios import typed


def test_host_clock_measures_wall_and_phases():
    clock = HostClock()

    def run(phase):
        for name in ("load", "compute", "load"):
            with phase(name):
                time.sleep(0.02)
        time.sleep(0.02)
        return "result"

    def fail(phase):
        with phase("compute"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clock.measure(fail)
    measured, result = clock.measure(run)
    assert result == "result"
    assert list(measured.phases) == ["load", "compute"]
    assert measured.phases["load"] >= 0.04, "entered twice, counted twice"
    assert measured.wall >= sum(measured.phases.values()) + 0.02
    assert clock.measure(lambda _: None)[0].phases == {}
    clock.batch = 10
    batched, _ = clock.measure(run)
    assert 0.004 <= batched.phases["load"] <= batched.wall < 0.04, "the time of one inference"


class Timeline:
    host = 5_000_000_000
    stream_free = 0  # host time at which the stream has finished all enqueued work
    events = 0

    def __init__(self):
        self.waits: list[Event] = []

    def host_does(self, ns):
        self.host += ns

    def enqueue(self, ns):
        self.stream_free = max(self.stream_free, self.host) + ns


class Event:
    at = -1

    def __init__(self, line):
        self.line = line
        line.events += 1

    def record(self, stream):
        assert isinstance(stream, Stream), "an event must be recorded on the probe's own stream"
        self.at = max(self.line.stream_free, self.line.host)
        self.line.host_does(1_000)

    def synchronize(self):
        self.line.waits.append(self)
        self.line.host = max(self.line.host, self.at) + 1_000

    def elapsed_time(self, other):
        assert self.line.host >= self.at >= 0 and self.line.host >= other.at >= 0, (
            "not done yet: CUDA would raise"
        )
        return (other.at - self.at) / 1e6


class Stream(NamedTuple):
    device: str
    priority: int


class FakeCuda:
    """The part of ``torch.cuda`` that the clock may use, without ``synchronize`` of the device."""

    Stream = Stream

    def __init__(self, line):
        self.line = line
        self.entered: list[Stream] = []

    def Event(self, enable_timing):  # noqa: N802
        assert enable_timing
        return Event(self.line)

    @contextmanager
    def stream(self, stream):
        self.entered.append(stream)
        yield


@pytest.fixture
def line(monkeypatch):
    line = Timeline()
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: line.host)
    return line


def inference(line, before=0, gap=0, launch=10_000, times=1):
    """Simulate an inference: 2 ms in, 7 ms of compute, 1 ms out, each enqueued in ``launch`` ns.

    ``before`` and ``gap`` are other work.
    """

    def run(phase):
        line.enqueue(before)
        for name, work in times * (("h2d", 2_000_000), ("compute", 7_000_000), ("d2h", 1_000_000)):
            with phase(name):
                line.host_does(launch)
                line.enqueue(work)
            if name == "h2d":
                line.enqueue(gap)

    return run


# Other work | inferences in a repeat | seconds of launches | seconds of other work on the stream | seconds in
# all. Three launches take 10 µs each, and recording each of six events takes 1 µs. The device's phases start
# at its first work. A phase that is entered again is counted again, and timed per inference.
TIMELINES = """
{}                   | 1 | 36.0e-6 | 15.0e-6 | 10.0e-3
{before: 30_000_000} | 1 | 36.0e-6 | 30.0e-3 | 40.0e-3
{gap: 4_000_000}     | 1 | 36.0e-6 | 4.0e-3  | 14.0e-3
{launch: 20_000_000} | 1 | 60.0e-3 | ~       | ~
{times: 3}           | 3 | 36.0e-6 | 5.0e-6  | 10.0e-3
"""


@pytest.mark.parametrize(("options", "batch", "launch", "queue", "wall"), typed(TIMELINES))
def test_cuda_phases_are_the_devices_and_launch_is_the_hosts(line, options, batch, launch, queue, wall):
    clock = CudaClock(FakeCuda(line), "cuda:0")
    clock.batch = batch
    measured, _ = clock.measure(inference(line, **options))
    phases = {**measured.phases}
    assert phases.pop("launch") == pytest.approx(launch, rel=0.05)
    if queue is not None:
        assert measured.wall == pytest.approx(wall, rel=0.02)
        assert phases.pop("queue") == pytest.approx(queue, rel=0.02, abs=20e-6)
        assert phases == pytest.approx({"h2d": 2e-3, "compute": 7e-3, "d2h": 1e-3}, rel=0.02)


def test_only_the_last_event_is_waited_for_and_events_are_made_once(line):
    """Other streams keep the device busy, so no call may wait for the device: FakeCuda has no synchronize()."""
    cuda = FakeCuda(line)
    clock = CudaClock(cuda, "cuda:0")

    def fail(phase):
        with phase("compute"):
            raise RuntimeError("CUDA out of memory")

    clear = clock.measure(inference(line))[0].phases["queue"]
    with pytest.raises(RuntimeError, match="out of memory"):
        clock.measure(fail)
    made = line.events
    # then the anchor is too old, and is recorded again
    for pause, waits in (
        (500_000_000, 1),
        (5_000_000_000, 7),
    ):
        line.waits.clear()
        line.host_does(pause)
        queue = clock.measure(inference(line, before=1_000_000))[0].phases["queue"]
        assert queue - clear == pytest.approx(1e-3, rel=0.02)
        assert len(line.waits) == waits
        assert line.waits[-1].at == line.stream_free
    assert line.events == made
    assert set(cuda.entered) == {clock.stream}
    assert (clock.stream.device, clock.stream.priority) == ("cuda:0", 0)
    measured, _ = clock.measure(lambda phase: line.enqueue(3_000_000))
    assert measured.phases == {}
    assert measured.wall == pytest.approx(3e-3, rel=0.02)
