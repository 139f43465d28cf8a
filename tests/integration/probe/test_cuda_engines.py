"""TensorRT and ONNX Runtime on a GPU: the real code and ctypes, with stand-ins for the engines and for CUDA."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from cuda_stand_in import build, build_nvml, needs_cc
from forked import run_forked
from probe_process import run_probe

pytest.importorskip("numpy")

STAND_INS = Path(__file__).parent / "stand_ins"

PRELUDE = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, stand_ins)
from device_work import held, library
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import one_line
from infercanary.probe.histogram import Tally
from infercanary.command.settings import UsageError
from infercanary.probe.targets.onnx import OnnxTarget
from infercanary.probe.targets.tensorrt import TensorRtTarget

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
found["missing"] = target.cuda_missing
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
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cuda"))


def session(folder, body, **names):
    environment = {"FAKE_NVML": str(folder / "script")}
    return run_forked(folder, PRELUDE + body, environment=environment, stand_ins=str(STAND_INS), **names)


@pytest.fixture
def run(library, tmp_path):
    def begin(engine, body, declared="{}", folder=library, **names):
        path = tmp_path / "engine"
        path.write_bytes(written(engine, declared))
        begun = {"options": OPTIONS[engine], "lines": LINES} | names
        return session(folder, TARGETS[engine] + body, path=str(path), **begun)

    return begin


def written(engine, declared):
    """Write the stand-in's engine file: JSON whose declarations replace defaults, such as the tensors x and y."""
    if declared == "junk":
        return declared.encode()
    given = json.loads(declared)
    tensors = [usual | given.pop(usual["name"], {}) for usual in TENSORS[engine]]
    if engine == "onnx":
        return json.dumps({"inputs": tensors[:1], "outputs": tensors[1:], **given}).encode()
    version = bytes(given.pop("version", (10, 3, 0, 26)))
    return b"ftrt" + bytes(20) + version + json.dumps({"tensors": tensors, **given}).encode()


X = {"name": "x", "shape": [2, 1024]}
ONNX_X = {"name": "x", "shape": ["N", 1024], "type": "tensor(float)"}
TENSORS = {"tensorrt": [X, {**X, "name": "y", "mode": "OUTPUT"}], "onnx": [ONNX_X, {**ONNX_X, "name": "y"}]}
TARGETS = {
    "tensorrt": "from tensorrt import dropped\nkind = TensorRtTarget\n",
    "onnx": "from onnxruntime import dropped\nkind = OnnxTarget\n",
}
ON_CUDA = {"providers": "cuda", "inputs": [{"shape": [2, 1024]}]}
OPTIONS = {"tensorrt": {}, "onnx": ON_CUDA}
LINES = ("h2d 70", "copy 400", "d2h 210")
each_engine = pytest.mark.parametrize("engine", TARGETS)


def expected(shape, dtype="float32", seed=0):
    """Return the output of a copy of the input, at the positions that the probe checks."""
    from infercanary.probe.targets.engines import outputs
    from infercanary.probe.targets.engines.tensors import Input, drawn, readable

    return outputs.values([readable(drawn(Input("", "x", shape, dtype, 2), seed, 0), dtype)])


DYNAMIC = (
    '{"x": {"shape": [-1, 1024], "range": [[[1, 1024], [4, 1024], [8, 1024]], [[16, 1024], [16, 1024], [32, 1024]]]},'
    ' "y": {"shape": [-1, 1024]}, "profiles": 2}'
)
# Engine | declarations of its file | options | shape, type and seed of the input | part of the environment
RUN_CASES = r"""
tensorrt | {} | {"seed": 5} | [[2, 1024], "float32", 5] | {"tensorrt": "10.3.0.26", "tensorrt_engine": "engine",\
 "tensorrt_built_by": "10.3.0.26", "tensorrt_device": "cuda",\
 "tensorrt_cuda_device": "Stand-in GPU", "tensorrt_driver_cuda": "12.4"}
tensorrt | DYNAMIC | {} | [[4, 1024]] | {}
tensorrt | DYNAMIC | {"inputs": [{"shape": [8, 1024]}]} | [[8, 1024]] | {}
tensorrt | DYNAMIC | {"inputs": {"x": {"shape": [16, 1024]}}, "profile": 1} | [[16, 1024]] | {}
tensorrt | {"x": {"shape": [1, 2048], "dtype": "BF16"}, "y": {"shape": [1, 2048], "dtype": "BF16"}} | {} |\
 [[1, 2048], "bfloat16"] | {}
tensorrt | {"x": {"shape": [1, 512], "dtype": "INT64"}, "y": {"shape": [1, 512], "dtype": "INT64"}} | {} |\
 [[1, 512], "int64"] | {}
onnx | {} | {"seed": 5} | [[2, 1024], "float32", 5] | {"onnx_provider": "CUDAExecutionProvider",\
 "onnx_nodes": "CUDAExecutionProvider 3", "onnx_device": "cuda:0", "onnx_cuda_device": "Stand-in GPU",\
 "onnx_build_cuda": "12.8", "onnx_driver_cuda": "12.4"}
onnx | {"x": {"type": "tensor(bfloat16)"}, "y": {"type": "tensor(bfloat16)"}} | {"providers": ["tensorrt", "cuda"],\
 "inputs": {"x": {"shape": [4, 1024], "dtype": "bfloat16"}}, "provider_options":\
 {"tensorrt": {"trt_fp16_enable": true}, "cuda": {"device_id": 0}}} | [[4, 1024], "bfloat16"] |\
 {"onnx_provider": "TensorrtExecutionProvider", "onnx_provider_options": "trt_fp16_enable=1"}
onnx | {"nodes": {"CUDAExecutionProvider": 4, "CPUExecutionProvider": 3}} | {} | [[2, 1024]] |\
 {"onnx_nodes": "CPUExecutionProvider 3, CUDAExecutionProvider 4", "onnx_on_cpu": "Operator0 (2 nodes), Operator1"}
onnx | {"unloadable": ["TensorrtExecutionProvider"]} | {"providers": ["tensorrt", "cuda"], "cpu_fallback": true} |\
 [[2, 1024]] | {"onnx_provider": "CUDAExecutionProvider"}
"""


def rows(table):
    return table.replace("\\\n", "").strip().splitlines()


@needs_cc
@pytest.mark.parametrize("row", rows(RUN_CASES))
def test_an_engine_runs_on_memory_of_the_device_and_leaves_nothing(run, row):
    engine, declared, options, values, components = row.replace("DYNAMIC", DYNAMIC).split(" | ")
    found = run(engine, RUNS, declared, options=OPTIONS[engine] | json.loads(options))
    assert found["before"] == {}, "nothing is allocated before opening"
    held, phases = found["open"], found["phases"]
    assert (held["retained"], held["streams"], held["allocations"], held["pinned"]) == (1, 1, 2, 2)
    assert "pushed" not in held, "between calls no context is current"
    assert (found["after"], found["priority"]) == ({}, 3), "the stream has the lowest priority"
    assert set(phases) == {"h2d", "compute", "d2h", "launch", "queue"}
    times = [phases[name] for name in ("h2d", "compute", "d2h")]
    assert times == pytest.approx([70e-6, 400e-6, 210e-6], rel=0.3)
    assert found["wall"] >= sum(times)
    assert found["batch"] == found["launches"] == 1
    assert found["values"] == found["again"] == expected(*json.loads(values))
    environment = json.loads(components)
    assert found["environment"].items() >= environment.items()
    assert ("onnx_on_cpu" in found["environment"]) == ("onnx_on_cpu" in environment)
    assert (found["device"], found["missing"]) == ("cuda" if engine == "tensorrt" else "cuda:0", "")
    whole = ["context", "engine", "runtime"] if engine == "tensorrt" else ["session"]
    assert [what for what, _ in found["dropped"]][-len(whole) :] == whole, (
        "objects are released in reverse order"
    )
    assert all(current == 1 for _, current in found["dropped"]), (
        "device objects are released inside the context"
    )


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
@pytest.mark.parametrize("contexts", [2, 1])
def test_an_engines_layers_are_profiled_in_a_context_of_their_own(run, contexts):
    found = run("tensorrt", PROFILED, json.dumps({"layers": LAYERS, "contexts": contexts}))
    assert found["as it was"]
    assert found["after"] == {}
    if contexts == 1:
        assert "TensorRT makes no execution context: " in found["raised"]
        return
    assert found["raised"] == "nothing"
    assert "TensorRT's profiler writes no trace" in found["traced"]
    engine, state, rows, walls, outside = found["profile"]
    assert (engine, state) == ("tensorrt", "ok")
    assert rows == [[name, "cuda:0", 1.0, [ms / 1e3] * 3] for name, ms in LAYERS.items()]
    assert outside == [pytest.approx(wall - 0.35e-3, abs=1e-6) for wall in walls]
    assert all(current == 1 for _, current in found["dropped"])


@needs_cc
def test_short_work_is_batched(run):
    for _ in range(3):  # a busy machine may measure late, at any time up to this one
        found = run("tensorrt", RUNS, lines=("h2d 5", "copy 20", "d2h 5"))
        if found["batched"]["compute"] < 36e-6:
            break
    assert 2 <= found["batch"] <= 5 and found["launches"] == found["batch"], "a batch takes about 100 µs"
    assert 18e-6 <= found["batched"]["compute"] < 36e-6, "the time of one inference"
    assert found["values"] == found["again"] == expected((2, 1024))


REFUSED = """
say(*lines)
canary = Canary("c", kind(path, **options), Tally(), 30, 300)
canary.open(300)
found["alive"] = alive()
say(*lines)
target = kind(path, **options)
found["error"] = raised(target.open)
found["missing"] = target.cuda_missing
target.close()
"""
# Engine | declarations of its file | options | lines for the stand-in of CUDA | message | reason why CUDA is
# missing
REFUSALS = r"""
tensorrt | {"version": [8, 6, 1, 6], "says": ["Error Code 1: Serialization (Version tag does not match)"]} | {} | |\
 ^engine: .* built by TensorRT 8\.6\.1\.6, but 10\.3\.0\.26 is installed; | version_mismatch
tensorrt | {"says": ["an incompatible device, expecting compute 9.0 got compute 8.6, please rebuild."]} | {} | |\
 compute 8\.6; this GPU has 9\.0 |
tensorrt | junk | {} | | readable by TensorRT 10\.3\.0\.26 \(Magic tag |
tensorrt | {} | {"profile": 1} | | ^profile: .* no profile 1; its last profile is 0 |
tensorrt | {"full": true} | {} | | execution context: OutOfMemory: 99 bytes |
tensorrt | DYNAMIC | {"inputs": [{"shape": [9, 1024]}]} | | ^inputs\[0\]\.shape: .* \[9, 1024\] |
tensorrt | {} | {"inputs": [{"shape": [3, 1024]}]} | | ^inputs\[0\]\.shape: |
tensorrt | {} | {"inputs": {"z": {}}} | | ^inputs: .*`z`; its inputs: x |
tensorrt | {"x": {"dtype": "FP8"}} | {} | | ^engine: .*`x` is FP8 |
tensorrt | {"y": {"format": "CHW4"}} | {} | | ^engine: .*`y` .*CHW4 |
tensorrt | {"x": {"location": "HOST"}} | {} | | ^engine: .*`x` .* host |
tensorrt | {"y": {"shape": [-1, 4], "data_dependent": true}} | {} | | ^engine: .*`y` .*depends on the data |
onnx | {"unloadable": ["CUDAExecutionProvider"]} | {} | | ^providers: .*CUDAExecutionProvider: .*\(CUDA 12\.8\) |\
 provider_missing
onnx | {"nodes": {"CPUExecutionProvider": 7}} | {} | | ^providers: .*\(7 on CPUExecutionProvider\) |
onnx | {"no_stream": true} | {} | | CUDAExecutionProvider .*user_compute_stream |
onnx | {} | {} | version 11040 | for CUDA 12.8, and the driver here runs CUDA 11.4 | version_mismatch
tensorrt | {} | {} | cuInit 1 100 | ^device: `cuda` .*CUDA_ERROR_NO_DEVICE | no_device
onnx | {} | {} | cuInit 1 100 | ^providers: `cuda` .*CUDA_ERROR_NO_DEVICE.*, or set `pro | no_device
tensorrt | {} | {"device": "cuda:1"} | | ^device: `cuda:1` .*no GPU 1 .*CUDA_ERROR_INVALID_DEVICE |
onnx | {} | {"provider_options": {"cuda": {"device_id": 1}}} | |\
 ^provider_options: device_id 1 .*no GPU 1 .*CUDA_ERROR_INVALID_DEVICE |
"""
FULL = [
    f"{engine} | {{}} | {{}} | {call} 1 2 | ^CudaError: {call}: CUDA_ERROR_OUT_OF_MEMORY |"
    for engine in TARGETS
    for call in ("cuMemHostAlloc", "cuMemAlloc_v2", "cuEventCreate")
]


@needs_cc
@pytest.mark.parametrize("row", [*rows(REFUSALS), *FULL])
def test_a_failed_opening_is_one_line_and_leaves_nothing(run, row):
    engine, declared, options, line, message, missing = (cell.strip() for cell in row.split(" |"))
    declared = declared.replace("DYNAMIC", DYNAMIC)
    found = run(engine, REFUSED, declared, options=OPTIONS[engine] | json.loads(options), lines=[line])
    assert re.search(message, found["error"]), found["error"]
    assert "\n" not in found["error"]
    assert (found["missing"], found["alive"]) == (missing, {})


@needs_cc
def test_an_engine_that_fails_in_a_run(run):
    body = """
target = TensorRtTarget(path)
target.open()
found["error"] = raised(lambda: target.clock.measure(target.run))
target.close()
found["alive"] = alive()
"""
    error = "RuntimeError: TensorRT cannot enqueue the engine: Cask convolution execution"
    assert run("tensorrt", body, '{"breaks": true}') == {"error": error, "alive": {}}


@needs_cc
@pytest.mark.parametrize("wheels", [False, True])
def test_cuda_that_comes_as_wheels_is_loaded_first(run, tmp_path, wheels):
    """The command prints nothing on standard output, which is only for the report of ``--once``."""
    body = """
import contextlib, io, onnxruntime
sys.path.insert(0, site)
target = OnnxTarget(path, **options)
with contextlib.redirect_stdout(io.StringIO()) as out:
    target.open()
target.close()
found["preloaded"], found["printed"] = onnxruntime.preloaded, out.getvalue()
"""
    (tmp_path / "site" / "nvidia").mkdir(parents=True)
    if not wheels and importlib.util.find_spec("nvidia") is not None:
        pytest.skip("CUDA's wheels are installed here")
    site = str(tmp_path / "site" if wheels else tmp_path)
    assert run("onnx", body, site=site) == {"preloaded": int(wheels), "printed": ""}


@needs_cc
def test_both_in_a_probe_with_the_controls_of_the_gpu(library, tmp_path):
    for engine in TARGETS:
        (tmp_path / engine).write_bytes(written(engine, "{}"))
    canaries = (
        "{rt: {target: tensorrt, options: {engine: tensorrt}}, ort: {target: onnx, options: {model: onnx,"
    )
    canaries += " providers: [cuda], inputs: [{shape: [2, 1024]}]}}}"
    path = os.pathsep.join(filter(None, [str(STAND_INS), os.environ.get("PYTHONPATH", "")]))
    code, out, said = run_probe(
        tmp_path, canaries, "--once", modules=tmp_path, LD_LIBRARY_PATH=str(library), PYTHONPATH=path
    )
    assert code == 0, said
    out = out.replace("\xa0", " ")
    for name in ("rt", "ort"):
        block = " ".join(out.partition(f"canary {name}: ")[2].partition("\n\ncanary ")[0].split("\n"))
        assert re.search(r"  phases .*\bh2d [\d.].*\bcompute [\d.].*\bd2h [\d.].*\blaunch [\d.]", block), (
            block
        )
    for line in ("gpu_fma +cuda:0 +[\\d.]+ µs", "TensorRT +10.3.0.26", "provider +CUDAExecutionProvider"):
        assert re.search(f"^  {line}$", out, re.MULTILINE), line
    assert "should run on CUDA" not in out


UNFIT = """
from infercanary.probe.targets.engines.cuda_versions import driver_cuda, unfit_driver
for built, version in pairs:
    say(f"version {version}")
    found[f"{built} on {driver_cuda()}"] = unfit_driver("it", built)
for code, built in ((804, "13.0"), (803, "12.4"), (100, "12.4")):
    say("version 13000", f"cuInit 1 {code}")
    found[str(code)] = unfit_driver("it", built)
"""


@needs_cc
def test_a_driver_runs_versions_by_nvidias_rules(library):
    """A driver always runs older versions of CUDA. From CUDA 11 on, it also runs newer versions of the same
    major release.
    """
    pairs = [("11.8", 12040), ("12.8", 12040), ("11.8", 11000), ("13.0", 12020), ("12.1", 11040), ("14.0", 13000),
             ("10.2", 10010), ("10.1", 10020), ("11.0", 10020), ("", 12040)]  # fmt: skip
    found = session(library, UNFIT, pairs=pairs)
    updates = {name: re.findall(r"update the driver to (.*), or install a build for CUDA (.*)", text)
               for name, text in found.items() if text}  # fmt: skip
    assert updates == {
        "13.0 on 12.2": [("580 or newer", "12")], "12.1 on 11.4": [("525 or newer", "11")],
        "14.0 on 13.0": [("one for CUDA 14.0", "13")], "10.2 on 10.1": [("one for CUDA 10.2", "10.1")],
        "11.0 on 10.2": [("450.80.02 or newer", "10.2")], "804": [], "803": [],
    }  # fmt: skip
    assert "remove cuda-compat from the image" in found["804"]
    assert "LD_LIBRARY_PATH" in found["803"]


OLD_DRIVER = """
import torch
from infercanary.probe.canary_metrics import CUDA_MISSING, DETAIL
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
def test_a_driver_that_is_too_old_for_torch(library):
    pytest.importorskip("torch")
    found = session(library, OLD_DRIVER)
    assert found.pop("detail").startswith(
        "c|version_mismatch|cannot be opened: device: `cuda` was asked for, but torch"
    )
    environment = {"torch_cuda": "13.0", "torch_driver_cuda": "12.2", "torch_device": None}
    assert found == {"missing": "c|version_mismatch", "environment": environment, "ends": False}


SHORT = """
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
@each_engine
def test_memory_that_does_not_suffice_is_waited_out(run, function, place, engine):
    found = run(engine, SHORT, function=function)
    detail = found.pop("detail")
    assert detail.startswith(f"cannot be opened: out of memory ({place}): ")
    assert function in detail
    assert found == {"reason": "out_of_memory", "alive": {}, "waits": True, "opens": True}


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Yield a function that sets the used memory of the GPU (NVML's second one) and returns the libraries' folder."""
    folder = build_nvml(build(tmp_path_factory.mktemp("nvml")))

    def write(used, *lines):
        said = ["gpus * 2", f"bus 1 {0x41}", f"memory_size 1 {80 << 30}", f"memory_used 1 {used}", *lines]
        (folder / "script").write_text("\n".join(said) + "\n")
        return folder

    return write


FULL_LINE = """
from infercanary.probe.memory import describe_shortage, place_of
from infercanary.probe.gpu.cuda_driver import CudaError
error = CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY")
found["line"] = describe_shortage(error, place_of(error, "cuda"), "cuda")
"""


@needs_cc
def test_device_memory_in_use_by_nvml(nvml):
    line = session(nvml(79 << 30), FULL_LINE)["line"]
    assert line.startswith(
        "out of memory (device): 79.00 GiB of 80.00 GiB in use on cuda:0; CudaError: cuMemAlloc_v2"
    )


ROOM = """
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
found["state"], found["why"] = canary.state, canary.failed().detail
found["contexts"] = held("cuDevicePrimaryCtxRetain")
used(70 << 30)
canary._retry_at = 0.0
canary.open(300)
found["opens"] = canary.is_open
found["left"] = left_on_device(target.device).size
canary.close(30)
"""


@needs_cc
@each_engine
def test_a_full_device_is_left_to_its_tenant(nvml, run, engine):
    """The canary uses none of the device's last 300 MiB, not even for a context. It opens as soon as there is room."""
    folder = nvml((80 << 30) - (300 << 20))
    found = run(engine, ROOM + FULL_DEVICE, folder=folder)
    why = "canaries.c.device: a CUDA context, with the controls, needs 912 MiB, 912 MiB with the others; 0 MiB are left"
    assert why in found.pop("why")
    left = (80 << 30) - (70 << 30) - int(0.02 * (80 << 30))
    assert found == {"state": "out_of_memory", "contexts": 0, "opens": True, "left": left}


ARENA = """
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


@needs_cc
@pytest.mark.parametrize("is_guest", [False, True])
def test_onnx_runtimes_arena_is_bound_in_a_process_of_the_probes_own(nvml, run, is_guest):
    found = run("onnx", ROOM + ARENA, folder=nvml(70 << 30), is_guest=is_guest)
    assert found == {"given": None if is_guest else str(9 << 30), "own": "77"}


CONTEXT = """
canary = beside(target)
canary.open(300)
found["why"], found["alive"] = canary.failed().detail, alive()
canary.close(30)
"""


@needs_cc
def test_an_engines_execution_context_is_asked_for(nvml, run):
    found = run("tensorrt", ROOM + CONTEXT, json.dumps({"device_memory": 9 << 30}), folder=nvml(70 << 30))
    assert "canaries.c.engine: its execution context needs 9.00 GiB, 9.22 GiB with the others" in found["why"]
    assert "8.40 GiB are left of the 80.00 GiB of cuda" in found["why"]
    assert found["alive"] == {}


@needs_cc
@pytest.mark.parametrize(("places", "memory"), [(1, [3 << 30, 10 << 30]), (3, None)])
def test_the_memory_of_a_part_of_a_gpu(nvml, places, memory):
    """If a GPU has several MIG parts, NVML does not say which of them CUDA uses."""
    script = "from infercanary.probe.memory import device_memory\nfound['memory'] = device_memory(0)"
    sizes = [
        f"memory_{what} 1:{part} {size << 30}"
        for part in (0, 1)
        for what, size in (("used", 3), ("size", 10))
    ]
    folder = nvml(0, "mig 1 1", f"mig_devices 1 {places}", *sizes)
    assert session(folder, script)["memory"] == memory


NO_DRIVER = """
from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.controls import available_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.tensorrt import TensorRtTarget
from types import ModuleType
import sys
sys.modules["tensorrt"] = ModuleType("tensorrt")
sys.modules["tensorrt"].__version__ = "10.3.0"
target = TensorRtTarget(path)
found["driver"] = cuda_library() is not None
try:
    target.open()
except Exception as error:
    found["error"] = str(error)
found["missing"] = target.cuda_missing
found["names"] = list(available_controls("cuda")[0])
try:
    cuda_controls(0, None)["gpu_fma"]().__enter__()
except Exception as error:
    found["control"] = str(error)
"""


def test_no_driver_at_all(tmp_path):
    engine = tmp_path / "engine"
    engine.write_bytes(written("tensorrt", "{}"))
    found = run_forked(tmp_path, NO_DRIVER, path=str(engine))
    if found["driver"]:
        pytest.skip("this machine has an NVIDIA driver")
    assert found["error"].startswith("device: `cuda` was asked for, but no libcuda.so.1 here; check")
    assert (found["missing"], found["names"]) == ("no_device", [])
    assert found["control"] == "no libcuda.so.1 here"
