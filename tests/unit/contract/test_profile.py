"""Encoded profiles: stable names, and bounds against hostile probes."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from infercanary.contract.profile import (
    MAX_REPEATS,
    MAX_ROWS,
    NAME_BYTES,
    Profile,
    ProfileRow,
    is_sound,
    normalised,
    shares,
)
from tests.scenarios import cases

ROW = ProfileRow("aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x8x8 float", 1.0, (0.1, 0.2))
SOUND = Profile(1.0, "torch", "ok", (0.2, 0.3), (0.1, 0.1), (0.0, 0.0), (ROW,))


@cases(
    [
        ("aten::conv2d", "aten::conv2d"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu"),
        ("triton_poi_fused_add_relu_17", "triton_poi_fused_add_relu"),
        (
            "void at::native::vectorized_kernel<4, float>(int, float*)",
            "at::native::vectorized_kernel<4, float>",
        ),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp<float>"),
        ("<lambda> at 0x7f33aabbccdd", "<lambda> at #"),
        ("kernel_deadbeef01234567", "kernel_#"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "sm80_xmma_fprop_implicit_gemm_f32f32"),
        ("a\nb\x1b[31m", "a?b?[31m"),
    ],
)
def test_a_name_stays_the_same_from_start_to_start(name, shown):
    assert normalised(name) == shown


@given(st.text(max_size=400))
def test_any_name_becomes_printable_and_short(name):
    shown = normalised(name)
    assert shown.isprintable()
    assert len(shown.encode(errors="replace")) <= NAME_BYTES


def test_shares_are_of_one_whole_though_another_operator_is_slow_in_each_repeat():
    seconds = {"a": (2.0, 1.0, 2.0), "b": (1.0, 2.0, 2.0)}
    rows = tuple(ProfileRow(kind, kind, "cpu", "", 1.0, times) for kind, times in seconds.items())
    profile = Profile(1.0, "torch", "ok", (3.0, 3.0, 4.0), (0.0,) * 3, (0.0,) * 3, rows)
    assert shares(profile, 5) == {"a": 0.5, "b": 0.5, "outside operators": 0.0}


def changed(whole, fields):
    return replace(
        whole, **{name: (*value,) if isinstance(value, list) else value for name, value in fields.items()}
    )


WRONG = yaml.safe_load(r"""
- {wall: []}
- {wall: [0.2, 0.3, 0.4]}
- {wall: [0.2, .nan]}
- {outside: [-1, 0]}
- {rest: [.inf, 0]}
- {taken_at: .nan}
- {engine: ""}
- {engine: "torch\n"}
""")
WRONG_ROWS = yaml.safe_load(r"""
- {device: "\e[2J"}
- {shapes: "\u202e"}
- {calls: .inf}
- {flops: .inf}
- {bytes: -1}
- {launches: .nan}
- {seconds: [0.1]}
- {seconds: [0.1, .inf]}
""")
WRONG_NAMES = [{"kind": "x" * (NAME_BYTES + 1)}, {"name": "é" * 61}, {"name": "\ud800"}]
WRONG += [{"rows": (changed(ROW, wrong),)} for wrong in (*WRONG_ROWS, *WRONG_NAMES)]


@pytest.mark.parametrize("wrong", [*WRONG, {"rows": (ROW,) * (MAX_ROWS + 1)}])
def test_profiles_out_of_bounds_are_refused(wrong):
    assert is_sound(SOUND)
    assert not is_sound(changed(SOUND, wrong))


def test_too_many_repeats_are_not_sound():
    many = (0.1,) * (MAX_REPEATS + 1)
    assert not is_sound(replace(SOUND, wall=many, outside=many, rest=many, rows=()))
