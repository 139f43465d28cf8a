"""The numbers that decide: named, and the same in both directions."""

from __future__ import annotations

import math

import pytest

from infercanary.judge.policy import LIVE, Policy


def test_a_number_is_changed_by_its_name() -> None:
    changed = LIVE.but(smallest_effect=0.5, history=3)
    assert (changed.decide.smallest_effect, changed.pool.history) == (0.5, 3)
    assert (
        changed.but(smallest_effect=LIVE.decide.smallest_effect, history=LIVE.pool.history)
        == Policy()
        == LIVE
    )
    with pytest.raises(KeyError, match="smalest_effect"):
        LIVE.but(smalest_effect=0.5)


def test_the_edges_hold_in_both_directions() -> None:
    """Faster by a third is as far as slower by a half."""
    half = LIVE.but(smallest_effect=0.5)
    assert half.decide.log_effect == pytest.approx(math.log(1.5))
    assert hash(Policy()) == hash(LIVE)
    assert hash(half) != hash(LIVE)
