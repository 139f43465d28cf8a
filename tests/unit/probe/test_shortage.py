"""Out of memory: real errors of real allocators, who has the memory, and what a canary does about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.gpu.cuda_driver import CudaError
from infercanary.probe.shortage import explained, largest_other, place_of
from infercanary.probe.targets import Failure, Target

TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is "
    "free. Process 11 has 2.50 GiB memory in use. Process 4711 has 70.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 5.00 GiB memory in use. Of the allocated memory 4.00 GiB is allocated by PyTorch."
)


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "device", "place"),
    [
        (MemoryError(), "cuda", "host"),
        (OSError(12, "Cannot allocate memory"), "cuda", "host"),
        (OutOfMemoryError(TORCH), "cpu", "device"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "cuda", "host"),
        (RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9"), "cpu", "host"),
        (RuntimeError("bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9"), "cuda:1", "device"),
        (RuntimeError("Error Code 2: OutOfMemory (no further information)"), "cuda", "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cpu", "device"),
        (CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "cuda", "device"),
        (CudaError("cuMemHostAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY"), "cuda", "host"),
        (CudaError("cuMemAlloc_v2", 1, "CUDA_ERROR_INVALID_VALUE"), "cuda", None),
        (ImportError("libgomp.so.1: cannot allocate memory in static TLS block"), "cpu", None),
        (ValueError("broken"), "cuda", None),
    ],
)  # fmt: skip
def test_which_errors_mean_it(error: BaseException, device: str, place: str | None) -> None:
    assert place_of(error, device) == place


def test_an_error_that_hides_it() -> None:
    def drawn() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise UsageError("inputs[0]: torch cannot make it") from None

    with pytest.raises(UsageError) as caught:
        drawn()
    assert place_of(caught.value) == "host"


def test_real_allocators_say_it() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    for allocate in (
        lambda: torch.empty(1 << 48, dtype=torch.uint8),
        lambda: numpy.empty(1 << 48, dtype="u1"),
        lambda: bytearray(1 << 48),
    ):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert place_of(caught.value) == "host"


def test_onnx_runtime_says_it(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    kinds, helper = onnx.TensorProto, onnx.helper
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        "too large",
        [helper.make_tensor_value_info("shape", kinds.INT64, [1])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, ["n"])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
        str(tmp_path / "m.onnx"),
    )
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    import numpy

    with pytest.raises(Exception) as caught:  # noqa: PT011 - of a class of its own
        session.run(None, {"shape": numpy.array([1 << 46], dtype="i8")})
    assert place_of(caught.value) == "host"
    # RuntimeException in the last one for Python 3.10.
    assert explained(caught.value, "host", "cpu", tmp_path, tmp_path).endswith(
        tuple(
            f"{name}: …Failed to allocate memory for requested buffer of size 281474976710656"
            for name in ("Fail", "RuntimeException")
        )
    )


def process(proc: Path, pid: int | str, name: str, pages: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(name + "\n")
    (proc / str(pid) / "statm").write_text(f"{2 * pages} {pages} 0 0 0 0 0\n")


def container(folder: Path, used: int, limit: int | str) -> tuple[Path, Path]:
    """A container of three processes under cgroup v2: its /proc, and its cgroup."""
    proc, root = folder / "proc", folder / "cgroup"
    process(proc, "self", "probe", 40 << 8)
    process(proc, os.getpid(), "probe", 40 << 8)
    process(proc, 7, "gunicorn", 300 << 8)
    process(proc, 8, "sh", 1 << 8)
    (proc / "self" / "cgroup").write_text("0::/\n")
    (proc / "meminfo").write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB\n")
    root.mkdir()
    (root / "cgroup.controllers").touch()
    (root / "memory.current").write_text(f"{used}\n")
    (root / "memory.max").write_text(f"{limit}\n")
    return proc, root


def test_who_has_the_memory_of_a_container(tmp_path: Path) -> None:
    proc, root = container(tmp_path, 500 << 20, 512 << 20)
    assert explained(MemoryError(), "host", "cpu", proc, root) == (
        "out of memory (host): 500 MiB in use of the container's limit of 512 MiB; this process has 40 MiB; the "
        "largest other, gunicorn, 300 MiB; MemoryError"
    )


def test_without_a_limit_it_is_the_machine(tmp_path: Path) -> None:
    proc, root = container(tmp_path, 500 << 20, "max")
    text = explained(MemoryError(), "host", "cpu", proc, root)
    assert text.startswith("out of memory (host): 6.00 GiB in use of the machine's 8.00 GiB, and no limit; ")


def test_nothing_to_read_is_no_failure(tmp_path: Path) -> None:
    assert explained(MemoryError("x"), "host", "cpu", tmp_path, tmp_path).endswith("; MemoryError: x")
    assert largest_other(tmp_path) is None


def test_torch_says_who_has_the_device() -> None:
    text = explained(OutOfMemoryError(TORCH), "device", "cuda:0")
    assert text.startswith(
        "out of memory (device): the largest other, process 4711, 70.00 GiB; OutOfMemoryError: CUDA out of memory. "
    )


LIMITED = """
import gc, json, resource, weakref
from infercanary.probe import Target
from infercanary.probe.canary import Canary
from infercanary.probe.failing import DETAIL, FAILURES
from infercanary.probe.histogram import Tally
from infercanary.probe.record import RUNS

class Held(bytearray):
    pass

class Hungry(Target):
    hungry = False
    held = None
    def open(self): pass
    def run(self, phase):
        mine = Held(64 << 20)
        Hungry.held = weakref.ref(mine)
        return bytearray((1 << 40) if self.hungry else 9)
    def values(self, result): return [1.0]

def points(metric):
    return {"|".join(p.labels): p.value for f in tally.families() if f.name == metric.name for p in f.points}

tally, target = Tally(), Hungry()
canary = Canary("c", target, tally, 30, 300)
canary.open(300)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), resource.RLIM_INFINITY))
found = {"good": canary.round(3).outcome}
target.hungry = True
done = canary.round(3)
found |= {"outcome": done.outcome, "reason": done.reason, "latencies": done.latencies, "detail": done.detail}
found["state"], found["held"] = canary.state, Hungry.held() is not None
found["shown"] = list(points(DETAIL))
found["rests"] = canary.round(3) is None and round(canary._rest)
canary._retry_at = 0.0
canary.round(3)
found["rests longer"] = round(canary._rest)
found["counted"] = points(FAILURES)["c|out_of_memory"], points(RUNS)["c|raised"]
target.hungry, canary._retry_at = False, 0.0
found["again"], found["left"] = canary.round(3).outcome, list(points(DETAIL))
print(json.dumps(found))
"""


def test_a_process_that_may_have_no_more_goes_on() -> None:
    """A real limit (RLIMIT_AS), and an allocation that really fails."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    detail, [shown] = found.pop("detail"), found.pop("shown")
    assert "; this process may map " in detail and detail.endswith("; MemoryError")
    assert detail.startswith("out of memory (host): ")
    assert shown.startswith("c|out_of_memory|out of memory (host): ") and len(shown.encode()) < 280
    assert found == {
        "good": "ok", "outcome": "raised", "reason": "out_of_memory", "latencies": [], "state": "out_of_memory",
        "held": False, "rests": 60, "rests longer": 120, "counted": [2, 2], "again": "ok", "left": [],
    }  # fmt: skip


def test_a_reason_that_the_target_gave_stays() -> None:
    from infercanary.probe.runner import Runner

    class Server(Target):
        device = "cpu"

        def open(self) -> None:
            raise Failure("error_answer", "500: CUDA out of memory")

        def run(self, phase: object) -> None: ...

        def values(self, result: object) -> list[float]:
            return []

    runner = Runner("c", Server(), 5)
    runner.begin_opening()
    with pytest.raises(Failure) as caught:
        runner.opened(30)
    assert caught.value.reason == "error_answer"
    runner.close(5, False)
