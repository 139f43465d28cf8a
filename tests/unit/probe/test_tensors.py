"""Inputs that are matched to what an engine asks for, and drawn; outputs as numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from infercanary.command.settings import UsageError
from infercanary.probe.targets.engines import outputs
from infercanary.probe.targets.engines.tensors import (
    STORAGE,
    Input,
    Slot,
    drawn,
    matched,
    readable,
    specs,
)

np = pytest.importorskip("numpy")

IMAGE = Slot("image", ("N", 3, 8, 8), "float32")
MASK = Slot("mask", (1, 4), "int64")
PROFILED = Slot("image", (None, 3), "float16", (4, 3))


def given(inputs: Any, *slots: Slot) -> list[Input]:
    return matched(specs(inputs), slots)


def test_a_list_is_in_the_engines_order_and_a_mapping_by_name() -> None:
    image = {"shape": [2, 3, 8, 8]}
    by_order = given([image, {"high": 7}], IMAGE, MASK)
    assert by_order == [
        Input("inputs[0]", "image", (2, 3, 8, 8), "float32", 2),
        Input("inputs[1]", "mask", (1, 4), "int64", 7),
    ]
    by_name = given({"mask": {"high": 7}, "image": image}, IMAGE, MASK)
    assert [each._replace(place="") for each in by_name] == [each._replace(place="") for each in by_order]
    assert by_name[0].place == "inputs.image"


def test_what_is_left_out_is_the_engines() -> None:
    assert given([], MASK) == [Input("inputs[0]", "mask", (1, 4), "int64", 2)]
    assert given({}, PROFILED, MASK)[0].shape == (4, 3)
    assert given([{"shape": [9, 3]}], PROFILED)[0].shape == (9, 3)
    assert given([], Slot("scalar", (), "float32"))[0].shape == ()


@pytest.mark.parametrize(
    ("inputs", "slots", "expected"),
    [
        (3, [MASK], "inputs: a list is needed, one entry for each input in order, or a mapping by name, each with"),
        ("x", [MASK], "inputs: a list is needed"),
        ([3], [MASK], "inputs[0]: expected a mapping, got a whole number"),
        ({"mask": {"size": 3}}, [MASK], "inputs.mask: unknown key `size`; known keys: shape, dtype, high"),
        ([{"shape": [-1]}], [MASK], "inputs[0]: shape[0]: expected a whole number >= 0"),
        ({"x": {}}, [IMAGE, MASK], "inputs: the model has no input `x`; its inputs: image, mask"),
        ([{}], [IMAGE, MASK], "inputs: 1 given, and the model has 2: image, mask; one for each is needed"),
        ([{}], [], "inputs: 1 given, and the model has 0: none; one for each is needed"),
        (
            [{}],
            [IMAGE],
            "inputs[0].shape: the model's input `image` is [N, 3, 8, 8]; say which shape, such as [1, 3, 8, 8]",
        ),
        (
            [],
            [Slot("x", (None,), "int8")],
            "inputs[0].shape: the model's input `x` is [?]; say which shape, such as [1]",
        ),
        (
            [{"shape": [1, 4, 8, 8]}],
            [IMAGE],
            "inputs[0].shape: [1, 4, 8, 8] does not fit the model's input `image`, which is [N, 3, 8, 8]",
        ),
        ({"mask": {"shape": [4]}}, [MASK], "inputs.mask.shape: [4] does not fit the model's input `mask`, which is"),
        ([{"dtype": "int32"}], [MASK], "inputs[0].dtype: the model's input `mask` is int64, not int32"),
        ([{"dtype": "float8"}], [MASK], "inputs[0].dtype: no dtype `float8`; there are float32, float64, float16,"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(inputs: Any, slots: list[Slot], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        given(inputs, *slots)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def draw(dtype: str, shape: tuple[int, ...] = (1000,), high: int = 2, seed: int = 0, index: int = 0) -> Any:
    return readable(drawn(Input("inputs[0]", "x", shape, dtype, high), seed, index), dtype)


@pytest.mark.parametrize("dtype", STORAGE)
def test_every_dtype_is_drawn(dtype: str) -> None:
    numbers = draw(dtype, high=100)
    assert numbers.shape == (1000,)
    if dtype == "bool":
        assert set(numbers.tolist()) == {True, False}
    elif "float" in dtype:
        assert abs(numbers.mean()) < 0.2 and 0.8 < numbers.std() < 1.2
        assert (
            drawn(Input("", "x", (1,), dtype, 2), 0, 0).dtype.itemsize
            == {"16": 2, "32": 4, "64": 8}[dtype[-2:]]
        )
    else:
        assert numbers.dtype == dtype and numbers.min() >= 0 and 90 < numbers.max() < 100


def test_the_numbers_never_change() -> None:
    """A canary of a new image is compared with that of the old: its input must be the same with another numpy."""
    assert draw("float32", (3,)).tolist() == pytest.approx([-1.8313078, -0.17735435, 0.0382792], abs=1e-6)
    numbers = draw("int64", (8,), high=1000, seed=7, index=1)
    assert numbers.tolist() == [978, 589, 305, 772, 91, 700, 341, 240]


def test_seeds_inputs_and_processes() -> None:
    assert draw("float32").tolist() == draw("float32").tolist()
    assert draw("float32").tolist() != draw("float32", seed=1).tolist()
    assert draw("float32").tolist() != draw("float32", index=1).tolist()
    script = (
        "from infercanary.probe.targets.engines.tensors import Input, drawn\n"
        "print(drawn(Input('', 'x', (4,), 'float64', 2), 2**61, 3).tolist())"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert there.stdout.strip() == repr(draw("float64", (4,), seed=2**61, index=3).tolist())


def test_bfloat16_is_the_nearest() -> None:
    exact, rounded = draw("float32"), draw("bfloat16")
    assert np.abs(rounded - exact).max() <= np.abs(exact).max() * 2**-8
    assert (rounded.view(np.uint32) & 0xFFFF == 0).all()
    torch = pytest.importorskip("torch")
    assert rounded.tolist() == torch.tensor(exact).to(torch.bfloat16).tolist()


@pytest.mark.parametrize(
    ("dtype", "shape", "high", "expected"),
    [
        ("int8", (1,), 129, "inputs[0].high: 129 is more than int8 can hold"),
        ("float32", (10**9, 10**9), 2, "inputs[0]: numpy cannot make it"),
        ("bfloat16", (2**62,), 2, "inputs[0]: numpy cannot make it"),
        (
            "int64",
            (2**40,),
            2,
            "inputs[0]: numpy cannot make it: MemoryError: Unable to allocate 8.00 TiB",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    dtype: str, shape: tuple[int, ...], high: int, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        draw(dtype, shape, high)
    assert str(caught.value).startswith(expected)


def test_places_are_few_fixed_and_from_all_over() -> None:
    parts = [np.arange(700.0), np.arange(700, 5_000).reshape(43, 100), np.arange(5_000.0, 5_001.0)]
    values = outputs.values(parts)
    assert 500 < len(values) <= 1024
    assert len({b - a for a, b in pairwise(values)}) == 1, (
        "evenly spread, across the borders of the tensors too"
    )
    assert values[0] == 0.0 and values[-1] > 4_980
    assert outputs.values([]) == outputs.values([np.zeros(0)]) == []
    assert outputs.values([np.array([True, False]), np.array([3], np.uint8)]) == [1.0, 0.0, 3.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_one_value_that_is_not_finite_is_seen_wherever_it_is(bad: float, dtype: str) -> None:
    for place in (0, 1, 4_997):
        output = np.ones(4_999, dtype)
        output[place] = complex(0, bad) if dtype == "complex64" else bad
        assert not all(map(math.isfinite, outputs.values([output, np.array([1, 2])])))
    assert all(map(math.isfinite, outputs.values([np.full(10, 60_000.0, np.float16)])))
