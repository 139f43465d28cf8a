"""Operators that a shift went to: profiles whose change is known, and what is said of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from infercanary.contract.profile import MAX_ROWS, Profile, ProfileRow, is_sound
from infercanary.judge.operators import MOST, Operators, compare_operators, old_names

REPEATS = 5


def row(
    kind: str, seconds: float, name: str = "", device: str = "cpu", shapes: str = "", calls: float = 1.0
) -> ProfileRow:
    return ProfileRow(kind, name or kind, device, shapes, calls, (seconds,) * REPEATS)


def profile(
    *rows: ProfileRow,
    outside: float = 0.001,
    rest: float = 0.0,
    slowed: Sequence[float] = (1.0,) * REPEATS,
    noise: float = 0.01,
    seed: int = 0,
    **more: Any,
) -> Profile:
    """Rows in the order of their calls, with some scatter that the wall time has too; ``slowed`` multiplies repeats."""
    draw = random.Random(seed)

    def scattered(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            value * slow * draw.gauss(1.0, noise) for value, slow in zip(values, slowed, strict=True)
        )

    made = [replace(each, seconds=scattered(each.seconds), order=i) for i, each in enumerate(rows)]
    made.sort(key=lambda each: -sum(each.seconds))
    around, others = scattered((outside,) * REPEATS), (rest,) * REPEATS
    wall = tuple(sum(each.seconds[i] for each in made) + around[i] + others[i] for i in range(REPEATS))
    found = replace(Profile(0.0, "torch", "ok", wall, around, others, tuple(made)), **more)
    assert is_sound(found)
    return found


def compared(
    before: Profile | Sequence[Profile],
    after: Profile | Sequence[Profile],
    timed: tuple[float, float] | None = None,
) -> Operators:
    old, new = ([side] if isinstance(side, Profile) else side for side in (before, after))
    found = compare_operators(old, new, timed or (median(old[-1].wall), median(new[-1].wall)))
    assert found is not None
    return found


def slower(one: ProfileRow, seconds: float, **more: Any) -> ProfileRow:
    return replace(one, seconds=(seconds,) * REPEATS, **more)


CONV = row("aten::conv2d", 0.0098, "aten::mkldnn_convolution", shapes="1x3x8x8 float, 4x3x3x3 float", calls=2)
RELU = row("aten::relu", 0.002)
LINEAR = row("aten::linear", 0.004, "aten::addmm", shapes="8x256 float")
NORM = row("aten::batch_norm", 0.005)
BIG = replace(LINEAR, shapes="8x1024 float")
CUDA, CPU = (row("Erf", 0.002, device=f"{name}ExecutionProvider") for name in ("CUDA", "CPU"))
UNKNOWN = replace(CONV, shapes="")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([CONV, RELU], [slower(CONV, 0.03), RELU], [("aten::conv2d", "grew", "")]),
        ([CONV, RELU], [slower(CONV, 0.003), RELU], [("aten::conv2d", "shrank", "")]),
        ([CONV, RELU], [slower(CONV, 0.0112), RELU], [("aten::conv2d", "grew", "")]),
        ([CONV, row("small", 1e-4)], [slower(CONV, 0.03), row("small", 2e-4)],
         [("aten::conv2d", "grew", ""), ("small", "grew", "")]),
        ([CONV, RELU], [slower(CONV, 0.03, name="aten::_slow_conv2d"), RELU],
         [("aten::conv2d", "grew", "mkldnn_convolution → _slow_conv2d")]),
        ([CONV, RELU], [slower(CONV, 0.003, name="fast"), RELU],
         [("aten::conv2d", "shrank", "mkldnn_convolution → fast")]),
        ([CONV, RELU], [slower(CONV, 0.03, device="cuda:0"), RELU], [("aten::conv2d", "grew", "cpu → cuda:0")]),
        ([CONV, RELU], [slower(CONV, 0.03, name="slow", device="cuda:0"), RELU],
         [("aten::conv2d", "grew", "cpu → cuda:0, mkldnn_convolution → slow")]),
        ([UNKNOWN, RELU], [slower(CONV, 0.03), RELU], [("aten::conv2d", "grew", "")]),
        ([CONV, RELU], [slower(UNKNOWN, 0.03), RELU], [("aten::conv2d", "grew", "")]),
        ([CONV, RELU], [slower(CONV, 0.03, calls=6), RELU], [("aten::conv2d", "grew", "2 → 6 calls")]),
        ([CONV, RELU], [CONV, RELU, NORM], [("aten::batch_norm", "new", "")]),
        ([CONV, RELU, NORM], [CONV, RELU], [("aten::batch_norm", "gone", "")]),
        # One of two layers in another type, and a small helper that is new beside the one that grew.
        ([slower(LINEAR, 0.0055, calls=2)], [LINEAR, replace(LINEAR, shapes="8x256 double")],
         [("aten::linear", "grew", "8x256 float → 8x256 double")]),
        ([CONV], [slower(CONV, 0.03), slower(CONV, 0.004, name="helper", calls=0)], [("aten::conv2d", "grew", "")]),
        ([row("sm80_fprop", 0.001)], [row("scudnn_conv", 0.003)],
         [("scudnn_conv", "grew", "sm80_fprop → scudnn_conv")]),
        ([CUDA], [slower(CPU, 0.009)], [("Erf", "grew", "CUDA → CPU")]),
        ([row("Gelu", 0.001), RELU], [row("Mul", 0.006), RELU],
         [("Mul", "new", ""), ("Gelu", "gone", "")]),
    ],
)  # fmt: skip
def test_the_operator_that_changed_is_named_with_its_kind_of_change(
    before: Sequence[ProfileRow], after: Sequence[ProfileRow], expected: list[tuple[str, str, str]]
) -> None:
    old, new = profile(*before, seed=1), profile(*after, seed=2)
    found = compared(old, new)
    assert found.state == "explained"
    assert [(shift.operator, shift.change, shift.detail) for shift in found.shifts] == expected
    assert found.share == pytest.approx(1.0, abs=0.05)
    assert sum(shift.share for shift in found.shifts) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("names", "others", "expected"),
    [
        ("conv relu", "conv relu", {}),
        ("fprop_a fprop_b relu conv linear", "winograd conv scudnn_conv addmm gelu",
         {"winograd": "fprop_a", "scudnn_conv": "fprop_b", "addmm": "linear"}),
        ("sigmoid add", "tanh add", {}),
        ("cutlass_fprop", "gemm conv", {"conv": "cutlass_fprop"}),
        ("norm", "softmax", {}),
    ],
)  # fmt: skip
def test_other_names_are_matched_by_kind_of_work_and_order_of_calls(
    names: str, others: str, expected: dict[str, str]
) -> None:
    old, new = (
        profile(*(row(name, 0.001 * (i + 1)) for i, name in enumerate(side.split())))
        for side in (names, others)
    )
    assert old_names(old, new) == expected


SLOWER = slower(CONV, 0.0312)
ONE, OTHER = profile(CONV), profile(SLOWER, seed=1)
MANY = [row(f"op{i:02}", 0.001) for i in range(MAX_ROWS)]
FEW = replace(
    ONE, wall=ONE.wall[:2], outside=ONE.outside[:2], rest=ONE.rest[:2],
    rows=tuple(replace(each, seconds=each.seconds[:2]) for each in ONE.rows),
)  # fmt: skip


DISTURBED = profile(CONV, slowed=(3, 3, 3, 1, 3))


@pytest.mark.parametrize(
    ("before", "after", "timed", "state"),
    [
        (ONE, OTHER, (0.0108, 0.0322), "explained"),
        (ONE, profile(CONV, outside=0.009), (0.0108, 0.0188), "outside"),
        # Profiled repeats that changed otherwise than the timed ones.
        (ONE, OTHER, (0.01, 0.0102), "unexplained"),
        (ONE, OTHER, (0.0108, 0.018), "unexplained"),
        (ONE, OTHER, (0.02, 0.01), "unexplained"),
        (ONE, OTHER, (0.001, 0.3), "unexplained"),
        (ONE, OTHER, (0.01, 0.01), "unexplained"),
        (ONE, OTHER, (0.005, 0.0159), "explained"),
        # The profiler disturbed some repeats, or most of them; of several profiles the one that it disturbed least.
        (profile(CONV, slowed=(3, 1, 1, 1, 0.3)), OTHER, (0.0108, 0.0322), "explained"),
        (DISTURBED, OTHER, (0.0108, 0.0322), "unexplained"),
        ([DISTURBED, ONE, FEW, DISTURBED], [DISTURBED, OTHER], (0.0108, 0.0322), "explained"),
    ],
)  # fmt: skip
def test_the_state_says_what_profiles_explain(
    before: Profile | Sequence[Profile],
    after: Profile | Sequence[Profile],
    timed: tuple[float, float],
    state: str,
) -> None:
    found = compared(before, after, timed)
    assert found.state == state
    assert bool(found.shifts) == (state == "explained")


@pytest.mark.parametrize(
    ("before", "after", "timed"),
    [
        ([], [ONE], (0.01, 0.02)),
        ([ONE], [], (0.01, 0.02)),
        ([ONE], [FEW], (0.01, 0.02)),
        ([ONE], [replace(OTHER, state="no_cupti")], (0.01, 0.03)),
        ([replace(ONE, engine="onnxruntime")], [OTHER], (0.01, 0.03)),
    ],
)
def test_sides_that_cannot_be_compared(
    before: list[Profile], after: list[Profile], timed: tuple[float, float]
) -> None:
    assert compare_operators(before, after, timed) is None


def test_scatter_alone_names_no_operator() -> None:
    """Forty operators are forty claims: intervals of two standard errors list 36 of these 400, of five repeats each."""
    named, states = 0, []
    grown = [slower(each, 0.00105) for each in MANY]
    for seed in range(10):
        old, same, all_grew = (
            profile(*rows, noise=0.2, seed=seed + add, outside=outside)
            for rows, add, outside in ((MANY, 0, 0.001), (MANY, 10, 0.003), (grown, 10, 0.001))
        )
        found = compared(old, same, (0.04, 0.04 + median(same.wall) - median(old.wall)))
        assert found.state != "explained"
        named += len(found.shifts)
        states.append(compared(old, all_grew).state)
    assert named <= 15 and states.count("unexplained") >= 8


def test_an_operator_that_may_have_been_in_the_rest_is_not_claimed() -> None:
    """Of more operators than rows the short ones are summed: one that grew a little may come up out of them."""
    full = profile(*MANY, rest=0.01)
    grown = [slower(each, 0.004) for each in MANY[1:]]
    late, surely = (profile(*grown, row("late", seconds), rest=0.01) for seconds in (0.009, 0.02))
    found = compared(full, late).shifts
    assert len(found) == MOST and {each.change for each in found} == {"grew"}
    assert [each.operator for each in compared(full, surely).shifts if each.change == "new"] == ["late"]
