from __future__ import annotations

import pytest

from infercanary.exporter.judging import metrics
from infercanary.judge.causes import Causes
from infercanary.judge.drift import Creep
from infercanary.judge.stages import Judgement, State, Trial

TRIALS = {("a", f"boot-{i}"): Trial(5, called=i == 3) for i in range(7)}


def points(creep: Creep, name: str) -> dict[tuple[str, ...], object]:
    found = {family.name: family for family in metrics.families({}, {"c": creep}, {"c": TRIALS})}
    return {point.labels: point.value for point in found[name].points}


@pytest.mark.parametrize("shift", [0.0, 0.08])
def test_a_drift_is_shown_where_it_was_looked_for(shift: float) -> None:
    assert points(Creep(shift=shift), "infercanary_drift_ratio") == {("c",): shift}


def test_a_drift_that_nobody_can_tell_yet_is_missing() -> None:
    assert points(Creep(), "infercanary_drift_ratio") == {}


def test_the_judges_own_trial_is_shown_by_canary() -> None:
    assert points(Creep(), "infercanary_judge_aa_tests") == {("c",): 7.0}
    assert points(Creep(), "infercanary_judge_aa_alarms") == {("c",): 1.0}


@pytest.mark.parametrize(
    ("state", "shown"),
    [("regressed", True), ("improved", True), ("equivalent", False), ("inconclusive", False)],
)
def test_where_a_change_grew_is_shown_where_there_is_one(state: State, shown: bool) -> None:
    causes = Causes(phases={"compute": 0.7, "launch": 0.3}, controls={"cpu_spin": 0.12})
    judged = {"c": Judgement(state=state, causes=causes, shift=0.1)}
    found = {family.name: family for family in metrics.families(judged, {}, {})}
    phases = {point.labels: point.value for point in found["infercanary_shift_phase_ratio"].points}
    controls = {point.labels: point.value for point in found["infercanary_shift_control_ratio"].points}
    assert phases == ({("c", "compute"): 0.7, ("c", "launch"): 0.3} if shown else {})
    assert controls == ({("c", "cpu_spin"): 0.12} if shown else {})
