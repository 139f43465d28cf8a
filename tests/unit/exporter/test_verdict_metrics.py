import msgspec
import pytest
import yaml

from infercanary.exporter.judging import families as metrics
from infercanary.exporter.judging.findings import Finding
from infercanary.judge.operators import MOST, Operators, OperatorShift
from infercanary.judge.result import STATES, Causes, Change
from infercanary.judge.verdict import Trial
from infercanary.pages.sentence import SENTENCE_BYTES, sentence
from tests.programs import GOLDEN
from tests.results import upgraded
from tests.scenarios import cases

TABLE = yaml.safe_load((GOLDEN / "verdict_metrics.yaml").read_text())
STATE_SETS = ("verdict", "shift_cause")


def shown(name, result):
    found = result if isinstance(result, Finding) else Finding(result=result, sentence=sentence(result))
    [family] = [f for f in metrics.families({"c": found}, "a") if f.name == f"infercanary_{name}"]
    assert all(point.labels[0] == "c" for point in family.points)
    return {" | ".join(point.labels[1:]): point.value for point in family.points}


@cases(TABLE["findings"], ids=str)
def test_metrics_of_a_finding(given, expected):
    finding = msgspec.convert({"sentence": "", **given}, Finding)
    for name, points in expected.items():
        series = shown(name, finding)
        if name in STATE_SETS and points:
            series = {labels: value for labels, value in series.items() if value}
        assert series == pytest.approx(points), name


def test_each_state_has_a_series_and_trials_are_counted():
    trials = {("a", f"boot-{i}"): Trial(5, called=i == 3) for i in range(7)}
    found = Finding(result=upgraded(), sentence="", trials=trials)
    assert len(shown("verdict", found)) == len(STATES)
    assert (shown("judge_aa_tests", found), shown("judge_aa_alarms", found)) == ({"": 7.0}, {"": 1.0})


def test_many_or_long_changes_and_operators_are_cut():
    long = [", ".join(f"lib{i}.so.{i}" for i in range(99)) + f", libz.so.{last}" for last in (1, 2)]
    changes = [Change("libraries", *long), *(Change(f"{i}", "1", "2") for i in range(99))]
    conv = OperatorShift("x", 0.01, 0.02, 1.0, "grew")
    shifts = [
        msgspec.structs.replace(conv, operator=f"aten::{i}" + "x" * 200, after=0.01 * (i + 2))
        for i in range(MOST)
    ]
    result = upgraded(causes=Causes(changes=(*changes,), operators=Operators("explained", (*shifts,))))
    first, *others = shown("upgrade_component_info", result)
    assert first == "libraries | …, libz.so.1 | …, libz.so.2"
    assert others == [f"{i} | 1 | 2" for i in range(19)]
    operators = shown("shift_operator_seconds", result)
    assert len(operators) == MOST
    assert all(len(labels.encode()) <= 127 for labels in operators)


def test_the_sentence_is_exported_in_the_judges_words_whatever_others_wrote():
    result = upgraded(
        causes=Causes(cause="image", changes=(Change("component", "line\nend\r\0\u202e\ud800", "b"),))
    )
    [labels] = shown("verdict_info", result)
    assert labels == f"latency | {sentence(result)}"
    assert labels.isprintable() and "line\N{REPLACEMENT CHARACTER}end" in labels


@cases(["µ" * 200, "x" + "µ" * 200, "🦜" * 100])
def test_a_long_label_is_cut_between_two_characters(text):
    found = metrics.label_text(text)
    assert SENTENCE_BYTES - 4 <= len(found.encode()) <= SENTENCE_BYTES
    assert text.startswith(found.removesuffix("…"))
    assert found.endswith("…")
