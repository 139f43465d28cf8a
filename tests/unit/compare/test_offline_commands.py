"""The offline commands: text, JSON, HTML, and mistakes in their arguments."""

import io
import json
import re
import shlex
import sys
from xml.etree import ElementTree

import pytest
from jsonschema import validate

from infercanary.compare import terminal
from infercanary.compare.read import read
from infercanary.judge import compare
from infercanary.judge.policy import FILES
from tests.programs import ROOT
from tests.scenarios import cases, typed

SCHEMAS = ROOT / "docs/schemas"


@pytest.fixture
def run(infercanary):
    """Run a command and check the exit code; return the output in one line, or the JSON."""

    def run(line, code=None):
        ended, out, err = infercanary(*shlex.split(line))
        assert code in (None, ended), out + err
        assert (err.count("\n") == 1 and out == "") if code == 2 else err == ""
        assert max(map(len, out.splitlines()), default=0) <= 80 or "--json" in line or "github" in line
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\u001b" not in out
        if "--json" in line and code != 2:
            answer = json.loads(out, parse_constant=pytest.fail)
            validate(answer, json.loads((SCHEMAS / f"{line.split()[0]}.v1.json").read_text()))
            return answer
        return " ".join((out + err).split())

    return run


def verdicts(answer):
    return [(each["canary"], each["verdict"]) for each in answer["canaries"]]


def test_milliseconds_against_seconds_are_asked_about(run, write, numbers):
    """Regression: for milliseconds against seconds, the result was "improved -99.9 %", with exit code 0."""
    write("s", numbers())
    write("ms", numbers(level=20))
    for line in ("compare s ms", "compare ms s"):
        assert "are both in the same unit, such as ms? Convert one file" in run(line, 2)
    write("quick", [f"{number}ms" for number in numbers()])
    write("late", [f"{number}ms" for number in numbers(level=20)])
    assert run("compare quick late", 1).startswith("regressed ×")
    write("x19", numbers(level=0.38))
    assert run("compare s x19", 1).startswith("regressed ×19")


def test_every_format_has_each_canary_and_one_exit_code(run, journal, tmp_path):
    journal("old", [0.02, 0.0201], canaries=("a<b", "same"))
    journal("new", [0.024, 0.0241], canaries=("a<b",), torch="2.13.0")
    journal("new", [0.0201, 0.02], canaries=("same", "more"))
    line = "compare old new --restart-sd 0 --junit junit.xml --html r.html"
    text = run(line, 1)
    assert text.startswith("a<b: regressed")
    assert " same: equivalent" in text
    assert " note " in text
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("skipped")) == ("2", "1", "0")
    assert [case.get("name") for case in suites.iter("testcase")] == ["a<b", "same"]
    page = (tmp_path / "r.html").read_text()
    assert page.count("<article") == 2
    assert page.count("<svg") == 6
    assert "a&lt;b" in page
    github = run(f"{line} --format github", 1)
    assert re.findall(r"\*\*(\S+): (\w+)", github) == [("a\\<b", "regressed"), ("same", "equivalent")]
    answer = run(f"{line} --format github --json", 1)
    assert verdicts(answer) == [("a<b", "regressed"), ("same", "equivalent")]
    assert "more" in answer["notes"][0]
    assert answer["causes"]["cause"] == "image"
    assert [*answer["causes"]["phases"]] == ["compute"]
    run(f"{line} --canary same --expect=-40%", 1)
    (failure,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("failure")
    assert failure.get("message", "").startswith("-40.0 % is refuted")


def test_the_command_answers_as_the_judge_does(run, write, numbers, journal):
    def said(files):
        answer = run(f"compare {files} --json")
        return tuple(answer[name] for name in ("verdict", "shift", "low", "high"))

    a, b, c, d = points = [numbers(level, seed=i) for i, level in enumerate((0.02, 0.0206, 0.0201, 0.0206))]
    for name, each in zip("abcd", points, strict=True):
        write(name, each)
    assert said("a b") == compare(a, b)
    assert said("a b --restart-sd 1") == compare(a, b, restart_sd=0.01)
    assert said("a b --more-baseline c --more-candidate d") == compare([a, c], [b, d])
    journal("old", [0.02, 0.0201])
    journal("new", [0.023], torch="2.13.0")
    old, new = (read([name]).canaries["resnet18"].points for name in ("old", "new"))
    assert said("old new") == compare(old, new)
    write("few", [0.01, 0.02])
    assert said("a few") == ("inconclusive", None, None, None)


def test_no_text_of_others_acts_on_a_terminal(run, journal, write):
    """`jq -r` prints text from JSON unchanged. The fixture `run` checks the output for terminal escapes."""
    journal("old", [0.02, 0.0201], canaries=("x\x1b[2J",), torch="2.12.0")
    journal("new", [0.024, 0.0241], canaries=("x\x1b[2J",), torch="2.13.0\x9b1A")
    assert "\x9b" not in json.dumps(run("compare old new --json", 1), ensure_ascii=False)
    write("a\x1b[2J\u202e.csv", "latency_s,label\n" + "0.010,x\n0.011,y\n0.0102,x\n" * 8)
    for line in ("compare a\x1b[2J\u202e.csv a\x1b[2J\u202e.csv", "scan a\x1b[2J\u202e.csv"):
        assert ".csv" in run(line)


def test_a_canary_that_never_ran_in_the_candidate_does_not_pass(run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.02, 0.0201, 0.02], canaries=("x", "z"))
    out = run("compare old new --html r.html", 3)
    assert out.startswith("y: inconclusive")
    assert "only in this file, so not judged: z" in out
    page = (tmp_path / "r.html").read_text()
    assert re.findall(r'<article class="(\w+)"', page) == ["inconclusive", "equivalent"]
    answer = run("compare old new --json", 3)
    assert (answer["canary"], answer["failures_rose"]) == ("y", False)
    assert answer["candidate"]["attempts"] == {"begun": 0, "failed": 0}
    for line, code in (("old new --canary y", 3), ("old new --canary q", 2), ("old new --canary x", 0)):
        run(f"compare {line}", code)
    journal("slow", [0.024, 0.0241, 0.024], canaries=("x",))
    run("compare old slow", 1)
    # A probe retries a canary that cannot open only after minutes, so the canary has few runs, all with tags.
    failed = {"canaries": ("y",), "outcome": "raised", "latencies": (), "tags": ("failing",)}
    journal("new", [0.02], count=2, **failed, detail="out of memory (host): 1.00 GiB in use")
    assert "last failure: out of memory (host): 1.00 GiB in use" in run("compare old new", 3)


def test_scan_as_text_and_json(run, write, numbers, journal, tmp_path):
    write("s", [*numbers(count=60), *numbers(0.024, count=60)])
    assert run("scan s --html r.html", 1).startswith("slower: 1 change of level in 120 runs")
    assert "slower" in (tmp_path / "r.html").read_text()
    answer = run("scan s --json", 1)
    assert (answer["verdict"], len(answer["levels"]), answer["changes"][0]["at"]) == ("slower", 2, None)
    write("t", numbers())
    assert run("scan t", 0).startswith("steady: 0 changes of level in 100 runs")
    journal("a", [0.02, 0.026])
    words = run("scan a", 1)
    assert "40 2023-11-16 02:00:00 UTC +3" in words
    assert "boot a-1 begins" in words


MISTAKES = """
compare a none                        | none: cannot be read (No such file or directory)
compare - -                           | compare: standard input (`-`) can be only one file; save the other
compare a j                           | j: contains canaries x, but a contains one series of numbers
compare two a                         | a: contains one series of numbers, but two contains ttfts, itls
scan a --where label                  | --where label: give COLUMN=VALUE
compare j k                           | k: contains canaries y, but j contains canaries x; give two files
compare j a --canary x                | a: contains one series of numbers, but j contains canaries x
compare j k --canary q                | j: no canary `q`; there are: x
compare a a --canary x                | a: no canary `x`; there are: none (a file of numbers)
compare a a --restart-sd -1           | --restart-sd -1: give a percentage from 0 to 100
compare a a --restart-sd nan          | --restart-sd nan: give a percentage
compare a a --smallest-effect nan     | --smallest-effect nan: give a percentage from 0.1 to 50
compare a a --format junit            | Invalid value for '--format': 'junit' is not
compare a a --baseline-id x           | a: numbers have no ids
compare a a --html .                  | --html: `.` is a folder; name a file in it
compare a a --html no/r               | --html: no folder `no`; create the folder
compare a a --json --junit no/j       | --junit: no folder `no`; create the folder
compare a a --expect 40%              | --expect 40%: give a shift of latency with its sign
scan a --column x                     | a: no column `x`, and there is none to choose; remove --column
scan j --canary z                     | j: no canary `z`; there are: x
compare p p --column p99              | p: one JSON object, without single runs
"""


@cases(MISTAKES)
def test_mistakes(line, message, run, write, numbers, journal):
    write("a", numbers())
    write("p", ['{"p99": 20}'])
    write("two", ['{"ttfts": [1, 2], "itls": [[1], [2]]}'])
    journal("j", [0.02], canaries=("x",))
    journal("k", [0.02], canaries=("y",))
    assert run(line, 2).startswith(f"infercanary: {message}")


def test_the_numbers_that_decide_can_be_set(run, write, numbers):
    for seed, (name, level) in enumerate([("a", 0.02), ("b", 0.0204), ("c", 0.02012)]):
        write(name, numbers(level, count=400, seed=seed, noise=0.002))
    plain = run("compare a b --restart-sd 0 --json", 0)
    decide = FILES.decide
    assert (plain["smallest_effect"], plain["level"]) == (decide.smallest_effect, decide.confidence)
    strict = run("compare a b --restart-sd 0 --smallest-effect 1.5 --json", 1)
    assert (strict["smallest_effect"], strict["shift"]) == (0.015, plain["shift"])
    # This shift is within the default's dead band.
    run("compare a c --restart-sd 0 --smallest-effect 0.4", 1)


@cases([("", 1), ("--gate latency", 0), ("--expect +5%", 0)])
def test_more_memory_at_equal_latency_is_a_regression(options, code, run, journal, tmp_path):
    for name, memory in (("old", 3e9), ("new", 3.9e9)):
        journal(name, [0.02] * 4, measures={"host_memory": memory})
    answer = run(f"compare old new {options} --html r.html --json", code)
    assert (answer["verdict"], answer["regressed"]) == ("equivalent", ["host_memory"])
    colour = "regressed" if code else "equivalent"
    assert f'<article class="{colour}">' in (tmp_path / "r.html").read_text()
    run("compare new old", 0)


class Out(io.TextIOWrapper):
    def __init__(self, encoding, is_terminal):
        super().__init__(io.BytesIO(), encoding)
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


TERMINALS = r"""
utf-8 |       |   | \u00b5\nb: regressed; regressed
ascii |       |   | u\nb: regressed; regressed
utf-8 | xterm |   | \u00b5\nb: \x1b[31m\x1b[1mregressed\x1b[0m; regressed
utf-8 | xterm | 1 | \u00b5\nb: regressed; regressed
utf-8 | dumb  |   | \u00b5\nb: regressed; regressed
"""


@cases(TERMINALS)
def test_a_terminal_as_it_is(encoding, terminal_type, no_color, text, monkeypatch):
    monkeypatch.setenv("TERM", terminal_type)
    monkeypatch.setenv("NO_COLOR", no_color)
    out = Out(encoding, terminal_type != "")
    monkeypatch.setattr(sys, "stdout", out)
    terminal.say("µ\nb: regressed; regressed")
    out.seek(0)
    assert out.read() == text


CLAIMS = """
old new --expect -40%   | 0 | improved     | held
old new --expect -60%   | 1 | improved     | refuted
new old --expect=+70%   | 0 | regressed    | held     # a slowdown within the claim
old few --expect -40%   | 3 | inconclusive | unknown
"""


@cases(typed(CLAIMS))
def test_a_claim_is_checked_instead_of_the_verdict(line, code, verdict, state, run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.0199])
    journal("new", [0.012, 0.01205, 0.01195])
    journal("few", [0.012], count=3)
    answer = run(f"compare {line} --json --html r.html", code)
    assert (answer["verdict"], answer["claim"]["state"], answer["exit_code"]) == (verdict, state, code)
    words = {"held": " % holds", "refuted": " % is refuted", "unknown": " % is not known to hold"}[state]
    assert words in (tmp_path / "r.html").read_text()
