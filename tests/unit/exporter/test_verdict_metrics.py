from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infercanary.exporter.expose import write
from infercanary.exporter.judging import families as metrics
from infercanary.exporter.judging.findings import Findings, Sides
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Changed
from infercanary.judge.result import STATES, Causes, Change, Looks, Result, State
from infercanary.judge.verdict import Trial
from infercanary.pages.sentence import SENTENCE_BYTES, sentence
from tests.results import findings_of, upgraded

MEASURES = {
    "host_memory": MeasureVerdict("regressed", 0.31, 0.28, 0.34, 1e9, 1.31e9),
    "throughput@8x1": MeasureVerdict("equivalent", 0.0, -0.02, 0.02, 9.0, 9.0),
    "energy": MeasureVerdict("settling"),
}


def shown(found: Findings, name: str) -> dict[str, Any]:
    """Labels without the canary → value, of the series of a metric."""
    [family] = [f for f in metrics.families(found, "a") if f.name == f"infercanary_{name}"]
    assert all(point.labels[0] == "c" for point in family.points)
    return {" | ".join(point.labels[1:]): point.value for point in family.points}


def of(result: Result, **fields: Any) -> Findings:
    return findings_of({"c": result}, {"c": sentence(result)}, **{k: {"c": v} for k, v in fields.items()})


def test_the_latency_and_the_other_measures_are_told_apart_by_a_label() -> None:
    latency = upgraded(
        "equivalent", 0.01, causes=Causes(cold_start={"load": (2.0, 5.0)}), baseline=0.02, current=0.0202,
        controls={"cpu_spin": 4e-4},
    )  # fmt: skip
    trials = {("a", f"boot-{i}"): Trial(5, called=i == 3) for i in range(7)}
    found = of(latency, measures=MEASURES, trials=trials)
    load, memory, step = "throughput@8x1", "host_memory", "cold_start_load"
    for name, points in {
        "shift_ratio": {"latency": 0.01, memory: 0.31, load: 0.0, step: 1.5},
        "shift_low_ratio": {"latency": -0.01, memory: 0.28, load: -0.02},
        "shift_high_ratio": {"latency": 0.03, memory: 0.34, load: 0.02},
        "measure_baseline": {memory: 1e9, load: 9.0},
        "measure_current": {memory: 1.31e9, load: 9.0},
        "baseline_seconds": {"": 0.02},
        "control_baseline_seconds": {"cpu_spin": 4e-4},
        "judge_aa_tests": {"": 7.0},
        "judge_aa_alarms": {"": 1.0},
    }.items():
        assert shown(found, name) == pytest.approx(points), name
    assert [labels.partition(" ")[0] for labels in shown(found, "verdict_info")] == ["latency", memory]
    states = shown(found, "verdict")
    assert {labels for labels, value in states.items() if value} == {
        "latency | equivalent", f"{memory} | regressed", f"{load} | equivalent", "energy | settling",
    }  # fmt: skip
    assert len(states) == 4 * len(STATES)


CHANGES = (Change("cpu_quota", "4", "2"), Change("memory_limit", "8 GiB", "4 GiB"))


@pytest.mark.parametrize(
    ("shift", "words"),
    [(None, []), (0.0, []), (0.9, ["CPU quota 4 → 2, memory limit 8 GiB → 4 GiB"])],
)
def test_a_drift_of_this_container(shift: float | None, words: list[str]) -> None:
    drifts = {"a": Drift(shift=shift, changes=CHANGES), "b": Drift(shift=9.0)}
    found = of(Result(state="no_baseline"), drifts=drifts)
    assert shown(found, "drift_ratio") == ({} if shift is None else {"": shift})
    assert [*shown(found, "drift_info")] == words


@pytest.mark.parametrize(
    ("changed", "count", "named"),
    [("image", 0, ""), ("model", 3, "s-0, s-1, s-2"), ("both", 9, "more than 3 containers")],
)
def test_an_upgrade_with_what_it_exchanged_and_who_runs_it(changed: Changed, count: int, named: str) -> None:
    new = frozenset((f"s-{i}", f"boot-{i}") for i in range(count))
    found = of(upgraded(changed=changed), sides=Sides(new=new))
    assert [*shown(found, "upgrade_info")] == [f"search:1 | search:2 | {changed} | {named}"]
    assert {labels.split(" | ")[1] for labels in shown(found, "shift_cause")} == {changed}


LONG = [", ".join(f"lib{i}.so.{i}" for i in range(99)) + f", libz.so.{last}" for last in (1, 2)]


@pytest.mark.parametrize(
    ("changes", "components"),
    [
        (CHANGES, ["cpu_quota | 4 | 2", "memory_limit | 8 GiB | 4 GiB"]),
        ([Change("numpy", None, "2.1")], ["numpy | none | 2.1"]),
        ([Change("libraries", *LONG)], ["libraries | …, libz.so.1 | …, libz.so.2"]),
        ([Change("x\ny", "a\x00", "b")], ["x\ufffdy | a\ufffd | b"]),
        ([Change(f"{i}", "1", "2") for i in range(99)], [f"{i} | 1 | 2" for i in range(20)]),
    ],
)
def test_the_components_that_an_upgrade_changed(changes: list[Change], components: list[str]) -> None:
    for upgraded_at, expected in ((None, []), (9.0, components)):
        result = upgraded("settling", None, upgraded_at=upgraded_at, causes=Causes(changes=(*changes,)))
        assert [*shown(of(result), "upgrade_component_info")] == expected


@pytest.mark.parametrize("state", ["regressed", "improved", "equivalent", "inconclusive"])
def test_where_a_change_grew_is_shown_where_there_is_one(state: State) -> None:
    grew: dict[str, dict[Any, float]] = {
        "phase": {"compute": 0.7, "launch": 0.3},
        "bottleneck": {"compute": 1.2, "scheduling": -0.2},
        "control": {"cpu_spin": 0.12},
    }
    causes = Causes(phases=grew["phase"], bottlenecks=grew["bottleneck"], controls=grew["control"])
    for name, values in grew.items():
        points = values if state in ("regressed", "improved") else {}
        assert shown(of(upgraded(state, causes=causes)), f"shift_{name}_ratio") == points


def shown_sentence(result: Result) -> str:
    """The sentence as a scrape carries it."""
    families = {family.name: family for family in metrics.families(of(result), "a")}
    text = write(families["infercanary_verdict_info"], {"service": "s", "container": "k"}).text.decode()
    (sample,) = next(iter(text_string_to_metric_families(text))).samples
    return sample.labels["sentence"]


def changed(before: str) -> Result:
    return upgraded(causes=Causes(cause="image", changes=(Change("component", before, "b"),)))


def test_the_sentence_is_exported_in_the_judges_words() -> None:
    result = changed('a "quoted" \\ 5 %')
    assert shown_sentence(result) == sentence(result)
    text = shown_sentence(changed("line\nend\r\x00\u202e\ud800"))
    assert text.isprintable() and "line\N{REPLACEMENT CHARACTER}end" in text


def test_the_exported_sentence_does_not_change_with_progress() -> None:
    early, late = (upgraded("settling", None, runs=runs, looks=Looks(next=12)) for runs in (5, 11))
    assert shown_sentence(early) == shown_sentence(late)
    assert shown(of(late), "judged_runs") == {"": 11.0}


@pytest.mark.parametrize("text", ["µ" * 200, "x" + "µ" * 200, "🦜" * 100])
def test_a_long_label_is_cut_between_two_characters(text: str) -> None:
    found = metrics.label_text(text)
    assert SENTENCE_BYTES - 4 <= len(found.encode()) <= SENTENCE_BYTES
    assert text.startswith(found.removesuffix("…")) and found.endswith("…")
