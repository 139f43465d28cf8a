"""`infercanary doctor --limits` in a separate process, with real engines."""

import json
import os
import subprocess
import sys
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from jsonschema import validate

from infercanary.doctor.limits import schema
from infercanary.probe import limits
from infercanary.probe.roofline import Ceilings
from infercanary.probe.targets.onnx import OnnxTarget

pytest.importorskip("torch")
pytestmark = [pytest.mark.takes(20), pytest.mark.large]

ROOT = Path(__file__).parents[3]
MODELS = """
import time
import torch

def product():
    a, b = torch.ones(2, 384, 384)  # shorter than a time slice
    return lambda _: torch.mm(a, b)

def stream():
    source, target = torch.ones(2, 1 << 20)
    return lambda _: target.copy_(source)

def sleep():
    def run(x):
        time.sleep(0.01)
        return x + 1
    return run

def sort():
    data = torch.rand(200_000)
    return lambda _: data.sort().values

def weights():
    return torch.nn.Linear(3000, 3000)
"""
CANARIES = "canaries:\n" + "".join(
    f"  {name}: {{target: torch, options: {{model: 'models:{name}', inputs: [{{shape: {shape}}}]}}}}\n"
    for name, shape in (
        ("product", [1]), ("stream", [1]), ("sleep", [1]), ("weights", [1, 3000]), ("sort", [1]),
    )
)  # fmt: skip


def doctor(folder, canaries, *arguments):
    (folder / "models.py").write_text(MODELS)
    (folder / "probe.yaml").write_text(canaries)
    return subprocess.run(
        [sys.executable, "-m", "infercanary", "doctor", "--limits", "probe.yaml", *arguments],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}, capture_output=True, text=True,
    )  # fmt: skip


def test_each_canary_has_its_limit(tmp_path):
    done = doctor(tmp_path, CANARIES, "--json")
    answer = json.loads(done.stdout)
    validate(answer, json.loads((ROOT / "docs/schemas/limits.v1.json").read_text()))
    found = {canary["canary"]: canary for canary in answer["canaries"]}
    operators = {
        name: {row["operator"]: row for row in canary["operators"]} for name, canary in found.items()
    }
    assert operators["product"]["aten::mm"]["limit"] == "compute"
    # Other tests may use the bandwidth while its ceiling is measured.
    assert operators["product"]["aten::mm"]["arithmetic"] > 2 * operators["product"]["aten::mm"]["bandwidth"]
    assert operators["stream"]["aten::copy_"]["limit"] == "memory"
    assert operators["stream"]["aten::copy_"]["arithmetic"] == 0
    assert found["sleep"]["limit"] == "scheduling"
    assert max(found["sleep"]["causes"], key=found["sleep"]["causes"].get) == "lock or sleep"
    assert found["weights"]["useful_batch"] in (2, 4, 8, 16, 32, 64), "each row of the weights is read once"
    assert found["stream"]["useful_batch"] is None, "the model ignores its inputs"
    assert operators["sort"]["aten::sort"]["limit"] == "unknown", "no work is known"
    assert done.returncode == (3 if "unknown" in {canary["limit"] for canary in found.values()} else 0)
    assert "canary sort: profiling, timing" in done.stderr, "long work shows progress"


def test_the_text_begins_with_the_sentence(tmp_path):
    done = doctor(tmp_path, CANARIES.partition("  sort:")[0])
    assert done.stdout.startswith("canary product: "), done.stderr
    assert "canary sleep: scheduling-bound: " in done.stdout


def test_onnx_runtimes_operators_have_their_work(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "product.onnx").write_bytes(limits._MATMUL)
    target = OnnxTarget(
        str(tmp_path / "product.onnx"), {"a": {"shape": [64, 256]}, "b": {"shape": [256, 512]}}
    )
    target.open()
    profile = target.profile(3)
    ceilings = limits._ceilings(target, profile, "cpu")
    target.close()
    assert isinstance(ceilings, Ceilings)
    [row] = profile.rows
    assert (row.kind, row.flops) == ("MatMul", pytest.approx(2 * 64 * 256 * 512, rel=1e-3))
    assert row.bytes == pytest.approx(4 * (64 * 256 + 256 * 512 + 64 * 512), rel=1e-3)
    assert 1e9 < ceilings.flops_per_second < 1e14
    assert 1e9 < ceilings.bytes_per_second < 1e13


def test_without_a_profiler_the_reason_is_named(tmp_path):
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        done = doctor(tmp_path, f"canaries: {{page: {{target: http, options: {{url: '{url}'}}}}}}")
        server.shutdown()
    assert done.returncode == 3, done.stderr
    sentence = " ".join(done.stdout.split())
    assert sentence.startswith("canary page: unknown: "), done.stdout
    assert "this target has no profiler" in sentence


def test_a_missing_file_is_one_line(tmp_path):
    command = [sys.executable, "-m", "infercanary", "doctor", "--limits", "none.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "none.yaml" in done.stderr


def test_the_schema_is_the_stored_one():
    assert json.loads((ROOT / "docs/schemas/limits.v1.json").read_text()) == schema()
