"""The result of an experiment: its document, and the command's output in every format."""

import json
import math
import random
import re

import pytest
from jsonschema import validate
from msgspec.structs import replace

from infercanary.ab import command
from infercanary.ab.answer import CanaryPairs, ExperimentJudge, common
from infercanary.ab.document import experiment_document
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.turn import ArmSummary, Turn
from infercanary.command.settings import UsageError
from infercanary.compare.options import Output
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.origin import Origin
from infercanary.judge.policy import EXPERIMENT
from infercanary.pages.html import render_page
from infercanary.render.text import render_text
from tests.programs import ROOT
from tests.scenarios import cases, typed

A = ArmSummary(
    name="search:1.4", image_id="sha256:" + "a" * 64, image_bytes=1_410_000_000, cold_start={"pull": 12.0}
)
B = ArmSummary(name="search:1.5", image_id="sha256:" + "b" * 64, image_bytes=1_620_000_000)
JUDGE = ExperimentJudge(12)
SOURCE = "https://github.com/acme/search"


def turn(rng, level, torch="2.7.0", contended=0, canaries=("c",)):
    """Return a turn like a probe's: 12 runs around a separate level for each start."""
    starts = {}
    for canary in canaries:
        of = level * math.exp(rng.gauss(0, 0.005))
        samples = [
            Sample(sequence=i, canary=canary, started_at=float(i), outcome="ok",
                   median=of * math.exp(rng.gauss(0, 0.003)) * (1.5 if i < contended else 1),
                   phases={"h2d": 0.001, "compute": of - 0.001},
                   controls={"cpu_spin": 4e-4 * math.exp(rng.gauss(0, 0.002))},
                   tags=("cpu_wait_outside",) if i < contended else ())
            for i in range(12 + contended)
        ]  # fmt: skip
        generation = Generation(
            service="", container="", boot_id=str(rng.random()), started_at=0.0, environment={"torch": torch},
            cold_start={canary: {"load": rng.uniform(0.95, 1.05), "first_run": 0.1, "time_to_steady": 3.0}},
        )  # fmt: skip
        starts[canary] = Start(generation, samples)
    steps = {
        canary: {
            "start": 0.4,
            "first_answer": 2.0 * rng.uniform(0.9, 1.1),
            **start.generation.cold_start[canary],
        }
        for canary, start in starts.items()
    }
    return Turn(starts, steps, 9.0)


def in_turn(pairs):
    for number, pair in enumerate(pairs):
        for late, side in enumerate(pair if number % 2 == 0 else pair[::-1]):
            for canary, start in side.starts.items():
                side.starts[canary] = start.reporting(started_at=10.0 * number + late)
    return pairs


def pairs(count, shift=1.0, seed=1, scatter=0.0, **b):
    rng = random.Random(seed)
    return in_turn(
        [
            TurnPair(turn(rng, 0.02), turn(rng, 0.02 * shift * math.exp(rng.gauss(0, scatter)), **b))
            for _ in range(count)
        ]
    )


def result(found, ended="clear", failures=(), arms=(A, B)):
    return Result(arms, found, failures, ended, 18.0 * len(found))


def answered(found, a=A, b=B, judge=JUDGE, **more):
    return judge.answer("c", result(found, arms=(a, b), **more))


def document(found, answer):
    return experiment_document(answer, *CanaryPairs(found, "c").series)


def shown(capsys, found, ended="clear", signal=0, judge=JUDGE, **output):
    code = command.show(result(found, ended), judge, signal, Output(**output))
    return code, capsys.readouterr().out


def test_a_regression_is_shown_with_its_cause_and_the_cost_of_a_start():
    found = pairs(5, 1.1, torch="2.13.0")
    answer = answered(found)
    assert (answer.verdict, answer.exit_code) == ("regressed", 1)
    assert "measured on" in answer.restart_sd_from
    assert 0.05 < answer.low < answer.shift < answer.high < 0.15
    assert answer.level > 0.95
    assert len(answer.pairs) == 5
    assert all(pair.shift > 0.05 for pair in answer.pairs)
    assert ": image; torch 2.7.0 → 2.13.0; compute" in answer.sentence
    text = " ".join(render_text(document(found, answer)).split())
    for side in (
        "A search:1.4, aaaaaaaaaaaa, 1.41 GB, 60 runs of 5 starts",
        "B search:1.5, bbbbbbbbbbbb, 1.62 GB, 60",
    ):
        assert side in text
    assert "pull 12 s → not pulled start 400 ms (± 0 %) → 400 ms (± 0 %) first answer " in text
    page = render_page("title", [document(found, answer)])
    assert "starts in order of time" in page
    assert "<dt>pull</dt>" in page


# Pairs and ratio of the levels | settings of A | settings of B | sentence
SENTENCES = r"""
[8]      | {}          | {} | equivalent [^;]*
[4, 80]  | {}          | {} | 'regressed ×79.9 \[×65.2, ×97.8\] \(20 → 1,600 ms\): image; .*'
[5, 1.6] | {cpus: "1"} | {cpus: "0.5", env.OMP: "2"} | 'regressed .*: settings; B: cpus=0.5, OMP=2; compute.*flat'
[8]      | {cpus: "1"} | {} | 'equivalent .*: A: cpus=1'
[2]      | {}          | {} | inconclusive [+-][\d.]+ % .*
[1]      | {}          | {} | 'inconclusive: too few starts'
"""


@cases(typed(SENTENCES))
def test_the_sentence(made, a, b, sentence):
    found, is_one = pairs(*made), bool(a or b)
    answer = answered(found, replace(A, settings=a), replace(A if is_one else B, settings=b))
    assert re.fullmatch(sentence, answer.sentence), answer.sentence
    assert answer.exit_code == {"e": 0, "r": 1, "i": 3}[sentence[0]]
    assert render_text(document(found, answer)).startswith("c: " + sentence[:9])


def test_two_images_under_two_settings_are_both_suspects():
    assert ": image or settings; " in answered(pairs(5, 1.6), b=replace(B, settings={"cpus": "1"})).sentence


def test_a_change_names_its_commits_with_a_link():
    found = pairs(5, 1.6)
    old = replace(A, origin=Origin("1a2b3c4d5e6f", SOURCE, "1.4"))
    answer = answered(found, old, replace(B, origin=Origin("9f8e7d6c5b4a", SOURCE, "1.5")))
    address = f"{SOURCE}/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"
    assert "version 1.4 → 1.5, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a" in answer.sentence
    facts = {fact.label: fact for fact in document(found, answer).facts}
    assert facts["commits"].link == address
    assert facts["A"].text.startswith("search:1.4, 1.4, 1a2b3c4d5e6f, aaaaaaaaaaaa, 1.41 GB")


def test_every_format_has_the_answer_of_the_worst_canary(capsys, tmp_path):
    rng, both = random.Random(5), ("steady", "slow")
    found = []
    for _ in range(6):
        a, b = turn(rng, 0.02, canaries=both), turn(rng, 0.02, canaries=both)
        slow = turn(rng, 0.03, canaries=("slow",)).starts["slow"]
        found.append(TurnPair(a, b._replace(starts={**b.starts, "slow": slow})))
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    code, out = shown(capsys, found, form="json", html=str(page), junit=str(junit))
    answer = json.loads(out)
    validate(answer, json.loads((ROOT / "docs/schemas/ab.v1.json").read_text()))
    assert (code, answer["exit_code"], answer["verdict"], answer["canary"]) == (1, 1, "regressed", "slow")
    assert [canary["verdict"] for canary in answer["canaries"]] == ["equivalent", "regressed"]
    assert answer["a"]["mean"] == pytest.approx(0.02, rel=0.02)
    assert answer["ended"] == "clear"
    assert 'class="regressed"' in page.read_text()
    assert "<failure" in junit.read_text()
    code, out = shown(capsys, found, form="github")
    assert code == 1
    assert "**slow: regressed" in out
    assert "| before | after |" in out
    code, out = shown(capsys, found, "interrupted", signal=2, form="json")
    assert code == json.loads(out)["exit_code"] == 130


def test_without_a_whole_pair_it_is_inconclusive(capsys, tmp_path):
    code, out = shown(capsys, [], "budget", junit=str(tmp_path / "junit.xml"))
    assert code == 3
    assert out.startswith("inconclusive: no pair of starts was complete (ended when the time was up")
    assert "<skipped" in (tmp_path / "junit.xml").read_text()
    code, out = shown(capsys, [], "budget", form="json")
    answer = json.loads(out)
    assert (code, answer["exit_code"], answer["verdict"], answer["canaries"]) == (3, 3, "inconclusive", [])


def test_an_experiment_goes_on_until_the_claim_is_known():
    judge, rng = ExperimentJudge(12, claimed=-0.5), random.Random(2)
    wide = [TurnPair(turn(rng, 0.02), turn(rng, 0.01 * math.exp(rng.gauss(0, 0.4)))) for _ in range(12)]
    done = [judge.decisions(wide[:n])["c"].done for n in range(1, 13)]
    assert not any(done[:3])
    assert done[-1]


@cases([
        (pairs(2), 12, "budget", "at least 3 pairs of starts are needed: raise the time limit (--budget)"),
        (pairs(4, 1.04, seed=2, scatter=0.03), 4, "budget", "would give a verdict (--restarts, --budget)"),
        (pairs(4, 1.03), 4, "restarts", "more starts will hardly give a verdict: the shift is near a limit"),
    ],
)  # fmt: skip
def test_an_open_answer_says_what_would_settle_it(found, most, ended, action):
    answer = answered(found, judge=ExperimentJudge(most), ended=ended)
    assert answer.exit_code == 3
    assert action in " ".join(answer.next)


def test_contended_runs_and_failed_starts_are_noted():
    rng = random.Random(3)
    found = [
        TurnPair(turn(rng, 0.02, contended=3 * (i % 2)), turn(rng, 0.02, contended=3 * (1 - i % 2)))
        for i in range(4)
    ]
    answer = answered(found, failures=["B failed to start (exit code 1); trying once more"])
    assert answer.notes == [
        "12 of 108 runs excluded: contended",
        "B failed to start (exit code 1); trying once more",
    ]
    assert (answer.a.runs, answer.a.starts) == (48, 4)
    assert abs(answer.shift) < 0.02


def test_a_canary_of_one_side_is_not_judged():
    rng = random.Random(4)

    def both(a, b):
        return [TurnPair(turn(rng, 0.02, canaries=a), turn(rng, 0.02, canaries=b))]

    names, notes = common(both(("c", "old"), ("c", "new")))
    assert names == ["c"]
    assert notes == [f"only in {x}, so not judged: {y}" for x, y in (("A", "old"), ("B", "new"))]
    with pytest.raises(UsageError, match=r"no canary is in both images; A has old; B has new"):
        common(both(("old",), ("new",)))


def test_the_policy_in_use_decides_and_is_named():
    """The new image is 2 % slower, which is below the default's smallest effect, but above 1.5 %."""
    rng = random.Random(4)
    found = [TurnPair(turn(rng, 0.02), turn(rng, 0.0204)) for _ in range(12)]
    strict = ExperimentJudge(12, EXPERIMENT.but(smallest_effect=0.015, clear_zone=0.005, confidence=0.9))
    default, stricter = (answered(found, judge=judge) for judge in (JUDGE, strict))
    assert (default.smallest_effect, stricter.smallest_effect) == (0.03, 0.015)
    assert (default.verdict, stricter.verdict) == ("equivalent", "regressed")
