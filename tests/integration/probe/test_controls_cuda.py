"""The controls on a GPU: our real ctypes code over a libcuda.so.1 compiled here, which is as strict as the driver."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_stand_in import build, needs_cc
from forked import forks_of, library_path

from infercanary.probe.gpu.cuda_driver import _PROTOTYPES
from infercanary.probe.targets.controls.cuda import PTX

NAMES = ("gpu_fma", "gpu_copy", "gpu_transfer", "gpu_launch")

PRELUDE = """
import json, sys, threading
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets.controls import available_controls, working_seconds
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code
from infercanary.probe.gpu.cuda_driver import CudaError, cuda_library

lib = cuda_library()
try:
    code = mapped_code()
except Refused:
    code = None
found = {}

def say(*lines):
    lib.fake_cuda_script("\\n".join(lines).encode())

def count(what):
    return lib.fake_cuda_count(what.encode())

def alive():
    kinds = "retained pushed streams events modules functions allocations pinned".split()
    return {kind: n for kind in kinds if (n := count(kind))}

def control(name):
    return {n.removesuffix("_python"): c for n, c in available_controls("cuda").items()}[name]

def raised(function):
    try:
        function()
    except (CudaError, Unavailable) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return lambda *flags: build(tmp_path_factory.mktemp("cuda"), *flags)


@pytest.fixture(scope="module")
def usual(library: Callable[..., Path]) -> Path:
    return library()


Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[Run]:
    """What a process with the library of a folder leaves in ``found``."""
    with forks_of("infercanary.probe.targets.controls.cuda", environment=library_path) as forks:
        yield lambda folder, body, **names: forks(folder).found(PRELUDE, body, **names)


@pytest.fixture
def run(usual: Path, session: Run) -> Run:
    return lambda body, **names: session(usual, body, **names)


REPEATS = """
say(*lines)
one = control(name)
found["before"] = alive(), list(one.work)
one.open()
measured = [one.clock.measure(one.run) for _ in range(20)]
found["phases"] = {p: min(t.phases[p] for t, _ in measured) for p in measured[0][0].phases}
found["wall"] = min(t.wall for t, _ in measured)
found["values"] = list(one.values(measured[-1][1]))
found["work"] = list(one.work)
found["bottleneck"] = one.bottleneck
found["environment"] = dict(one.environment())
before = count("launches")
one.clock.measure(one.run)
found["batch"] = count("launches") - before
found["priority"] = count("priority")
found["open"] = alive()
one.close()
one.close()
found["after"] = alive()
"""


def repeats(run: Run, name: str, *lines: str) -> dict[str, Any]:
    found = run(REPEATS, name=name, lines=lines)
    assert found["before"] == [{}, [0, 0]], "nothing is taken before it is opened"
    assert found["open"]["retained"] == found["open"]["streams"] == 1
    assert "pushed" not in found["open"], "between calls no context is current"
    assert found["after"] == {}
    assert found["priority"] == 3, "the lowest there is"
    assert found["environment"] == {"cuda_driver": "12.4"}
    assert set(found["phases"]) >= {"launch", "queue"}
    assert all(seconds >= 0 for seconds in found["phases"].values())
    return found


@needs_cc
def test_fma(run: Run) -> None:
    found = repeats(run, "gpu_fma", "fma 120")
    assert found["phases"]["compute"] == pytest.approx(120e-6, rel=0.3)
    assert found["wall"] >= found["phases"]["compute"]
    # 4 multiprocessors, 2,048 threads each, 256 rounds of 64 fused multiply-adds.
    assert found["work"] == [4 * 2048 * 256 * 64 * 2, 0]
    assert found["values"] == [8 * thread + 28 + 64 * 256 for thread in range(256)]
    assert (found["bottleneck"], found["batch"]) == ("compute", 1)


@needs_cc
def test_copy(run: Run) -> None:
    found = repeats(run, "gpu_copy", "copy 30")
    assert found["phases"]["compute"] == pytest.approx(30e-6, rel=0.3), "one execution's, of a batch of four"
    assert found["work"] == [0, 2 * 64 << 20]
    words = (64 << 20) // 4
    assert found["values"] == [*range(512), *range(words - 512, words)]
    assert (found["bottleneck"], found["batch"]) == ("memory", 4)


@needs_cc
def test_transfer(run: Run) -> None:
    found = repeats(run, "gpu_transfer", "h2d 70", "d2h 210")
    assert found["phases"]["h2d"] == pytest.approx(70e-6, rel=0.3)
    assert found["phases"]["d2h"] == pytest.approx(210e-6, rel=0.3)
    assert found["work"] == [0, 2 * 4 << 20]
    assert found["values"] == list(range(0, 1 << 20, 1 << 11))
    assert found["bottleneck"] == "io"


@needs_cc
@pytest.mark.parametrize(("microseconds", "batch"), [(500, 1), (60, 2), (4, 32), (0.001, 1024)])
def test_batches_of_launches_are_long_enough(run: Run, microseconds: float, batch: int) -> None:
    found = repeats(run, "gpu_launch", f"empty {microseconds}")
    # The host's own time to launch may be the longer one.
    assert found["batch"] == batch if microseconds > 1 else found["batch"] <= batch
    assert found["phases"]["compute"] >= microseconds * 1e-6 * 0.99
    assert found["work"] == [0, 0]
    assert found["bottleneck"] == "scheduling"


@needs_cc
@pytest.mark.parametrize("name", NAMES)
def test_the_hosts_own_context_stays_current(run: Run, name: str) -> None:
    found = run(
        """
import ctypes
say()
assert lib.cuInit(0) == 0 and lib.cuCtxPushCurrent_v2(ctypes.c_void_p(0xA11CE)) == 0
one = control(name)
pushed = []
for step in (one.open, lambda: one.clock.measure(one.run), lambda: one.values(None), one.close):
    step()
    pushed.append(count("pushed"))
context = ctypes.c_void_p()
lib.cuCtxPopCurrent_v2(ctypes.byref(context))
found.update(pushed=pushed, context=context.value, alive=alive())
""",
        name=name,
    )
    assert found == {"pushed": [1] * 4, "context": 0xA11CE, "alive": {}}


@needs_cc
def test_many_openings_by_changing_threads_leave_nothing(run: Run) -> None:
    found = run("""
say()
errors = []
def call(step):
    try:
        step()
    except BaseException as error:
        errors.append(repr(error))
for name in ("gpu_fma", "gpu_transfer", "gpu_launch"):
    one = control(name)
    for _ in range(20):
        for step in (one.open, lambda: one.clock.measure(one.run), lambda: one.values(None), one.close):
            thread = threading.Thread(target=call, args=(step,))
            thread.start()
            thread.join()
found.update(errors=errors, alive=alive())
""")
    assert found == {"errors": [], "alive": {}}


OPENING = sorted(
    _PROTOTYPES.keys()
    - {"cuGetErrorName", "cuInit", "cuDeviceGet", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"}
    - {"cuDeviceGetPCIBusId", "cuDevicePrimaryCtxGetState"}  # they are asked beside it
    - {name for name in _PROTOTYPES if re.search("Free|Destroy|Unload", name)}
)


@needs_cc
@pytest.mark.parametrize("function", OPENING)
def test_whatever_fails_while_it_opens_is_reported_and_nothing_is_kept(run: Run, function: str) -> None:
    found = run(
        """
for one in (control(name) for name in names):
    say(f"{function} 1 2")
    if (error := raised(one.open)) != "nothing":
        found["error"], found["alive"] = error, alive()
        say()
        one.open()
        one.clock.measure(one.run)
    one.close()
found["after"] = alive()
""",
        function=function,
        names=NAMES,
    )
    if function == "cuStreamSynchronize":
        assert found == {"after": {}}, "it is waited for in values() and close() only"
        return
    if function == "cuMemcpyDtoHAsync_v2":
        assert found["error"].startswith("CudaError: cuMemcpyDtoHAsync_v2")
    assert found["error"] == f"CudaError: {function}: CUDA_ERROR_OUT_OF_MEMORY (2)"
    if function == "cuCtxPushCurrent_v2":
        found["alive"].pop("streams", None)  # what the context holds cannot be released without it
    assert found["alive"] == {}
    assert found["after"] == {}


@needs_cc
def test_where_a_gpu_is_on_the_bus(run: Run) -> None:
    found = run("""
from infercanary.probe.gpu.cuda_driver import pci_bus_id
say("cuDeviceGetPCIBusId 1 2")
found["failed"] = raised(lambda: pci_bus_id(0))
say()
found["place"] = pci_bus_id(0)
found["none"] = raised(lambda: pci_bus_id(1))
""")
    assert found["failed"].startswith("CudaError: cuDeviceGetPCIBusId")
    assert found["place"] == "0000:41:00.0"
    assert found["none"].startswith("CudaError: cuDeviceGet: ")


@needs_cc
@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("name", ["gpu_fma", "gpu_copy", "gpu_launch"])
def test_after_a_failure_the_driver_is_not_asked_again(run: Run, name: str, python: bool) -> None:
    found = run(
        """
say()
one = {n.removesuffix("_python"): c for n, c in cuda_controls(0, None if python else code).items()}[name]
one.open()
one.clock.measure(one.run)
say("cuLaunchKernel 1 700")
repeat = lambda: one.clock.measure(one.run)
found["first"] = raised(repeat)
calls = count("cuLaunchKernel"), count("cuCtxPushCurrent_v2"), count("cuEventRecord")
found["later"] = [raised(repeat) for _ in range(3)] + [raised(lambda: one.values(None))]
found["asked"] = (count("cuLaunchKernel"), count("cuCtxPushCurrent_v2"), count("cuEventRecord")) != calls
found["launches"] = calls[0]
one.close()
found["held"] = count("retained"), count("pushed")
found["again"] = raised(one.open)
found["held_again"] = count("retained"), count("pushed")
""",
        name=name,
        python=python,
    )
    error = "CudaError: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    assert found["first"] == error
    assert found["later"] == [error] * 4
    assert not found["asked"]
    assert found["launches"] == 1
    assert found["held"] == found["held_again"] == [0, 0]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in found["again"], "the context is lost until the process ends"


@needs_cc
def test_an_error_that_comes_with_the_wait(run: Run) -> None:
    found = run("""
say()
one = control("gpu_transfer")
one.open()
say("cuEventSynchronize 1 719")
found["error"] = raised(lambda: one.clock.measure(one.run))
one.close()
found["held"] = count("retained"), count("pushed")
""")
    assert found == {"error": "CudaError: cuEventSynchronize: unknown error (719)", "held": [0, 0]}


@needs_cc
def test_what_is_closed_does_not_run_and_what_runs_is_not_closed(run: Run) -> None:
    found = run("""
say()
one = control("gpu_fma")
one.open()
clock, repeat = one.clock, one.run
def close_meanwhile(phase):
    one.close()
    found["still_held"] = count("streams") == count("allocations") == count("retained") == 1
clock.measure(close_meanwhile)
for name, used in ("now", one.clock), ("before", clock):
    try:
        used.measure(repeat)
    except RuntimeError as error:
        found[name] = str(error)
other = control("gpu_copy")
other.open()
clock = other.clock
other.close()
try:
    clock.measure(other.run)
except RuntimeError as error:
    found["closed"] = str(error)
""")
    assert found == {
        "still_held": True,
        "now": "the control is not open",
        "before": "the control is not open",
        "closed": "the device is closed",
    }


@needs_cc
@pytest.mark.parametrize(
    ("line", "device", "error"),
    [
        ("cuInit 1 100", "cuda", "Unavailable: no GPU 0 here (cuInit: CUDA_ERROR_NO_DEVICE (100))"),
        ("cuInit 1 34", "cuda:0", "Unavailable: no GPU 0 here (cuInit: CUDA_ERROR_STUB_LIBRARY (34))"),
        ("", "cuda:1", "NoSuchGpu: no GPU 1 here (cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101))"),
        ("cuInit 1 804", "cuda", "CudaError: cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)"),
    ],
)
def test_no_gpu(run: Run, line: str, device: str, error: str) -> None:
    found = run(
        "say(line)\n"
        "for name, one in available_controls(device).items():\n"
        "    if name.startswith('gpu'):\n"
        "        found[name] = raised(one.open)\n"
        "        one.close()\n"
        "found['alive'] = alive()\n",
        line=line,
        device=device,
    )
    assert found.pop("alive") == {}
    assert list(found.values()) == [error] * 4


@needs_cc
def test_which_there_are(run: Run) -> None:
    found = run("""
found["cpu"], found["cuda"] = (list(available_controls(device)) for device in ("cpu", "cuda:0"))
found["python"] = list(cuda_controls(0, None))
found["asked"] = count("cuInit")
found["imported"] = sorted({"torch", "numpy"} & set(sys.modules))
""")
    assert not any(name.startswith("gpu") for name in found["cpu"])
    assert {name.removesuffix("_python") for name in found["cuda"]} == set(NAMES)
    assert found["python"] == ["gpu_fma", "gpu_copy", "gpu_transfer", "gpu_launch_python"]
    assert (found["asked"], found["imported"]) == (0, [])


@needs_cc
def test_a_driver_that_is_too_old(library: Callable[..., Path], session: Run) -> None:
    old = library("-DcuDevicePrimaryCtxRelease_v2=cuDevicePrimaryCtxRelease")
    found = session(old, "found['error'] = raised(control('gpu_fma').open)")
    error = "Unavailable: this driver's libcuda.so.1 has no cuDevicePrimaryCtxRelease_v2: it is too old"
    assert found == {"error": error}


def test_no_driver_at_all(tmp_path: Path, session: Run) -> None:
    found = session(
        tmp_path,
        "found['names'] = list(available_controls('cuda'))\nfound['library'] = lib is not None\n"
        "found['error'] = raised(cuda_controls(0, code)['gpu_fma'].open)",
    )
    if found["library"]:
        pytest.skip("this machine has an NVIDIA driver")
    assert not any(name.startswith("gpu") for name in found["names"])
    assert found["error"] == "Unavailable: no libcuda.so.1 here"


def test_kernels_load_the_parameters_that_they_declare() -> None:
    kernels = re.findall(r"\.entry (\w+)\((.*?)\)\s*\{(.*?)\n\}", PTX, re.DOTALL)
    assert [name for name, _, _ in kernels] == ["empty", "fill", "copy", "fma"]
    for _, declared, body in kernels:
        parameters = re.findall(r"\.param \.(\w+) (\w+)", declared)
        assert re.findall(r"ld\.param\.(\w+) %\w+, \[(\w+)\];", body) == parameters
    assert len(re.findall(r"fma\.rn", kernels[-1][2])) == 64


def test_kernels_assemble_for_each_gpu_that_ptxas_knows(tmp_path: Path) -> None:
    """``ptxas`` is of the CUDA toolkit, and in the wheels nvidia-cuda-nvcc (CUDA 13) and -cu12 (back to sm_52)."""
    if (ptxas := shutil.which("ptxas")) is None:
        pytest.skip("no ptxas here: it comes with the CUDA toolkit")
    source = tmp_path / "kernels.ptx"
    source.write_text(PTX)
    known = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
    for gpu in sorted(set(re.findall(r"'(sm_\d+)'", known))):
        command = [ptxas, f"-arch={gpu}", "--warning-as-error", str(source), "-o", str(tmp_path / gpu)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (gpu, done.stderr)
