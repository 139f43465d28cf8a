"""What of the TensorRT target needs neither TensorRT nor a GPU: its options, and its words for what TensorRT logs."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.config import read
from infercanary.probe.targets.engines.tensorrt_plan import built_by, why_not
from infercanary.probe.targets.tensorrt import TensorRtTarget

FIX = "rebuild it with trtexec of this version, on this GPU"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": 5}, "engine: name a TensorRT engine file"),
        ({"engine": ""}, "engine: name a TensorRT engine file"),
        ({"device": "cpu"}, "device: `cpu` is none of cuda, cuda:N"),
        ({"device": "cuda:x"}, "device: `cuda:x` is none of cuda, cuda:N"),
        ({"device": 0}, "device: `0` is none of cuda, cuda:N"),
        ({"profile": -1}, "profile: `-1` is not a whole number"),
        ({"profile": True}, "profile: `True` is not a whole number"),
        ({"seed": 2**62}, "seed: `4611686018427387904` is not a whole number"),
        ({"inputs": "x"}, "inputs: a list is needed"),
        ({"inputs": [{"shape": "x"}]}, r"inputs\[0\]: shape: expected a list, got text"),
    ],
)
def test_a_wrong_argument_is_refused_immediately(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TensorRtTarget(**({"engine": "model.engine"} | options))
    assert "\n" not in str(caught.value)


def test_where_it_was_asked_to_run() -> None:
    assert TensorRtTarget("m.engine").device == "cuda"
    assert TensorRtTarget("m.engine", device="cuda:3").device == "cuda:3"


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed here")
def test_without_tensorrt() -> None:
    with pytest.raises(
        UsageError, match=r"tensorrt cannot be imported \(No module named 'tensorrt'\); install the"
    ):
        TensorRtTarget("m.engine").open()


def test_an_engine_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))
    for path in (tmp_path / "none.engine", tmp_path):
        with pytest.raises(UsageError) as caught:
            TensorRtTarget(str(path)).open()
        assert str(path) in str(caught.value) and "check the path" in str(caught.value)


def head(tag: bytes = b"ftrt", layout: int = 0, version: tuple[int, ...] = (10, 3, 0, 26)) -> bytes:
    return tag + layout.to_bytes(4, "little") + bytes(16) + bytes(version)


def test_the_version_in_an_engines_head() -> None:
    assert built_by(head() + b"more") == "10.3.0.26"
    assert built_by(head(version=(8, 6, 1, 6))) == "8.6.1.6"
    assert built_by(head(tag=b"ptrt")) is None
    assert built_by(head(layout=1)) is None, "where the version is in another layout is not known"
    assert built_by(head()[:-1]) is None
    assert built_by(b"") is None


# As they are in TensorRT's issues.
OTHER_LIBRARY = (
    "The engine plan file is not compatible with this version of TensorRT, expecting library version {} got {}, please "
    "rebuild."
)
OTHER_GPU = (
    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an "
    "incompatible device, expecting compute 8.9 got compute 8.6, please rebuild.)"
)
OTHER_TAG = (
    "Error Code 1: Serialization (Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag "
    "does not match. Note: Current Version: 237, Serialized Engine Version: 239)"
)


@pytest.mark.parametrize(
    ("said", "built", "runtime", "expected"),
    [
        (OTHER_TAG, "8.6.1.6", "10.3.0", f"was built by TensorRT 8.6.1.6; this is 10.3.0; {FIX}"),
        ("", "10.2.0.19", "10.3.0", f"was built by TensorRT 10.2.0.19; this is 10.3.0; {FIX}"),
        (OTHER_TAG, None, "10.3.0", f"was built by another TensorRT than this, which is 10.3.0; {FIX}"),
        (
            OTHER_LIBRARY.format("8.0.0", "8.0.1"), None, "8.0.0.3",
            f"was built by another TensorRT than this, which is 8.0.0.3; {FIX}",
        ),
        (
            OTHER_LIBRARY.format("10.12.0.36", "."), None, "10.12.0.36",
            f"was built by another TensorRT than this, which is 10.12.0.36; {FIX}",
        ),
        (OTHER_GPU, "10.3.0.26", "10.3.0", f"was built for another GPU (compute 8.6; this is 8.9); {FIX}"),
        (OTHER_GPU, None, "10.3.0", f"was built for another GPU (compute 8.6; this is 8.9); {FIX}"),
        ("built on an incompatible device", None, "10.3", f"was built for another GPU than this; {FIX}"),
        ("no plugin Foo", "10.3.0.26", "10.3.0.26", f"cannot be loaded by TensorRT 10.3.0.26 (no plugin Foo); {FIX}"),
        ("", None, "10.3.0", f"is no engine that can be read by TensorRT 10.3.0 (it logs no reason); {FIX}"),
    ],
)  # fmt: skip
def test_why_an_engine_does_not_load(said: str, built: str | None, runtime: str, expected: str) -> None:
    assert why_not(said, built, runtime)[0] == expected


def test_importing_the_targets_imports_no_engine() -> None:
    script = (
        "import sys, infercanary.probe.targets.onnx, infercanary.probe.targets.tensorrt\n"
        "print(sorted({'torch', 'numpy', 'onnxruntime', 'tensorrt'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


PAGE = Path(__file__).parents[3] / "docs" / "targets" / "tensorrt.md"


def test_the_page_says_every_option_and_its_settings_are_right(tmp_path: Path) -> None:
    text = PAGE.read_text()
    table = re.findall(r"^\| `(\w+)` \|", text.partition("## Options")[2].partition("\n## ")[0], re.MULTILINE)
    assert table == list(inspect.signature(TensorRtTarget).parameters)
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "probe.yaml").write_text(config)
    probe = read(tmp_path / "probe.yaml")
    assert [(canary.name, canary.device) for canary in probe._canaries] == [("resnet18", "cuda")]
