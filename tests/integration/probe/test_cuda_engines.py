"""TensorRT and ONNX Runtime on a GPU: our real code and the real ctypes, over stand-ins of the engines and of CUDA."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_stand_in import CC, build, needs_cc
from forked import forks_of

pytest.importorskip("numpy")

STAND_INS = Path(__file__).parent / "stand_ins"

PRELUDE = """
import json, sys
from pathlib import Path
from device_work import held, library
from infercanary.probe.deadline import one_line
from infercanary.command.settings import UsageError
from infercanary.probe.targets.onnx import OnnxTarget
from infercanary.probe.targets.tensorrt import TensorRtTarget

found = {}

def say(*lines):
    library.fake_cuda_script("\\n".join(lines).encode())

def alive():
    kinds = "retained pushed streams events modules functions allocations pinned".split()
    return {kind: n for kind in kinds if (n := held(kind))}

def raised(function):
    try:
        function()
    except UsageError as error:
        return str(error)
    except Exception as error:
        return one_line(error)
    return "nothing"

def repeats(target, number):
    measured = [target.clock.measure(target.run) for _ in range(number)]
    return measured, {p: min(t.phases[p] for t, _ in measured) for p in measured[0][0].phases}
"""

RUNS = """
import numpy
say(*lines)
target = kind(path, **options)
found["device"] = target.device
found["before"] = alive()
target.open()
found["open"] = alive()
measured, found["phases"] = repeats(target, 20)
found["wall"] = min(t.wall for t, _ in measured)
found["values"] = target.values(measured[-1][1])
found["priority"] = held("priority")
found["environment"] = target.environment()
target.calibrate()
found["batch"] = target.clock.batch
before = held("launches")
measured, found["batched"] = repeats(target, 5)
found["launches"] = (held("launches") - before) / 5
found["again"] = target.values(None)
target.close()
target.close()
found["after"] = alive()
found["dropped"] = dropped
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda"))


def stand_ins(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the stand-ins, and this CUDA."""
    path = os.pathsep.join(filter(None, [str(STAND_INS), os.environ.get("PYTHONPATH", "")]))
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path, "FAKE_NVML": str(folder / "script")}


Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[Run]:
    """What a process with the stand-ins, and the CUDA of a folder, leaves in ``found``."""
    modules = ("numpy", "infercanary.probe.targets.onnx", "infercanary.probe.targets.tensorrt")
    with forks_of(*modules, environment=stand_ins) as forks:
        yield lambda folder, body, **names: forks(folder).found(PRELUDE, body, **names)


@pytest.fixture
def run(library: Path, tmp_path: Path, session: Run) -> Run:
    def begin(body: str, written: bytes, **names: Any) -> dict[str, Any]:
        path = tmp_path / "engine"
        path.write_bytes(written)
        return session(library, body, path=str(path), **names)

    return begin


def plan(*tensors: dict[str, Any], version: tuple[int, ...] = (10, 3, 0, 26), **declared: Any) -> bytes:
    """An engine of the stand-in, with the head of a real one."""
    head = b"ftrt" + bytes(20) + bytes(version)
    return head + json.dumps({"tensors": tensors, **declared}).encode()


X = {"name": "x", "shape": [2, 1024]}
Y = {"name": "y", "shape": [2, 1024], "mode": "OUTPUT"}
DYNAMIC_X = {"name": "x", "shape": [-1, 1024], "range": [[[1, 1024], [4, 1024], [8, 1024]]] * 2}
DYNAMIC_Y = {"name": "y", "shape": [-1, 1024], "mode": "OUTPUT"}

TENSORRT = "from tensorrt import dropped\nkind = TensorRtTarget\n"
ONNX = "from onnxruntime import dropped\nkind = OnnxTarget\n"


def model(type_: str = "tensor(float)", **declared: Any) -> bytes:
    """A model of the stand-in for ONNX Runtime."""
    tensor = {"type": type_, "shape": ["N", 1024]}
    return json.dumps(
        {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}], **declared}
    ).encode()


def expected(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> list[float]:
    """What a copy of the input is, in fixed places."""
    from infercanary.probe.targets.engines import outputs
    from infercanary.probe.targets.engines.tensors import Input, drawn, readable

    return outputs.values([readable(drawn(Input("", "x", shape, dtype, 2), seed, 0), dtype)])


def check(found: dict[str, Any]) -> None:
    """What holds for every engine."""
    assert found["before"] == {}, "nothing is taken before it is opened"
    assert found["open"]["retained"] == found["open"]["streams"] == 1
    assert found["open"]["allocations"] == found["open"]["pinned"] == 2
    assert "pushed" not in found["open"], "between calls no context is current"
    assert found["after"] == {}
    assert found["priority"] == 3, "the lowest there is"
    phases = found["phases"]
    assert set(phases) == {"h2d", "compute", "d2h", "launch", "queue"}
    assert phases["h2d"] == pytest.approx(70e-6, rel=0.3)
    assert phases["compute"] == pytest.approx(400e-6, rel=0.3)
    assert phases["d2h"] == pytest.approx(210e-6, rel=0.3)
    assert found["wall"] >= sum(phases[name] for name in ("h2d", "compute", "d2h"))
    assert found["batch"] == found["launches"] == 1
    assert found["values"] == found["again"]
    assert all(current == 1 for _, current in found["dropped"]), (
        "what is on the device goes inside the context"
    )


LINES = ("h2d 70", "copy 400", "d2h 210")


@needs_cc
def test_a_tensorrt_engine(run: Run) -> None:
    found = run(TENSORRT + RUNS, plan(X, Y), lines=LINES, options={"seed": 5})
    check(found)
    assert found["values"] == expected((2, 1024), seed=5)
    assert found["device"] == "cuda"
    environment = found["environment"]
    assert environment == {
        "tensorrt": "10.3.0.26", "tensorrt_engine": "engine", "tensorrt_built_by": "10.3.0.26", "tensorrt_profile": "0",
        "tensorrt_device": "cuda", "tensorrt_cuda_device": "Stand-in GPU", "tensorrt_driver_cuda": "12.4",
        "tensorrt_auxiliary_streams": "0",
    }  # fmt: skip
    assert [what for what, _ in found["dropped"]] == ["context", "engine", "runtime"]


PROFILED = """
say(*lines)
target = kind(path)
target.open()
repeats(target, 5)
before = alive()
def profile():
    made = target.profile(3)
    rows = [[row.kind, row.device, row.calls, row.seconds] for row in made.rows]
    found["profile"] = [made.engine, made.state, rows, made.wall, made.outside]
found["raised"] = raised(profile)
found["as it was"] = alive() == before and target._context.profiler is None
found["traced"] = raised(lambda: target.profile(3, Path("trace.json")))
repeats(target, 1)
target.close()
found["after"] = alive()
found["dropped"] = dropped
"""
LAYERS = {"/conv1/Conv + /relu/Relu": 0.25, "/fc/Gemm": 0.1}


@needs_cc
def test_an_engines_layers_are_profiled_in_a_context_of_their_own(run: Run) -> None:
    """With the stand-in of TensorRT, which reports the layers that its engine declares."""
    found = run(TENSORRT + PROFILED, plan(X, Y, layers=LAYERS), lines=LINES)
    assert found["raised"] == "nothing"
    engine, state, rows, walls, outside = found["profile"]
    assert (engine, state) == ("tensorrt", "ok")
    assert rows == [[name, "cuda:0", 1.0, [ms / 1e3] * 3] for name, ms in LAYERS.items()]
    assert outside == [pytest.approx(wall - 0.35e-3, abs=1e-6) for wall in walls]
    assert found["as it was"] and found["after"] == {}
    assert all(current == 1 for _, current in found["dropped"])
    assert "TensorRT's profiler writes no trace" in found["traced"]


@needs_cc
def test_an_engine_that_makes_one_context_alone_is_not_profiled(run: Run) -> None:
    found = run(TENSORRT + PROFILED, plan(X, Y, layers=LAYERS, contexts=1), lines=LINES)
    assert "TensorRT makes no second execution context: " in found["raised"]
    assert found["as it was"] and found["after"] == {}


@needs_cc
@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 4),
        ({"inputs": [{"shape": [8, 1024]}]}, 8),
        ({"inputs": {"x": {"shape": [1, 1024]}}, "profile": 1}, 1),
    ],
    ids=["the profile's optimum", "a list", "a mapping"],
)
def test_dynamic_shapes(run: Run, options: dict[str, Any], batch: int) -> None:
    found = run(TENSORRT + RUNS, plan(DYNAMIC_X, DYNAMIC_Y, profiles=2), lines=LINES, options=options)
    check(found)
    assert found["values"] == expected((batch, 1024))


@needs_cc
@pytest.mark.parametrize(("dtype", "theirs"), [("bfloat16", "BF16"), ("int64", "INT64"), ("float16", "HALF")])
def test_dtypes(run: Run, dtype: str, theirs: str) -> None:
    shape = {"float16": 2048, "bfloat16": 2048, "int64": 512}[dtype]
    tensors = [{**each, "shape": [1, shape], "dtype": theirs} for each in (X, Y)]
    found = run(TENSORRT + RUNS, plan(*tensors), lines=LINES, options={})
    check(found)
    assert found["values"] == expected((1, shape), dtype)


@needs_cc
def test_short_work_is_batched(run: Run) -> None:
    for _ in range(3):  # a busy machine is late to look, and may be each time
        found = run(TENSORRT + RUNS, plan(X, Y), lines=("h2d 5", "copy 20", "d2h 5"), options={})
        if found["batched"]["compute"] < 36e-6:
            break
    assert 2 <= found["batch"] <= 5, "as many as take 100 µs; this machine may be late to look"
    assert found["launches"] == found["batch"]
    assert 18e-6 <= found["batched"]["compute"] < 36e-6, "one inference's, and not those of two or more"
    assert found["values"] == found["again"] == expected((2, 1024))


@needs_cc
def test_operators_that_run_on_the_cpu_are_named(run: Run) -> None:
    mixed = model(nodes={"CUDAExecutionProvider": 4, "CPUExecutionProvider": 3})
    options = {"providers": ["cuda"], "inputs": [{"shape": [2, 1024]}]}
    environment = run(ONNX + RUNS, mixed, lines=LINES, options=options)["environment"]
    assert environment["onnx_nodes"] == "CPUExecutionProvider 3, CUDAExecutionProvider 4"
    assert environment["onnx_on_cpu"] == "Operator0 (2 nodes), Operator1"


@needs_cc
def test_an_onnx_model_on_cuda(run: Run) -> None:
    options = {"providers": ["cuda"], "inputs": [{"shape": [2, 1024]}], "seed": 5}
    found = run(ONNX + RUNS, model(), lines=LINES, options=options)
    check(found)
    assert found["values"] == expected((2, 1024), seed=5)
    assert found["device"] == "cuda:0"
    environment = found["environment"]
    assert environment["onnx_provider"] == "CUDAExecutionProvider"
    assert environment["onnx_nodes"] == "CUDAExecutionProvider 3" and "onnx_on_cpu" not in environment
    assert environment["onnx_device"] == "cuda:0" and environment["onnx_cuda_device"] == "Stand-in GPU"
    assert environment["onnx_build"] == "0123456789 Release" and environment["onnx_build_cuda"] == "12.8"
    assert environment["onnx_driver_cuda"] == "12.4"
    assert environment["onnx_producer"] == "stand-in"
    assert found["dropped"] == [["session", 1]]


@needs_cc
def test_bfloat16_and_provider_options(run: Run) -> None:
    options = {
        "providers": ["tensorrt", "cuda"],
        "provider_options": {"tensorrt": {"trt_fp16_enable": True}, "cuda": {"device_id": 0}},
        "inputs": {"x": {"shape": [4, 1024], "dtype": "bfloat16"}},
    }
    found = run(ONNX + RUNS, model("tensor(bfloat16)"), lines=LINES, options=options)
    check(found)
    assert found["values"] == expected((4, 1024), "bfloat16")
    assert found["environment"]["onnx_provider"] == "TensorrtExecutionProvider"
    assert found["environment"]["onnx_provider_options"] == "trt_fp16_enable=1"


REFUSED = """
say(*lines)
target = kind(path, **options)
found["error"] = raised(target.open)
found["missing"] = target.cuda_missing
found["alive"] = alive()
target.close()
"""

FIX = "rebuild it with trtexec of this version, on this GPU"


@needs_cc
@pytest.mark.parametrize(
    ("written", "options", "error"),
    [
        (
            plan(X, Y, version=(8, 6, 1, 6), says=["Error Code 1: Serialization (Version tag does not match)"]),
            {},
            f"engine: `PATH` was built by TensorRT 8.6.1.6; this is 10.3.0.26; {FIX}",
        ),
        (
            plan(X, Y, says=["an incompatible device, expecting compute 9.0 got compute 8.6, please rebuild."]),
            {},
            f"engine: `PATH` was built for another GPU (compute 8.6; this is 9.0); {FIX}",
        ),
        (
            b"junk",
            {},
            "engine: `PATH` is no engine that can be read by TensorRT 10.3.0.26 (Magic tag does not match); " + FIX,
        ),
        (plan(X, Y), {"profile": 1}, "profile: the engine has no profile 1; its last is 0"),
        (plan(X, Y, full=True), {}, "RuntimeError: TensorRT makes no execution context: OutOfMemory: 99 bytes"),
        (
            plan(DYNAMIC_X, DYNAMIC_Y),
            {"inputs": [{"shape": [9, 1024]}]},
            "inputs[0].shape: TensorRT refuses [9, 1024] (it logs no reason); choose one in the engine's profile, or "
            "build the engine with --minShapes and --maxShapes",
        ),
        (
            plan(X, Y),
            {"inputs": [{"shape": [3, 1024]}]},
            "inputs[0].shape: [3, 1024] does not fit the model's input `x`, which is [2, 1024]",
        ),
        (plan(X, Y), {"inputs": {"z": {}}}, "inputs: the model has no input `z`; its inputs: x"),
        (
            plan({**X, "dtype": "FP8"}, Y),
            {},
            "engine: its input `x` is FP8; build it with one of FLOAT, HALF, BF16, BOOL, INT8, INT32, INT64, UINT8 "
            "(trtexec --inputIOFormats, --outputIOFormats)",
        ),
        (
            plan(X, {**Y, "format": "CHW4"}),
            {},
            "engine: its output `y` has the layout CHW4; build it with a linear one "
            "(trtexec --inputIOFormats=fp32:chw, --outputIOFormats=fp32:chw)",
        ),
        (
            plan({**X, "location": "HOST"}, Y),
            {},
            "engine: its input `x` is a shape, and lies on the host; that is not supported: build it with that shape "
            "fixed",
        ),
        (
            plan(X, {**Y, "shape": [-1, 4], "data_dependent": True}),
            {},
            "engine: how large its output `y` is depends on the data, and that is not supported; build it to end "
            "before that layer",
        ),
    ],
    ids=["version", "gpu", "junk", "profile", "memory", "range", "shape", "name", "dtype", "layout", "host", "data"],
)  # fmt: skip
def test_what_tensorrt_does_not_take_is_one_line(
    run: Run, tmp_path: Path, written: bytes, options: dict[str, Any], error: str
) -> None:
    found = run(TENSORRT + REFUSED, written, lines=(), options=options)
    missing = "version_mismatch" if "was built by TensorRT" in error else ""
    assert found == {
        "error": error.replace("PATH", str(tmp_path / "engine")),
        "missing": missing,
        "alive": {},
    }


@needs_cc
def test_an_engine_that_fails_in_a_run(run: Run) -> None:
    body = """
target = TensorRtTarget(path)
target.open()
found["error"] = raised(lambda: target.clock.measure(target.run))
target.close()
found["alive"] = alive()
"""
    error = "RuntimeError: TensorRT cannot enqueue the engine: Cask convolution execution"
    assert run(body, plan(X, Y, breaks=True)) == {"error": error, "alive": {}}


@needs_cc
@pytest.mark.parametrize("function", ["cuMemHostAlloc", "cuMemAlloc_v2", "cuEventCreate"])
@pytest.mark.parametrize("kind", ["tensorrt", "onnx"])
def test_whatever_fails_while_it_opens_leaves_nothing(run: Run, function: str, kind: str) -> None:
    body = {"tensorrt": TENSORRT, "onnx": ONNX}[kind] + REFUSED
    written = {"tensorrt": plan(X, Y), "onnx": model()}[kind]
    options = {"tensorrt": {}, "onnx": {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}}[kind]
    found = run(body, written, lines=(f"{function} 1 2",), options=options)
    error = f"CudaError: {function}: CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert found == {"error": error, "missing": "", "alive": {}}


@needs_cc
@pytest.mark.parametrize("kind", ["tensorrt", "onnx"])
def test_no_gpu(run: Run, kind: str) -> None:
    body = {"tensorrt": TENSORRT, "onnx": ONNX}[kind] + REFUSED
    written = {"tensorrt": plan(X, Y), "onnx": model()}[kind]
    options = {"tensorrt": {}, "onnx": {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}}[kind]
    found = run(body, written, lines=("cuInit 1 100",), options=options)
    place = {"tensorrt": "device: `cuda`", "onnx": "providers: `cuda`"}[kind]
    more = {"tensorrt": "", "onnx": ", or set `providers: [cpu]`"}[kind]
    found["error"] = re.sub(" and NVML sees [^,]+", "", found["error"])  # NVML is the machine's own here
    assert found == {
        "error": f"{place} was asked for, but no GPU 0 here (cuInit: CUDA_ERROR_NO_DEVICE (100)); check the driver, "
        f"and that the container was started with the GPU{more}",
        "missing": "no_device",
        "alive": {},
    }


@needs_cc
@pytest.mark.parametrize("kind", ["tensorrt", "onnx"])
def test_a_gpu_of_a_number_that_is_not_there_is_a_mistake(run: Run, kind: str) -> None:
    """It is in the settings, not in the image: nothing says that CUDA is missing."""
    body = {"tensorrt": TENSORRT, "onnx": ONNX}[kind] + REFUSED
    written = {"tensorrt": plan(X, Y), "onnx": model()}[kind]
    options = {
        "tensorrt": {"device": "cuda:1"},
        "onnx": {
            "providers": "cuda",
            "provider_options": {"cuda": {"device_id": 1}},
            "inputs": [{"shape": [2, 1024]}],
        },
    }[kind]
    found = run(body, written, lines=(), options=options)
    place = {
        "tensorrt": "device: `cuda:1` was asked for",
        "onnx": "provider_options: device_id 1 was asked for",
    }[kind]
    assert found == {
        "error": f"{place}, but no GPU 1 here (cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101)); count from 0 the GPUs "
        "that the container has",
        "missing": "",
        "alive": {},
    }


@needs_cc
@pytest.mark.parametrize(
    ("declared", "said", "missing"),
    [
        (
            {"unloadable": ["CUDAExecutionProvider"]},
            "providers: `cuda` was asked for, but ONNX Runtime cannot start CUDAExecutionProvider: the log above says "
            "why; install the libraries that it was built for (CUDA 12.8), or set `providers: [cpu]`",
            "provider_missing",
        ),
        (
            {"nodes": {"CPUExecutionProvider": 7}},
            "providers: none of the model's nodes runs on CUDAExecutionProvider (7 on CPUExecutionProvider): it lacks "
            "their operators or dtypes; convert the model, or name the provider that runs it first",
            "",
        ),
        (
            {"no_stream": True},
            "providers: onnxruntime 1.31.1 does not say that CUDAExecutionProvider runs on the stream that it was "
            "given (user_compute_stream); install onnxruntime-gpu 1.18 or newer",
            "",
        ),
    ],
    ids=["libraries", "nodes", "stream"],
)
def test_what_does_not_run_on_cuda_is_refused(
    run: Run, declared: dict[str, Any], said: str, missing: str
) -> None:
    options = {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}
    found = run(ONNX + REFUSED, model(**declared), lines=(), options=options)
    assert found == {"error": said, "missing": missing, "alive": {}}


@needs_cc
def test_cuda_without_tensorrt_is_cuda(run: Run) -> None:
    body = ONNX + RUNS + "found['missing'] = target.cuda_missing\n"
    options = {"providers": ["tensorrt", "cuda"], "inputs": [{"shape": [2, 1024]}], "cpu_fallback": True}
    found = run(body, model(unloadable=["TensorrtExecutionProvider"]), lines=LINES, options=options)
    assert found["values"] == expected((2, 1024))
    assert (found["environment"]["onnx_provider"], found["missing"]) == ("CUDAExecutionProvider", "")


@needs_cc
@pytest.mark.parametrize("wheels", [False, True])
def test_cuda_that_comes_as_wheels_is_loaded_first(run: Run, tmp_path: Path, wheels: bool) -> None:
    """And nothing is printed on standard output, where the report of ``--once`` goes."""
    body = """
import onnxruntime
sys.path.insert(0, site)
target = OnnxTarget(path, [{"shape": [2, 1024]}], providers=["cuda"])
target.open()
target.close()
found["preloaded"] = onnxruntime.preloaded
"""
    (tmp_path / "site" / "nvidia").mkdir(parents=True)
    site = str(tmp_path / "site") if wheels else str(tmp_path)
    if not wheels and importlib.util.find_spec("nvidia") is not None:
        pytest.skip("CUDA's wheels are installed here")
    assert run(body, model(), site=site) == {"preloaded": int(wheels)}


@needs_cc
def test_both_in_a_probe_with_the_controls_of_the_gpu(library: Path, tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(plan(X, Y))
    (tmp_path / "m.onnx").write_bytes(model())
    (tmp_path / "probe.yaml").write_text(
        "canaries:\n"
        "  rt: {target: tensorrt, options: {engine: m.engine}}\n"
        "  ort: {target: onnx, options: {model: m.onnx, providers: [cuda], inputs: [{shape: [2, 1024]}]}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--config", "probe.yaml", "--once"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | stand_ins(library),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = done.stdout.replace("\xa0", " ")
    for name in ("rt", "ort"):
        block = out.partition(f"canary {name}: ")[2].partition("\n\ncanary ")[0]
        phases = " ".join(block.split("\n"))
        assert all(
            re.search(rf"  phases .*\b{phase} [\d.]", phases) for phase in ("h2d", "compute", "d2h", "launch")
        ), block
    for line in (
        "gpu_fma +cuda:0 +[\\d.]+ µs",
        "gpu_fma +cuda +[\\d.]+ µs",
        "ONNX Runtime +1.31.1",
        "TensorRT +10.3.0.26",
        "provider +CUDAExecutionProvider",
        "GPU +Stand-in GPU",
    ):
        assert re.search(f"^  {line}$", out, re.MULTILINE), line
    assert "was to run on CUDA" not in out


UNFIT = """
from infercanary.probe.targets.engines.cuda_versions import driver_cuda, unfit_driver
for built, version in pairs:
    say(f"version {version}")
    found[f"{built} on {driver_cuda()}"] = unfit_driver("it", built)
say("version 13000", "cuInit 1 804")
found["on this device"] = unfit_driver("it", "13.0")
say("cuInit 1 803")
found["of the kernel"] = unfit_driver("it", "12.4")
say("cuInit 1 100")
found["no device"] = unfit_driver("it", "12.4")
"""


@needs_cc
def test_what_a_driver_runs_by_nvidias_rules(library: Path, session: Run) -> None:
    """Older always, newer within a major release from CUDA 11 on; not what a newer major release was built for."""
    pairs = [("11.8", 12040), ("12.8", 12040), ("11.8", 11000), ("13.0", 12020), ("12.1", 11040), ("14.0", 13000),
             ("10.2", 10010), ("10.1", 10020), ("11.0", 10020), ("", 12040)]  # fmt: skip
    found = session(library, UNFIT, pairs=pairs)
    at_most = "it was built for CUDA {}, and the driver here runs CUDA {} at most; update the driver to {}, or install "
    assert found == {
        "11.8 on 12.4": "", "12.8 on 12.4": "", "11.8 on 11.0": "", "10.1 on 10.2": "", " on 12.4": "", "no device": "",
        "13.0 on 12.2": at_most.format("13.0", "12.2", "580 or newer") + "a build for CUDA 12",
        "12.1 on 11.4": at_most.format("12.1", "11.4", "525 or newer") + "a build for CUDA 11",
        "14.0 on 13.0": at_most.format("14.0", "13.0", "one for CUDA 14.0") + "a build for CUDA 13",
        "10.2 on 10.1": at_most.format("10.2", "10.1", "one for CUDA 10.2") + "a build for CUDA 10.1",
        "11.0 on 10.2": at_most.format("11.0", "10.2", "450.80.02 or newer") + "a build for CUDA 10.2",
        "on this device": "it: this GPU does not take the forward compatibility (cuda-compat, CUDA 13.0) with the "
        "driver here; take cuda-compat out of the image, and update the driver or install a build for its CUDA",
        "of the kernel": "it: libcuda.so.1, which runs CUDA 12.4, does not go with the driver here; take it out of the "
        "image or of LD_LIBRARY_PATH: the NVIDIA Container Toolkit mounts the host's own",
    }  # fmt: skip


@needs_cc
def test_a_driver_that_is_too_old_for_onnx_runtime(run: Run) -> None:
    options = {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}
    found = run(ONNX + REFUSED, model(), lines=("version 11040",), options=options)
    assert found == {
        "error": "providers: `cuda` was asked for, but onnxruntime 1.31.1 was built for CUDA 12.8, and the driver here "
        "runs CUDA 11.4 at most; update the driver to 525 or newer, or install a build for CUDA 11, or set "
        "`providers: [cpu]`",
        "missing": "version_mismatch",
        "alive": {},
    }


OLD_DRIVER = """
import torch
from infercanary.probe.canary import Canary
from infercanary.probe.canary_metrics import CUDA_MISSING, DETAIL
from infercanary.probe.histogram import Tally
from infercanary.probe.targets.torch import TorchTarget
torch.version.cuda = "13.0"  # the build is for CPUs, and says so otherwise
say("version 12020")
tally = Tally()
canary = Canary("c", TorchTarget("torch:relu", [{"shape": [2]}], device="cuda"), tally, 30, 300)
canary.open(300)
points = {f.name: {"|".join(p.labels): p.value for p in f.points} for f in tally.families() if f.kind == "gauge"}
found["missing"] = {k for k, v in points[CUDA_MISSING.name].items() if v}.pop()
found["detail"] = next(iter(points[DETAIL.name]))
found["environment"] = {k: canary.environment.get(k) for k in ("torch_cuda", "torch_driver_cuda", "torch_device")}
found["ends"] = canary.mistake is not None
"""


@needs_cc
def test_a_driver_that_is_too_old_for_torch(library: Path, session: Run) -> None:
    pytest.importorskip("torch")
    found = session(library, OLD_DRIVER)
    assert found.pop("detail").startswith(
        "c|version_mismatch|cannot be opened: device: `cuda` was asked for, but torch "
    )
    assert found == {
        "missing": "c|version_mismatch",
        "environment": {"torch_cuda": "13.0", "torch_driver_cuda": "12.2", "torch_device": None},
        "ends": False,
    }


SHORT = """
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
canary = Canary("c", kind(path, **options), Tally(), 30, 300)
say(f"{function} 1 2")
canary.open(300)
failed = canary.failed()
found["reason"], found["detail"] = failed.reason, failed.detail
found["alive"] = alive()
say("")
canary.open(300)
found["waits"] = not canary.is_open
canary._retry_at = 0.0
canary.open(300)
found["opens"] = canary.is_open
canary.close(30)
"""


@needs_cc
@pytest.mark.parametrize(("function", "place"), [("cuMemHostAlloc", "host"), ("cuMemAlloc_v2", "device")])
@pytest.mark.parametrize("kind", ["tensorrt", "onnx"])
def test_memory_that_does_not_suffice_is_waited_out(run: Run, function: str, place: str, kind: str) -> None:
    body = {"tensorrt": TENSORRT, "onnx": ONNX}[kind] + SHORT
    written = {"tensorrt": plan(X, Y), "onnx": model()}[kind]
    options = {"tensorrt": {}, "onnx": {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}}[kind]
    found = run(body, written, function=function, options=options)
    detail = found.pop("detail")
    assert detail.startswith(f"cannot be opened: out of memory ({place}): ")
    assert f"CudaError: {function}: CUDA_ERROR_OUT_OF_MEMORY (2)" in detail
    assert found == {"reason": "out_of_memory", "alive": {}, "waits": True, "opens": True}


FULL = """
from infercanary.probe.memory import describe_shortage, place_of
from infercanary.probe.gpu.cuda_driver import CudaError
error = CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")
found["line"] = describe_shortage(error, place_of(error, "cuda"), "cuda")
"""


Nvml = Callable[..., Path]


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Nvml:
    """Says how full the stand-in's GPU is, which is NVML's second; gives the folder with both libraries."""
    folder = build(tmp_path_factory.mktemp("nvml"))
    source = Path(__file__).parents[2] / "fake_nvml/nvml.c"
    subprocess.run(
        [str(CC), "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True
    )

    def write(used: int, *lines: str) -> Path:
        said = ["gpus * 2", f"bus 1 {0x41}", f"memory_size 1 {80 << 30}", f"memory_used 1 {used}", *lines]
        (folder / "script").write_text("\n".join(said) + "\n")
        return folder

    return write


@needs_cc
def test_how_full_the_device_is_by_nvml(nvml: Nvml, session: Run) -> None:
    assert session(nvml(79 << 30), FULL)["line"] == (
        "out of memory (device): 79.00 GiB of 80.00 GiB in use on cuda:0; CudaError: cuMemAlloc_v2: "
        "CUDA_ERROR_OUT_OF_MEMORY (2)"
    )


ROOM = """
import os
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.memory import left_on_device
from infercanary.probe.watcher import Memory

def used(size):
    with open(os.environ["FAKE_NVML"], "a") as script:
        script.write(f"memory_used 1 {size}\\n")

def beside(target, is_guest=False, reserve=None):
    memory = Memory({"c": target}, None, reserve)
    memory.owns_process = not is_guest
    return Canary("c", target, Tally(), 30, 300, memory=memory)

target = kind(path, **options)
"""

FULL_DEVICE = """
canary = beside(target)
canary.open(300)
failed = canary.failed()
found["state"], found["why"] = canary.state, failed.detail
found["contexts"] = held("cuDevicePrimaryCtxRetain")
used(70 << 30)
canary._retry_at = 0.0
canary.open(300)
found["opens"] = canary.is_open
found["left"] = left_on_device(target.device).size
canary.close(30)
"""

OF_ENGINES = {
    "tensorrt": (TENSORRT, plan(X, Y), {}),
    "onnx": (ONNX, model(), {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}),
}


@needs_cc
@pytest.mark.parametrize("kind", OF_ENGINES)
def test_a_full_device_is_left_to_its_tenant(nvml: Nvml, tmp_path: Path, session: Run, kind: str) -> None:
    """Nothing is taken of the last 300 MiB, not even by a context. When there is room it is opened."""
    body, written, options = OF_ENGINES[kind]
    (tmp_path / "engine").write_bytes(written)
    folder = nvml((80 << 30) - (300 << 20))
    found = session(folder, body + ROOM + FULL_DEVICE, path=str(tmp_path / "engine"), options=options)
    why = (
        "cannot be opened: canaries.c.device: a CUDA context, with the controls, needs 912 MiB, 912 MiB with the "
        "others; 0 MiB are left of the 80.00 GiB of cuda:0, less 1.60 GiB in reserve; choose another GPU, "
        "or free device memory"
    )
    assert found["why"].replace("cuda,", "cuda:0,") == why
    assert (found["state"], found["contexts"], found["opens"]) == ("out_of_memory", 0, True)
    assert found["left"] == (80 << 30) - (70 << 30) - int(0.02 * (80 << 30))


@needs_cc
@pytest.mark.parametrize("is_guest", [False, True])
def test_onnx_runtimes_arena_is_bound_in_a_process_of_the_probes_own(
    nvml: Nvml, tmp_path: Path, session: Run, is_guest: bool
) -> None:
    body, written, options = OF_ENGINES["onnx"]
    (tmp_path / "engine").write_bytes(written)
    script = """
canary = beside(target, is_guest, reserve=1 << 30)
canary.open(300)
found["given"] = target.session._given["CUDAExecutionProvider"].get("gpu_mem_limit")
canary.close(30)
target = kind(path, **options, provider_options={"cuda": {"gpu_mem_limit": 77}})
canary = beside(target, is_guest)
canary.open(300)
found["own"] = target.session._given["CUDAExecutionProvider"]["gpu_mem_limit"]
canary.close(30)
"""
    found = session(
        nvml(70 << 30), body + ROOM + script,
        path=str(tmp_path / "engine"), options=options, is_guest=is_guest,
    )  # fmt: skip
    assert found == {"given": None if is_guest else str(9 << 30), "own": "77"}


@needs_cc
def test_an_engines_execution_context_is_asked_for(nvml: Nvml, tmp_path: Path, session: Run) -> None:
    (tmp_path / "engine").write_bytes(plan(X, Y, device_memory=9 << 30))
    script = """
canary = beside(target)
canary.open(300)
found["why"], found["alive"] = canary.failed().detail, alive()
canary.close(30)
"""
    found = session(nvml(70 << 30), TENSORRT + ROOM + script, path=str(tmp_path / "engine"), options={})
    assert found["why"].startswith(
        "cannot be opened: canaries.c.engine: its execution context needs 9.00 GiB, 9.22 GiB with the others; "
        "8.40 GiB are left of the 80.00 GiB of cuda"
    )
    assert found["alive"] == {}


@needs_cc
@pytest.mark.parametrize(
    ("places", "expected"), [(1, [3 << 30, 10 << 30]), (3, None)], ids=["one part", "two parts"]
)
def test_the_memory_of_a_part_of_a_gpu(
    nvml: Nvml, session: Run, places: int, expected: list[int] | None
) -> None:
    """Which of several is CUDA's, NVML does not say."""
    script = "from infercanary.probe.memory import device_memory\nfound['memory'] = device_memory(0)"
    sizes = [
        f"memory_{what} 1:{place} {size << 30}"
        for place in (0, 1)
        for what, size in (("used", 3), ("size", 10))
    ]
    assert session(nvml(0, "mig 1 1", f"mig_devices 1 {places}", *sizes), script)["memory"] == expected


def test_no_driver_at_all(tmp_path: Path) -> None:
    script = """
import sys
from types import ModuleType
from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.tensorrt import TensorRtTarget
from infercanary.command.settings import UsageError
sys.modules["tensorrt"] = ModuleType("tensorrt")
sys.modules["tensorrt"].__version__ = "10.3.0"
target = TensorRtTarget(sys.argv[1])
print(cuda_library() is not None)
try:
    target.open()
except UsageError as error:
    print(error)
print(target.cuda_missing)
"""
    engine = tmp_path / "engine"
    engine.write_bytes(plan(X, Y))
    done = subprocess.run(
        [sys.executable, "-c", script, str(engine)], capture_output=True, text=True, check=True, timeout=60
    )
    driver, *rest = done.stdout.splitlines()
    if driver == "True":
        pytest.skip("this machine has an NVIDIA driver")
    error = (
        "device: `cuda` was asked for, but no libcuda.so.1 here; check the driver, and that the container was started "
        "with the GPU"
    )
    assert rest == [error, "no_device"]
