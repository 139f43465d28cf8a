"""Parts of the TensorRT target that need neither TensorRT nor a GPU: options, and explanations of messages."""

import sys
from types import ModuleType

import pytest

from infercanary.probe.targets.engines.tensorrt_plan import built_by, why_not
from infercanary.probe.targets.tensorrt import TensorRtTarget
from tests.scenarios import mistakes, refused, scenarios

MISTAKES = """
engine: "" | engine: name a TensorRT engine file
device: cpu | device: `cpu` is none of cuda, cuda:N
device: cuda:x | device: `cuda:x` is none of cuda, cuda:N
profile: -1 | profile: expected a whole number >= 0
seed: 4611686018427387904 | seed: expected a whole number
inputs: x | inputs: expected a list or a mapping
"""


@pytest.mark.parametrize(("options", "words"), mistakes(MISTAKES))
def test_a_wrong_argument_is_refused_immediately(options, words):
    with refused(words):
        TensorRtTarget(**({"engine": "model.engine"} | options))


def test_an_engine_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))
    for path in (tmp_path / "none.engine", tmp_path):
        with refused([str(path), "check the path"]):
            TensorRtTarget(str(path)).open()


HEAD = b"ftrt" + bytes(20) + bytes((10, 3, 0, 26))
# Another kind of file; a layout with an unknown place of the version; an incomplete header
OTHERS = (b"ptrt" + HEAD[4:], HEAD[:4] + b"\1" + HEAD[5:], HEAD[:-1], b"")


@pytest.mark.parametrize(
    ("plan", "version"), [(HEAD + b"more", "10.3.0.26"), *((other, None) for other in OTHERS)]
)
def test_the_version_in_an_engines_head(plan, version):
    assert built_by(plan) == version


# The first texts are from TensorRT's issues.
REASONS = """
(Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: …) | 8.6.1.6 | 10.3.0 | was built by TensorRT 8.6.1.6, but 10.3.0 is installed; rebuild
(Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: …) |  | 10.3.0 | was built by another version than TensorRT 10.3.0, which is installed;
plan file is not compatible with this version of TensorRT, expecting library version 8.0.0 got 8.0.1 |  | 8.0.0.3 | was built by another version than TensorRT 8.0.0.3, which is installed;
plan file is generated on an incompatible device, expecting compute 8.9 got compute 8.6, please rebuild. | 10.3.0.26 | 10.3.0 | was built for another GPU (compute 8.6; this GPU has 8.9);
built on an incompatible device |  | 10.3 | was built for another GPU;
no plugin Foo | 10.3.0.26 | 10.3.0.26 | cannot be loaded by TensorRT 10.3.0.26 (no plugin Foo);
 | 10.2.0.19 | 10.3.0 | was built by TensorRT 10.2.0.19, but 10.3.0 is installed; rebuild
 |  | 10.3.0 | is not readable by TensorRT 10.3.0 (TensorRT logs no reason);
"""  # noqa: E501


@pytest.mark.parametrize(("said", "built", "runtime", "expected"), scenarios(REASONS))
def test_why_an_engine_does_not_load(said, built, runtime, expected):
    assert why_not(said, built or None, runtime)[0].startswith(expected)
