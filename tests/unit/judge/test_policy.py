"""The numbers that decide: refused where they cannot be meant, and spent over the looks as promised."""

from __future__ import annotations

import math
from typing import Any

import pytest

from infercanary.judge.policy import LIVE, Policy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smallest_effect": 0.0}, "smallest_effect: 0.0 must be between 0 and 1"),
        ({"smallest_effect": 1.0}, "smallest_effect: 1.0 must be"),
        ({"clear_zone": 0.03}, "clear_zone: 0.03 must be 0 or more, and below smallest_effect"),
        ({"confidence": 1.0}, "confidence: 1.0 must be at least 0.5"),
        ({"looks": ()}, "looks: () must be rising numbers"),
        ({"looks": (4, 24)}, "looks: (4, 24) must be rising numbers of runs from 5 on"),
        ({"looks": (24, 24)}, "looks: (24, 24) must be rising"),
        ({"history": 0}, "history: 0 must be 1 or more"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(").replace(")", r"\)")):
        LIVE.but(**change)


def test_the_edges_hold_in_both_directions() -> None:
    """Faster by a third is as far as slower by a half."""
    half = LIVE.but(smallest_effect=0.5)
    assert half.decide.log_effect == pytest.approx(math.log(1.5))
    assert Policy() == LIVE
    assert hash(Policy()) == hash(LIVE)
    assert hash(half) != hash(LIVE)
