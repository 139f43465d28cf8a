"""The controls on a GPU: real ctypes code with a stand-in for libcuda.so.1 that is as strict as the driver."""

import re
import shutil
import subprocess

import pytest
from cuda_stand_in import build, needs_cc
from forked import run_forked

from infercanary.probe.gpu.cuda_driver import _PROTOTYPES
from infercanary.probe.targets.controls.cuda import PTX

pytestmark = needs_cc

NAMES = ("gpu_fma", "gpu_copy", "gpu_transfer", "gpu_launch")

PRELUDE = """
import json, sys, threading
from infercanary.probe.samplers import Unavailable
from array import array
from ctypes import c_uint, c_void_p
from infercanary.probe.targets.controls import available_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code
from infercanary.probe.gpu.cuda_driver import CudaError, cuda_library

lib = cuda_library()
try:
    code = mapped_code()
except Refused:
    code = None

def say(*lines):
    lib.fake_cuda_script("\\n".join(lines).encode())

def count(what):
    return lib.fake_cuda_count(what.encode())

def alive():
    kinds = "retained pushed streams events modules functions allocations pinned".split()
    return {kind: n for kind in kinds if (n := count(kind))}

def control(name):
    return available_controls("cuda")[0][name]

def once(control):
    with control() as seconds:
        return seconds()

memory = []
allocate, pinned = Device.allocate, Device.pinned
def record(method):
    def recorded(device, size):
        memory.append((device, made := method(device, size)))
        return made
    return recorded
Device.allocate, Device.pinned = record(allocate), record(pinned)

def words(place, first, count, kind="I"):
    device, made = memory[place]
    with device.current():
        return [*array(kind, device.read(made.value + 4 * first, 4 * count))]

def raised(function):
    try:
        function()
    except (CudaError, Unavailable) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("cuda"))
    return lambda body, **names: run_forked(folder, PRELUDE + body, **names)


REPEATS = """
say(*lines)
one = control(name)
found["before"] = alive()
with one() as seconds:
    found["seconds"] = min(seconds() for _ in range(20))
    found["left"] = left()
    before = count("launches")
    seconds()
    found["batch"] = count("launches") - before
    found["priority"] = count("priority")
    found["open"] = alive()
found["after"] = alive()
"""


def repeats(run, name, *lines, left="None"):
    found = run(f"left = lambda: {left}\n{REPEATS}", name=name, lines=lines)
    assert found["before"] == {}, "nothing is allocated before opening"
    assert found["open"]["retained"] == found["open"]["streams"] == 1
    assert "pushed" not in found["open"], "between calls no context is current"
    assert found["after"] == {}
    assert found["priority"] == 3, "the stream has the lowest priority"
    return found


WORDS = (64 << 20) // 4
COPIED = f"words(1, 0, 512) + words(1, {WORDS - 512}, 512)"
SENT = "(c_uint * (1 << 20)).from_address(memory[2][1].value)[:: 1 << 11]"


@pytest.mark.parametrize(
    ("name", "lines", "left", "seconds", "batch", "expected"),
    [
        # 256 rounds of 64 fused multiply-adds.
        (
            "gpu_fma",
            ["fma 120"],
            "words(0, 0, 256, 'f')",
            120e-6,
            1,
            [8 * n + 28 + 64 * 256 for n in range(256)],
        ),
        ("gpu_copy", ["copy 30"], COPIED, 30e-6, 4, [*range(512), *range(WORDS - 512, WORDS)]),
        ("gpu_transfer", ["h2d 70", "d2h 210"], SENT, 280e-6, None, [*range(0, 1 << 20, 1 << 11)]),
    ],
)
def test_a_control_takes_its_time_for_its_work(run, name, lines, left, seconds, batch, expected):
    found = repeats(run, name, *lines, left=left)
    assert found["seconds"] == pytest.approx(seconds, rel=0.3), "the time of one execution, also in a batch"
    assert found["left"] == expected
    assert batch in (None, found["batch"])


@pytest.mark.parametrize(("microseconds", "batch"), [(500, 1), (4, 32), (0.001, 1024)])
def test_batches_of_launches_are_long_enough(run, microseconds, batch):
    found = repeats(run, "gpu_launch", f"empty {microseconds}")
    # The host may take longer to launch than the device takes to compute.
    assert found["batch"] == batch if microseconds > 1 else found["batch"] <= batch
    assert found["seconds"] >= microseconds * 1e-6 * 0.99


def test_the_hosts_own_context_stays_current(run):
    found = run(
        """
import ctypes
say()
assert lib.cuInit(0) == 0 and lib.cuCtxPushCurrent_v2(ctypes.c_void_p(0xA11CE)) == 0
opening = control('gpu_transfer')()
pushed = []
seconds = opening.__enter__()
for step in (seconds, lambda: opening.__exit__(None, None, None)):
    pushed.append(count("pushed"))
    step()
pushed.append(count("pushed"))
context = ctypes.c_void_p()
lib.cuCtxPopCurrent_v2(ctypes.byref(context))
found.update(pushed=pushed, context=context.value, alive=alive())
"""
    )
    assert found == {"pushed": [1] * 3, "context": 0xA11CE, "alive": {}}


OPENING = sorted(
    _PROTOTYPES.keys()
    - {"cuGetErrorName", "cuInit", "cuDeviceGet", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"}
    # An opened control does not call these.
    - {"cuDeviceGetPCIBusId", "cuDevicePrimaryCtxGetState", "cuDriverGetVersion"}
    - {name for name in _PROTOTYPES if re.search("Free|Destroy|Unload", name)}
)


@pytest.mark.parametrize("function", OPENING)
def test_whatever_fails_while_it_opens_is_reported_and_nothing_is_kept(run, function):
    body = """
for one in (control(name) for name in names):
    say(f"{function} 1 2")
    if (error := raised(lambda: once(one))) != "nothing":
        found["error"], found["alive"] = error, alive()
        say()
        once(one)
found["after"] = alive()
"""
    found = run(body, function=function, names=NAMES)
    assert found.pop("after") == {}
    if function == "cuStreamSynchronize":
        assert found == {}, "the stream is synchronized only at the end"
        return
    # Without the context, the driver cannot release its stream.
    kept = {"streams": 1} if function == "cuCtxPushCurrent_v2" else {}
    assert found["error"] == f"CudaError: {function}: CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert found["alive"].items() <= kept.items()


def test_the_pci_address_of_a_gpu(run):
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


@pytest.mark.parametrize("python", [False, True])
def test_after_a_failure_the_driver_is_not_asked_again(run, python):
    body = """
say()
one = cuda_controls(0, None if python else code)["gpu_copy"]
opening = one()
seconds = opening.__enter__()
seconds()
say("cuLaunchKernel 1 700")
errors = [raised(seconds)]
def asked():
    return [count(function) for function in ("cuLaunchKernel", "cuCtxPushCurrent_v2", "cuEventRecord")]
calls = asked()
errors += [raised(seconds) for _ in range(3)]
found["errors"], found["asked"], found["launches"] = [*{*errors}], asked() != calls, calls[0]
opening.__exit__(None, None, None)
found["held"] = count("retained"), count("pushed")
found["again"] = raised(lambda: once(one))
found["held_again"] = count("retained"), count("pushed")
"""
    found = run(body, python=python)
    error = "CUDA_ERROR_ILLEGAL_ADDRESS (700)"
    assert error in found.pop("again"), "the context is lost until the process ends"
    assert found == {
        "errors": [f"CudaError: cuLaunchKernel: {error}"], "asked": False, "launches": 1, "held": [0, 0],
        "held_again": [0, 0],
    }  # fmt: skip


def test_an_error_that_comes_with_the_wait(run):
    found = run("""
say()
with control("gpu_transfer")() as seconds:
    say("cuEventSynchronize 1 719")
    found["error"] = raised(seconds)
found["held"] = count("retained"), count("pushed")
try:
    seconds()
except RuntimeError as error:
    found["closed"] = str(error)
""")
    error = "CudaError: cuEventSynchronize: unknown error (719)"
    assert found == {"error": error, "held": [0, 0], "closed": "the device is closed"}


@pytest.mark.parametrize(
    ("line", "device", "error"),
    [
        ("cuInit 1 100", "cuda", "Unavailable: no GPU 0 here (cuInit: CUDA_ERROR_NO_DEVICE (100))"),
        ("", "cuda:1", "NoSuchGpu: no GPU 1 here (cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101))"),
        ("cuInit 1 804", "cuda", "CudaError: cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804)"),
    ],
)
def test_no_gpu(run, line, device, error):
    found = run(
        "say(line)\n"
        "for name, one in available_controls(device)[0].items():\n"
        "    found[name] = raised(lambda: once(one))\n"
        "found['alive'] = alive()\n",
        line=line,
        device=device,
    )
    assert found.pop("alive") == {}
    assert list(found.values()) == [error] * 4


def test_a_driver_that_is_too_old(tmp_path):
    build(tmp_path, "-DcuDevicePrimaryCtxRelease_v2=cuDevicePrimaryCtxRelease")
    found = run_forked(tmp_path, PRELUDE + "found['error'] = raised(lambda: once(control('gpu_fma')))")
    assert found["error"].startswith("Unavailable: ")
    assert "cuDevicePrimaryCtxRelease_v2" in found["error"]


def test_kernels_load_the_parameters_that_they_declare():
    kernels = re.findall(r"\.entry (\w+)\((.*?)\)\s*\{(.*?)\n\}", PTX, re.DOTALL)
    assert [name for name, _, _ in kernels] == ["empty", "fill", "copy", "fma"]
    for _, declared, body in kernels:
        parameters = re.findall(r"\.param \.(\w+) (\w+)", declared)
        assert re.findall(r"ld\.param\.(\w+) %\w+, \[(\w+)\];", body) == parameters
    assert len(re.findall(r"fma\.rn", kernels[-1][2])) == 64


def test_kernels_assemble_for_each_gpu_that_ptxas_knows(tmp_path):
    """``ptxas`` is part of the CUDA toolkit and of the wheels nvidia-cuda-nvcc (CUDA 13) and -cu12 (back to sm_52)."""
    if (ptxas := shutil.which("ptxas")) is None:
        pytest.skip("no ptxas here: it comes with the CUDA toolkit")
    source = tmp_path / "kernels.ptx"
    source.write_text(PTX)
    known = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
    for gpu in sorted(set(re.findall(r"'(sm_\d+)'", known))):
        command = [ptxas, f"-arch={gpu}", "--warning-as-error", str(source), "-o", str(tmp_path / gpu)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (gpu, done.stderr)
