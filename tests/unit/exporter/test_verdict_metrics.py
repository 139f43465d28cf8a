from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infercanary.contract.report import Family
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

Points = dict[tuple[str, ...], object]

TRIALS = {("a", f"boot-{i}"): Trial(5, called=i == 3) for i in range(7)}
SLOWER = Causes(cold_start={"load": (2.0, 5.0)})
LATENCY = upgraded(
    "equivalent",
    0.01,
    upgraded_at=None,
    causes=SLOWER,
    baseline=0.02,
    current=0.0202,
    controls={"cpu_spin": 4e-4},
)
MEMORY = MeasureVerdict(state="regressed", shift=0.31, low=0.28, high=0.34, before=1e9, after=1.31e9)
LOAD = MeasureVerdict(state="equivalent", shift=0.0, low=-0.02, high=0.02, before=9.0, after=9.0)
MEASURES = {"host_memory": MEMORY, "throughput@8x1": LOAD, "energy": MeasureVerdict(state="settling")}


def shown(found: Findings, name: str) -> Points:
    [family] = [f for f in metrics.families(found, "a") if f.name == f"infercanary_{name}"]
    return {point.labels: point.value for point in family.points}


def of(result: Result) -> Findings:
    return findings_of(judgements={"c": result}, sentences={"c": sentence(result)})


@pytest.mark.parametrize(
    ("name", "points"),
    [
        (
            "verdict_info",
            {
                ("c", "latency", "same"): 1.0,
                ("c", "host_memory", "host memory regressed +31.0 % [+28.0, +34.0]"): 1.0,
            },
        ),
        (
            "shift_ratio",
            {
                ("c", "latency"): 0.01,
                ("c", "host_memory"): 0.31,
                ("c", "throughput@8x1"): 0.0,
                ("c", "cold_start_load"): 1.5,
            },
        ),
        (
            "shift_low_ratio",
            {("c", "latency"): -0.01, ("c", "host_memory"): 0.28, ("c", "throughput@8x1"): -0.02},
        ),
        (
            "shift_high_ratio",
            {("c", "latency"): 0.03, ("c", "host_memory"): 0.34, ("c", "throughput@8x1"): 0.02},
        ),
        ("measure_baseline", {("c", "host_memory"): 1e9, ("c", "throughput@8x1"): 9.0}),
        ("measure_current", {("c", "host_memory"): 1.31e9, ("c", "throughput@8x1"): 9.0}),
        ("baseline_seconds", {("c",): 0.02}),
        ("control_baseline_seconds", {("c", "cpu_spin"): 4e-4}),
        ("judge_aa_tests", {("c",): 7.0}),
        ("judge_aa_alarms", {("c",): 1.0}),
    ],
)
def test_the_latency_and_the_other_measures_are_told_apart_by_a_label(name: str, points: Points) -> None:
    found = findings_of(
        judgements={"c": LATENCY}, sentences={"c": "same"}, measures={"c": MEASURES}, trials={"c": TRIALS}
    )
    assert shown(found, name) == points
    states = shown(found, "verdict")
    assert {key[1:] for key, value in states.items() if value} == {
        ("latency", "equivalent"), ("host_memory", "regressed"),
        ("throughput@8x1", "equivalent"), ("energy", "settling"),
    }  # fmt: skip
    assert len(states) == 4 * len(STATES)


CHANGES = (Change("cpu_quota", "4", "2"), Change("memory_limit", "8 GiB", "4 GiB"))


@pytest.mark.parametrize(
    ("drift", "ratio", "words"),
    [
        (Drift(), {}, set()),
        (Drift(shift=0.0, changes=CHANGES), {("c",): 0.0}, set()),
        (
            Drift(shift=0.9, changes=CHANGES),
            {("c",): 0.9},
            {("c", "CPU quota 4 → 2, memory limit 8 GiB → 4 GiB")},
        ),
    ],
)
def test_a_drift_of_this_container(drift: Drift, ratio: Points, words: set[tuple[str, ...]]) -> None:
    found = findings_of({"c": Result(state="no_baseline")}, drifts={"c": {"a": drift, "b": Drift(shift=9.0)}})
    assert shown(found, "drift_ratio") == ratio
    assert shown(found, "drift_info").keys() == words


@pytest.mark.parametrize("changed", ["image", "model", "both"])
@pytest.mark.parametrize(
    ("count", "named"), [(0, ""), (2, "s-0, s-1"), (3, "s-0, s-1, s-2"), (9, "more than 3 containers")]
)
def test_an_upgrade_with_what_it_exchanged_and_who_runs_it(changed: Changed, count: int, named: str) -> None:
    result = upgraded(changed=changed)
    new = frozenset((f"s-{i}", f"boot-{i}") for i in range(count))
    found = findings_of(judgements={"c": result}, sides={"c": Sides(new=new)})
    assert [*shown(found, "upgrade_info")] == [("c", "search:1", "search:2", changed, named)]
    assert {labels[2] for labels in shown(found, "shift_cause")} == {changed}


LONG = [", ".join(f"lib{i}.so.{i}" for i in range(99)) + f", libz.so.{last}" for last in (1, 2)]


@pytest.mark.parametrize(
    ("upgraded_at", "changes", "components"),
    [
        (None, CHANGES, []),
        (9.0, CHANGES, [("cpu_quota", "4", "2"), ("memory_limit", "8 GiB", "4 GiB")]),
        (9.0, (Change("numpy", None, "2.1"),), [("numpy", "none", "2.1")]),
        (9.0, (Change("libraries", *LONG),), [("libraries", "…, libz.so.1", "…, libz.so.2")]),
        (9.0, (Change("x\ny", "a\x00", "b"),), [("x\ufffdy", "a\ufffd", "b")]),
        (9.0, tuple(Change(f"{i}", "1", "2") for i in range(99)), [(f"{i}", "1", "2") for i in range(20)]),
    ],
)
def test_the_components_that_an_upgrade_changed(
    upgraded_at: float | None, changes: tuple[Change, ...], components: list[tuple[str, ...]]
) -> None:
    result = upgraded("settling", None, upgraded_at=upgraded_at, causes=Causes(changes=changes))
    assert [*shown(of(result), "upgrade_component_info")] == [("c", *labels) for labels in components]


@pytest.mark.parametrize(
    ("state", "is_shown"),
    [("regressed", True), ("improved", True), ("equivalent", False), ("inconclusive", False)],
)
def test_where_a_change_grew_is_shown_where_there_is_one(state: State, is_shown: bool) -> None:
    causes = Causes(
        phases={"compute": 0.7, "launch": 0.3},
        bottlenecks={"compute": 1.2, "scheduling": -0.2},
        controls={"cpu_spin": 0.12},
    )
    found = findings_of(judgements={"c": upgraded(state, causes=causes)})
    for name, values in (
        ("phase", causes.phases),
        ("bottleneck", causes.bottlenecks),
        ("control", causes.controls),
    ):
        points = {("c", key): value for key, value in values.items()} if is_shown else {}
        assert shown(found, f"shift_{name}_ratio") == points


def shown_sentence(result: Result) -> str:
    """The sentence as a scrape carries it."""
    families: dict[str, Family] = {family.name: family for family in metrics.families(of(result), "a")}
    text = write(families["infercanary_verdict_info"], {"service": "s", "container": "k"}).text.decode()
    (sample,) = next(iter(text_string_to_metric_families(text))).samples
    assert sample.value == 1 and sample.labels["canary"] == "c" and sample.labels["measure"] == "latency"
    return sample.labels["sentence"]


def changed(before: str, after: str) -> Result:
    return upgraded(causes=Causes(cause="image", changes=(Change("component", before, after),)))


def test_the_sentence_is_exported_in_the_judges_words() -> None:
    result = changed('a "quoted" \\ 5 %', "b")
    assert shown_sentence(result) == sentence(result)


def test_the_exported_sentence_does_not_change_with_progress() -> None:
    early, late = (upgraded("settling", None, runs=runs, looks=Looks(next=12)) for runs in (5, 11))
    assert shown_sentence(early) == shown_sentence(late)
    assert shown(of(late), "judged_runs") == {("c",): 11.0}


@pytest.mark.parametrize("text", ["µ" * 200, "x" + "µ" * 200, "🦜" * 100])
def test_a_long_label_is_cut_between_two_characters(text: str) -> None:
    found = metrics.label_text(text)
    assert SENTENCE_BYTES - 4 <= len(found.encode()) <= SENTENCE_BYTES
    assert text.startswith(found.removesuffix("…")) and found.endswith("…")


def test_what_cannot_be_printed_is_no_part_of_a_label() -> None:
    found = shown_sentence(changed("line\nend\r\x00\u202e\ud800", "b"))
    assert found.isprintable() and "line\N{REPLACEMENT CHARACTER}end" in found
