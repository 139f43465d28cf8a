"""Results of compare: verdicts, evidence, causes and next actions."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_starts import CHANGES, compared

from infercanary.command.settings import UsageError
from infercanary.compare.actions import settling_actions
from infercanary.compare.comparison import compare_runs, concluded, regressions
from infercanary.compare.document import comparison_document
from infercanary.compare.failures import rise
from infercanary.compare.read import read
from infercanary.compare.recording import Attempts, RecordedRuns
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.policy import FILES
from infercanary.judge.result import Causes
from infercanary.judge.shift import Restarts, Shift
from infercanary.judge.statistics import learn
from tests.scenarios import cases, typed

points = st.lists(st.floats(1e-3, 1e3), max_size=30).map(np.array)
sides = st.lists(points, max_size=3).map(RecordedRuns)


def series(numbers, *levels):
    return RecordedRuns([np.array(numbers(level, seed=i)) for i, level in enumerate(levels)])


@given(sides, sides, st.floats(0.5, 0.9999))
def test_any_sides_have_an_answer(one, other, level):
    result = compare_runs("", one, other, policy=FILES.but(confidence=level))
    assert result.exit_code == {"regressed": 1, "inconclusive": 3}.get(result.verdict, 0)
    assert bool(result.next) == (result.verdict == "inconclusive")
    assert result.sentence.startswith(result.verdict)


def test_restart_variance_is_assumed_until_a_restart_is_seen(numbers):
    short = RecordedRuns([np.array(numbers(0.02)), np.array([0.02])])
    assumed = compare_runs("", short, series(numbers, 0.02))
    assert assumed.restart_sd == learn([]).sd
    assert assumed.verdict == "inconclusive"
    several = compare_runs("", series(numbers, 0.02, 0.0204, 0.0196), series(numbers, 0.02, 0.0203))
    assert several.restart_sd_from.startswith("estimated from 3 restarts")
    assert 0.01 < several.restart_sd < 0.02
    assert (several.starts, several.runs) == (5, 500)
    given_ = compare_runs("", series(numbers, 0.02), series(numbers, 0.02), restart_sd=0.003)
    assert (given_.restart_sd, given_.unit, given_.causes) == (0.003, None, Causes())


FAILING = """
0.02  | 0  | 0  | equivalent
0.02  | 0  | 40 | inconclusive
0.017 | 0  | 40 | inconclusive
0.024 | 0  | 40 | regressed
0.024 | 40 | 40 | regressed
0.02  | 40 | 40 | equivalent
"""


@cases(typed(FAILING))
def test_runs_that_fail_are_no_reason_to_pass(level, failed_before, failed_after, verdict, numbers):
    """A regression is called in spite of failures. Any other verdict needs runs that succeed."""
    old = series(numbers, 0.02)._replace(attempts=Attempts(100, failed_before))
    new = RecordedRuns([np.array(numbers(level, seed=7))], attempts=Attempts(100, failed_after))
    result = compare_runs("", old, new, restart_sd=0.0, claimed=1.0)
    rose = failed_after > failed_before
    assert (result.verdict, result.failures_rose) == (verdict, rose)
    assert (result.claim.state == "unknown") == rose
    assert ("40 of 100 runs failed, 0 of 100 before" in result.sentence) == rose
    none = RecordedRuns([], left_out={"raised": 100}, attempts=Attempts(100, 100), failure="out of memory")
    assert "last failure: out of memory" in compare_runs("", old, none).next[0]


RISES = """
[10000, 0]     | [100000, 4000] | false
[100000, 4000] | [100000, 5100] | true
[40, 0]        | ~              | false
"""


@cases(typed(RISES))
def test_a_rise_of_many_runs(before, after, rose):
    assert bool(rise(Attempts(*before), after and Attempts(*after))) is rose


@given(st.integers(1, 60), st.integers(0, 60), st.integers(3, 60), st.integers(0, 60))
def test_a_rise_is_what_chance_makes_in_less_than_one_of_a_thousand(begun, failed, after, failed_after):
    """Fisher's exact test counts the ways to distribute the failures so that the candidate has at least as many."""
    failed, failed_after = min(failed, begun), min(failed_after, after)
    both, every = failed + failed_after, begun + after
    ways = sum(
        math.comb(both, k) * math.comb(every - both, after - k)
        for k in range(failed_after, min(both, after) + 1)
    )
    clear = 1000 * ways < math.comb(every, after) and failed_after >= 3 and 20 * failed_after > after
    assert (rise(Attempts(begun, failed), Attempts(after, failed_after)) != "") is clear


def test_short_starts_and_the_oldest_of_many_are_left_out(numbers):
    many = RecordedRuns([np.array(numbers(count=10, seed=i)) for i in range(FILES.pool.history + 3)])
    result = compare_runs("", many, RecordedRuns([np.array(numbers()), np.array([0.02, 0.02])]))
    assert (result.baseline.starts, result.candidate.starts) == (FILES.pool.history, 1)
    rest = "in starts that are too short or too old"
    assert (result.baseline.left_out, result.candidate.left_out) == ({rest: 30}, {rest: 2})


SAME = {"control": 1.0, "outputs": {"resnet18": (1.0, 2.5)}, "measures": {"output": 8.0}}


# Fields of the journals before and after | words of the sentence
DIFFERING = """
{} | {torch: 2.13.0} | ": image; torch 2.7.0 → 2.13.0; compute phase; controls flat"
{} | {control: 1.2} | ": host; compute phase; controls cpu_spin +"
{} | {outputs: {resnet18: [2.0, 1.0]}} | output changed (relative error 0.
{} | {outputs: {}} | ""
{} | {measures: {output: 3.0}} | "; output tokens 8 → 3"
{} | {measures: {}} | ""
{more: {"model:ITS": "file:1"}} | {more: {"model:ITS": "file:2"}} | "; model file:1 → file:2"
{more: {"settings:ITS": "1"}} | {more: {"settings:ITS": "2"}} | ": image or settings; canary"
{more: {"settings:ITS": "1"}} | {more: {"settings:ITS": "1"}} | ""
{} | {more: {"model:ITS": "file:2", "settings:ITS": "2"}} | ""
# A factory's weights may differ in the last bits with the instruction set. This changes the digest, but not the output.
{more: {"model:ITS": weights-a.l}} | {more: {"model:ITS": weights-b.l}, outputs: {resnet18: [1.0, 2.500001]}} | ""
{more: {"model:ITS": weights-a.l}} | {more: {"model:ITS": weights-b.l}, outputs: {ITS: [1, 2.3]}} | "; model weights-a"
"""


@cases(typed(DIFFERING.replace("ITS", "resnet18")))
def test_the_sentence_names_what_differs_and_nothing_else(before, after, words, journal):
    old, new = (
        read([journal(name, [level, level * 1.005], **SAME | fields)]).canaries["resnet18"]
        for name, level, fields in (("old", 0.02, before), ("new", 0.024, after))
    )
    result = compare_runs("resnet18", old, new)
    assert result.verdict == "regressed"
    assert (words or ": image; compute phase; controls flat") in result.sentence
    for word in ("torch", "cpu_spin", "output changed", "output tokens", "model", "settings"):
        assert (word in result.sentence) == (word in words) or "weights" in words, word
    assert result.causes.phases == {"compute": pytest.approx(1, abs=0.01)}
    assert result.unit == "s"


def test_mixed_journals_are_reported(journal):
    path = journal("a", [0.02, 0.02])
    journal("a", [0.02], torch="2.13.0", boot="b")
    both = read([path]).canaries["resnet18"]
    with pytest.raises(UsageError, match="both sides have the same starts; select environments or boots"):
        compare_runs("resnet18", both, both)
    other = read([journal("c", [0.02])]).canaries["resnet18"]
    facts = comparison_document(compare_runs("resnet18", both, other), both, other).facts
    assert [fact.label for fact in facts if "several images?" in fact.text] == ["baseline"]


ACTIONS = """
0.0  | 0.03  | [0.0, 30.0] | [1, 1] | "about "
0.0  | 0.001 | [0.01, 4.0] | [1, 1] | "give each side more starts: more runs alone would not give a verdict"
0.05 | 0.001 | [0.01, 4.0] | [1, 1] | more starts
0.0  | .inf  | [0.01, 4.0] | [0, 0] | give each side 16 runs or more from one start
"""


@cases(typed(ACTIONS))
def test_the_next_action_for_an_open_verdict(log, se, restarts, starts, words):
    actions = settling_actions(Shift(log, se, 30.0), Restarts(*restarts), 50, starts, FILES)
    assert len(actions) == 1
    assert words in actions[0]


def test_an_assumed_restart_variance_is_asked_for_and_coarse_values_are_named(numbers):
    assumed = Restarts(0.01, FILES.pool.restart_df)
    assert "--restart-sd" in settling_actions(Shift(0.0, 0.01, 30.0), assumed, 50, (1, 1), FILES)[1]
    coarse = compare_runs("", RecordedRuns([np.full(40, 4.0)]), RecordedRuns([np.full(40, 5.0)]))
    assert coarse.verdict == "inconclusive"
    assert "too coarse" in coarse.next[0]


def test_as_many_more_runs_as_it_says_settle_it():
    rng = np.random.default_rng(1)
    old, new = (RecordedRuns([np.exp(rng.normal(0, 0.08, 30))]) for _ in range(2))
    result = compare_runs("", old, new, restart_sd=0.0)
    more = int("".join(filter(str.isdigit, result.next[0])))
    old, new = (RecordedRuns([np.exp(rng.normal(0, 0.08, 30 + 2 * more))]) for _ in range(2))
    assert result.verdict == "inconclusive"
    assert 30 < more < 3000
    assert compare_runs("", old, new, restart_sd=0.0).verdict != "inconclusive"


@pytest.mark.parametrize("words", [*CHANGES])
@pytest.mark.parametrize("starts", [1, 3])
def test_the_measures_that_changed_are_called_and_no_other(words, starts):
    for seed in range(8):
        result = compared(CHANGES[words], starts, (seed, starts))
        assert [*result.regressed] == [*CHANGES[words]]
        assert result.verdict != "regressed"
        assert (result.exit_code == 1) == bool(CHANGES[words])


GATES = """
equivalent   | 1 | all     | 1
inconclusive | 1 | all     | 1
regressed    | 0 | all     | 1
inconclusive | 0 | all     | 3
equivalent   | 9 | latency | 0
inconclusive | 1 | latency | 3
"""


@cases(typed(GATES))
def test_the_gate_and_the_sentence_of_measures(verdict, worse, gate, code):
    plain = msgspec.structs.replace(compared({}, 1, (1,)), verdict=verdict)
    lower = MeasureVerdict("regressed", -0.2, -0.3, -0.1, 2.0, 1.6)
    measures = {f"throughput@{2**i}x1": lower for i in range(worse)}
    result = concluded(plain, measures, gate)
    assert (result.exit_code, len(result.regressed), len(result.measures)) == (code, worse, worse)
    assert all("throughput at batch" in words for words in regressions(measures))
