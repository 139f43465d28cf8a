"""Operators named for a shift, from profiles with a known change."""

import random
import re
from statistics import median

import pytest
from msgspec.structs import replace

from infercanary.contract.profile import MAX_ROWS, Profile, ProfileRow, is_sound
from infercanary.judge.operators import MOST, compare_operators, old_names
from tests.scenarios import cases, typed

REPEATS = 5
KNOWN = {
    "C": ProfileRow("aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x8x8 float, 4x3x3x3 float", 2, ()),
    "L": ProfileRow("aten::linear", "aten::addmm", "cpu", "8x256 float", 1, ()),
}
ROW = re.compile(
    r"(?P<kind>\w+)(/(?P<name>[\w:]+))?(@(?P<device>[\w:]+))?(~(?P<shapes>\w*))?(\*(?P<calls>\d+))?=(?P<ms>[\d.]+)"
)


def row(text):
    """Parse ``kind/name@device~shapes*calls=ms``. Convolution and linear layer have default names, shapes and calls."""
    match = ROW.fullmatch(text)
    assert match is not None
    kind, ms = match["kind"], float(match["ms"])
    made = KNOWN.get(kind) or ProfileRow(kind, kind, "cpu", "", 1.0, ())
    own = {name: match[name] for name in ("name", "device", "shapes") if match[name] is not None}
    own |= {"calls": float(match["calls"])} if match["calls"] else {}
    own |= {"shapes": own["shapes"].replace("_", " ")} if "shapes" in own else {}
    return replace(made, seconds=(ms / 1e3,) * REPEATS, **own)


def profile(
    rows, *, outside=0.001, rest=0.0, slowed=(1.0,) * REPEATS,
    noise=0.01, seed=0,
):  # fmt: skip
    """Return a profile with rows in the order of calls. Its wall times scatter equally; ``slowed`` scales the
    repeats.
    """
    draw = random.Random(seed)

    def scattered(values):
        return tuple(
            value * slow * draw.gauss(1.0, noise) for value, slow in zip(values, slowed, strict=True)
        )

    made = [
        replace(each, seconds=scattered(each.seconds), order=i)
        for i, each in enumerate(map(row, rows.split()))
    ]
    made.sort(key=lambda each: -sum(each.seconds))
    around, others = scattered((outside,) * REPEATS), (rest,) * REPEATS
    wall = tuple(sum(each.seconds[i] for each in made) + around[i] + others[i] for i in range(REPEATS))
    found = Profile(0.0, "torch", "ok", wall, around, others, tuple(made))
    assert is_sound(found)
    return found


def compared(
    before,
    after,
    timed=None,
):
    old, new = ([side] if isinstance(side, Profile) else side for side in (before, after))
    return compare_operators(old, new, timed or (median(old[-1].wall), median(new[-1].wall)))


# Rows before | after | operator, change, detail; ...
CHANGES = """
C=9.8 relu=2                 | C=30 relu=2                  | aten::conv2d grew
C=9.8 relu=2                 | C=3 relu=2                   | aten::conv2d shrank
C=9.8 relu=2                 | C=11.2 relu=2                | aten::conv2d grew
C=9.8 small=.1               | C=30 small=.2                | aten::conv2d grew; small grew
C=9.8 relu=2                 | C/aten::_slow_conv2d=30 relu=2 | aten::conv2d grew mkldnn_convolution → _slow_conv2d
C=9.8 relu=2                 | C/fast=3 relu=2              | aten::conv2d shrank mkldnn_convolution → fast
C=9.8 relu=2                 | C@cuda:0=30 relu=2           | aten::conv2d grew cpu → cuda:0
C=9.8 relu=2                 | C/slow@cuda:0=30 relu=2      | aten::conv2d grew cpu → cuda:0, mkldnn_convolution → slow
C~=9.8 relu=2                | C=30 relu=2                  | aten::conv2d grew
C=9.8 relu=2                 | C~=30 relu=2                 | aten::conv2d grew
C=9.8 relu=2                 | C*6=30 relu=2                | aten::conv2d grew 2 → 6 calls
C=9.8 relu=2                 | C=9.8 relu=2 norm=5          | norm new
C=9.8 relu=2 norm=5          | C=9.8 relu=2                 | norm gone
L*2=5.5                      | L=4 L~8x256_double=4         | aten::linear grew 8x256 float → 8x256 double
C=9.8                        | C=30 C/helper*0=4            | aten::conv2d grew
sm80_fprop=1                 | scudnn_conv=3                | scudnn_conv grew sm80_fprop → scudnn_conv
Erf@CUDAExecutionProvider=2  | Erf@CPUExecutionProvider=9   | Erf grew CUDA → CPU
Gelu=1 relu=2                | Mul=6 relu=2                 | Mul new; Gelu gone
"""


@cases(CHANGES)
def test_the_operator_that_changed_is_named_with_its_kind_of_change(before, after, expected):
    found = compared(profile(before, seed=1), profile(after, seed=2))
    assert found.state == "explained"
    words = "; ".join(f"{shift.operator} {shift.change} {shift.detail}".strip() for shift in found.shifts)
    assert words == expected
    assert found.share == pytest.approx(1.0, abs=0.05)
    assert sum(shift.share for shift in found.shifts) == pytest.approx(1.0, abs=0.1)


NAMES = """
conv relu     | conv relu |
fprop fprop_b relu conv linear | winograd conv scudnn_conv addmm gelu | winograd=fprop scudnn_conv=fprop_b addmm=linear
sigmoid add   | tanh add  |
cutlass_fprop | gemm conv | conv=cutlass_fprop
norm          | softmax   |
"""


@cases(NAMES)
def test_other_names_are_matched_by_kind_of_work_and_order_of_calls(names, others, expected):
    old, new = (
        profile(" ".join(f"{name}={i + 1}" for i, name in enumerate(side.split())))
        for side in (names, others)
    )
    assert old_names(old, new) == dict(pair.split("=") for pair in expected.split())


ONE, OTHER = profile("C=9.8"), profile("C=31.2", seed=1)
PROFILES = {
    "one": ONE,
    "other": OTHER,
    "outside": profile("C=9.8", outside=0.009),
    "partly": profile("C=9.8", slowed=(3, 1, 1, 1, 0.3)),
    "disturbed": profile("C=9.8", slowed=(3, 3, 3, 1, 3)),
    "few": replace(
        ONE, wall=ONE.wall[:2], outside=ONE.outside[:2], rest=ONE.rest[:2],
        rows=tuple(replace(each, seconds=each.seconds[:2]) for each in ONE.rows),
    ),
    "no_cupti": replace(OTHER, state="no_cupti"),
    "onnx": replace(ONE, engine="onnxruntime"),
}  # fmt: skip
# Profiles before and after | timed seconds before and after | state
STATES = """
[one]       | [other]   | [0.0108, 0.0322] | explained
[one]       | [outside] | [0.0108, 0.0188] | outside
# Profiled repeats changed in another way than timed repeats.
[one]       | [other]   | [0.0108, 0.018]  | unexplained
[one]       | [other]   | [0.02, 0.01]     | unexplained
[one]       | [other]   | [0.001, 0.3]     | unexplained
[one]       | [other]   | [0.01, 0.01]     | unexplained
[one]       | [other]   | [0.005, 0.0159]  | explained
# The profiler disturbed some or most repeats. Of several profiles, the least disturbed one is used.
[partly]    | [other]   | [0.0108, 0.0322] | explained
[disturbed] | [other]   | [0.0108, 0.0322] | unexplained
[disturbed, one, few, disturbed] | [disturbed, other] | [0.0108, 0.0322] | explained
# Sides that cannot be compared.
[]          | [one]     | [0.0108, 0.0322] | ~
[one]       | []        | [0.0108, 0.0322] | ~
[one]       | [few]     | [0.0108, 0.0322] | ~
[one]       | [no_cupti] | [0.0108, 0.0322] | ~
[onnx]      | [other]   | [0.0108, 0.0322] | ~
"""


@cases(typed(STATES))
def test_the_state_says_what_profiles_explain(before, after, timed, state):
    old, new = ([PROFILES[name] for name in side] for side in (before, after))
    found = compare_operators(old, new, timed)
    assert (found and found.state) == state
    assert found is None or bool(found.shifts) == (state == "explained")


def many(ms, first=0):
    return " ".join(f"op{i:02}={ms}" for i in range(first, MAX_ROWS))


def test_scatter_alone_names_no_operator():
    """Forty operators are forty claims: with five repeats, intervals of two standard errors would list 36 of 400."""
    named, states = 0, []
    for seed in range(10):
        old, same = (
            profile(many(1), noise=0.2, seed=seed),
            profile(many(1), noise=0.2, seed=seed + 10, outside=0.003),
        )
        found = compared(old, same, (0.04, 0.04 + median(same.wall) - median(old.wall)))
        assert found.state != "explained"
        named += len(found.shifts)
        states.append(compared(old, profile(many(1.05), noise=0.2, seed=seed + 10)).state)
    assert named <= 15
    assert states.count("unexplained") >= 8


def test_an_operator_that_may_have_been_in_the_rest_is_not_claimed():
    """Short operators beyond the rows are summed. A small growth may bring an operator from this sum into the rows."""
    full = profile(many(1), rest=0.01)
    late, surely = (profile(f"{many(4, 1)} late={ms}", rest=0.01) for ms in (9, 20))
    found = compared(full, late).shifts
    assert len(found) == MOST
    assert {each.change for each in found} == {"grew"}
    assert [each.operator for each in compared(full, surely).shifts if each.change == "new"] == ["late"]
