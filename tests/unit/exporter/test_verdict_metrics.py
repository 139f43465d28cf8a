from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infercanary.contract.report import Family
from infercanary.exporter.expose import write
from infercanary.exporter.judging import metrics
from infercanary.exporter.judging.findings import Findings
from infercanary.exporter.judging.sides import Sides
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import STATES, Causes, Change, Changed, Judgement, State
from infercanary.judge.sentence import SENTENCE_BYTES, sentence
from infercanary.judge.trials import Trial

SETTLING = MeasureVerdict(state="settling", values=2)
TRIALS = {("a", f"boot-{i}"): Trial(5, called=i == 3) for i in range(7)}


def points(drift: Drift, name: str) -> dict[tuple[str, ...], object]:
    found = Findings(drifts={("a", "c"): drift, ("b", "c"): Drift(shift=9.0)}, trials={"c": TRIALS})
    shown = {family.name: family for family in metrics.families(found, "a")}
    return {point.labels: point.value for point in shown[name].points}


@pytest.mark.parametrize("shift", [0.0, 0.08])
def test_a_drift_is_shown_where_it_was_looked_for(shift: float) -> None:
    assert points(Drift(shift=shift), "infercanary_drift_ratio") == {("c",): shift}


def test_a_drift_that_cannot_be_known_yet_is_missing() -> None:
    assert points(Drift(), "infercanary_drift_ratio") == {}


def test_what_a_container_was_given_otherwise_is_shown_while_it_has_drifted() -> None:
    changes = (Change("cpu_quota", "4", "2"), Change("memory_limit", "8 GiB", "4 GiB"))
    shown = {("c", "CPU quota 4 → 2, memory limit 8 GiB → 4 GiB"): 1.0}
    assert points(Drift(shift=0.9, changes=changes), "infercanary_drift_info") == shown
    assert points(Drift(shift=0.0), "infercanary_drift_info") == {}


@pytest.mark.parametrize("changed", ["image", "model", "both"])
def test_what_was_exchanged_is_a_label(changed: Changed) -> None:
    judgement = Judgement(
        state="regressed",
        upgraded_at=9.0,
        changed=changed,
        baseline_image="x:1",
        candidate_image="x:2",
        shift=0.1,
    )
    shown = exported(judgement)
    (upgrade,) = shown["infercanary_upgrade_info"].points
    assert upgrade.labels == ("c", "x:1", "x:2", changed, "")
    assert {point.labels[2] for point in shown["infercanary_shift_cause"].points} == {changed}


@pytest.mark.parametrize(
    ("count", "named"), [(0, ""), (2, "s-0, s-1"), (3, "s-0, s-1, s-2"), (9, "more than 3 containers")]
)
def test_who_runs_the_new_image_is_named(count: int, named: str) -> None:
    new = frozenset((f"s-{i}", f"boot-{i}") for i in range(count))
    found = Findings(
        judgements={"c": Judgement(state="settling", upgraded_at=9.0)}, sides={"c": Sides(new=new)}
    )
    shown = {family.name: family for family in metrics.families(found, "a")}
    (upgrade,) = shown["infercanary_upgrade_info"].points
    assert upgrade.labels[-1] == named


def test_the_judges_own_trial_is_shown_by_canary() -> None:
    assert points(Drift(), "infercanary_judge_aa_tests") == {("c",): 7.0}
    assert points(Drift(), "infercanary_judge_aa_alarms") == {("c",): 1.0}


@pytest.mark.parametrize(
    ("state", "shown"),
    [("regressed", True), ("improved", True), ("equivalent", False), ("inconclusive", False)],
)
def test_where_a_change_grew_is_shown_where_there_is_one(state: State, shown: bool) -> None:
    causes = Causes(
        phases={"compute": 0.7, "launch": 0.3},
        bottlenecks={"compute": 1.2, "scheduling": -0.2},
        controls={"cpu_spin": 0.12},
    )
    judged = Findings(judgements={"c": Judgement(state=state, causes=causes, shift=0.1)})
    found = {family.name: family for family in metrics.families(judged, "a")}
    phases = {point.labels: point.value for point in found["infercanary_shift_phase_ratio"].points}
    controls = {point.labels: point.value for point in found["infercanary_shift_control_ratio"].points}
    assert phases == ({("c", "compute"): 0.7, ("c", "launch"): 0.3} if shown else {})
    assert controls == ({("c", "cpu_spin"): 0.12} if shown else {})
    grown = {point.labels: point.value for point in found["infercanary_shift_bottleneck_ratio"].points}
    assert grown == ({("c", "compute"): 1.2, ("c", "scheduling"): -0.2} if shown else {})


def exported(judgement: Judgement) -> dict[str, Family]:
    found = Findings(judgements={"c": judgement}, sentences={"c": sentence(judgement)})
    return {family.name: family for family in metrics.families(found, "a")}


def shown_sentence(judgement: Judgement) -> str:
    """The sentence as a scrape carries it."""
    found = exported(judgement)
    text = write(found["infercanary_verdict_info"], {"service": "s", "container": "k"}).text.decode()
    (sample,) = next(iter(text_string_to_metric_families(text))).samples
    assert sample.value == 1 and sample.labels["canary"] == "c"
    return sample.labels["sentence"]


def changed(before: str, after: str, count: int = 1) -> Judgement:
    changes = tuple(Change(f"component_{i}", before, after) for i in range(count))
    causes = Causes(cause="image", changes=changes)
    return Judgement(state="regressed", shift=0.1, low=0.08, high=0.12, causes=causes)


def test_the_sentence_is_exported_in_the_judges_words() -> None:
    judgement = changed('a "quoted" \\ 5 %', "b")
    assert shown_sentence(judgement) == sentence(judgement)


def test_the_exported_sentence_does_not_change_with_progress() -> None:
    first = Judgement(state="settling", upgraded_at=1.0, runs=5, next_look=12)
    later = Judgement(state="settling", upgraded_at=1.0, runs=11, next_look=12)
    assert shown_sentence(first) == shown_sentence(later)
    found = exported(later)
    gauges = [found[f"infercanary_{name}"].points[0].value for name in ("judged_runs", "next_look_runs")]
    assert gauges == [11, 12]


@pytest.mark.parametrize("component", ["µ" * 39, "x" + "µ" * 38, "🦜" * 39])
def test_a_long_sentence_is_cut_between_two_characters(component: str) -> None:
    judgement = changed(component, component[::-1], count=4)
    assert len(sentence(judgement).encode()) > SENTENCE_BYTES
    shown = shown_sentence(judgement)
    assert SENTENCE_BYTES - 4 <= len(shown.encode()) <= SENTENCE_BYTES
    assert sentence(judgement).startswith(shown.removesuffix("…")) and shown.endswith("…")


def test_what_cannot_be_printed_is_no_part_of_a_label() -> None:
    shown = shown_sentence(changed("line\nend\r\x00\u202e\ud800", "b"))
    assert shown.isprintable() and "line\N{REPLACEMENT CHARACTER}end" in shown


def test_a_verdict_on_a_measure() -> None:
    more = MeasureVerdict(
        state="regressed", shift=0.31, low=0.28, high=0.34, before=1e9, after=1.31e9, values=24
    )
    same = MeasureVerdict(
        state="equivalent", shift=0.0, low=-0.02, high=0.02, before=9.0, after=9.0, values=24
    )
    found = Findings(measures={"c": {"host_memory": more, "throughput@8x1": same, "energy": SETTLING}})
    shown = {family.name: family for family in metrics.families(found, "a")}

    def values(name: str) -> dict[tuple[str, ...], object]:
        return {point.labels: point.value for point in shown[f"infercanary_measure_{name}"].points}

    states = values("verdict")
    assert [key[1:] for key, x in states.items() if x] == [
        ("host_memory", "regressed"), ("throughput@8x1", "equivalent"), ("energy", "settling"),
    ]  # fmt: skip
    assert len(states) == 3 * len(STATES)
    assert values("verdict_info") == {
        ("c", "host_memory", "host memory regressed +31.0 % [+28.0, +34.0]"): 1.0
    }
    assert values("shift_ratio") == {("c", "host_memory"): 0.31, ("c", "throughput@8x1"): 0.0}
    assert values("shift_low_ratio")["c", "host_memory"] == 0.28
    assert values("shift_high_ratio")["c", "host_memory"] == 0.34
    assert values("baseline") == {("c", "host_memory"): 1e9, ("c", "throughput@8x1"): 9.0}
    assert values("current")["c", "host_memory"] == 1.31e9
