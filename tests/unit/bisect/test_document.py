"""The answer of a bisection in each output format."""

import json
import math
from pathlib import Path

import pytest
from jsonschema import validate

from infercanary.bisect.document import bisect_document
from infercanary.bisect.search import Components, Finding, Outcome, Part, Search
from infercanary.bisect.state import State
from infercanary.judge.shift import Shift
from infercanary.render.json import render_json
from infercanary.render.text import render_text

TEXTS = {"cpus": "cpus 2 → 1", "env.A": "A 1 → 2", "package torch": "torch 2.7.0 → 2.8.0"}
TORCH, CPUS = Components({"package torch"}), Components({"cpus"})


def shifts(log):
    return [Shift(log + x, 0.001, 20.0) for x in (-0.01, 0.0, 0.01)]


def part(components, share):
    return Part(components, share, 0.05, 8.0)


def document(finding, outcomes=(), verdict="regressed"):
    state = State("digest", "resnet18", verdict, 0.342, shifts(math.log(1.342)), [], [*outcomes])
    return bisect_document(state, TEXTS, Search(Components(TEXTS), state.pairs, 12), finding)


@pytest.mark.parametrize(
    ("finding", "verdict", "sentence"),
    [
        (Finding(TORCH, [part(TORCH, 0.94)]), "regressed",
         "torch 2.7.0 → 2.8.0 explains 94 % [82, 106] of +34.2 %"),
        (Finding(TORCH, [part(TORCH, 0.94)], interact=True), "improved",
         "torch 2.7.0 → 2.8.0 explains 94 % [82, 106] of +34.2 %; interaction"),
        (Finding(TORCH | CPUS, [part(TORCH | CPUS, 0.97), part(CPUS, 0.03), part(TORCH, 0.0)], interact=True),
         "regressed",
         "cpus 2 → 1 and torch 2.7.0 → 2.8.0 explain 97 % [85, 109] of +34.2 %; "
         "alone 3 % [-9, 15] and 0 % [-12, 12]; interaction"),
        (Finding(TORCH, [part(TORCH, 0.94)], between=("search:1.4.2", "search:1.4.3")), "regressed",
         "torch 2.7.0 → 2.8.0 explains 94 % [82, 106] of +34.2 %; "
         "change between search:1.4.2 and search:1.4.3"),
        (Finding(TORCH | CPUS), "inconclusive",
         "+34.2 % comes from cpus 2 → 1 and torch 2.7.0 → 2.8.0, not separated further"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_guilty_component(finding, verdict, sentence):
    made = document(finding, verdict="improved" if verdict == "improved" else "regressed")
    assert made.sentence == f"{verdict}: {sentence}"
    assert (made.verdict, made.exit_code) == (
        verdict,
        {"regressed": 1, "improved": 0, "inconclusive": 3}[verdict],
    )


def test_each_experiment_is_shown_and_a_mixture_that_cannot_run_says_why():
    outcomes = [Outcome(CPUS, shifts(0.0)), Outcome(TORCH, (), "failed to start twice in a row: no wheel")]
    made = document(Finding(TORCH), outcomes)
    text = render_text(made, 100)
    assert "cpus 2 → 1: 0 % [-" in text
    assert "torch 2.7.0 → 2.8.0: failed to start twice in a row: no wheel" in text
    answer = json.loads(render_json([made]))
    validate(answer, json.loads((Path(__file__).parents[3] / "docs/schemas/bisect.v1.json").read_text()))
    cpus, torch = answer["experiments"]
    assert cpus["share"] == pytest.approx(0, abs=1e-9)
    assert (torch["share"], torch["low"], torch["pairs"]) == (None, None, 0)
    assert answer["components"] == [*TEXTS.values()]
