"""What is judged beside the latency, in ``compare``: found, shown in each format, and counted by the exit code."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from measured_starts import AT_8, CHANGES, compared

from infercanary.command import cli as cli
from infercanary.compare import page, text
from infercanary.compare.comparison import ComparisonResult, with_measures
from infercanary.compare.measured import MeasureShift, exit_code, shifts, with_regressed
from infercanary.contract.report import Run
from infercanary.judge.measures import MeasureVerdict
from infercanary.probe.journal import Journal

Write = Callable[..., None]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str, code: int) -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", "compare", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert (exit_.value.code, err) == (code, ""), out + err
        return out

    return run


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A journal of four starts, the same latency in each."""

    def write(name: str, measures: Mapping[str, float]) -> None:
        rng = random.Random(name)
        for number in range(4):
            writer = Journal(tmp_path / name, f"{name}-{number}", 16 << 20)
            for i in range(40):
                latency = 0.02 * rng.lognormvariate(0, 0.003)
                known = {key: value * rng.lognormvariate(0, 0.005) for key, value in measures.items()}
                began = 1.7e9 + 1e5 * number + 10 * i
                writer.append(
                    [Run(i, "resnet18", began, began, "ok", (latency,), measures=known)],
                    {"torch": "2.7.0"},
                    {},
                )
            assert writer.close(5)

    return write


OLD = {
    "host_memory": 3e9,
    "energy": 0.5,
    "throughput": 50.0,
    "device_use": 0.9,
    "throughput@1x1": 50.0,
    AT_8: 250.0,
}
HEAVIER = OLD | {"host_memory": 3.9e9}


def test_more_memory_at_equal_latency_is_a_regression(run: Callable[..., str], write: Write) -> None:
    write("old.jsonl", OLD)
    write("new.jsonl", HEAVIER)
    out = run("old.jsonl", "new.jsonl", "--html", "report.html", code=1)
    words = " ".join(out.split())
    assert words.startswith("resnet18: equivalent ")
    assert re.search(
        r"^.*; host memory regressed \+(29|30)\.\d % \[\+\d", out.split(" medians ")[0].replace("\n", " ")
    )
    assert re.search(r" measures host memory: regressed, 3 GB → 3\.9 GB, \+(29|30)\.", words)
    assert "energy: equivalent, 0.5 J → 0.5 J, " in words
    assert "throughput at batch 8: equivalent, 250 samples/s → 250 samples/s, " in words
    assert "use of the device" not in words and "throughput:" not in words  # no verdicts of their own
    assert max(map(len, out.splitlines())) <= 100
    html = Path("report.html").read_text()
    assert '<article class="regressed">' in html and "Beside the latency" in html
    assert '<tr class="moved"><td>host memory: regressed, 3 GB → 3.9 GB, +' in html
    answer = json.loads(run("old.jsonl", "new.jsonl", "--json", code=1))
    assert (answer["verdict"], answer["exit_code"], answer["regressed"]) == ("equivalent", 1, ["host_memory"])
    memory = answer["measures"]["host_memory"]
    assert (memory["verdict"], memory["unit"], memory["words"]) == ("regressed", "bytes", "host memory")
    assert memory["after"] / memory["before"] - 1 == pytest.approx(0.3, abs=0.01)
    assert 0.2 < memory["low"] < 0.3 < memory["high"] < 0.4


def test_what_the_exit_code_is_about_can_be_chosen(run: Callable[..., str], write: Write) -> None:
    write("old.jsonl", OLD)
    write("new.jsonl", HEAVIER)
    assert "host memory regressed" in run("old.jsonl", "new.jsonl", "--gate", "latency", code=0)
    assert "host memory regressed" in run("old.jsonl", "new.jsonl", "--expect", "+5%", code=0)
    run("new.jsonl", "old.jsonl", code=0)  # less memory is better


def test_journals_without_measures_are_as_before(run: Callable[..., str], write: Write) -> None:
    write("old.jsonl", {})
    write("new.jsonl", HEAVIER)
    assert "measures" not in run("old.jsonl", "new.jsonl", code=0)
    assert json.loads(run("old.jsonl", "new.jsonl", "--json", code=0))["measures"] == {}


@pytest.mark.parametrize("words", [*CHANGES])
@pytest.mark.parametrize("starts", [1, 3])
def test_what_changed_is_called_and_nothing_else(words: str, starts: int) -> None:
    for seed in range(8):
        found = compared(CHANGES[words], starts, (seed, starts))
        assert [*found.regressed] == [*CHANGES[words]]
        assert found.verdict != "regressed" and (found.exit_code == 1) == bool(CHANGES[words])


@pytest.mark.parametrize(
    ("code", "worse", "gate", "is_"),
    [(0, ["a"], "all", 1), (3, ["a"], "all", 1), (1, [], "all", 1), (3, [], "all", 3), (0, ["a"], "latency", 0),
     (3, ["a"], "latency", 3)],
)  # fmt: skip
def test_an_exit_code(code: int, worse: list[str], gate: str, is_: int) -> None:
    assert exit_code(code, worse, gate) == is_  # type: ignore[arg-type]


def test_what_is_not_finite_is_not_known() -> None:
    verdict = MeasureVerdict(state="inconclusive", shift=0.1, low=-1.0, high=math.inf, before=0.5, after=0.55)
    found = shifts({"energy": verdict, "newer": MeasureVerdict(state="inconclusive")})
    assert (found["energy"].high, found["energy"].unit, found["newer"].words) == (None, "joules", "newer")
    assert text.measure(found["energy"]) == "energy: inconclusive, 0.5 J → 0.55 J, ×1.1 [×0, ×∞]"
    assert text.measure(found["newer"]) == "newer: inconclusive, too few values"


def test_many_that_regressed_are_counted() -> None:
    verdict = MeasureVerdict(state="regressed", shift=-0.2, low=-0.3, high=-0.1, before=2.0, after=1.6)
    several = {f"throughput@{2**i}x1": verdict for i in range(6)}
    assert with_regressed("equivalent", several) == (
        "equivalent; throughput at batch 1 regressed -20.0 % [-30.0, -10.0]; throughput at batch 2 regressed -20.0 % "
        "[-30.0, -10.0]; throughput at batch 4 regressed -20.0 % [-30.0, -10.0]; 3 more measures regressed"
    )


def test_measures_replace_those_that_are_there() -> None:
    first = compared({}, 1, (1,))
    other = with_measures(first, {})
    assert first.measures and not other.measures and isinstance(other, ComparisonResult)
    assert page._measures({"x": MeasureShift(
        verdict="inconclusive", words="<b>", unit="", before=None, after=None, shift=None, low=None, high=None
    )}, 0.05).count("&lt;b&gt;") == 1  # fmt: skip
