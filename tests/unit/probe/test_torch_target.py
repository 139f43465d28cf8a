"""The PyTorch target, with a real torch and tiny models."""

import gc
import os
import shutil
import sys
import warnings
import weakref

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe import TorchTarget
from infercanary.probe.targets import NoCuda, Unsized
from tests.scenarios import mistakes, refused

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    # torch warns about its own TorchScript, and from inside torch.export and Inductor.
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning",
)  # fmt: skip

FACTORIES = """
import torch

def linear():
    return torch.nn.Linear(4, 3)

class Holder:
    model = staticmethod(linear)

def no_model():
    return 5

def plain():
    return lambda x: x * 2

not_callable = 7
"""
LINEAR = "factories:linear"
ONE = [{"shape": [2, 4]}]


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    monkeypatch.chdir(tmp_path)


def opened(model=LINEAR, inputs=ONE, **options):
    target = TorchTarget(model, inputs, **options)
    target.open()
    return target


def result_of(target):
    return target.clock.measure(target.run)[1]


def test_a_model_object_is_run_in_inference_mode_and_left_as_it_is():
    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x):
            self.mode = torch.is_inference_mode_enabled()
            return x @ self.weight

    model = Model().train()
    model.weight = torch.nn.Parameter(torch.eye(4))
    target = opened(model)
    timing, result = target.clock.measure(target.run)
    assert target.memory() is None
    assert model.mode
    assert not result.requires_grad
    assert model.training, "the mode of the host's model must not change"
    assert timing.phases.keys() == {"compute"}
    assert 0 < timing.phases["compute"] <= timing.wall


@pytest.mark.parametrize("reference", [LINEAR, "factories:Holder.model"])
def test_a_factory_is_seeded_and_switched_to_eval_and_the_hosts_random_state_is_not_touched(reference):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one, two, other = (opened(reference, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(result_of(one), result_of(two))
    assert not torch.equal(result_of(one), result_of(other))
    assert not one._model.training
    assert not torch.equal(one._model.weight, other._model.weight), "the seed also draws the weights"
    assert torch.equal(torch.random.get_rng_state(), state)
    assert result_of(opened("factories:plain", [torch.ones(2)])).tolist() == [2.0, 2.0], (
        "a model may be any callable"
    )


@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_file_is_run_and_digested(tmp_path, kind):
    model, path = torch.nn.Linear(4, 3), tmp_path / f"model.{kind}"
    if kind == "pt":
        torch.jit.save(torch.jit.script(model), path)
    else:
        torch.export.save(torch.export.export(model, (torch.zeros(2, 4),)), path)
    target = opened(str(path))
    assert torch.allclose(result_of(target), model(target._device_inputs[0]))
    assert kind == "pt2" or not target._loaded.training
    assert target.identity().startswith("file-sha256:")
    assert opened(model).identity().startswith("weights-sha256:")


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="torch.compile needs a C++ compiler: apt-get install g++",
)
def test_a_compiled_model_gives_what_eager_gives_and_its_mode_is_a_component(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    given, compiled = list[str](), torch.compile

    def compile_(model, mode):
        given.append(mode)
        return compiled(model, mode=mode)

    monkeypatch.setattr(torch, "compile", compile_)
    options = [
        {},
        {"mode": "compile"},
        {"mode": "compile", "compile_mode": "reduce-overhead"},
    ]
    eager, plain, reduced = targets = [opened(**each) for each in options]
    assert given == ["default", "reduce-overhead"]
    assert torch.allclose(result_of(eager), result_of(reduced), atol=1e-5)
    found = [[t.environment().get(f"torch_{name}") for name in ("mode", "compile_mode")] for t in targets]
    assert found == [["eager", None], ["compile", "default"], ["compile", "reduce-overhead"]]
    assert plain.copy_with_batch(2).samples == 2
    with pytest.raises(Unsized, match=r"torch.compile would compile the model again"):
        plain.copy_with_batch(4)
    torch._dynamo.reset()


def test_autocast_computes_in_what_was_asked_for_and_is_a_component(monkeypatch):
    plain, cast = opened(), opened(autocast="bfloat16")
    assert (result_of(plain).dtype, result_of(cast).dtype) == (torch.float32, torch.bfloat16)
    assert torch.allclose(result_of(plain), result_of(cast).float(), atol=0.05)
    assert cast.environment().items() - plain.environment().items() == {("torch_autocast", "bfloat16")}
    assert result_of(cast.copy_with_batch(4)).shape == (4, 3)
    # An older torch warns that it has no float16 on a CPU, and computes in float32.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: warnings.warn("not supported", stacklevel=2))
    with pytest.raises(UsageError, match="autocast: torch cannot use float16 on cpu"):
        opened(autocast="float16")


def test_inputs_are_drawn_each_from_a_seed_of_its_own_or_given():
    first, second = opened(lambda *x: x, [{"shape": [8]}, {"shape": [8]}], seed=3)._device_inputs
    assert not torch.equal(first, second)
    assert result_of(opened(lambda x: x, torch.ones(2))).tolist() == [1.0, 1.0]
    assert result_of(opened(lambda x, y: x + y, [torch.ones(2), torch.ones(2)])).tolist() == [2.0, 2.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this torch has CUDA")
def test_by_leave_it_runs_on_the_cpu_but_a_graph_does_not():
    target = opened(device="cuda", cpu_fallback=True)
    assert target.cuda_missing
    assert target.environment()["torch_device"] == "cpu"
    for options in ({"mode": "graph", "cpu_fallback": True}, {}):
        refused = TorchTarget(LINEAR, ONE, device="cuda:1", **options)  # type: ignore[arg-type]
        with pytest.raises(NoCuda, match=r"device: `cuda:1` was asked for, but .*or set `device: cpu`"):
            refused.open()
        assert refused.cuda_missing == target.cuda_missing


def test_environment():
    found = opened().environment()
    assert found["torch"] == torch.__version__
    assert "BLAS_INFO=" in found["torch_build"]
    assert found["torch_cuda"] == (torch.version.cuda or "none (CPU-only build)")
    shown = {
        "device": "cpu",
        "mode": "eager",
        "deterministic": "false",
        "intra_op_threads": str(torch.get_num_threads()),
    }
    assert {name: found[f"torch_{name}"] for name in shown} == shown
    assert {"torch_cpu_capability", "torch_inter_op_threads", "torch_mkldnn"} <= found.keys()
    assert all(0 < len(value) <= 200 and value.isprintable() for value in found.values())


def test_close_lets_go_of_the_model():
    target = opened()
    model = weakref.ref(target._model)
    result_of(target)
    target.close()
    gc.collect()
    assert model() is None
    target.open()
    assert result_of(target).shape == (2, 3)


MISTAKES = """
model: 5 | model: name `package.module:factory` or a
model: "" | model: name `package.module:factory` or a
device: gpu | device: `gpu` is none of cpu, cuda, cuda:N
mode: [eager] | mode: expected text, got a list
mode: graph | mode: `graph` | needs `device: cuda`
{mode: compile, compile_mode: fast} | compile_mode: `fast` is none of default, max-autotune
compile_mode: default | compile_mode: | `mode: compile`
autocast: float32 | autocast: `float32` is none of bfloat16, float16
seed: true | seed: expected a whole number
seed: 1180591620717411303424 | seed: | whole number
inputs: x | inputs: expected a list, got text
inputs: {shape: [1]} | inputs: expected a list, got a mapping
inputs: [3] | inputs[0]: expected a mapping
inputs: [{dtype: int8}] | inputs[0]: | `shape`
inputs: [{shape: [1], dtype: nn}] | inputs[0].dtype: | `nn`
inputs: [{shape: [1]}, {shape: [-1]}] | inputs[1]: shape[0]: | >= 0
model: nowhere:model | model: `nowhere` cannot be imported: no module `nowhere`
model: factories:nothing | model: module `factories` | no `nothing`
model: factories:not_callable | model: `factories:not_callable` is not callable
model: factories:no_model | returned a int
model: model.pth | model: `model.pth` is neither
model: missing.pt2 | model: no file `missing.pt2`
model: junk.pt | model: `junk.pt` cannot be loaded
model: junk.pt2 | model: `junk.pt2` cannot be loaded
inputs: [{shape: [1], dtype: float8_e7m0}] | inputs[0].dtype: | `float8_e7m0`
inputs: [{shape: [1099511627776]}] | inputs[0]: torch cannot make the tensor
"""


@pytest.mark.parametrize(("options", "words"), mistakes(MISTAKES))
def test_a_mistake_is_one_line(tmp_path, options, words):
    for name in ("junk.pt", "junk.pt2"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not a model\x00\xff" * 40)
    with refused(words):
        opened(**options)


# Sweeps ------------------------------------------------------------------------------------------------------------


def test_another_size_has_the_same_model_and_the_same_samples_again():
    target = opened(torch.nn.Linear(4, 3).eval())
    own = result_of(target)
    for batch in (1, 2, 5):
        other = target.copy_with_batch(batch)
        assert other.samples == batch
        assert target.samples == 2
        assert torch.allclose(result_of(other), torch.cat([own] * 3)[:batch], atol=1e-6)
        assert other._device_inputs[0].data_ptr() != target._device_inputs[0].data_ptr()
        assert other.clock is not target.clock
        other.close()
    assert torch.equal(result_of(target), own), "the target itself is as it was"
    scaled = opened(lambda x, scale: x * scale, [torch.ones(2, 3), torch.tensor(2.0)])
    assert result_of(scaled.copy_with_batch(6)).tolist() == [[2.0] * 3] * 6, (
        "an input without a batch dimension stays"
    )


def test_inputs_that_have_no_size_in_common_have_their_own_only():
    target = opened(lambda *x: x, [torch.ones(2, 3), torch.ones(4)])
    assert target.samples == 1
    assert [tuple(t.shape) for t in result_of(target.copy_with_batch(1))] == [(2, 3), (4,)]
    for model in (target, opened(lambda x: x, torch.ones(0, 3))):
        with pytest.raises(Unsized, match="the inputs have no common first dimension"):
            model.copy_with_batch(2)
