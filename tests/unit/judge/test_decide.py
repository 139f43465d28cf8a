"""The sequential rule: what looks in a row amount to, for the live judge and for experiments."""

from __future__ import annotations

import pytest
from infercanary.judge.decide import verdict_after

from infercanary.judge.shift import Comparison, Verdict


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        (["regressed"], "regressed"),
        (["equivalent"], "equivalent"),
        (["unconfirmed"], "unconfirmed"),
        (["unconfirmed", "regressed"], "regressed"),
        (["regressed", "unconfirmed", "unconfirmed"], "regressed"),
        (["regressed", "inconclusive"], "inconclusive"),
        (["regressed", "inconclusive", "unconfirmed"], "unconfirmed"),
        (["regressed", "equivalent"], "equivalent"),
        (["regressed", "improved"], "improved"),
    ],
)
def test_a_change_that_was_called_stays_while_its_interval_shows_it(
    verdicts: list[Verdict], expected: Verdict | None
) -> None:
    assert verdict_after(Comparison(verdict, 0.1, 0.05, 0.15) for verdict in verdicts) == expected


def test_what_is_called_slower_is_not_kept_by_what_is_faster() -> None:
    slower, faster = Comparison("regressed", 0.1, 0.05, 0.15), Comparison("unconfirmed", -0.1, -0.15, -0.05)
    assert verdict_after([slower, faster]) == "unconfirmed"
    quicker = Comparison("improved", -0.1, -0.15, -0.05)
    assert verdict_after([quicker, faster]) == "improved"
