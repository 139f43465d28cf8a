"""Identity of a canary's work: digests of its model and settings, with real files and a real torch."""

import re
import time
from typing import Any

import pytest
import yaml

from infercanary.probe import TorchTarget
from infercanary.probe import canary as canary_module
from infercanary.probe.canary_metrics import COLD_START
from infercanary.probe.environment import fingerprint
from infercanary.probe.histogram import Tally
from infercanary.probe.identity import components, digest
from infercanary.probe.targets import make
from infercanary.probe.targets.engines import digests
from infercanary.probe.targets.engines.digests import PIECE, of_files, onnx_files
from tests.targets import Scripted, opened, points

# torch warns about its own TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ONE = [{"shape": [2, 4]}]


def settings(target, sweep=None, **options):
    return components("c", make(target, options), sweep).get("settings:c", "")


def test_a_file_is_identified_by_its_bytes_and_not_by_its_name(tmp_path, monkeypatch):
    one, same, other, huge = (tmp_path / name for name in ("one", "same", "other", "huge"))
    for path, text in ((one, b"weights"), (same, b"weights"), (other, b"Weights")):
        path.write_bytes(text)
    assert of_files([one]) == of_files([same])
    assert re.fullmatch("file-sha256:[0-9a-f]{16}", of_files([one]))
    assert len({of_files(paths) for paths in ([one], [other], [one, same], [same, other])}) == 4
    one.write_bytes(bytes(4 * PIECE))
    other.write_bytes(bytes(PIECE) + b"x" * PIECE + bytes(2 * PIECE))
    monkeypatch.setattr(digests, "PIECES", 1)
    assert of_files([one]) != of_files([other]), "below the limit every byte counts"
    monkeypatch.undo()
    found, size = set(), 4096 * PIECE * 2
    for place in (0, size - 1, size - 1):
        with huge.open("ab") as file:
            file.truncate(size)
        found.add(of_files([huge], whole=1 << 20))
        with huge.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
    assert len(found) == 3
    assert all(name.startswith("file-sample:") for name in found)


# Target and its options; then changes that measure the same work (another model is an upgrade), and changes
# that do not.
OPTIONS = yaml.safe_load("""
- target: torch
  usual: {model: "m:f", inputs: [{shape: [2, 4]}]}
  same: [{model: "n:f"}, {device: cpu}, {cpu_fallback: true}, {seed: 0}]
  other: [{inputs: [{shape: [2, 5]}]}, {inputs: [{shape: [2, 4], dtype: float64}]}, {seed: 1}, {mode: compile},
    {mode: compile, compile_mode: max-autotune}, {autocast: bfloat16}, {device: cuda}]
- target: torch
  usual: {model: "m:f", inputs: [{shape: [2, 4]}], device: "cuda:1"}
  same: [{device: "cuda:0"}]
  other: []
- target: onnx
  usual: {model: a.onnx, inputs: {past_key: {shape: [1, 4]}}}
  same: [{model: b.onnx}, {intra_op_threads: 0}, {graph_optimization: all}]
  other: [{inputs: {past_key: {shape: [1, 5]}}}, {intra_op_threads: 2}, {graph_optimization: basic},
    {execution_mode: parallel}, {session_config: {session.intra_op.allow_spinning: "0"}}]
- target: matmul
  usual: {}
  same: [{size: 1024}, {seed: 0}]
  other: [{size: 512}, {precision: bfloat16}, {seed: 1}]
- target: tensorrt
  usual: {engine: a.plan}
  same: [{engine: b.plan}, {device: "cuda:1"}]
  other: [{profile: 1}, {seed: 2}]
- target: kserve
  usual: {url: "http://a:8000", model: m, inputs: [{name: x, shape: [1, 4]}]}
  same: [{url: "http://b:9000"}, {timeout_seconds: 3}, {version: "2"}, {headers: {Authorization: x}}]
  other: [{inputs: [{name: x, shape: [1, 8]}]}, {binary: true}, {seed: 5},
    {inputs: [{name: x, shape: [1, 4], data: [1, 2, 3, 4]}]}]
- target: openai
  usual: {url: "http://a/v1", model: m, prompt: Hello}
  same: [{url: "http://b:1/v1"}, {timeout_seconds: 3}, {model: other}, {body: {api_key: hunter2}}]
  other: [{prompt: "Hello!"}, {max_tokens: 33}, {salt: false}, {api: completions}, {body: {ignore_eos: true}}]
- target: openai
  usual: {url: "http://a/v1", model: m, prompt: Hello, body: {nested: [{keep: 1}]}}
  same: [{body: {nested: [{keep: 1, password: x}]}}]
  other: []
- target: http
  usual: {url: "http://a/predict", json: {x: 1}}
  same: [{url: "http://b/predict?api_key=1"}, {headers: {X: "y"}}, {json: {x: 1, token_secret: s}}]
  other: [{json: {x: 2}}, {url: "http://a/other"}, {method: PUT}]
""")


@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case["target"])
def test_options_that_change_the_measured_work(case):
    target, usual = case["target"], case["usual"]
    known = settings(target, **usual)
    assert known
    for changed in case["same"]:
        assert settings(target, **{**usual, **changed}) == known, changed
    found = [settings(target, **{**usual, **changed}) for changed in case["other"]]
    found += [settings(target, {"batches": batches}, **usual) for batches in ((1, 8), (1, 16))]
    assert known not in found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("beside", ["m.weights", "m" * 200 + ".weights"])
def test_an_onnx_models_weights_may_lie_beside_it(tmp_path, beside):
    onnx = pytest.importorskip("onnx")
    from tests.onnx_models import linear

    one, other = models = [tmp_path / name / "m.onnx" for name in "ab"]
    for number, path in enumerate(models):
        path.parent.mkdir()
        model = onnx.load(linear(path, weight=number))
        onnx.save_model(model, path, save_as_external_data=True, size_threshold=0, location=beside)
    assert onnx_files(one) == [one, one.with_name(beside)]
    assert one.read_bytes() == other.read_bytes()
    assert of_files(onnx_files(one)) != of_files(onnx_files(other))


def test_names_of_weights_are_found_in_any_block_and_not_outside_of_the_models_folder(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for path in (folder / "m.weights", tmp_path / "secret"):
        path.write_bytes(b"w")
    large, evil = folder / "large.onnx", folder / "evil.onnx"
    for begin in range((1 << 20) - 13, (1 << 20) + 1):  # the file is searched in blocks of 1 MiB
        large.write_bytes(bytes(begin) + b"\x0a\x08location\x12\x09m.weights \x0a")
        assert [path.name for path in onnx_files(large)[1:]] == ["m.weights"], begin
    evil.write_bytes(b"\x0a\x08location\x12\x09../secret \x0a\x08location\x12\xff\xff \x0a\x08location\x12")
    assert onnx_files(evil) == [evil]


def test_a_torch_models_weights_are_its_identity(tmp_path):
    torch = pytest.importorskip("torch")
    from infercanary.probe.targets.engines.torch_weights import digest_of

    def identity(model):
        target = TorchTarget(model, ONE)
        target.open()
        return target.identity()

    def linear(seed, **buffers):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval()
        for name, buffer in buffers.items():
            model.register_buffer(name, buffer, persistent=name != "cache")
        return model

    one = identity(linear(1))
    assert one.startswith("weights-sha256:") and identity(lambda x: x) == "", "a function has no weights"
    script = torch.jit.script(linear(1))
    for same in (
        linear(1),
        linear(1, cache=torch.rand(3)),
        torch.compile(linear(1), backend="eager"),
        script,
    ):
        assert identity(same) == one
    for other in (torch.tensor(1.0), torch.empty(0, 3), torch.ones(5, dtype=torch.bool), torch.ones(3, 4).T):
        assert identity(linear(1, other=other)) != one
    assert identity(linear(2)) != one
    torch.jit.save(script, str(tmp_path / "m.pt"))
    assert identity(str(tmp_path / "m.pt")) == of_files([tmp_path / "m.pt"])
    large = torch.nn.Linear(2048, 2048)  # tensors are sampled one by one
    sampled = [digest_of(torch, large, whole=1 << 20) for _ in range(2)]
    with torch.no_grad():
        large.weight *= 1.001
    sampled.append(digest_of(torch, large, whole=1 << 20))
    assert sampled[0].startswith("weights-sample:")
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.parametrize("whole", [1 << 30, 1])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_weights_in_another_order_of_memory_are_the_same_and_are_not_copied_as_a_whole(
    whole, dtype, monkeypatch
):
    """A channels_last model has another order in memory, and a copy of a large tensor may not fit into memory."""
    torch = pytest.importorskip("torch")
    from infercanary.probe.targets.engines import torch_weights

    for module in (torch_weights, digests):
        monkeypatch.setattr(module, "PIECE", 77)
    held, found, elements = [0], set(), torch_weights._elements

    def seen(*stretch):
        piece = elements(*stretch)
        held.append(piece.untyped_storage().nbytes())
        return piece

    monkeypatch.setattr(torch_weights, "_elements", seen)
    weights = torch.arange(7 * 30 * 6 * 11).reshape(7, 30, 6, 11).to(getattr(torch, dtype))
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)):
        model = torch.nn.Module()
        model.register_buffer(
            "w", weights.permute(order).contiguous().permute([order.index(i) for i in range(4)])
        )
        held[:] = [0]
        found.add(torch_weights.digest_of(torch, model, whole))
        assert order == (0, 1, 2, 3) or max(held) <= 2 * weights[0].numel() * weights.element_size()
    assert len(found) == 1
    assert "" not in found


def test_settings_that_are_empty_are_as_if_they_did_not_exist():
    assert digest({"a": 1}) == digest({"a": 1, "later": None, "more": (), "off": False, "deep": {"x": 0}})
    assert digest({"a": 1, "b": [0, 1]}) != digest({"a": 1, "b": [1, 0]}), "the order of a list counts"
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


class Known(Scripted):
    def identity(self):
        time.sleep(self.seconds)
        if isinstance(self.version, Exception):
            raise self.version
        return str(self.version)

    seconds = 0.0
    version: Any = ""


@pytest.mark.parametrize(
    ("identity", "found"),
    [("version 3", {"model:a": "version 3"}), ("", {}), (OSError("no such volume"), {})],
)
def test_each_canary_has_components_of_its_own(identity, found):
    canary = opened(Known(version=identity, components={"own": "1"}))
    assert canary.environment == {"own": "1", **found}
    assert canary.close(5.0)


@pytest.mark.parametrize("letter", ["x", "模", "\udcff"])
def test_the_end_of_a_long_path_distinguishes_models(letter):
    """The environment keeps only the beginning of a long path."""

    def shown(identity):
        return fingerprint(components("own", Known(version=identity)))["model:own"]

    path = "server: m, root /models/" + 60 * letter
    one, other = shown(f"{path * 4}/1"), shown(f"{path * 4}/2")
    assert one != other
    assert one.startswith("server: m, root /models/")
    assert len(one.encode()) <= 200
    assert shown("server: m, root /models/1") == "server: m, root /models/1"


def test_identifying_a_model_is_no_part_of_the_cold_start(monkeypatch):
    begin = time.perf_counter()
    monkeypatch.setattr(canary_module, "since_start", lambda: time.perf_counter() - begin)
    canary = opened(Known(seconds=0.4), tally=(tally := Tally()))
    took, steps = time.perf_counter() - begin, points(tally, COLD_START)
    assert took > 0.4
    assert len(steps) == 4
    assert max(steps.values()) < took - 0.35
    assert canary.close(5.0)
