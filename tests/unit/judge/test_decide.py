"""The sequential rule: what looks in a row amount to, for the live judge, for files and for experiments."""

from __future__ import annotations

import pytest

from infercanary.judge.decide import verdict_after
from infercanary.judge.policy import EXPERIMENT, FILES, LIVE
from infercanary.judge.shift import Comparison, Verdict


def looks(verdicts: list[Verdict]) -> list[Comparison]:
    return [Comparison(verdict, 0.0, 0.0, 0.0) for verdict in verdicts]


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "inconclusive"),
        (["regressed"], "inconclusive"),
        (["equivalent"], "equivalent"),
        (["regressed", "regressed"], "regressed"),
        (["regressed", "improved"], "inconclusive"),
        (["improved", "improved"], "improved"),
        (["regressed", "inconclusive", "regressed"], "inconclusive"),
        (["regressed", "regressed", "inconclusive"], "inconclusive"),
        (["regressed", "equivalent"], "equivalent"),
    ],
)
def test_in_an_experiment_a_change_counts_at_two_looks_in_a_row(
    verdicts: list[Verdict], expected: Verdict
) -> None:
    assert (verdict_after(looks(verdicts), EXPERIMENT) or "inconclusive") == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["regressed"], "inconclusive"),
        (["regressed", "regressed"], "regressed"),
        (["regressed", "regressed", "inconclusive"], "regressed"),
        (["regressed", "regressed", "improved"], "regressed"),
        (["regressed", "regressed", "equivalent"], "regressed"),
        (["regressed", "regressed", "equivalent", "equivalent"], "equivalent"),
        (["regressed", "regressed", "improved", "improved"], "improved"),
        (["equivalent"], "equivalent"),
        (["equivalent", "regressed"], "inconclusive"),
    ],
)
def test_the_live_judge_keeps_a_change_until_two_looks_withdraw_it(
    verdicts: list[Verdict], expected: Verdict
) -> None:
    assert verdict_after(looks(verdicts), LIVE) == expected


def test_files_get_one_look() -> None:
    for verdict in ("regressed", "improved", "equivalent", "inconclusive"):
        assert verdict_after(looks([verdict]), FILES) == verdict
    for policy in (LIVE, FILES, EXPERIMENT):
        assert verdict_after([], policy) is None
