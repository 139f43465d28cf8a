"""Which operators a shift went to: profiles with parts that are known, and what is said of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from infercanary.contract.profile import MAX_ROWS, Profile, ProfileRow, is_sound
from infercanary.judge.operator_words import line, part, summary
from infercanary.judge.operators import MOST, Operators, compare_operators

REPEATS = 5


def row(
    kind: str, seconds: float, name: str = "", device: str = "cpu", shapes: str = "", calls: float = 1.0
) -> ProfileRow:
    return ProfileRow(kind, name or kind, device, shapes, calls, (seconds,) * REPEATS)


def profile(
    *rows: ProfileRow,
    outside: float = 0.001,
    rest: float = 0.0,
    at: float = 0.0,
    noise: float = 0.01,
    seed: int = 0,
    **more: Any,
) -> Profile:
    """With some scatter from repeat to repeat, which the wall time has too."""
    draw = random.Random(f"{at} {seed}")

    def scattered(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(value * draw.gauss(1.0, noise) for value in values)

    made = tuple(msgspec.structs.replace(r, seconds=scattered(r.seconds)) for r in rows)
    around, others = scattered((outside,) * REPEATS), (rest,) * REPEATS
    wall = tuple(sum(r.seconds[i] for r in made) + around[i] + others[i] for i in range(REPEATS))
    found = Profile(at, "torch", "ok", wall, around, others, made)
    return msgspec.structs.replace(found, **more)


def compared(
    before: Sequence[ProfileRow],
    after: Sequence[ProfileRow],
    timed: tuple[float, float] | None = None,
    **more: Any,
) -> Operators:
    old, new = profile(*before, at=1.0), profile(*after, at=2.0, **more)
    assert is_sound(old) and is_sound(new)
    walls = (sum(old.wall) / REPEATS, sum(new.wall) / REPEATS)
    found = compare_operators([old], [new], timed or walls)
    assert found is not None
    return found


CONV = row("aten::conv2d", 0.0098, "aten::mkldnn_convolution", shapes="1x3x8x8 float, 4x3x3x3 float")
RELU = row("aten::relu", 0.002)
LINEAR = row("aten::linear", 0.004, "aten::addmm", shapes="8x256 float", calls=3)


def test_the_operator_that_grew_is_named_with_its_share() -> None:
    slower = msgspec.structs.replace(CONV, seconds=(0.0312,) * REPEATS)
    found = compared([CONV, RELU], [slower, RELU])
    assert found.state == "explained" and found.repeats == (5, 5)
    [conv] = found.shifts
    assert (conv.operator, conv.change) == ("aten::conv2d", "grew")
    assert conv.low < conv.gained < conv.high and conv.low > 0.02
    assert conv.share == pytest.approx(1.0, abs=0.02)
    assert part(found).startswith("conv2d 9.") and part(found).endswith("% of the change)")
    assert " → 31" in part(found) and "ms" in part(found)


@pytest.mark.parametrize(
    ("after", "change", "detail"),
    [
        (
            row("aten::conv2d", 0.03, "aten::_slow_conv2d_forward", shapes=CONV.shapes),
            "kernel",
            "mkldnn_convolution → _slow_conv2d_forward",
        ),
        (row("aten::conv2d", 0.03, "aten::mkldnn_convolution", "cuda:0", CONV.shapes), "moved", "cpu → cuda:0"),
        (row("aten::conv2d", 0.03, CONV.name, shapes="1x3x8x8 double, 4x3x3x3 double"), "type", "float → double"),
        (row("aten::conv2d", 0.03, CONV.name, shapes=CONV.shapes, calls=3), "calls", "1 → 3 calls"),
        (row("aten::conv2d", 0.03, CONV.name, shapes=CONV.shapes), "grew", ""),
    ],
)  # fmt: skip
def test_the_kind_of_change_is_what_changed_with_it(after: ProfileRow, change: str, detail: str) -> None:
    [conv] = compared([CONV, RELU], [after, RELU]).shifts
    assert (conv.change, conv.detail) == (change, detail)


def test_new_and_gone_operators_and_the_other_way() -> None:
    norm = row("aten::batch_norm", 0.005)
    found = compared([CONV, RELU], [CONV, RELU, norm])
    assert [(s.operator, s.change) for s in found.shifts] == [("aten::batch_norm", "new")]
    assert part(found).startswith("batch_norm new (") and part(found).endswith(" % of the change)")
    assert found.new == 1 and found.gone == 0
    back = compared([CONV, RELU, norm], [CONV, RELU])
    assert [(s.operator, s.change) for s in back.shifts] == [("aten::batch_norm", "gone")]
    assert back.shifts[0].gained < 0 and back.shifts[0].share == pytest.approx(1.0, abs=0.1)


def test_others_that_are_new_are_counted() -> None:
    new = [row(f"aten::op{i}", 0.002 - i * 1e-4) for i in range(5)]
    assert part(compared([CONV], [CONV, *new])).endswith(", 3 more new")


def test_one_layer_of_many_is_known_by_its_shapes() -> None:
    big = row("aten::linear", 0.004, "aten::addmm", shapes="8x1024 float")
    slow = msgspec.structs.replace(big, seconds=(0.012,) * REPEATS)
    [linear] = compared([LINEAR, big], [LINEAR, slow]).shifts
    assert linear.shapes == "8x1024 float"
    assert line(linear).endswith("; 8x1024 float")


def test_one_layer_of_many_in_another_type() -> None:
    twice = [LINEAR, row("aten::linear", 0.004, "aten::addmm", shapes="8x256 double")]
    whole = [msgspec.structs.replace(LINEAR, calls=4, seconds=(0.0055,) * REPEATS)]
    [linear] = compared(whole, twice).shifts
    assert (linear.change, linear.detail) == ("type", "float → double")


def test_what_is_outside_of_operators_is_said_to_be() -> None:
    found = compared([CONV], [CONV], outside=0.009)
    assert found.state == "outside" and not found.shifts
    assert part(found).startswith("no operator explains it: ")
    assert "% of the change is outside of them (" in part(found)


def test_parts_add_up_to_the_change() -> None:
    slower = msgspec.structs.replace(CONV, seconds=(0.02,) * REPEATS)
    found = compared([CONV, RELU], [slower, LINEAR], outside=0.003)
    outside = (found.outside[1] - found.outside[0]) / (found.wall[1] - found.wall[0])
    assert found.share + outside == pytest.approx(1.0)
    assert sum(s.share for s in found.shifts) == pytest.approx(found.share, abs=0.1)


@pytest.mark.parametrize("timed", [(0.01, 0.0102), (0.02, 0.01), (0.001, 0.3)])
def test_a_profile_that_moved_otherwise_than_the_timed_runs_explains_nothing(
    timed: tuple[float, float],
) -> None:
    slower = msgspec.structs.replace(CONV, seconds=(0.0312,) * REPEATS)
    found = compared([CONV], [slower], timed)
    assert found.state == "unexplained" and not found.shifts
    assert part(found) == "the profile does not explain it"
    assert summary(found).startswith("the profile does not explain it: ")


def test_small_parts_in_many_operators_explain_nothing() -> None:
    """Each lies within its own scatter: that all together grew is no operator's finding."""
    many = [row(f"op{i}", 0.001) for i in range(30)]
    grown = [msgspec.structs.replace(r, seconds=(0.00103,) * REPEATS) for r in many]
    old, new = profile(*many, noise=0.2), profile(*grown, noise=0.2, seed=1)
    found = compare_operators([old], [new], (0.031, 0.032))
    assert found is None or found.state != "explained"


def test_a_side_without_a_profile_says_nothing_and_one_with_too_few_says_so() -> None:
    one = profile(CONV)
    assert compare_operators([], [one], (0.01, 0.02)) is None
    assert compare_operators([one], [], (0.01, 0.02)) is None
    two = msgspec.structs.replace(
        one, wall=one.wall[:2], outside=one.outside[:2], rest=one.rest[:2],
        rows=tuple(msgspec.structs.replace(r, seconds=r.seconds[:2]) for r in one.rows),
    )  # fmt: skip
    found = compare_operators([one], [two], (0.01, 0.02))
    assert found is not None and found.state == "too_few" and part(found) == ""
    assert summary(found) == "not enough profiles yet: 5 and 2 profiled repeats"


def test_a_profile_that_could_not_see_the_device_is_not_compared_with_one_that_did() -> None:
    seen, unseen = profile(CONV), profile(CONV, state="no_cupti", at=2.0)
    assert compare_operators([seen], [unseen], (0.01, 0.02)) is None


def test_an_operator_that_may_have_been_in_the_rest_is_not_called_new() -> None:
    """Of more operators than rows the short ones are summed: one that grew a little may come up out of them."""
    full = [row(f"op{i:02}", 0.001) for i in range(MAX_ROWS)]
    before = profile(*full, rest=0.01, at=1.0)
    grown = [row(f"op{i:02}", 0.004) for i in range(MAX_ROWS - 1)]
    after = profile(*grown, row("late", 0.0015), rest=0.01, at=2.0)
    found = compare_operators([before], [after], (sum(before.wall) / 5, sum(after.wall) / 5))
    assert found is not None and found.new == 0 and len(found.shifts) <= MOST


def test_several_profiles_of_a_side_are_taken_together() -> None:
    slower = msgspec.structs.replace(CONV, seconds=(0.0312,) * REPEATS)
    old = [profile(CONV, at=float(i)) for i in range(8)]
    new = [profile(slower, at=float(10 + i)) for i in range(2)]
    found = compare_operators(old, new, (0.011, 0.032))
    assert found is not None and found.repeats == (30, 10), "the last six of a side"
    assert found.state == "explained"


def test_repeats_that_a_profiler_disturbed_are_set_aside_where_others_are_like_the_timed_ones() -> None:
    """Of memory that is given back at each call, a profiled repeat may take five times what a timed one does."""
    slower = msgspec.structs.replace(CONV, seconds=(0.0312,) * REPEATS)
    disturbed = msgspec.structs.replace(CONV, seconds=(0.030,) * REPEATS)
    old = [profile(disturbed, at=float(i)) for i in range(2)] + [profile(CONV, at=3.0)]
    found = compare_operators(old, [profile(slower, at=9.0)], (0.0105, 0.0315))
    assert found is not None and (found.state, found.repeats) == ("explained", (5, 5))
    [conv] = found.shifts
    assert conv.before == pytest.approx(0.0098, rel=0.05)
    slowed = compare_operators([profile(CONV)], [profile(slower)], (0.0034, 0.0131))
    assert slowed is not None and slowed.repeats == (5, 5), "a profiler may slow each repeat"
