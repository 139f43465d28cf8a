"""Claims that hold, are refuted, or stay unknown."""

import pytest

from infercanary.command.settings import UsageError
from infercanary.compare.claim import OF_CLAIM, check, parse
from infercanary.judge.policy import FILES
from tests.scenarios import cases

SHIFTS = """
-40%    | -0.4
-40     | -0.4
-40 %   | -0.4
\N{MINUS SIGN}12.5% | -0.125
+5%     | 0.05
0%      | 0.0
+2000%  | 20
"""


@cases(SHIFTS)
def test_a_shift_with_its_sign_is_read(text, shift):
    assert parse(text) == pytest.approx(float(shift))
    assert parse("") is None


@cases(["40%", "-100%", "+100000%", "fast", "-", "-40%%", "nan", "--", "-1e1%", "-4 0%"])
def test_an_invalid_shift_is_one_line(text):
    with pytest.raises(
        UsageError, match=r"^--expect .*: give a shift of latency with its sign: -40% is 40 %"
    ):
        parse(text)


STATES = """
-0.4  | -0.43  -0.37  | held    | just as claimed
-0.4  | -0.55  -0.50  | held    | better than claimed
-0.4  | -0.39  -0.30  | refuted | faster, and not by so much
-0.4  | -0.02  0.02   | refuted | no change
-0.4  | -0.60  -0.10  | unknown | a gain, which may be a quarter of it
-0.4  | -0.60  0.40   | unknown | wide
0.1   | 0.08   0.12   | held    | just as claimed
0.1   | -0.02  0.02   | held    | it costs less than was granted
0.1   | -0.05  0.60   | unknown | wide
0.1   | 0.11   0.13   | refuted | more
0.0   | -0.02  0.02   | held    | as `equivalent`
0.0   | -0.02  0.05   | unknown | wide
-0.02 | -0.025 -0.005 | unknown | small
"""


@cases(STATES)
def test_the_interval_decides(claimed, interval, state, why):
    low, high = map(float, interval.split())
    assert check(float(claimed), ((low + high) / 2, low, high), FILES).state == state


def test_nothing_is_known_without_an_interval():
    assert check(-0.4, (None, None, None), FILES).state == "unknown"
    assert OF_CLAIM == {"held": 0, "refuted": 1, "unknown": 3}
