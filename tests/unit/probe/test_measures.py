"""What is read around a run, of a made folder in place of /proc/self and of scripted targets."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from infercanary.contract.measures import (
    DEVICE_MEMORY,
    DEVICE_USE,
    ENERGY,
    HOST_MEMORY,
    MEASURES,
    THROUGHPUT,
)
from infercanary.probe.canary_metrics import CanaryMetrics
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import JOULES, MEMORY, RATE, SHOWN, Taking, of_gpu
from infercanary.probe.result import RunResult
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.tags import Points, Values, Window
from infercanary.probe.targets import DeviceMemory, Target
from infercanary.probe.targets.wire import listener
from infercanary.probe.timing import Phase, Timing

TIMINGS = [Timing(0.1, {}), Timing(0.3, {})]
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "status").write_text(
        "Name:\tpython\nVmPeak:\t  99 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n"
    )
    (tmp_path / "statm").write_text("900 300 200 1 0 500 0\n")
    (tmp_path / "clear_refs").write_text("")
    return tmp_path


class Container(ContainerCpu):
    def resident(self) -> int | None:
        return 7000


class Bare(Target):
    """A target without abilities."""

    def open(self) -> None: ...

    def run(self, phase: Phase) -> None: ...

    def values(self, result: None) -> list[float]:
        return []


class Calling(Bare):
    """A target that asks a server."""

    server_address = "localhost", 8000


class Counting(Bare):
    """A target that counts samples and the memory of its engine."""

    samples: Any = 8

    def __init__(self, samples: Any = 8, peak: Any = 5000, now: Any = None) -> None:
        self.samples = samples
        self.peak = peak
        self.now = now
        self.resets = 0

    def reset_memory_peak(self) -> None:
        self.resets += 1

    def memory(self) -> DeviceMemory | None:
        if isinstance(self.peak, Exception):
            raise self.peak
        return None if self.peak is None else DeviceMemory(self.now, self.peak)


def taken(
    target: Any, proc: Path, *, is_guest: bool = False, calls_a_server: bool = False
) -> dict[str, float]:
    taking = Taking(target, Container(), proc)
    taking.is_guest = is_guest
    taking.begin()
    return taking.end(TIMINGS, calls_a_server)


def test_the_peak_is_that_of_the_run(proc: Path) -> None:
    target = Counting()
    assert taken(target, proc) == {THROUGHPUT: 8 / 0.2, HOST_MEMORY: 2048 << 10, DEVICE_MEMORY: 5000}
    assert (proc / "clear_refs").read_text() == "5"
    assert target.resets == 1


def test_a_guest_resets_nothing(proc: Path) -> None:
    target = Counting()
    assert taken(target, proc, is_guest=True) == {THROUGHPUT: 40.0, HOST_MEMORY: 300 * PAGE}
    assert (proc / "clear_refs").read_text() == "" and target.resets == 0
    assert taken(Counting(now=3000), proc, is_guest=True)[DEVICE_MEMORY] == 3000


def test_where_the_kernel_resets_no_peak_it_is_not_an_old_one(proc: Path) -> None:
    (proc / "clear_refs").unlink()
    (proc / "clear_refs").mkdir()  # cannot be written
    assert taken(Counting(), proc)[HOST_MEMORY] == 300 * PAGE


def test_the_memory_of_a_server_is_not_that_of_its_client(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def listens(host: str, port: int) -> bool:
        asked.append((host, port))
        return is_here

    monkeypatch.setattr("infercanary.probe.measures.listens_here", listens)
    is_here = True
    assert taken(Bare(), proc, calls_a_server=True) == {THROUGHPUT: 5.0}, "it does not say which"
    assert taken(Calling(), proc, calls_a_server=True) == {THROUGHPUT: 5.0, HOST_MEMORY: 7000}
    is_here = False
    taking = Taking(cast(Any, Calling()), Container(), proc)
    for _ in range(3):
        taking.begin()
        assert taking.end(TIMINGS, calls_a_server=True) == {THROUGHPUT: 5.0}
    assert asked == [("localhost", 8000)] * 2, "it is looked for once"


@pytest.mark.parametrize(
    ("host", "in_container", "cgroup", "is_here"),
    [
        ("127.0.0.1", True, None, True),
        ("localhost", True, None, True),
        ("127.0.0.1", False, None, False),  # of all that the host runs, it is not known what is the server's
        ("127.0.0.1", True, "0::/../another\n", False),  # of the same pod
        ("192.0.2.1", True, None, False),
        ("no such name.invalid", True, None, False),
    ],
)
def test_a_server_in_the_same_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    in_container: bool,
    cgroup: str | None,
    is_here: bool,
) -> None:
    monkeypatch.setattr(listener, "in_container", lambda: in_container)
    for name in ("self", str(os.getpid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup").write_text("0::/\n")
    if cgroup is not None:
        (tmp_path / str(os.getpid()) / "cgroup").write_text(cgroup)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener.listens_here(host, port, tmp_path) is is_here
    assert not listener.listens_here(host, port, tmp_path), "nothing listens there any more"


@pytest.mark.parametrize("odd", [ValueError("broken"), None, "much", 0, -1, float("inf"), float("nan")])
def test_what_is_not_known_is_missing(proc: Path, odd: Any) -> None:
    (proc / "status").write_text("Name:\tpython\n")
    (proc / "statm").write_text("\n")
    found = taken(Counting(samples=odd, peak=odd), proc)
    assert found == {}


def test_every_measure_that_is_shown_is_one() -> None:
    tally = Tally()
    canary, other = CanaryMetrics("c", tally), CanaryMetrics("d", tally)

    def points() -> dict[str, dict[tuple[str, ...], Any]]:
        names = [metric.name for metric, _ in SHOWN.values()]
        families = [family for family in tally.families() if family.name in names]
        return {family.name: {point.labels: point.value for point in family.points} for family in families}

    canary.found((), dict.fromkeys(MEASURES, 1.0) | {"throughput@8x1": 2.0, "newer": 3.0}, eligible=True)
    other.found((), {THROUGHPUT: 4.0}, eligible=True)
    assert points() == {
        RATE.name: {("c",): 1.0, ("d",): 4.0},
        MEMORY.name: {("c", "host"): 1.0, ("c", "device"): 1.0},
        JOULES.name: {("c",): 1.0},
    }
    canary.found((), {}, eligible=True)
    assert points() == {RATE.name: {("d",): 4.0}, MEMORY.name: {}, JOULES.name: {}}, (
        "nothing of the run before stays"
    )


# Of a GPU ----------------------------------------------------------------------------------------------------------

COUNTER, USE = "infercanary_gpu_energy_joules_total", "infercanary_gpu_utilization_ratio"


def window(
    seconds: float | None,
    repeats: float,
    *,
    gpus: Any = frozenset({"1"}),
    energy: Points = MappingProxyType({("0",): 900.0, ("1",): 1400.0}),
    shown: tuple[str, ...] = ("0", "1"),
) -> Window:
    """Ten repeats of ``repeats`` seconds together, each of 4 inferences, between samples ``seconds`` apart."""
    timings = [Timing(repeats / 40, {})] * 10
    before: Values = {COUNTER: {("0",): 100.0, ("1",): 200.0}}
    after: Values = {
        COUNTER: energy,
        USE: {("0",): 0.1, ("1",): 0.9},
        "infercanary_gpu_up": {(gpu,): 1.0 for gpu in shown},
    }
    done = RunResult("ok", timings=timings, inferences=40)
    return Window(done, 0.0, {}, {}, {}, before, after, None, seconds, gpus)


def test_the_energy_of_a_run_is_its_own_gpus() -> None:
    assert of_gpu(window(3.04, 3.0)) == {ENERGY: 1200.0 / 40, DEVICE_USE: 0.9}


@pytest.mark.parametrize(
    ("around", "known"),
    [
        (
            window(3.06, 3.0),
            {DEVICE_USE},
        ),  # what lies around it, and the step of the counter, are more than 5 %
        (window(1.9, 1.9), {DEVICE_USE}),
        (window(1.19, 1.19), set()),  # the driver's use may be of the time before
        (window(None, 3.0), set()),  # a sampler was late
        (window(3.0, 3.0, gpus=None), set()),  # a server's
        (window(3.0, 3.0, gpus=frozenset()), set()),  # on the CPU
        (window(3.0, 3.0, gpus=frozenset({"0", "1"})), set()),
        (window(3.0, 3.0, shown=("0", "1", "1:0")), set()),  # one of its parts
        (window(3.0, 3.0, shown=("0", "0:1", "1")), {ENERGY, DEVICE_USE}),
        (window(3.0, 3.0, energy={}), {DEVICE_USE}),
        (window(3.0, 3.0, energy={("1",): 200.0}), {DEVICE_USE}),  # the counter stands still
        (window(3.0, 3.0, energy={("1",): 100.0}), {DEVICE_USE}),
    ],
)
def test_what_is_not_known_within_a_few_percent_is_missing(around: Window, known: set[str]) -> None:
    assert of_gpu(around).keys() == known
