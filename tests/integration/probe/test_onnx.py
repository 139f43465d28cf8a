"""ONNX Runtime in a probe's own process, beside torch with the same model; and what docs/targets/onnx.md says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from watching import Seen, fetch, until

from infercanary.contract.report import relative_error
from infercanary.probe import TorchTarget
from infercanary.probe.targets.engines.tensors import Input, drawn
from infercanary.probe.targets.onnx import OnnxTarget

pytestmark = pytest.mark.takes(40)

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "resnet18"
PAGE = ROOT / "docs" / "targets" / "onnx.md"
COMMAND = [sys.executable, "-m", "infercanary", "probe"]

# torch draws its own numbers; this one has the ONNX target's.
SAME_INPUT = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
import torch
from infercanary.probe.targets.engines.tensors import Input, drawn
from model import SHAPE, build

def resnet18():
    model, image = build(), torch.from_numpy(drawn(Input("", "image", SHAPE, "float32", 2), 0, 0))
    return lambda: model(image)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx_profiler import resnet18

    return resnet18(tmp_path_factory.mktemp("model"))


@contextmanager
def running(config: Path) -> Iterator[str]:
    """A probe's process and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = config.read_text()
    config.write_text(f"listen: 127.0.0.1:{port}\ninterval_seconds: 0.1\nduty_cap: 1\n{text}")
    with (config.parent / "log").open("wb") as log:
        # Engines' threads that wait for one another on a busy machine take its CPUs meanwhile.
        process = subprocess.Popen(
            [*COMMAND, "--config", str(config)], cwd=config.parent, stdout=log, stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_torch_and_onnx_side_by_side_agree(model: Path, tmp_path: Path) -> None:
    (tmp_path / "same_input.py").write_text(SAME_INPUT)
    config, shape = tmp_path / "probe.yaml", "shape: [1, 3, 224, 224]"
    config.write_text(
        "canaries:\n"
        "  in_torch: {target: torch, options: {model: 'same_input:resnet18', inputs: []}}\n"
        f"  in_onnx: {{target: onnx, options: {{model: {model}, intra_op_threads: 1, inputs: [{{{shape}}}]}}}}\n"
    )
    with running(config) as address:

        def both_steady() -> Seen | None:
            try:
                seen = fetch(address)
            except OSError:
                return None
            return seen if {"in_torch", "in_onnx"} <= seen.report.outputs.keys() else None

        seen: Seen = until(both_steady, "they did not both become steady", seconds=300)
    ours, theirs = (seen.report.outputs[name] for name in ("in_onnx", "in_torch"))
    assert len(ours) == len(theirs) > 30
    assert relative_error(ours, theirs) < 1e-4
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-4
    for name in ("in_torch", "in_onnx"):
        assert seen.runs(name, "ok") >= 1
        assert (seen.value("infercanary_phase_seconds", name, "compute") or 0) > 0
        assert (seen.value("infercanary_latency_seconds", name) or 0) > 0
    environment = seen.report.environment
    assert environment["torch"] == torch.__version__
    assert environment["onnx_provider"] == "CPUExecutionProvider"
    assert {run.canary for run in seen.report.runs} == {"in_torch", "in_onnx"}
    assert "infercanary_cuda_missing" not in seen.families, "nobody asked for CUDA"
    assert (seen.value("infercanary_thread_oversubscription_ratio") or 0) > 0


def test_all_outputs_agree(model: Path) -> None:
    image = torch.from_numpy(drawn(Input("", "image", (1, 3, 224, 224), "float32", 2), 0, 0))
    sys.path.insert(0, str(EXAMPLE))
    from model import build

    outputs = []
    for target in (OnnxTarget(str(model)), TorchTarget(build(), image)):
        target.open()
        outputs.append(target.values(target.clock.measure(target.run)[1]))
        target.close()
    assert len(outputs[0]) == len(outputs[1]) == 1000
    assert max(abs(a - b) for a, b in zip(*outputs, strict=True)) < 1e-4


def test_compute_is_what_onnx_runtimes_profiler_says(model: Path, tmp_path: Path) -> None:
    """Of the very same runs, so that a busy machine is in both; what is measured is what lies between the two."""
    from onnx_profiler import compare

    found = compare(tmp_path, model, repeats=50)
    assert len(found.compute) == len(found.model_run) == 50
    assert all(ours >= theirs - 2e-6 for ours, theirs in zip(*found, strict=True)), "it is inside"
    assert 1 <= found.median < 1.03


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_example_of_the_page_works_as_it_stands(tmp_path: Path) -> None:
    (export,), (config,), (command,) = blocks("python"), blocks("yaml"), blocks("sh")
    (tmp_path / "export.py").write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLE)!r})\n{export}")
    (tmp_path / "probe.yaml").write_text(config)
    for line in ([sys.executable, "export.py"], [*COMMAND, *command.split()[2:]]):
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert command.split()[:2] == ["infercanary", "probe"]
    assert re.search(
        r"^canary resnet18: (steady|warming)\n\n  latency      median ", done.stdout, re.MULTILINE
    )
    assert re.search(r"^  phases       compute [\d.]+ [µm]s", done.stdout, re.MULTILINE)
    assert "\n  ONNX Runtime " in done.stdout
    for row in ("provider +CPUExecutionProvider", "intra-op threads +2", r"granted CPUs +[\d.]+"):
        assert re.search(f"^  {row}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "{model: MODEL, providers: [OpenVINOExecutionProvider]}",
            r"providers: `OpenVINOExecutionProvider` was asked for, but onnxruntime \S+ is a build without "
            r"OpenVINOExecutionProvider \(it has .*\); install a build that has it, or set `providers: \[cpu\]`",
        ),
        ("{model: nowhere.onnx}", r"model: no file `nowhere.onnx`; check the path \(it starts at .*\)"),
        (
            "{model: MODEL, inputs: {image: {shape: [1, 3, 224, 224]}}}",
            r"inputs: the model has no input `image`; its inputs: \S+",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    model: Path, tmp_path: Path, options: str, expected: str
) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built with CUDA")
    config = tmp_path / "probe.yaml"
    canaries = f"{{c: {{target: onnx, options: {options.replace('MODEL', str(model))}}}}}"
    config.write_text(
        f"listen: 127.0.0.1:0\ncanaries: {canaries}\n"
    )  # another test may have the default port
    done = subprocess.run(
        [*COMMAND, "--config", str(config), "--log-level", "error"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"infercanary: {re.escape(str(config))}: canaries\.c: {expected}\n", done.stderr), (
        done.stderr
    )


def test_a_build_without_cuda_is_refused(model: Path, tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built with CUDA")
    config = tmp_path / "probe.yaml"
    config.write_text(f"canaries: {{c: {{target: onnx, options: {{model: {model}, providers: [cuda]}}}}}}\n")
    done = subprocess.run(
        [*COMMAND, "--config", str(config), "--once"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    expected = (
        r"^canary c: cannot be opened: providers: `cuda` was asked for, but onnxruntime \S+ is a build without "
        r"CUDAExecutionProvider \(it has .*\); install onnxruntime-gpu in its place, or set `providers: \[cpu\]`$"
    )
    assert re.search(expected, done.stderr, re.MULTILINE), done.stderr
    assert "c it was to run on CUDA, but its engine is a CPU-only build" in " ".join(done.stdout.split())


def test_by_leave_it_runs_on_the_cpu_and_the_report_says_why(model: Path, tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built with CUDA")
    config = tmp_path / "probe.yaml"
    options = f"{{model: {model}, providers: [cuda], cpu_fallback: true}}"
    config.write_text(f"canaries: {{c: {{target: onnx, options: {options}}}}}\n")
    with running(config) as address:

        def ran() -> Seen | None:
            try:
                seen = fetch(address)
            except OSError:
                return None
            return seen if seen.runs("c", "ok") else None

        seen: Seen = until(ran, "it did not run", seconds=300)
    missing = {
        r: seen.value("infercanary_cuda_missing", "c", r)
        for r in ("cpu_only_build", "no_libraries", "no_device")
    }
    assert missing == {"cpu_only_build": 1, "no_libraries": 0, "no_device": 0}
    assert seen.report.environment["onnx_provider"] == "CPUExecutionProvider"


def test_the_page_says_every_option() -> None:
    import inspect

    table = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert set(inspect.signature(OnnxTarget).parameters) == named
