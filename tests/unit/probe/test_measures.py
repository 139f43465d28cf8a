"""Readings before and after a run, with a simulated /proc/self and scripted targets."""

import os
import socket
from typing import Any
from unittest.mock import patch

import pytest

from infercanary.contract.measures import (
    DEVICE_MEMORY,
    DEVICE_USE,
    ENERGY,
    HOST_MEMORY,
    MEASURES,
    THROUGHPUT,
)
from infercanary.probe import measures
from infercanary.probe.canary_metrics import CanaryMetrics
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import RATE, SHOWN, Taking, of_gpu
from infercanary.probe.result import RunResult
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.tags import Sample, Window
from infercanary.probe.targets import DeviceMemory
from infercanary.probe.targets.wire import listener
from infercanary.probe.timing import Timing
from tests.kernel_files import tree
from tests.scenarios import typed
from tests.targets import Scripted, points

TIMINGS = [Timing(0.1, {}), Timing(0.3, {})]
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path):
    status = "Name:\tpython\nVmPeak:\t  99 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n"
    tree(tmp_path, {"status": status, "statm": "900 300 200 1 0 500 0\n", "clear_refs": ""})
    return tmp_path


class Container(ContainerCpu):
    def resident(self):
        return 7000


class Calling(Scripted):
    server_address = "localhost", 8000


class Counting(Scripted):
    samples: Any = 8
    peak: Any = 5000
    now: Any = None
    resets = 0

    def reset_memory_peak(self):
        self.resets += 1

    def memory(self):
        if isinstance(self.peak, Exception):
            raise self.peak
        return None if self.peak is None else DeviceMemory(self.now, self.peak)


def taken(target, proc, is_guest=False, calls_a_server=False):
    taking = Taking(target, Container())
    taking.is_guest = is_guest
    with patch.object(measures, "_PROC", proc):
        taking.begin()
        return taking.end(TIMINGS, calls_a_server)


def test_the_peak_is_that_of_the_run_and_a_guest_resets_nothing(proc):
    target, cleared = Counting(), proc / "clear_refs"
    assert taken(target, proc, is_guest=True) == {THROUGHPUT: 40.0, HOST_MEMORY: 300 * PAGE}
    assert (cleared.read_text(), target.resets) == ("", 0)
    assert taken(Counting(now=3000), proc, is_guest=True)[DEVICE_MEMORY] == 3000
    assert taken(target, proc) == {THROUGHPUT: 8 / 0.2, HOST_MEMORY: 2048 << 10, DEVICE_MEMORY: 5000}
    assert (cleared.read_text(), target.resets) == ("5", 1)
    cleared.unlink()
    cleared.mkdir()  # if the peak cannot be reset, it may be from an earlier run
    assert taken(target, proc)[HOST_MEMORY] == 300 * PAGE


def test_the_memory_of_a_server_is_not_that_of_its_client(proc, monkeypatch):
    asked, is_here = list[tuple[str, int]](), True
    monkeypatch.setattr(
        "infercanary.probe.measures.listens_here",
        lambda host, port: asked.append((host, port)) or is_here,  # type: ignore[func-returns-value]
    )
    assert taken(Scripted(), proc, calls_a_server=True) == {THROUGHPUT: 5.0}, (
        "the target does not name its server"
    )
    assert taken(Calling(), proc, calls_a_server=True) == {THROUGHPUT: 5.0, HOST_MEMORY: 7000}
    is_here = False
    taking = Taking(Calling(), Container())
    for _ in range(3):
        taking.begin()
        assert taking.end(TIMINGS, calls_a_server=True) == {THROUGHPUT: 5.0}
    assert asked == [("localhost", 8000)] * 2, "the listener is searched for only once"


# On a host, the server's processes are unknown, and in a pod another container may have the address.
SERVERS = """
127.0.0.1            | true  | /           | true
localhost            | true  | /           | true
127.0.0.1            | false | /           | false
127.0.0.1            | true  | /../another | false
192.0.2.1            | true  | /           | false
no such name.invalid | true  | /           | false
"""


@pytest.mark.parametrize(("host", "in_container", "cgroup", "is_here"), typed(SERVERS))
def test_a_server_in_the_same_container(tmp_path, monkeypatch, host, in_container, cgroup, is_here):
    monkeypatch.setattr(listener, "in_container", lambda: in_container)
    monkeypatch.setattr(listener, "_PROC", tmp_path)
    tree(tmp_path, {"self/cgroup": "0::/\n", f"{os.getpid()}/cgroup": f"0::{cgroup}\n"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener.listens_here(host, port) is is_here
    assert not listener.listens_here(host, port), "nothing listens there any more"


@pytest.mark.parametrize("odd", [ValueError("broken"), None, "much", 0, -1, float("inf"), float("nan")])
def test_unknown_measures_are_missing(proc, odd):
    tree(proc, {"status": "Name:\tpython\n", "statm": "\n"})
    assert taken(Counting(samples=odd, peak=odd), proc) == {}


COUNTER = "infercanary_gpu_energy_joules_total"
# Seconds between the samples | seconds of the repeats | the canary's GPUs | counted energy by GPU | GPUs that
# exist | known measures
WINDOWS = """
3.04 3.0 1   0:900,1:1400 0,1     energy device_use
3.06 3.0 1   0:900,1:1400 0,1     device_use
1.9  1.9 1   0:900,1:1400 0,1     device_use
1.19 1.19 1  0:900,1:1400 0,1
?    3.0 1   0:900,1:1400 0,1
3.0  3.0 ?   0:900,1:1400 0,1
3.0  3.0 -   0:900,1:1400 0,1
3.0  3.0 0,1 0:900,1:1400 0,1
3.0  3.0 1   0:900,1:1400 0,1,1/0
3.0  3.0 1   0:900,1:1400 0,0/1,1 energy device_use
3.0  3.0 1   -            0,1     device_use
3.0  3.0 1   1:200        0,1     device_use
3.0  3.0 1   1:100        0,1     device_use
"""


@pytest.mark.parametrize("row", WINDOWS.strip().splitlines())
def test_measures_of_a_gpu_are_accurate_or_missing(row):
    """Ten repeats of 4 inferences each. A measure is unknown with a late sampler, with a server or a CPU, with
    two GPUs or a part of a GPU, with a counter that stands still, and if utilization may cover earlier time.
    """
    seconds, repeats, gpus, energy, shown, *known = row.split()
    counted = dict(pair.split(":") for pair in energy.split(",") if ":" in pair)
    after = Sample(
        {
            COUNTER: {(gpu,): float(joules) for gpu, joules in counted.items()},
            "infercanary_gpu_utilization_ratio": {("0",): 0.1, ("1",): 0.9},
            "infercanary_gpu_up": {(gpu.replace("/", ":"),): 1.0 for gpu in shown.split(",")},
        }
    )
    done = RunResult("ok", timings=[Timing(float(repeats) / 40, {})] * 10, inferences=40)
    its_gpus = {"?": None, "-": frozenset[str]()}.get(gpus, frozenset(gpus.split(",")))
    before = Sample({COUNTER: {("0",): 100.0, ("1",): 200.0}})
    before.began, after.began = None if seconds == "?" else 0.0, 1.0
    after.ended = float(seconds.replace("?", "9"))
    found = of_gpu(Window(done, 0.0, {}, Sample(), {}, before, after, its_gpus))
    assert found == {name: {ENERGY: 1200.0 / 40, DEVICE_USE: 0.9}[name] for name in known}


def test_every_measure_that_is_shown_is_one_and_nothing_of_the_run_before_stays():
    tally = Tally()
    canary = CanaryMetrics("c", tally)

    def shown():
        return {(metric.name, *labels) for metric, _ in SHOWN.values() for labels in points(tally, metric)}

    canary.found((), dict.fromkeys(MEASURES, 1.0) | {"throughput@8x1": 2.0, "newer": 3.0}, eligible=True)
    assert shown() == {(metric.name, "c", *labels) for metric, labels in SHOWN.values()}
    assert len(shown()) == 4
    CanaryMetrics("d", tally).found((), {THROUGHPUT: 4.0}, eligible=True)
    canary.found((), {}, eligible=True)
    assert shown() == {(RATE.name, "d")}
