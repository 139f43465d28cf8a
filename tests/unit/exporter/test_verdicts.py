from __future__ import annotations

import pytest

from infercanary.exporter.judge import verdicts
from infercanary.exporter.judge.creep import Creep


def points(creep: Creep, name: str) -> dict[tuple[str, ...], object]:
    found = {family.name: family for family in verdicts.families({}, {"c": creep}, {"c": (7, 1)})}
    return {point.labels: point.value for point in found[name].points}


@pytest.mark.parametrize("shift", [0.0, 0.08])
def test_a_drift_is_shown_where_it_was_looked_for(shift: float) -> None:
    assert points(Creep(shift=shift), "infercanary_drift_ratio") == {("c",): shift}


def test_a_drift_that_nobody_can_tell_yet_is_missing() -> None:
    assert points(Creep(), "infercanary_drift_ratio") == {}


def test_the_judges_own_trial_is_shown_by_canary() -> None:
    assert points(Creep(), "infercanary_judge_aa_tests") == {("c",): 7.0}
    assert points(Creep(), "infercanary_judge_aa_alarms") == {("c",): 1.0}
