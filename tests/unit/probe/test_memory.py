"""Remaining memory of host and device with simulated control groups; errors that mean a shortage; self-restart."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import yaml
from fresh import printed
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError
from infercanary.probe import memory
from infercanary.probe.gpu.cuda_driver import CudaError
from infercanary.probe.memory import (
    CONTROLS,
    DEVICE_RESERVE,
    Bound,
    Ended,
    HostMemory,
    describe_shortage,
    left_on_device,
    place_of,
    take_ended,
    tightest,
)
from infercanary.probe.targets import make
from infercanary.probe.targets.controls import cuda
from infercanary.probe.targets.engines.needs import of_batch, of_files, of_input
from tests.kernel_files import parsed, tree
from tests.scenarios import scenarios

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A host with 8 GiB, of which 2 are available."""
    found = SimpleNamespace(total=8 * GIB, available=2 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)


V2 = "cgroup.controllers =\nmemory.max = {}M\nmemory.current = {}M\nmemory.stat = inactive_file {}M; active_file 3M"


NESTED_V2 = """
cgroup.controllers =
kubepods.slice/pod.slice/own/memory.max = 1000M
kubepods.slice/pod.slice/own/memory.current = 100M
kubepods.slice/pod.slice/own/memory.stat = inactive_file 0M; active_file 3M
kubepods.slice/pod.slice/memory.max = 500M
kubepods.slice/pod.slice/memory.current = 450M
kubepods.slice/pod.slice/memory.stat = inactive_file 20M; active_file 3M
kubepods.slice/memory.max = max
kubepods.slice/memory.current = 9M
"""


NESTED_V1 = """
memory/docker/own/memory.limit_in_bytes = 300M
memory/docker/own/memory.usage_in_bytes = 100M
memory/docker/own/memory.stat = inactive_file 1; total_inactive_file 10M; total_active_file 3M
memory/docker/memory.limit_in_bytes = 200M
memory/docker/memory.usage_in_bytes = 150M
memory/docker/memory.stat = inactive_file 1; total_inactive_file 5M; total_active_file 3M
memory/docker/memory.use_hierarchy = 1
memory/memory.limit_in_bytes = 9223372036854771712
memory/memory.usage_in_bytes = 9000M
memory/memory.stat = total_inactive_file 0
memory/memory.use_hierarchy = 1
"""


ABOVE_V1 = """
memory/memory.limit_in_bytes = 9223372036854771712
memory/memory.usage_in_bytes = 100M
memory/memory.stat = total_inactive_file 10M; hierarchical_memory_limit 400M
memory/memory.use_hierarchy = 1
"""


# Own control groups | files | binding limits: limit, use without inactive page cache, active page cache, in
# MiB
CASES = {
    "v2, a container": ("0::/", V2.format(300, 200, 50), "own 300 150 3"),
    "v2, nested": ("0::/kubepods.slice/pod.slice/own", NESTED_V2, "own 1000 100 3; above 500 430 3"),
    "v1, nested": ("4:memory:/docker/own\n3:cpu,cpuacct:/\n0::/", NESTED_V1, "own 300 90 3; above 200 145 3"),
    "v1, only the limit above is known": ("4:memory:/docker/0123", ABOVE_V1, "own 400 90 0"),
    "no control group": ("0::/", "", ""),
    "no limit": ("0::/", "cgroup.controllers =\nmemory.max = max", ""),
}


WHOSE = {"the container's limit": "own", "a limit above the container": "above"}


def at(root, proc, reserve=None):
    host = HostMemory(reserve)
    host._root, host._proc = root, proc
    return host


def made(folder, cgroup, files):
    """Make a host with these files: ``path = content``; ``M`` is MiB, and ``;`` ends a line of the content."""
    tree(folder / "proc", {"self/cgroup": cgroup + "\n"})
    tree(folder / "cgroup", parsed(re.sub(r"(\d+)M\b", lambda size: str(int(size[1]) * MIB), files)))
    return at(folder / "cgroup", folder / "proc")


@pytest.mark.parametrize("case", CASES)
def test_limits_that_bind_a_process(tmp_path, case):
    cgroup, files, expected = CASES[case]
    *found, last = made(tmp_path, cgroup, files).bounds()
    assert last == Bound("the host's 8.00 GiB", 8192 * MIB, 6144 * MIB)
    shown = (
        f"{WHOSE[bound.whose.rpartition(' of ')[0]]} {bound.limit / MIB:g} {bound.used / MIB:g} {bound.cached / MIB:g}"
        for bound in found
    )
    assert "; ".join(shown) == expected


def test_memory_left_in_a_container(tmp_path):
    host = made(tmp_path, "0::/", V2.format(400, 330, 10))
    assert host.left() == ((80 - 64) * MIB, 64 * MIB, "the container's limit of 400 MiB")
    # Active page cache counts as free, and an eighth of a small limit stays reserved.
    for reserve, kept in {None: 50, 0: 0, 20: 20, 1024: 50}.items():
        bytes_kept = None if reserve is None else reserve * MIB
        last: Any = at(tmp_path / "cgroup", tmp_path / "proc", bytes_kept).left_for_a_moment()
        assert (last.size, last.reserve) == ((83 - kept) * MIB, kept * MIB)


def test_nothing_to_read_is_no_limit(tmp_path, monkeypatch):
    host = at(tmp_path, tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", (tmp_path / "none").stat)
    assert (host.bounds(), host.left(), host.left_for_a_moment()) == ([], None, None)
    monkeypatch.setattr(memory, "HostMemory", lambda: host)
    assert describe_shortage(MemoryError("x"), "host", "cpu").endswith("(host): MemoryError: x")


sizes = st.integers(0, 1 << 44)
some_bounds = st.lists(st.builds(Bound, st.text(max_size=3), sizes, st.integers(-5, 1 << 44)), max_size=5)


@given(some_bounds, st.one_of(st.none(), sizes))
def test_the_tightest_bound_counts(bounds, reserve):
    left = tightest(bounds, reserve, MIB, 0.05)
    assert (left is None) == (not bounds)
    for bound in bounds if left else []:  # an allocation within the result is within every bound
        kept = max(MIB, int(0.05 * bound.limit)) if reserve is None else reserve
        assert left is not None
        assert left.size == 0 or max(0, bound.used) + left.size + kept <= bound.limit


def test_memory_left_on_a_device(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", {1: (GIB, 80 * GIB), 2: (GIB, 4 * GIB)}.get)
    for device, reserve, kept in (
        ("cuda:1", None, int(0.02 * 80 * GIB)), ("cuda:2", None, DEVICE_RESERVE), ("cuda:2", 7, 7),
    ):  # fmt: skip
        left: Any = left_on_device(device, reserve)
        assert (left.size, left.reserve) == ((79 if device == "cuda:1" else 3) * GIB - kept, kept)
    assert left_on_device("cuda") is None
    assert 2 * cuda._COPY_BYTES + cuda._TRANSFER_BYTES <= CONTROLS - 4 * MIB


class OutOfMemoryError(RuntimeError):
    """An error with the name of torch's error."""


class Unreadable(Exception):
    def __str__(self):
        raise ValueError


ARENA = RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9")


@pytest.mark.parametrize(
    ("error", "device", "place"),
    [
        (MemoryError(), "cuda", "host"),
        (OSError(12, "Cannot allocate memory"), "cuda", "host"),
        (OutOfMemoryError("CUDA has none left"), "cpu", "device"),
        (RuntimeError("CUDA error: out of memory"), "cpu", "device"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "cuda", "host"),
        (ARENA, "cpu", "host"),
        (ARENA, "cuda:1", "device"),
        (RuntimeError("Error Code 2: OutOfMemory (no further information)"), "cuda", "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cpu", "device"),
        (CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "cuda", "device"),
        (CudaError("cuMemHostAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "cuda", "host"),
        (CudaError("cuMemAlloc_v2", 1, "CUDA_ERROR_INVALID_VALUE"), "cuda", None),
        (ImportError("libgomp.so.1: cannot allocate memory in static TLS block"), "cpu", None),
        (ValueError("broken"), "cuda", None),
        (Unreadable(), "cuda", None),
    ],
)  # fmt: skip
def test_which_errors_mean_a_shortage(error, device, place):
    assert place_of(error, device) == place
    with pytest.raises(UsageError) as hides:
        raise UsageError("inputs[0]: torch cannot make the tensor") from error
    assert place_of(hides.value, device) == place


def test_the_line_says_how_much_is_in_use(tmp_path, monkeypatch):
    host = made(tmp_path, "0::/", V2.format(512, 500, 0))
    monkeypatch.setattr(memory, "HostMemory", lambda: host)
    monkeypatch.setattr(memory, "device_memory", {1: (79 * GIB, 80 * GIB)}.get)
    for error, place, words in (
        (MemoryError(), "host", ("500 MiB in use", "512 MiB; MemoryError")),
        (OutOfMemoryError("CUDA"), "device", ("79.00 GiB of 80.00 GiB in use on cuda:1; OutOfMemoryError",)),
    ):
        line = describe_shortage(error, place, "cuda:1")  # type: ignore[arg-type]
        assert line.startswith(f"out of memory ({place}): ")
        assert all(word in line for word in words)


def test_work_that_the_earlier_process_ended_is_in_the_environment(monkeypatch):
    ended = [Ended("a", "why — é", 1.5), Ended("a", "why", 1.5, (8, 1))]
    for text, expected in ((msgspec.json.encode(ended).decode(), ended), ("", []), ("junk", []), ("{}", [])):
        monkeypatch.setenv(memory._VARIABLE, text)
        assert take_ended() == expected
        assert memory._VARIABLE not in os.environ
    assert take_ended() == []


def test_sizes_of_inputs():
    for dtype, size in {"float32": 4, "bfloat16": 2, "complex64": 8, "float8_e4m3fn": 1}.items():
        for shape, count in (([2, 3], 6), ([], 1)):
            assert of_input("inputs[0]", shape, dtype).size == count * size
        assert of_input("inputs[0]", [1 << 62] * 40, dtype).size == 1 << 62
    assert of_batch([SimpleNamespace(shape=(2, 4), nbytes=64)], 6, 2)[0].size == 192


# Requests until they exceed 5,000 bytes: a graph comes before the weights that it names.
ASKED = """
torch  | {model: m.pt, inputs: [{shape: [8, 1000]}, {shape: [3], dtype: int64}], device: cpu} | inputs[0] 32000, inputs[1] 24, model 999
torch  | {model: m.pt, inputs: [{shape: [8, 1000]}], device: cuda} | inputs[0] 32000, model 999
matmul | {size: 64} | size 49152
onnx   | {model: m.onnx} | model 23, model 5023
"""  # noqa: E501


@pytest.mark.parametrize(("kind", "options", "expected"), scenarios(ASKED))
def test_engines_ask_before_they_take(tmp_path, monkeypatch, kind, options, expected):
    for engine in ("torch", "onnxruntime"):
        pytest.importorskip(engine)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("infercanary.probe.targets.matmul.has_native_bfloat16", lambda *_: False)
    graph = b"\x0a\x08location\x12\x09m.weights \x0a"
    for name, content in (("m.pt", bytes(999)), ("m.weights", bytes(5000)), ("m.onnx", graph)):
        Path(name).write_bytes(content)
    found = list[str]()

    def refuse(needs):
        found.extend(f"{need.place} {need.size}" for need in needs)
        if sum(need.size for need in needs) > 5000:
            raise InterruptedError

    target = make(kind, yaml.safe_load(options))
    target.ask_for_memory = refuse
    with pytest.raises(InterruptedError):
        target.open()
    target.close()
    assert ", ".join(found) == expected
    assert of_files("model", [Path("none"), Path("m.weights")]).size == 5000


LIMITED = """
import json, resource, weakref
from infercanary.probe import HostClock
from infercanary.probe import targets
from infercanary.probe.canary import Canary
from infercanary.probe.canary_metrics import DETAIL, FAILURES
from infercanary.probe.histogram import Tally

class Held(bytearray):
    pass

class Target(targets.Target):
    clock = HostClock()
    hungry = False
    held = None
    def open(self): pass
    def run(self, phase):
        mine = Held(64 << 20)
        Target.held = weakref.ref(mine)
        return bytearray((1 << 40) if self.hungry else 9)
    def values(self, result): return [1.0]
    def environment(self): return {}
    def close(self): pass

def points(metric):
    return {"|".join(p.labels): p.value for f in tally.families() if f.name == metric.name for p in f.points}

tally, target = Tally(), Target()
canary = Canary("c", target, tally, 30, 300)
canary.open(300)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), resource.RLIM_INFINITY))
found = {"good": canary.round(3).outcome}
target.hungry = True
done = canary.round(3)
found |= {"outcome": done.outcome, "reason": done.reason, "latencies": done.latencies, "detail": done.detail}
found["state"], found["held"] = canary.state, Target.held() is not None
found["shown"] = list(points(DETAIL))
found["rests"] = canary.round(3) is None and round(canary._rest)
canary._retry_at = 0.0
canary.round(3)
found["rests longer"], found["counted"] = round(canary._rest), points(FAILURES)["c|out_of_memory"]
target.hungry, canary._retry_at = False, 0.0
found["again"], found["left"] = canary.round(3).outcome, list(points(DETAIL))
print(json.dumps(found))
"""


def test_a_process_that_may_have_no_more_goes_on():
    found = json.loads(printed(LIMITED))
    detail, [shown] = found.pop("detail"), found.pop("shown")
    assert detail.startswith("out of memory (host): ")
    assert detail.endswith("; MemoryError")
    assert shown.startswith("c|out_of_memory|out of memory (host): ")
    assert len(shown.encode()) < 280
    assert found == {
        "good": "ok", "outcome": "raised", "reason": "out_of_memory", "latencies": [], "state": "out_of_memory",
        "held": False, "rests": 60, "rests longer": 120, "counted": 2, "again": "ok", "left": [],
    }  # fmt: skip
