"""Inputs that are matched to an engine's declarations and drawn; outputs as numbers."""

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import yaml

from infercanary.probe.targets.engines import outputs
from infercanary.probe.targets.engines.tensors import Input, Slot, drawn, matched, specs
from tests.scenarios import mistakes, refused, scenarios

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

SLOTS = {
    "image": Slot("image", ("N", 3, 8, 8), "float32"),
    "mask": Slot("mask", (1, 4), "int64"),
    "profiled": Slot("image", (None, 3), "float16", (4, 3)),
    "scalar": Slot("scalar", (), "float32"),
    "unknown": Slot("x", (None,), "int8"),
}


def given(inputs, slots):
    return matched(specs(inputs), [SLOTS[name] for name in slots.split()])


# Inputs in the engine's order or by name | slots of the engine | drawn tensor of each slot. The engine
# supplies everything that an input omits.
MATCHED = """
[{shape: [2, 3, 8, 8]}, {high: 7}]              | image mask    | [2, 3, 8, 8] float32 2, [1, 4] int64 7
{mask: {high: 7}, image: {shape: [2, 3, 8, 8]}} | image mask    | [2, 3, 8, 8] float32 2, [1, 4] int64 7
[]                                              | mask          | [1, 4] int64 2
{}                                              | profiled mask | [4, 3] float16 2, [1, 4] int64 2
[{shape: [9, 3]}]                               | profiled      | [9, 3] float16 2
[]                                              | scalar        | [] float32 2
"""


@pytest.mark.parametrize(("inputs", "slots", "expected"), scenarios(MATCHED))
def test_inputs_are_matched_to_what_the_engine_asks_for(inputs, slots, expected):
    found = given(yaml.safe_load(inputs), slots)
    assert ", ".join(f"{[*each.shape]} {each.dtype} {each.high}" for each in found) == expected
    assert [each.name for each in found] == [SLOTS[name].name for name in slots.split()]
    place = f"inputs[{len(found) - 1}]" if inputs.startswith("[") else f"inputs.{found[-1].name}"
    assert found[-1].place == place


MISTAKES = """
3                            | mask       | inputs: expected a list or a mapping
x                            | mask       | inputs: expected a list or a mapping
{mask: {size: 3}}            | mask       | inputs: mask: unknown key `size` | shape, dtype, high
[{shape: [-1]}]              | mask       | inputs[0].shape[0]: | >= 0
{x: {}}                      | image mask | inputs: the model has no input `x` | image, mask
[{}]                         | image mask | inputs: 1 given, but the model has 2: image, mask
[{}]                         |            | inputs: 1 given, but the model has 0
[{}]                         | image      | inputs[0].shape: the model's input `image` is [N, 3, 8, 8]; give
[]                           | unknown    | inputs[0].shape: the model's input `x` is [?]
[{shape: [1, 4, 8, 8]}]      | image      | inputs[0].shape: the model's input `image` is [N, 3, 8, 8]
{mask: {shape: [4]}}         | mask       | inputs.mask.shape: the model's input `mask` is [
[{dtype: int32}]             | mask       | inputs[0].dtype: the model's input `mask` is int64, not int32
"""


@pytest.mark.parametrize(("inputs", "words"), mistakes(MISTAKES))
def test_inputs_that_do_not_match_are_one_line(inputs, words):
    slots, *words = words
    with refused(words):
        given(inputs, slots)


UNDRAWN = """
int8     | [1]                   | 129 | inputs[0].high: 129 is more than int8 can hold
bfloat16 | [4611686018427387904] | 2   | inputs[0]: numpy cannot make the array
int64    | [1099511627776]       | 2   | inputs[0]: numpy cannot make the array: MemoryError
"""


@pytest.mark.parametrize(("dtype", "shape", "high", "expected"), scenarios(UNDRAWN))
def test_inputs_that_cannot_be_drawn_are_one_line(dtype, shape, high, expected):
    with refused([expected]):
        drawn(Input("inputs[0]", "x", (*yaml.safe_load(shape),), dtype, int(high)), 0, 0)


# Outputs -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fields:
    logits: Any
    loss: Any = None


class Output(dict[str, Any]): ...


def tensor(*numbers, dtype="float32", **options):
    return torch.tensor(numbers, **options).to(getattr(torch, dtype))


def cycle():
    found: list[Any] = []
    found.append(found)
    return found


HELD: dict[
    str, Callable[[float], Any]
] = {  # model outputs with the numbers 1, x and 3, of which x is the parameter
    "nested": lambda x: Output(
        logits=tensor(1.0, x), more=[(torch.tensor(3), "text"), {"x": tensor()}], none=None
    ),
    "dataclass": lambda x: Fields(tensor(1.0, x), {"more": [Fields(3)]}),
    "half array": lambda x: np.array([1.0, x, 3.0], np.float16),
    "plain numbers": lambda x: [1, (x,), {"last": 3.0, "text": "4"}],
    "complex": lambda x: [tensor(complex(1, x), dtype="complex64").conj_physical().conj(), 3],
    "complex array": lambda x: [np.array([complex(1, x)]), np.float64(3)],
    "float8": lambda x: tensor(1, x, 3, dtype="float8_e5m2"),
    "with a gradient": lambda x: tensor(1.0, x, 3.0, requires_grad=True),
    "itself at its end": lambda x: [1, x, 3, *cycle()],
    "sparse": lambda x: tensor(1.0, x, 3.0).to_sparse(),
    "mkldnn": lambda x: tensor(1.0, x, 3.0).to_mkldnn(),
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_numbers_are_read_from_whatever_holds_them(held):
    assert outputs.values(held(2.0)) == [1.0, 2.0, 3.0]
    for bad in (math.nan, math.inf):
        assert not all(map(math.isfinite, outputs.values(held(bad))))


NO_NUMBERS = [
    "text", None, b"bytes", [{"label": "cat"}, None], torch.zeros(0), np.zeros(0), np.array(["a"]),
    np.array("2026-01-01", "datetime64[D]"), {1.0, 2.0}, Fields, pytest,
]  # fmt: skip


@pytest.mark.parametrize("held", NO_NUMBERS)
def test_outputs_without_numbers_give_none(held):
    assert outputs.values(held) == []


def test_a_result_without_end_is_read_to_a_limit():
    result: Any = 7.0
    for _ in range(60):
        result = [result, result]
    assert {*outputs.values(result)} == {7.0}
    for _ in range(10_000):
        result = (result,)
    assert {*outputs.values(result)} == {7.0}


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_values_are_few_and_fixed_and_evenly_spread_across_the_outputs(library):
    parts = [
        library.arange(700.0),
        library.arange(700.0, 5_000.0).reshape(43, 100),
        library.arange(5_000.0, 5_001.0),
    ]
    values = outputs.values(parts)
    assert 500 < len(values) <= 1024
    assert len({b - a for a, b in pairwise(values)}) == 1
    assert values[0] == 0.0
    assert values[-1] > 4_980


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "bfloat16"])
def test_one_value_that_is_not_finite_is_seen_wherever_it_is(library, dtype, monkeypatch):
    monkeypatch.setattr(outputs, "_PIECE", 1_000)
    if (kind := getattr(library, dtype, None)) is None:
        pytest.skip("numpy has no bfloat16")
    for place, bad in ((0, math.nan), (1, math.inf), (999, -math.inf), (1_000, math.nan), (4_997, math.inf)):
        output = library.ones(4_999, dtype=kind)
        output[place] = complex(0, bad) if dtype == "complex64" else bad
        assert not all(map(math.isfinite, outputs.values({"y": output, "n": library.ones(2)})))
    assert all(map(math.isfinite, outputs.values(library.full((10,), 60_000.0, dtype=kind))))
