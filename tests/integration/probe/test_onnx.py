"""ONNX Runtime in the probe's process, compared with torch; the tests also check the statements of
docs/targets/onnx.md.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from probe_process import PROBE, ProbeProcess

from infercanary.contract.report import relative_error

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.takes(40),
    pytest.mark.skipif(
        "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
        reason="onnxruntime is built with CUDA",
    ),
]

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "resnet18"
PAGE = ROOT / "docs" / "targets" / "onnx.md"

# The torch target generates other inputs, so the test copies the inputs of the ONNX target.
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
def model(tmp_path_factory):
    from onnx_profiler import resnet18

    return resnet18(tmp_path_factory.mktemp("model"))


def test_torch_and_onnx_side_by_side_agree_and_by_leave_one_that_asks_for_cuda_runs_on_the_cpu(
    model, tmp_path
):
    (tmp_path / "same_input.py").write_text(SAME_INPUT)
    canaries = (
        "{in_torch: {target: torch, options: {model: 'same_input:resnet18', inputs: []}}, "
        f"in_onnx: {{target: onnx, options: {{model: {model}, intra_op_threads: 1, "
        "inputs: [{shape: [1, 3, 224, 224]}], providers: [cuda], cpu_fallback: true}}}"
    )
    # On a busy machine, the engine's threads use CPU time while they wait for each other.
    with ProbeProcess(tmp_path, canaries, modules=tmp_path, environment={"OMP_NUM_THREADS": "1"}) as probe:
        seen = probe.until(lambda s: len(s.report.outputs) == 2, "a canary did not become steady")
        assert probe.end() == 0
    ours, theirs = (seen.report.outputs[name] for name in ("in_onnx", "in_torch"))
    assert len(ours) == len(theirs) > 30
    assert relative_error(ours, theirs) < 1e-4
    missing = [
        seen.value("infercanary_cuda_missing", *labels)
        for labels in (
            ("in_onnx", "cpu_only_build"),
            ("in_onnx", "no_device"),
            ("in_torch", "cpu_only_build"),
        )
    ]
    assert missing == [1, 0, None], "in_torch has not asked for CUDA"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_example_of_the_page_works_as_it_stands(tmp_path):
    (export, *_), (config,), (command,) = blocks("python"), blocks("yaml"), blocks("sh")
    (tmp_path / "export.py").write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLE)!r})\n{export}")
    (tmp_path / "probe.yaml").write_text(config)
    for line in ([sys.executable, "export.py"], [*PROBE, *command.split()[2:]]):
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert command.split()[:2] == ["infercanary", "probe"]
    for row in (
        r"canary resnet18: (steady|warming)\n\n  latency      median .*",
        r"  phases       compute [\d.]+ [µm]s.*",
        "  ONNX Runtime .*", "  provider +CPUExecutionProvider", "  intra-op threads +2", r"  granted CPUs +[\d.]+",
    ):  # fmt: skip
        assert re.search(f"^{row}$", done.stdout, re.MULTILINE), row
