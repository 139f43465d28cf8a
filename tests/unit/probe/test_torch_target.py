"""The PyTorch target, with a real torch and tiny models."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe import HostClock, TorchTarget
from infercanary.probe.targets import NoCuda, Unsized

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    # torch warns about parts of itself: of TorchScript, and from inside torch.export and Inductor.
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


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    monkeypatch.chdir(tmp_path)


def opened(*args: Any, **options: Any) -> Any:
    target = TorchTarget(*args, **options)
    target.open()
    return target


def result_of(target: Any) -> Any:
    return target.clock.measure(target.run)[1]


ONE = [{"shape": [2, 4]}]


def test_a_model_object_is_run_in_inference_mode_and_left_as_it_is() -> None:
    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(4))
            self.modes: list[bool] = []

        def forward(self, x: Any) -> Any:
            self.modes.append(torch.is_inference_mode_enabled())
            return x @ self.weight

    model = Model().train()
    target = opened(model, ONE)
    timing, result = target.clock.measure(target.run)
    assert isinstance(target.clock, HostClock)
    assert model.modes == [True]
    assert not result.requires_grad
    assert model.training, "the host's model is not ours to switch"
    assert 0 < timing.phases["compute"] <= timing.wall
    assert set(timing.phases) == {"compute"}, "on a CPU there is no copy to time, and none is invented"
    target.close()


@pytest.mark.parametrize("reference", ["factories:linear", "factories:Holder.model"])
def test_a_factory_is_seeded_and_switched_to_eval(reference: str) -> None:
    one, two = (opened(reference, ONE, seed=3) for _ in range(2))
    assert torch.equal(result_of(one), result_of(two))
    assert not one._model.training
    other = opened(reference, ONE, seed=4)
    assert not torch.equal(result_of(one), result_of(other))


def test_a_factory_may_give_any_callable() -> None:
    target = opened("factories:plain", [torch.ones(2)])
    assert result_of(target).tolist() == [2.0, 2.0]


def test_torchscript_file(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3).eval()
    torch.jit.save(torch.jit.script(model), tmp_path / "model.pt")
    target = opened(str(tmp_path / "model.pt"), ONE)
    assert torch.allclose(result_of(target), model(target._device_inputs[0]))


def test_export_file(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3).eval()
    torch.export.save(torch.export.export(model, (torch.zeros(2, 4),)), tmp_path / "model.pt2")
    target = opened(str(tmp_path / "model.pt2"), ONE)
    assert torch.allclose(result_of(target), model(target._device_inputs[0]))


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="torch.compile needs a C++ compiler: apt-get install g++",
)
def test_compile_gives_what_eager_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    eager, compiled = (opened("factories:linear", ONE, mode=mode) for mode in ("eager", "compile"))
    assert torch.allclose(result_of(eager), result_of(compiled), atol=1e-5)
    assert compiled.environment()["torch_mode"] == "compile"
    torch._dynamo.reset()


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="torch.compile needs a C++ compiler: apt-get install g++",
)
def test_a_compile_mode_reaches_torch_and_is_a_component(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    asked: list[Any] = []
    compiled = torch.compile

    def compile_(model: Any, mode: str) -> Any:
        asked.append(mode)
        return compiled(model, mode=mode)

    monkeypatch.setattr(torch, "compile", compile_)
    eager = opened("factories:linear", ONE)
    plain = opened("factories:linear", ONE, mode="compile")
    reduced = opened("factories:linear", ONE, mode="compile", compile_mode="reduce-overhead")
    assert asked == ["default", "reduce-overhead"]
    assert torch.allclose(result_of(eager), result_of(reduced), atol=1e-5)
    found = [target.environment().get("torch_compile_mode") for target in (eager, plain, reduced)]
    assert found == [None, "default", "reduce-overhead"]
    torch._dynamo.reset()


def test_autocast_computes_in_what_was_asked_for_and_is_a_component() -> None:
    plain, cast = opened("factories:linear", ONE), opened("factories:linear", ONE, autocast="bfloat16")
    assert result_of(plain).dtype == torch.float32
    assert result_of(cast).dtype == torch.bfloat16
    assert torch.allclose(result_of(plain), result_of(cast).float(), atol=0.05)
    assert "torch_autocast" not in plain.environment()
    assert cast.environment()["torch_autocast"] == "bfloat16"
    assert [plain.environment()[name] == cast.environment()[name] for name in ("torch_mode", "torch")] == [
        True,
        True,
    ]
    assert cast.copy_with_batch(4)._device_inputs[0].shape == (4, 4) and result_of(
        cast.copy_with_batch(4)
    ).shape == (4, 3)
    cast.close()


def test_autocast_that_torch_would_leave_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch warns that it knows no float16 on a CPU, and computes in float32."""
    import contextlib

    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(UsageError, match=r"autocast: torch \S+ does not compute in float16 on cpu"):
        opened("factories:linear", ONE, autocast="float16")


SPECS = [
    {"shape": [2, 3], "dtype": "float32"},
    {"shape": [2, 3], "dtype": "bfloat16"},
    {"shape": [64], "dtype": "int64", "high": 1000},
    {"shape": [64], "dtype": "bool"},
    {"shape": [], "dtype": "float64"},
]


def test_inputs_are_the_same_in_every_process(tmp_path: Path) -> None:
    target = opened(lambda *inputs: inputs, SPECS, seed=11)
    here = [t.double().flatten().tolist() for t in target._device_inputs]
    script = (
        "import torch\nfrom infercanary.probe import TorchTarget\n"
        f"t = TorchTarget(lambda *x: x, {SPECS!r}, seed=11)\nt.open()\n"
        "print([x.double().flatten().tolist() for x in t._device_inputs])"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert there.stdout.strip() == repr(here)
    assert opened(lambda *x: x, SPECS, seed=12)._device_inputs[0].double().flatten().tolist() != here[0]


def test_input_dtypes_and_ranges() -> None:
    target = opened(lambda *inputs: inputs, SPECS)
    inputs = target._device_inputs
    assert [t.dtype for t in inputs] == [
        torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64,
    ]  # fmt: skip
    assert [tuple(t.shape) for t in inputs] == [(2, 3), (2, 3), (64,), (64,), ()]
    assert int(inputs[2].min()) >= 0 and 500 < int(inputs[2].max()) < 1000
    assert set(inputs[3].tolist()) == {True, False}


def test_two_equal_specifications_are_two_different_inputs() -> None:
    first, second = opened(lambda *x: x, [{"shape": [8]}, {"shape": [8]}])._device_inputs
    assert not torch.equal(first, second)


def test_a_tensor_is_one_input_and_a_list_of_them_is_several() -> None:
    single = opened(lambda x: x, torch.ones(3))
    assert result_of(single).tolist() == [1.0, 1.0, 1.0]
    several = opened(lambda x, y: x + y, [torch.ones(3), torch.ones(3)])
    assert result_of(several).tolist() == [2.0, 2.0, 2.0]


def test_the_hosts_random_state_is_not_touched() -> None:
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    target = opened("factories:linear", ONE, seed=99)
    target.run(lambda name: __import__("contextlib").nullcontext())
    assert torch.equal(torch.rand(4), expected)


class Output(dict[str, Any]):
    """As Hugging Face returns it."""


def test_values_of_nested_outputs() -> None:
    nested = Output(
        logits=torch.tensor([1.0, 2.0]),
        more=[(torch.tensor(3), "text"), {"x": torch.tensor([4.0, 5.0])}],
        none=None,
    )
    target = opened(lambda: nested, [])
    assert target.values(nested) == [1.0, 2.0, 3.0, 4.0, 5.0]


@dataclasses.dataclass
class Fields:
    logits: Any
    loss: Any = None


class Named(NamedTuple):
    x: Any
    y: Any = "text"


def bits(dtype: str, *numbers: float) -> Any:
    return torch.tensor(numbers).to(getattr(torch, dtype))


HELD = {  # what a model may return, with 1, a number that decides, and 3 in it
    "dataclass": lambda x: Fields(torch.tensor([1.0, x]), {"more": [Fields(3)]}),
    "named tuple": lambda x: Named(Named(torch.tensor([1.0, x])), torch.tensor(3)),
    "array": lambda x: np.array([1.0, x, 3.0]),
    "half array": lambda x: np.array([1.0, x, 3.0], np.float16),
    "array in a dict": lambda x: {"a": np.array([[1.0], [x]]), "b": np.float32(3)},
    "plain numbers": lambda x: [1, (x,), {"last": 3.0, "text": "4"}],
    "complex": lambda x: [torch.tensor([complex(1, x)]).conj_physical().conj(), 3],
    "complex array": lambda x: [np.array([complex(1, x)]), np.float64(3)],
    "bfloat16": lambda x: bits("bfloat16", 1, x, 3),
    "float8": lambda x: bits("float8_e5m2", 1, x, 3),
    "nested": lambda x: torch.nested.nested_tensor([torch.tensor([1.0]), torch.tensor([x, 3.0])]),
    "with a gradient": lambda x: torch.tensor([1.0, x, 3.0], requires_grad=True),
    "beside no memory": lambda x: (torch.ones(4, device="meta"), torch.tensor([1.0, x, 3.0])),
    "itself at its end": lambda x: [1, x, 3, *cycle()],
}


def cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_numbers_are_read_from_whatever_holds_them(held: Callable[[float], Any]) -> None:
    target = opened(lambda: None, [])
    assert target.values(held(2.0)) == [1.0, 2.0, 3.0]
    for bad in (math.nan, math.inf):
        assert not all(map(math.isfinite, target.values(held(bad))))


@pytest.mark.parametrize(
    "stored",
    ["to_sparse", "to_sparse_csr", "to_sparse_csc", "to_mkldnn"],
)
def test_a_tensor_of_another_layout_is_read_as_it_is_stored(stored: str) -> None:
    target = opened(lambda: None, [])
    dense = torch.tensor([[0.0, 5.0], [7.0, 0.0]])
    assert {5.0, 7.0} <= {*target.values(getattr(dense, stored)())}
    dense[1, 0] = math.nan
    assert not all(map(math.isfinite, target.values(getattr(dense, stored)())))


def test_a_quantized_tensor_has_the_numbers_that_it_stands_for() -> None:
    made = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8)
    assert opened(lambda: None, []).values(made) == [1.0, 2.0]


class Own:
    x = torch.ones(2)


@pytest.mark.parametrize(
    "held",
    [
        "text", None, Own(), b"bytes", {"label": "cat"}, [{"label": "cat"}, None], torch.zeros(0), np.array(["a"]),
        np.array("2026-01-01", "datetime64[D]"), torch.ones(2, device="meta"), {1.0, 2.0}, Fields, [],
    ],
)  # fmt: skip
def test_what_holds_no_numbers_gives_none(held: Any) -> None:
    assert opened(lambda: None, []).values(held) == []


def test_a_result_without_end_is_read_to_a_limit() -> None:
    result: Any = 7.0
    for _ in range(60):
        result = [result, result]
    assert {*opened(lambda: None, []).values(result)} == {7.0}
    for _ in range(10_000):
        result = (result,)
    assert {*opened(lambda: None, []).values(result)} == {7.0}
    assert opened(lambda: None, []).values([10**400, -(10**400)]) == [sys.float_info.max, -sys.float_info.max]


def test_values_are_few_fixed_and_from_all_over() -> None:
    target = opened(lambda: None, [])
    parts = [torch.arange(700.0), torch.arange(700.0, 5_000.0), torch.arange(5_000.0, 5_001.0)]
    values = target.values(parts)
    assert 500 < len(values) <= 1024
    steps = {b - a for a, b in pairwise(values)}
    assert len(steps) == 1, "evenly spread, across the borders of the tensors too"
    assert values[0] == 0.0 and values[-1] > 4_980
    assert target.values(parts) == values


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_one_value_that_is_not_finite_is_seen_wherever_it_is(
    bad: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(lambda: None, [])
    monkeypatch.setattr("infercanary.probe.targets.engines.outputs._PIECE", 1_000)
    for place in (0, 1, 999, 1_000, 4_997):
        output = torch.ones(4_999, dtype=getattr(torch, dtype))
        output[place] = complex(0, bad) if output.is_complex() else bad
        assert not all(map(math.isfinite, target.values({"y": output, "n": torch.tensor([1, 2])})))
    assert all(map(math.isfinite, target.values(torch.full((10,), 60_000.0, dtype=torch.float16))))


@pytest.mark.skipif(torch.cuda.is_available(), reason="it has CUDA")
def test_by_leave_it_runs_on_the_cpu_but_a_graph_does_not() -> None:
    target = opened("factories:linear", ONE, device="cuda", cpu_fallback=True)
    assert target.cuda_missing and target.environment()["torch_device"] == "cpu"
    graph = TorchTarget("factories:linear", ONE, device="cuda", mode="graph", cpu_fallback=True)
    with pytest.raises(NoCuda, match="device: `cuda` was asked for"):
        graph.open()
    assert graph.cuda_missing == target.cuda_missing


def test_environment() -> None:
    found = opened("factories:linear", ONE).environment()
    assert found["torch"] == torch.__version__
    assert found["torch_cuda"] == (torch.version.cuda or "none (CPU-only build)")
    assert found["torch_intra_op_threads"] == str(torch.get_num_threads())
    assert found["torch_device"] == "cpu" and found["torch_mode"] == "eager"
    assert "BLAS_INFO=" in found["torch_build"]
    assert found["torch_deterministic"] == "false"
    assert {"torch_git", "torch_cpu_capability", "torch_inter_op_threads", "torch_mkldnn"} <= found.keys()
    assert all(
        type(value) is str and 0 < len(value) <= 200 and value.isprintable() for value in found.values()
    )


def test_environment_leaves_out_what_torch_refuses_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs to set the TF32 flags")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    found = opened("factories:linear", ONE).environment()
    assert "torch_float32_matmul_precision" not in found
    assert found["torch"] == torch.__version__


def test_close_lets_go_of_the_model() -> None:
    import gc
    import weakref

    target = opened("factories:linear", ONE)
    model = weakref.ref(target._model)
    result_of(target)
    target.close()
    gc.collect()
    assert model() is None
    target.open()  # and it can be opened again
    assert result_of(target).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 5}, "model: name `package.module:factory` or a"),
        ({"model": ""}, "model: name `package.module:factory` or a"),
        ({"device": "gpu"}, "device: `gpu` is none of cpu, cuda, cuda:N"),
        ({"device": 0}, "device: `0` is none of"),
        ({"mode": "fast"}, "mode: `fast` is none of eager, compile, graph"),
        ({"mode": ["eager"]}, "is none of eager, compile, graph"),
        (
            {"mode": "compile", "compile_mode": "fast"},
            "compile_mode: `fast` is none of default, reduce-overhead, max-autotune",
        ),
        (
            {"compile_mode": "default"},
            "compile_mode: it is for `mode: compile`, and the mode is `eager`",
        ),
        ({"autocast": "float32"}, "autocast: `float32` is none of bfloat16, float16"),
        ({"autocast": ["bfloat16"]}, "is none of bfloat16, float16"),
        ({"seed": "1"}, "seed: `1` is not a whole number"),
        ({"seed": True}, "seed: `True` is not a whole number"),
        ({"seed": -1}, "seed: `-1` is not a whole number from 0 on"),
        ({"seed": 2**70}, "is not a whole number from 0 on"),
        ({"inputs": "x"}, "inputs: a list is needed"),
        ({"inputs": 3}, "inputs: a list is needed"),
        ({"inputs": {"shape": [1]}}, "inputs: a list is needed"),
        ({"inputs": [3]}, r"inputs\[0\]: neither a tensor nor a mapping with `shape`"),
        ({"inputs": [{"dtype": "int8"}]}, r"inputs\[0\]: the required key `shape` is missing"),
        (
            {"inputs": [{"shape": [1]}, {"shape": ["x"]}]},
            r"inputs\[1\]: shape\[0\]: expected a whole number, got text",
        ),
        ({"inputs": [{"shape": [-1]}]}, r"inputs\[0\]: shape\[0\]: expected a whole number >= 0"),
        ({"inputs": [{"shape": [1], "dtype": "flot32"}]}, r"inputs\[0\].dtype: torch has no dtype `flot32`"),
        ({"inputs": [{"shape": [1], "dtype": "nn"}]}, r"inputs\[0\].dtype: torch has no dtype `nn`"),
        ({"inputs": [{"shape": 3}]}, r"inputs\[0\]: shape: expected a list, got a whole number"),
        ({"inputs": [{"shape": [1], "size": 3}]}, "unknown key `size`; known keys: shape, dtype, high"),
        ({"inputs": [{"shape": [1], "high": 0}]}, "high: expected a whole number >= 1"),
    ],
)
def test_a_wrong_argument_is_refused_immediately(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TorchTarget(**({"model": "factories:linear", "inputs": ONE} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nowhere:model"}, "model: no module `nowhere`; install it"),
        (
            {"model": "factories:nothing"},
            r"model: module `factories` \(.*\) has no `nothing`; check the spelling",
        ),
        ({"model": "factories:not_callable"}, "model: `factories:not_callable` is not callable"),
        ({"model": "factories:no_model"}, "gave a int, which cannot be called"),
        ({"model": "model.pth"}, "model: `model.pth` is neither package.module:factory nor a .pt, .ts"),
        ({"model": "missing.pt"}, "model: no file `missing.pt`; check the path"),
        ({"model": "missing.pt2"}, "model: no file `missing.pt2`; check the path"),
        ({"model": "junk.pt"}, "model: `junk.pt` cannot be loaded"),
        ({"model": "junk.pt2"}, "model: `junk.pt2` cannot be loaded"),
        (
            {"inputs": [{"shape": [1], "dtype": "float8_e7m0"}]},
            r"inputs\[0\].dtype: torch has no dtype `float8_e7m0`",
        ),
        ({"inputs": [{"shape": [10**9, 10**9]}]}, r"inputs\[0\]: torch cannot make it"),
        (
            {"inputs": [{"shape": [2**40]}]},
            r"inputs\[0\]: torch cannot make it: ",
        ),
    ],
)
def test_a_mistake_that_shows_when_opened(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    for name in ("junk.pt", "junk.pt2"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not a model\x00\xff" * 40)
    target = TorchTarget(**({"model": "factories:linear", "inputs": ONE} | options))
    with pytest.raises(UsageError, match=message) as caught:
        target.open()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"device: `cuda:1` was asked for, but .*or set `device: cpu`"):
        TorchTarget("factories:linear", ONE, device="cuda:1").open()


# Sweeps ------------------------------------------------------------------------------------------------------------


def test_another_size_has_the_same_model_and_the_same_samples_again() -> None:
    model = torch.nn.Linear(4, 3).eval()
    target = opened(model, [{"shape": [2, 4]}])
    assert target.samples == 2
    own = result_of(target)
    for batch in (1, 2, 5):
        other = target.copy_with_batch(batch)
        assert other.samples == batch
        result = result_of(other)
        assert torch.allclose(result, torch.cat([own] * 3)[:batch], atol=1e-6)
        assert other._device_inputs[0].data_ptr() != target._device_inputs[0].data_ptr()
        assert other.clock is not target.clock
        other.close()
    assert torch.equal(result_of(target), own), "the target itself is as it was"
    assert target.memory() is None, "nothing is invented on a CPU"


def test_inputs_without_a_dimension_stay_as_they_are() -> None:
    target = opened(lambda x, scale: x * scale, [torch.ones(2, 3), torch.tensor(2.0)])
    assert result_of(target.copy_with_batch(6)).tolist() == [[2.0] * 3] * 6


def test_inputs_that_have_no_size_in_common_have_their_own_only() -> None:
    target = opened(lambda *x: x, [torch.ones(2, 3), torch.ones(4)])
    assert target.samples == 1
    assert [tuple(t.shape) for t in result_of(target.copy_with_batch(1))] == [(2, 3), (4,)]
    with pytest.raises(Unsized, match="its inputs have no first dimension in common"):
        target.copy_with_batch(2)
    empty = opened(lambda x: x, torch.ones(0, 3))
    with pytest.raises(Unsized):
        empty.copy_with_batch(2)


def test_a_compiled_model_is_not_compiled_again() -> None:
    target = TorchTarget(torch.nn.Linear(4, 3).eval(), ONE, mode="compile")
    target.open()
    assert target.copy_with_batch(2).samples == 2
    with pytest.raises(Unsized, match=r"torch.compile would compile the model again"):
        target.copy_with_batch(4)
    torch._dynamo.reset()


def test_a_copy_that_is_closed_leaves_the_model() -> None:
    target = opened(torch.nn.Linear(4, 3).eval(), ONE)
    target.copy_with_batch(8).close()
    assert result_of(target).shape == (2, 3)
