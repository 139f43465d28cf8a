"""Documents of results: facts beyond the sentence, and numbers with full precision."""

import msgspec
import yaml

from infercanary.contract.measures import HOST_MEMORY
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Causes, Doubts, Looks
from infercanary.judge.shift import Restarts
from infercanary.pages.from_result import (
    causes_facts,
    measures_table,
    operators_table,
    verdict_document,
)
from infercanary.pages.sentence import sentence
from tests.results import upgraded
from tests.scenarios import cases

CAUSES = msgspec.convert(
    yaml.safe_load("""
        cause: image
        host: {shift: 0.1, low: 0.08, high: 0.12}
        image: {shift: 0.05, low: 0.01, high: 0.09}
        bottlenecks: {compute: 1.01, io: -0.01}
        phases: {compute: 0.6, launch: 0.4}
        controls: {cpu_spin: 0.12}
        siblings: {shift: 0.2, low: 0.1, high: 0.3}
        tags: {gpu_busy: [0, 1]}
        memory_kills: [0, 2]
        operators: {state: explained, share: 0.9, shifts: [{operator: "aten::conv2d", before: 0.0098, after: 0.0312,
          share: 0.84, change: grew, detail: "cuda:0 → cpu", shapes: 8x3}]}
        cold_start: {load: [2, 9]}
        output_error: 0.25
        changes:
        - &change {component: c0, before: a, after: b}
        - {<<: *change, component: c1}
        - {<<: *change, component: c2}
        - {<<: *change, component: c3}
        - {<<: *change, component: c4}
        - {<<: *change, component: c5}
    """),
    Causes,
)
ORIGINS = Origin("a" * 40, "https://github.com/o/r", "1"), Origin("b" * 40, "https://github.com/o/r", "2")
OF_THE_CHANGE = {"due to the host", "due to the image", "bottleneck", "phase", "operators"}


def values(facts):
    return {fact.label: fact.value for fact in facts if fact.value}


@cases([True, False])
def test_causes_are_facts(is_change):
    facts = values(causes_facts(CAUSES, is_change=is_change))
    assert OF_THE_CHANGE & {*facts} == (OF_THE_CHANGE if is_change else set())
    assert facts.get("bottleneck") == ("compute 100 % of the change" if is_change else None)
    assert facts["changed"] == ", ".join(f"c{i} a → b" for i in range(6))
    said = [facts[label] for label in ("killed for memory", "controls", "cold start, load")]
    assert said == ["0 → 2 times", "cpu_spin +12.0 %", "2.0 → 9.0 s"]
    assert values(causes_facts(Causes())) == {}


def test_facts_beyond_the_sentence():
    result = upgraded(
        causes=CAUSES, rollback=True, contended=2, hosts=3, is_unwaited=True, concurrent=2,
        doubts=Doubts(is_by_reference=True, redrawn=3),
    )  # fmt: skip
    words = sentence(result)
    facts = values([*verdict_document(result, words, {}).facts])
    left_out = {label for label, value in facts.items() if str(value) not in words}
    assert left_out >= {"2 contended starts", "compared on", "gpu_busy"}
    assert "output changed" not in left_out
    assert (facts["compared on"], facts["2 contended starts"]) == ("3 hosts", "excluded")


@cases(
    [(LIVE.pool.restart_sd, "assumed: no restart observed yet"), (0.02, "estimated from other services")],
)
def test_the_restart_variance_is_from_one_place_on_every_surface(sd, words):
    result = upgraded("unconfirmed", restart=Restarts(sd, LIVE.pool.restart_df))
    text = sentence(result)
    assert f"restart variance {words}" in text
    assert values([*verdict_document(result, text, {}).facts])["restart variance"] == words


def test_the_document_of_a_verdict():
    result = upgraded(
        causes=CAUSES, origins=ORIGINS, baseline=0.02, current=0.022, medians=((0.02, 0.021), (0.022,)),
    )  # fmt: skip
    document = verdict_document(result, "words", {HOST_MEMORY: MeasureVerdict("equivalent")})
    facts = {fact.label: fact for fact in document.facts}
    assert (document.verdict, document.sentence) == ("regressed", "words")
    for side, median, image in (("old", 0.02, "1 (1, aaaaaaaaaaaa)"), ("new", 0.022, "2 (2, bbbbbbbbbbbb)")):
        assert (facts[f"{side} median"].value, facts[f"{side} median"].unit) == (median, "s")
        assert facts[f"{side} image"].value == f"search:{image}"
    assert facts["commits"].link.endswith("/compare/aaaaaaaaaaaa...bbbbbbbbbbbb")
    (chart,) = document.charts
    assert [series.values for series in chart.series] == [[0.02, 0.021, None], [None, None, 0.022]]
    assert chart.marks == [2]
    assert [table.title for table in document.tables if table.rows] == [
        "measures",
        "operators",
    ]
    few = verdict_document(upgraded("settling", None, looks=Looks(0, 5), runs=3), "words", {})
    assert values([*few.facts])["progress"] == "collecting: 3 of 5 runs"
    assert not any(table.rows for table in few.tables)


def test_tables():
    table = operators_table(CAUSES.operators)
    assert table.rows == [("aten::conv2d", "grew", "9.8 ms", "31.2 ms", "84 %", "cuda:0 → cpu; 8x3")]
    assert not any(t.rows for t in (operators_table(Operators("unexplained")), operators_table(None)))
    verdicts = {
        "throughput@8x1": MeasureVerdict("equivalent", -0.01, -0.02, 0.0, 200.0, 198.0),
        "spread": MeasureVerdict("settling"),
        HOST_MEMORY: MeasureVerdict("regressed", 0.31, 0.28, 0.34, 1e9, 1.31e9),
    }
    assert measures_table(verdicts).rows == [
        ("host memory", "regressed", "1 GB", "1.31 GB", "+31.0 % [+28.0, +34.0]"),
        ("throughput at batch 8", "equivalent", "200 samples/s", "198 samples/s", "-1.0 % [-2.0, +0.0]"),
        ("run-to-run spread", "settling", "", "", "too few values"),
    ]
