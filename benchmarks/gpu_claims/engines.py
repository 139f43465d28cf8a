"""Claims on engines: ONNX Runtime on CUDA, torch's modes, and a server with continuous batching."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_claims.claim import Measured, interval
from gpu_claims.step import NotRun, Place, need, step, torch_module
from gpu_claims.timing import target
from infercanary.contract.report import OUTPUT_TOLERANCE, relative_error
from infercanary.probe.targets.onnx import OnnxTarget

_START_SECONDS = 180.0
_TOKENS, _COMPLETIONS = 32, 12
_TINY_LLAMA = Path(__file__).with_name("tiny_llama.py")


@step("engine-modes", "eager, CUDA graph and max-autotune: the same output")
def modes(place: Place) -> list[Measured]:
    """Measure the largest relative error of each mode's output compared with eager mode."""
    torch_module(place)
    wanted = ["eager", "torchscript"]
    if place.on_gpu:
        wanted += ["graph", *(["max-autotune"] if importlib.util.find_spec("triton") else [])]
    outputs = {}
    for mode in wanted:
        each = target(place, mode)
        each.open()
        outputs[mode] = each.values(each.clock.measure(each.run)[1])
        each.close()
    errors = {mode: relative_error(outputs[mode], outputs["eager"]) for mode in wanted[1:]}
    return [
        Measured(
            f"{mode}: its output is eager's",
            f"≤ {OUTPUT_TOLERANCE:g}",
            error,
            error,
            error,
            most=OUTPUT_TOLERANCE,
        )
        for mode, error in errors.items()
    ]


def _model(path: Path) -> str:
    """Make an ONNX model of a matrix multiplication and of an operator without a CUDA kernel (Unique)."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["p"], name="product"),
        helper.make_node("Unique", ["p"], ["u"], name="falls_back", sorted=1),
        helper.make_node("ReduceSum", ["u"], ["y"], name="total", keepdims=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    path.write_bytes(made.SerializeToString())
    return str(path)


@step(
    "engine-onnxruntime", "ONNX Runtime: order of providers, and the name of an operator that runs on the CPU"
)
def onnxruntime(place: Place) -> list[Measured]:
    """Check the order of providers, and the name of the operator that runs on the CPU.

    A GPU needs onnxruntime-gpu; without a GPU, all operators run on the CPU.
    """
    need("onnxruntime", "onnx", "numpy")
    import onnxruntime as ort

    available = ort.get_available_providers()
    if place.on_gpu and "CUDAExecutionProvider" not in available:
        raise NotRun(
            f"onnxruntime {ort.__version__} has no CUDA provider: install onnxruntime-gpu in place of it"
        )
    provider = "cuda" if place.on_gpu else "cpu"
    each = OnnxTarget(_model(place.folder / "mixed.onnx"), [{"shape": [64, 64]}], providers=[provider])
    each.open()
    for _ in range(3):
        each.clock.measure(each.run)
    environment = dict(each.environment())
    if place.on_gpu:
        on_cpu = environment.get("onnx_on_cpu", "")
    else:
        on_cpu = ", ".join(sorted({row.kind for row in each.profile(5).rows if row.device == "cpu"}))
    each.close()
    first = environment.get("onnx_provider", "")
    right = float(first == ("CUDAExecutionProvider" if place.on_gpu else "CPUExecutionProvider"))
    named = float("Unique" in on_cpu)
    return [
        Measured(
            "ONNX Runtime: the provider that was asked for comes first",
            "yes (1)",
            right,
            right,
            right,
            least=1,
            note=first,
        ),
        Measured(
            "ONNX Runtime: the operator on the CPU is named",
            "yes (1)",
            named,
            named,
            named,
            least=1,
            note=on_cpu,
        ),
    ]


@step("engine-streaming", "a stream of a server with continuous batching (Transformers)")
def streaming(place: Place) -> list[Measured]:
    """Compare the sum of a stream's phases with its whole duration.

    The model is tiny and has random weights, so nothing is downloaded.
    """
    torch_module(place)
    command = Path(sys.executable).with_name("transformers")
    if importlib.util.find_spec("transformers") is None or not (
        command.exists() or shutil.which("transformers")
    ):
        raise NotRun("needs transformers[serving]")
    from infercanary.probe.targets import make

    with _serving(place, str(command if command.exists() else "transformers")) as url:
        options = {"url": f"{url}/v1", "model": "./tiny", "prompt": "Once upon a time", "max_tokens": _TOKENS}
        each: Any = make("openai", options)
        each.open()
        try:
            found = [each.clock.measure(each.run) for _ in range(place.times(_COMPLETIONS))][1:]
        finally:
            each.close()
    wholes = [sum(timing.phases.values()) / timing.wall for timing, _ in found]
    tokens = [completion.tokens for _, completion in found]
    between = statistics.median(c.between for _, c in found if c.between)
    return [
        Measured(
            "the phases of a stream are its whole",
            "within 2 % of 1",
            *interval(wholes),
            0.98,
            1.02,
            note=f"{statistics.median(tokens)} tokens, {between * 1e3:.2f} ms between two",
        )
    ]


@contextmanager
def _serving(place: Place, command: str) -> Iterator[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place.folder)}
    subprocess.run(
        [sys.executable, str(_TINY_LLAMA)],
        cwd=place.folder,
        check=True,
        capture_output=True,
        env=environment,
        timeout=300,
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = [
        "serve",
        "./tiny",
        f"--device={place.device}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--continuous-batching",
    ]
    with (place.folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [command, *given], cwd=place.folder, stdout=log, stderr=log, env=environment
        )
    try:
        until = time.monotonic() + _START_SECONDS
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > until:
                said = (place.folder / "server.log").read_text(errors="replace").strip()[-300:]
                raise NotRun(f"transformers serve does not answer: {said}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
        return bool(response.status == 200)
    return False


def _needs(name: str, modules: tuple[str, ...], what: str) -> None:
    def measure(place: Place) -> list[Measured]:
        need(*modules)
        raise NotRun(what)

    step(f"engine-{name}", f"{name} on the GPU", needs_gpu=True)(measure)


_needs(
    "vllm",
    ("vllm",),
    "no model for vLLM is given; run `vllm serve`, and measure it with the target `openai`",
)
_needs(
    "sglang",
    ("sglang",),
    "no model for SGLang is given; start SGLang, and measure it with the target `openai`",
)
_needs("mps", (), "needs an MPS daemon (as root: nvidia-cuda-mps-control -d) and a second tenant")
_needs(
    "locked-clocks", (), "needs root on the host; clock locks are tested only with a stand-in for the driver"
)
