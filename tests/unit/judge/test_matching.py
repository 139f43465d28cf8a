"""Which operators of two sides are the same one, where their names are not."""

from __future__ import annotations

import msgspec

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.judge.matching import Match, matches
from infercanary.judge.operator_words import part
from infercanary.judge.operators import Operators, compare_operators


def profile(*names: str, device: str = "cpu", seconds: float = 0.001) -> Profile:
    """Operators in the order in which they are called; rows are in another, as those of a probe are by time."""
    rows = [ProfileRow(name, name, device, "", 1.0, (seconds,) * 3, i) for i, name in enumerate(names)]
    wall = (seconds * len(names),) * 3
    return Profile(0.0, "torch", "ok", wall, (0.0,) * 3, (0.0,) * 3, tuple(reversed(rows)))


def compared(before: Profile, after: Profile) -> Operators:
    found = compare_operators([before], [after], (before.wall[0], after.wall[0]))
    assert found is not None
    return found


def test_by_name_then_by_kind_of_work_in_order_of_calls() -> None:
    old = profile(
        "aten::conv2d", "sm80_xmma_fprop_tf32_a", "sm80_xmma_fprop_tf32_b", "aten::relu", "aten::linear"
    )
    new = profile("cudnn::scudnn_winograd", "aten::conv2d", "ampere_scudnn_conv", "aten::addmm", "aten::gelu")
    assert set(matches([old], [new])) == {
        Match(("aten::conv2d",), ("aten::conv2d",)),
        Match(("sm80_xmma_fprop_tf32_a",), ("cudnn::scudnn_winograd",)),
        Match(("sm80_xmma_fprop_tf32_b",), ("ampere_scudnn_conv",)),
        Match(("aten::linear",), ("aten::addmm",)),
        Match(("aten::relu",), ()),
        Match((), ("aten::gelu",)),
    }  # fmt: skip


def test_one_that_has_another_name_is_another_kernel_of_the_same_operator() -> None:
    [shift] = compared(profile("sm80_xmma_fprop"), profile("ampere_scudnn_conv", seconds=0.003)).shifts
    assert (shift.operator, shift.change) == ("ampere_scudnn_conv", "kernel")
    assert shift.detail == "sm80_xmma_fprop → ampere_scudnn_conv"
    assert (shift.before, shift.after) == (0.001, 0.003)


def test_what_a_provider_makes_one_of_has_moved_as_a_whole() -> None:
    whole = profile("OpenVINO-EP-subgraph", device="OpenVINOExecutionProvider")
    parts = profile("Tanh", "Softplus", "Erf")
    parts = msgspec.structs.replace(
        parts,
        rows=tuple(
            msgspec.structs.replace(row, seconds=(0.004,) * 3) if row.kind == "Softplus" else row
            for row in parts.rows
        ),
        wall=(0.006,) * 3,
    )
    found = compared(whole, parts)
    [shift] = found.shifts
    assert (shift.change, shift.before, shift.after, found.new) == ("moved", 0.001, 0.006, 0)
    assert shift.operator.startswith("Softplus, ") and shift.operator.endswith(" and 1 more")
    assert part(found) == f"{shift.operator} 1 → 6 ms (100 % of the change, OpenVINO → cpu)"
    [back] = compared(parts, whole).shifts
    assert (back.operator, back.detail) == (shift.operator, "cpu → OpenVINO")


def test_new_operators_beside_others_on_the_same_device_have_not_moved() -> None:
    found = compared(profile("Gelu", "Add"), profile("Add", "Erf", "Mul", seconds=0.002))
    assert {(s.operator, s.change) for s in found.shifts} == {
        ("Add", "grew"), ("Erf", "new"), ("Mul", "new"), ("Gelu", "gone"),
    }  # fmt: skip
