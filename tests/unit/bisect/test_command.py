"""The command `bisect` with simulated starts instead of containers: progress, state file, answers and mistakes."""

import json
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from jsonschema import validate

from infercanary.ab import command as ab
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.turn import ArmSummary, StartFailed, Turn
from infercanary.bisect import command, mixture
from infercanary.command.settings import UsageError
from tests.factories import start

SCHEMA = Path(__file__).parents[3] / "docs/schemas/bisect.v1.json"
OPTIONS = (
    "--both",
    "env.X=1",
    *(word for n in range(4) for word in ("--b", f"env.V{n}={n}")),
    "--b",
    "memory=1g",
)


def environment(name):
    return {"Id": name, "Config": {"Env": ["PATH=/bin"], "Cmd": ["serve"]}}


@pytest.fixture
def bisect(monkeypatch, infercanary):
    """Run the command: ``slow`` returns a side's latency in seconds, or raises an error. The list ``ran``
    collects the pairs of sides.
    """

    def bisect(slow, *options, images=("search",), tags=(), ends_after=99):
        ran = []

        def experiment(sides, plan, judged, interruption):
            ran.append(sides)
            if len(ran) > ends_after:
                os.kill(os.getpid(), signal.SIGTERM)
            pairs: list[TurnPair] = []
            while not pairs or not all(decision.done for decision in judged(pairs).values()):
                both = [
                    start(
                        f"{len(ran)}", seconds=slow(side), at=100.0 * len(pairs) + 10 * i, runs=12, seed=i,
                        outputs={"c": OUTPUTS.get(side.variables.get("V2"), (1.0, 2.0))},
                    )
                    for i, side in enumerate(sides)
                ]  # fmt: skip
                pairs.append(TurnPair(*(Turn({"c": each}, {"c": {}}, 1.0) for each in both)))
            arms = [ArmSummary(name=side.image) for side in sides]
            return Result(arms, pairs, [], "interrupted" if interruption.number else "clear", 1.0)

        monkeypatch.setattr(command, "open_daemon", Mock)
        monkeypatch.setattr(mixture, "find_image", lambda _, name, __: (environment(name), {}))
        monkeypatch.setattr(mixture, "read_packages", lambda *_: [])
        monkeypatch.setattr(mixture, "read_tags", lambda *_: {name: {"Id": name} for name in tags})
        monkeypatch.setattr(ab, "run_experiment", experiment)
        return *infercanary("bisect", *images, *OPTIONS, *options), ran

    yield bisect
    OUTPUTS.clear()


OUTPUTS: dict[str, tuple[float, ...]] = {}


def variable(name, factor=1.5):
    return lambda side: 0.02 * (factor if side.variables.get(name) else 1.0)


def test_the_guilty_variable_is_named_and_each_experiment_announced(bisect):
    code, out, err, ran = bisect(variable("V2"))
    assert code == 1
    assert out.startswith("c: regressed: V2 None → 2 explains ")
    assert "experiment 1 of up to 9, swapped in A: V0 None -> 0" in err
    assert len(ran) <= 6
    assert all(first.variables["X"] == "1" for first, _ in ran)
    assert {"V2"} in [
        {x for x in second.variables if x.startswith("V") and second.variables[x]} for _, second in ran
    ]


def test_json_follows_its_schema(bisect):
    code, out, _, _ = bisect(variable("V0", 0.5), "--json")
    answer = json.loads(out)
    validate(answer, json.loads(SCHEMA.read_text()))
    assert (code, answer["exit_code"], answer["verdict"]) == (0, 0, "improved")
    assert answer["explained"][0]["components"] == ["V0 None → 0"]


def test_without_a_change_the_answer_is_that_of_ab(bisect):
    code, out, _, ran = bisect(lambda _: 0.02)
    assert (code, len(ran)) == (0, 1)
    assert out.startswith("c: equivalent ")


def test_a_bisection_that_was_ended_continues_from_its_state(bisect, tmp_path):
    path = tmp_path / "state.json"
    code, out, _, ran = bisect(variable("V1"), "--state", str(path), ends_after=2)
    assert (code, out, len(ran)) == (143, "", 3)
    assert len(json.loads(path.read_text())["outcomes"]) == 1
    code, out, err, _ = bisect(variable("V1"), "--state", str(path))
    assert code == 1
    assert out.startswith("c: regressed: V1 ")
    assert "experiment 2 of" in err
    assert "experiment 1 of" not in err
    code, again, _, none = bisect(variable("V1"), "--state", str(path))
    assert (code, again, none) == (1, out, [])
    code, _, err, _ = bisect(variable("V1"), "--state", str(path), "--b", "env.V9=9")
    assert code == 2
    assert err.endswith(
        f"infercanary: --state {path}: belongs to other images or settings; name another file\n"
    )
    path.write_text("{")
    code, _, err, _ = bisect(variable("V1"), "--state", str(path))
    assert code == 2
    assert f"infercanary: --state {path}: cannot be read (" in err


@pytest.mark.parametrize("error", [UsageError, StartFailed, ConnectionResetError])
def test_a_mixture_that_does_not_start_is_not_separable_and_says_why(bisect, error):
    def slow(side):
        if side.variables.get("V0") and not side.variables.get("V1"):
            raise error("B: failed to start twice in a row: no V1")
        return variable("V0")(side)

    code, out, _, _ = bisect(slow)
    assert code == 1
    out = " ".join(out.split())
    assert out.startswith("c: regressed: V0 None → 0 and V1 None → 1 explain ")
    assert "V0 None → 0: B: failed to start twice in a row: no V1" in out


def test_another_output_is_not_separable(bisect):
    def slow(side):
        is_b = all(side.variables.get(f"V{n}") for n in range(4))
        OUTPUTS["2"] = (1.0, 2.0) if is_b else (5.0, 5.0)
        return variable("V2")(side)

    code, out, _, _ = bisect(slow)
    assert code == 3
    assert "its output differs from that of A and of B" in " ".join(out.split())


def test_the_output_of_either_side_is_right(bisect):
    OUTPUTS["2"] = (5.0, 5.0)
    assert bisect(variable("V2"))[1].startswith("c: regressed: V2 ")


def test_the_tag_of_the_slow_image_is_named(bisect):
    tags = [f"search:{n}" for n in range(1, 6)]
    code, out, err, ran = bisect(
        lambda side: 0.03 if side.image in tags[3:] else 0.02, "--json", images=(tags[0], tags[-1]), tags=tags
    )
    answer = json.loads(out)
    validate(answer, json.loads(SCHEMA.read_text()))
    assert (code, answer["between"]) == (1, ["search:3", "search:4"])
    assert "swapped in A: search:3" in err
    walk = [b for _, b in ran if b.image in tags[1:4]]
    assert [side.image for side in walk] == ["search:3", "search:4"]
    assert all("V0" not in side.variables and side.memory is None for side in walk), "settings are those of A"
    assert [x["components"] for x in answer["experiments"]][-2:] == [["search:3"], ["search:4"]]


def test_an_interpreter_is_refused(infercanary, tmp_path):
    config = tmp_path / "probe.yaml"
    config.write_text("canaries: {c: {target: torch}}\n")
    code, out, err = infercanary("bisect", "image", "--both", f"config={config}", "--a", "python=/bin/sh")
    assert (code, out) == (2, "")
    assert err == "infercanary: bisect: python: an interpreter has no components to swap; give images\n"
