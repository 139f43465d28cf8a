"""The commands: text, JSON, HTML, and what is wrong with what they were given."""

from __future__ import annotations

import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import validate

from infercanary.command import cli as cli
from infercanary.compare import terminal
from infercanary.compare.read import read
from infercanary.judge import compare
from infercanary.judge.policy import FILES

SCHEMAS = Path(__file__).parents[3] / "docs/schemas"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments, code):
        monkeypatch.setattr(sys, "argv", ["infercanary", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert code in (None, exit_.value.code), out + err
        assert (err.count("\n") == 1 and out == "") if code == 2 else err == ""
        if "--json" in arguments and code != 2:
            validate(json.loads(out), json.loads((SCHEMAS / f"{arguments[0]}.v1.json").read_text()))
        return err if code == 2 else out

    return run


class Page(HTMLParser):
    """Well-formed, and nothing in it comes from elsewhere."""

    VOID = ("meta", "path")

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)) and not {"href", "src", "onclick", "style"} & set(names)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    ("levels", "options", "code", "words"),
    [
        ((0.024, 0.0241), (), 1, "): image; torch 2.7.0 → 2.13.0; compute phase; controls flat"),
        ((0.024, 0.0241), ("--expect", "+30%"), 0, "expected +30.0 % holds"),
        ((0.0201,), ("--restart-sd", "0"), 0, "restart SD 0 %, as given"),
        ((0.0201,), (), 3, "give each side more starts: more runs alone would not settle it"),
        ((0.0201,), ("--restart-sd", "0", "--smallest-effect", "0.1"), 3, "a change is 0.1 % or more"),
        ((0.0201,), ("--canary", "resnet18", "--smallest-effect", "4"), None, "a change is 4 % or more"),
    ],
)  # fmt: skip
def test_compare_as_text(run, journal, levels, options, code, words):
    journal("old", [0.02, 0.0201])
    out = run("compare", "old", journal("new", levels, torch="2.13.0"), *options, code=code)
    assert words in " ".join(out.split()) and out.startswith("resnet18: ")
    assert max(map(len, out.splitlines())) <= 80 and "\x1b" not in out and "\xa0" not in out


def test_two_files_of_numbers_are_one_series_and_say_so(run, write, numbers):
    out = run("compare", write("a", numbers()), write("b", numbers(seed=2)), code=0)
    assert out.startswith("equivalent ")
    assert "two files of numbers count as one series; else give --restart-sd" in " ".join(out.split())
    assert run("compare", "a", "b", "--restart-sd", "1", code=3).startswith("inconclusive ")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("12", "12", "inconclusive +0.0 % ["),
        ("0.012", "12e-3", "inconclusive +0.0 % ["),
        ("4", "5", "inconclusive +25.0 % [+0.0, +66.7]"),
    ],
)
def test_whole_milliseconds_hide_a_change_of_less_than_one(run, write, before, after, said):
    out = run("compare", write("a", [before] * 40), write("b", [after] * 40), code=3)
    assert out.startswith(said)
    assert "too coarse" in " ".join(out.split())
    assert run("scan", write("both", [before] * 40 + [after] * 40), code=0).startswith("steady")


def test_milliseconds_against_seconds_are_asked_about(run, write, numbers, journal, tmp_path):
    """Once it was "improved -99.9 %", with exit code 0."""
    seconds, milliseconds = write("s", numbers()), write("ms", numbers(level=20))
    for old, new in ((seconds, milliseconds), (milliseconds, seconds)):
        line = run("compare", old, new, code=2)
        assert "are both in one unit, such as ms? Convert one, or write the unit behind each number" in line
        assert f"{new}: median " in line and f" in {old}: are both" in line
    for name, level in (("quick", 0.02), ("late", 20)):
        (tmp_path / name).write_text("".join(f"{number}ms\n" for number in numbers(level=level)))
    assert run("compare", "quick", "late", code=1).startswith("regressed ×")
    assert run("compare", seconds, write("x19", numbers(level=0.38)), code=1).startswith("regressed ×19")
    # Journals know their unit.
    journal("fast", [0.02, 0.0201])
    journal("slow", [2.0, 2.01])
    assert run("compare", "fast", "slow", code=1).startswith("resnet18: regressed ×")


def test_every_format_has_each_canary_and_one_exit_code(run, journal, tmp_path):
    journal("old", [0.02, 0.0201], canaries=("a<b", "same"))
    journal("new", [0.024, 0.0241], canaries=("a<b",))
    journal("new", [0.0201, 0.02], canaries=("same", "more"))
    options = ("--restart-sd", "0", "--junit", "junit.xml", "--html", "r.html")
    text = run("compare", "old", "new", *options, code=1)
    assert re.findall(r"^(\S+): (\w+)", text, re.MULTILINE) == [("a<b", "regressed"), ("same", "equivalent")]
    assert text.splitlines()[-1].split()[0] == "note"
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("skipped")) == ("2", "1", "0")
    assert [case.get("name") for case in suites.iter("testcase")] == ["a<b", "same"]
    run("compare", "old", "new", *options, "--canary", "same", "--expect=-40%", code=1)
    (failure,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("failure")
    assert failure.get("message", "").startswith("-40.0 % is refuted")
    run("compare", "old", "new", *options, code=1)
    page = Page((tmp_path / "r.html").read_text())
    assert page.tags.count("article") == 2 and page.tags.count("svg") == 6 and "a<b" in page.text
    github = run("compare", "old", "new", *options, "--format", "github", code=1)
    assert re.findall(r"^\*\*(\S+): (\w+)", github, re.MULTILINE) == [
        ("a\\<b", "regressed"),
        ("same", "equivalent"),
    ]
    answer = json.loads(run("compare", "old", "new", *options, "--format", "github", "--json", code=1))
    assert [each["canary"] for each in answer["canaries"]] == ["a<b", "same"] and "more" in answer["notes"][0]


@pytest.mark.parametrize("level", [0.02, 0.0206, 0.023])
def test_the_command_answers_as_the_judge_does(run, write, numbers, journal, level):
    """On the same numbers and on the same starts: verdict, shift and interval."""

    def said(*arguments):
        found = json.loads(run("compare", *arguments, "--json", code=None))
        return tuple(found[name] for name in ("verdict", "shift", "low", "high"))

    points = [numbers(0.02), numbers(level, seed=2), numbers(0.0201, seed=3), numbers(level, seed=4)]
    for name, each in zip("abcd", points, strict=True):
        write(name, each)
    a, b, c, d = points
    assert said("a", "b") == compare(a, b)
    assert said("a", "b", "--restart-sd", "1") == compare(a, b, restart_sd=0.01)
    more = ("--more-baseline", "c", "--more-candidate", "d")
    assert said("a", "b", *more) == compare([a, c], [b, d])
    journal("old", [0.02, 0.0201])
    journal("new", [level], torch="2.13.0")
    old, new = (read([name]).canaries["resnet18"].points for name in ("old", "new"))
    assert said("old", "new") == compare(old, new)


def test_more_files_of_a_side_are_more_starts(run, write, numbers):
    for i in range(8):
        write(f"n{i}", numbers(seed=i))
    more = [x for i in (1, 2, 3) for x in ("--more-baseline", f"n{i}", "--more-candidate", f"n{4 + i}")]
    out = run("compare", "n0", "n4", *more, code=0)
    assert out.count("400 runs of 4 starts") == 2 and "from 6 restarts" in out


def test_one_json_object(run, write, numbers, journal):
    write("a", numbers())
    write("b", numbers(0.03))
    result = json.loads(run("compare", "a", "b", "--json", code=1))
    assert (result["verdict"], result["exit_code"], result["canary"], result["unit"]) == (
        "regressed",
        1,
        None,
        None,
    )
    assert result["low"] < result["shift"] < result["high"]
    assert (result["restart_sd"], result["runs"], result["starts"]) == (0.0, 200, 2)
    assert result["restart_sd_from"].startswith("without a restart")
    journal("old", [0.02, 0.0201], canaries=("x", "y", "gone"))
    journal("new", [0.024, 0.0241], canaries=("x",), torch="2.13.0")
    journal("new", [0.0201, 0.02], canaries=("y",), torch="2.13.0")
    result = json.loads(run("compare", "old", "new", "--json", code=1))
    assert result["canary"] == "x" and [each["canary"] for each in result["canaries"]] == ["gone", "x", "y"]
    assert result["causes"]["has_controls"] and result["causes"]["phases"] == {
        "compute": pytest.approx(1, abs=0.01)
    }
    assert result["causes"]["cause"] == "image" and len(result["baseline"]["environments"]) == 1
    assert result["notes"] == []
    # What has no number is null, which every reader of JSON takes.
    assert json.loads(run("compare", "a", write("c", [0.01, 0.02]), "--json", code=3))["shift"] is None


def test_no_text_of_a_journal_acts_on_a_terminal(run, journal):
    """`jq -r` prints a JSON text as it is."""
    journal("old", [0.02, 0.0201], canaries=("x\x1b[2J",), torch="2.12.0")
    journal("new", [0.024, 0.0241], canaries=("x\x1b[2J",), torch="2.13.0\x9b1A")
    out = run("compare", "old", "new", "--json", code=1)
    assert "\\u001b" not in out and "\\u009b" not in out and "2.13.0" in out


@pytest.mark.parametrize("command", [("compare", "{}", "b"), ("scan", "{}")])
def test_no_file_name_acts_on_a_terminal(run, tmp_path, command):
    """It is in the note about rows of several kinds."""
    name = "a\x1b[2J\u202e.csv"
    for path in (name, "b"):
        (tmp_path / path).write_text("latency_s,label\n" + "0.010,x\n0.011,y\n0.0102,x\n" * 8)
    out = run(*(part.format(name) for part in command), code=None)
    assert ".csv" in out and "\x1b" not in out and "\u202e" not in out


def test_a_canary_that_never_ran_in_the_candidate_does_not_pass(run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.02, 0.0201, 0.02], canaries=("x", "z"))
    out = run("compare", "old", "new", "--html", "r.html", code=3)
    first = "y: inconclusive: too few runs"
    assert " ".join(out.split()).startswith(first)
    assert re.findall(r"^(\w): (\w+)", out, re.MULTILINE) == [("y", "inconclusive"), ("x", "equivalent")]
    assert "find out why runs of the candidate fail or are missing" in " ".join(out.split())
    assert "only here, and so not judged: z" in out
    words = " ".join(Page((tmp_path / "r.html").read_text()).text.split())
    assert words.index("y: inconclusive") < words.index("x: equivalent")
    result = json.loads(run("compare", "old", "new", "--json", code=3))
    assert (result["canary"], result["sentence"]) == ("y", first.removeprefix("y: "))
    assert result["candidate"]["attempts"] == {"begun": 0, "failed": 0} and result["failures_rose"] is False
    assert run("compare", "old", "new", "--canary", "y", code=3).startswith("y: inconclusive: too few runs")
    run("compare", "old", "new", "--canary", "q", code=2)
    # It is not asked for; and what is slower outweighs it.
    run("compare", "old", "new", "--canary", "x", code=0)
    journal("slow", [0.024, 0.0241, 0.024], canaries=("x",))
    assert run("compare", "old", "slow", code=1).startswith("y: inconclusive: too few runs")


def test_a_canary_that_never_opened_in_the_candidate_does_not_pass(run, journal):
    """A canary that cannot be opened is tried again after minutes: a run or two, and each is tagged."""
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.02, 0.0201, 0.02], canaries=("x",))
    journal("new", [0.02], count=2, canaries=("y",), outcome="raised", latencies=(), tags=("failing",))
    out = run("compare", "old", "new", code=3)
    assert (
        "y: inconclusive: too few runs" in out and "left out 2 failed" in out.replace("\n", " ")
    ) or "2 " in out
    said = "out of memory (host): 1.00 GiB in use"
    journal("new", [0.02], count=1, boot="b", canaries=("y",), outcome="raised", latencies=(), detail=said)
    assert f"the last one: {said}" in " ".join(run("compare", "old", "new", code=3).split())


def test_a_candidate_that_fails_does_not_pass(run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.02])
    journal("new", [0.02, 0.0201, 0.02])
    journal("new", [0.02], count=480, boot="bad", outcome="timed_out", latencies=())
    said = "480 of 600 runs failed, 0 of 120 before"
    out = run("compare", "old", "new", "--html", "r.html", code=3)
    assert out.startswith("resnet18: inconclusive ") and said in " ".join(out.split())
    assert "next find out why runs of the candidate fail" in " ".join(out.split()) and "settle it" not in out
    page = (tmp_path / "r.html").read_text()
    assert said in " ".join(Page(page).text.split()) and '<article class="inconclusive">' in page
    result = json.loads(run("compare", "old", "new", "--json", code=3))
    assert said in result["sentence"] and result["failures_rose"] is True
    assert (result["baseline"]["attempts"], result["candidate"]["attempts"]) == (
        {"begun": 120, "failed": 0},
        {"begun": 600, "failed": 480},
    )
    assert -0.03 < result["low"] < result["high"] < 0.03


def test_scan_as_text_and_json(run, write, numbers, journal):
    write("s", [*numbers(count=60), *numbers(0.024, count=60)])
    out = run("scan", "s", code=1)
    assert out.startswith("slower: 1 change of level in 120 runs, the last level is +20.")
    assert re.search(r"^ +\d\d +\+\d\d\.\d % \[\+1\d\.\d, \+2\d\.\d]$", out, re.MULTILINE)
    result = json.loads(run("scan", "s", "--json", code=1))
    assert result["verdict"] == "slower" and result["changes"][0]["index"] == pytest.approx(60, abs=3)
    assert result["changes"][0]["at"] is None and len(result["levels"]) == 2
    assert run("scan", write("t", numbers()), code=0).startswith("steady: 0 changes of level in 100 runs\n")
    assert run("scan", write("u", [1, 2]), code=3).startswith("inconclusive: a scan needs 24 runs")
    journal("a", [0.02, 0.026])
    words = " ".join(run("scan", "a", code=1).split())
    assert "40 2023-11-16 02:00:00 UTC +3" in words and "boot a-1 begins" in words


@pytest.mark.parametrize("command", ["compare", "scan"])
def test_a_page_that_needs_nothing_else(run, journal, tmp_path, command):
    hostile = '<script>alert("x")</script>'
    journal("a", [0.02, 0.0201], canaries=(hostile, "x" * 500))
    journal("b", [0.024, 0.0241], canaries=(hostile, "x" * 500), torch=hostile)
    arguments = ["a", "b"] if command == "compare" else ["b"]
    run(command, *arguments, "--html", "report.html", code=1 if command == "compare" else 0)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags and hostile in page.text
    assert page.tags.count("article") == 2 and page.tags.count("svg") >= 2
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "report.html"]
    (tmp_path / "made").touch()
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "made").stat().st_mode  # by the umask


def test_a_page_of_numbers_and_of_nothing_to_see(run, write, numbers, tmp_path):
    write("a", numbers())
    write("s", [*numbers(count=60), *numbers(0.024, count=60)])
    run("compare", "a", "s", "--html", "r.html", code=3)
    Page((tmp_path / "r.html").read_text())
    run("compare", "a", write("b", [0.02]), "--html", "r.html", code=3)
    assert "too few runs" in Page((tmp_path / "r.html").read_text()).text
    run("scan", "s", "--html", "r.html", code=1)
    assert "slower" in Page((tmp_path / "r.html").read_text()).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a", "none"], "infercanary: none: cannot be read (No such file or directory)"),
        (
            ["compare", "-", "-"],
            "infercanary: compare: standard input (`-`) can be one file only; save the other",
        ),
        (
            ["compare", "a", "j"],
            "infercanary: j: holds canaries x, and a one series of numbers; give two files of one kind",
        ),
        (["compare", "j", "k"], "infercanary: k: holds canaries y, and j canaries x; give two files"),
        (
            ["compare", "j", "a", "--canary", "x"],
            "infercanary: a: holds one series of numbers, and j canaries x",
        ),
        (["compare", "j", "k", "--canary", "q"], "infercanary: j: no canary `q`; there are: x"),
        (
            ["compare", "a", "a", "--canary", "x"],
            "infercanary: a: no canary `x`; there are: none, in numbers",
        ),
        (
            ["compare", "a", "a", "--restart-sd", "-1"],
            "infercanary: --restart-sd -1: give a percentage from 0 to 100",
        ),
        (["compare", "a", "a", "--restart-sd", "nan"], "infercanary: --restart-sd nan: give a percentage"),
        (
            ["compare", "a", "a", "--smallest-effect", "nan"],
            "infercanary: --smallest-effect nan: give a percentage from 0.1 to 50, such as 3\n",
        ),
        (
            ["compare", "a", "a", "--format", "junit"],
            "infercanary: Invalid value for '--format': 'junit' is not",
        ),
        (["compare", "a", "a", "--baseline-id", "x"], "infercanary: a: holds numbers, without ids"),
        (["compare", "a", "a", "--html", "."], "infercanary: --html: `.` is a folder; name a file in it"),
        (
            ["compare", "a", "a", "--html", "no/r"],
            "infercanary: --html: no folder `no`; make it",
        ),
        (
            ["compare", "a", "a", "--json", "--junit", "no/j"],
            "infercanary: --junit: no folder `no`; make it",
        ),
        (
            ["scan", "a", "--column", "x"],
            "infercanary: a: no column `x`; give --column one of: none, leave it out",
        ),
        (["scan", "j", "--canary", "z"], "infercanary: j: no canary `z`; there are: x"),
        (["compare", "p", "p", "--column", "p99"], "infercanary: p: one JSON object, without single runs"),
    ],
)
def test_mistakes(run, write, numbers, journal, arguments, message):
    write("a", numbers())
    write("p", ['{"p99": 20}'])
    journal("j", [0.02], canaries=("x",))
    journal("k", [0.02], canaries=("y",))
    assert run(*arguments, code=2).startswith(message)


def test_the_numbers_that_decide_can_be_set(run, write, numbers):
    write("a", numbers(0.02, count=400, noise=0.002))
    write("b", numbers(0.0204, count=400, seed=2, noise=0.002))
    plain = json.loads(run("compare", "a", "b", "--restart-sd", "0", "--json", code=0))
    decide = FILES.decide
    assert (plain["verdict"], plain["smallest_effect"]) == ("equivalent", decide.smallest_effect)
    assert plain["level"] == decide.confidence
    stricter = ("--restart-sd", "0", "--smallest-effect", "1.5")
    found = json.loads(run("compare", "a", "b", *stricter, "--json", code=1))
    assert (found["verdict"], found["smallest_effect"]) == ("regressed", 0.015)
    assert found["shift"] == plain["shift"]
    write("c", numbers(0.02012, count=400, seed=2, noise=0.002))  # within the dead band of the default
    run("compare", "a", "c", "--restart-sd", "0", "--smallest-effect", "0.4", code=1)


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--gate", "latency"), 0), (("--expect", "+5%"), 0)])
def test_more_memory_at_equal_latency_is_a_regression(run, journal, tmp_path, options, code):
    for name, memory in (("old", 3e9), ("new", 3.9e9)):
        journal(name, [0.02] * 4, measures={"host_memory": memory})
    out = run("compare", "old", "new", *options, "--html", "r.html", code=code)
    assert re.match(r"resnet18: equivalent .*: host memory regressed \+30\.0 %", " ".join(out.split()))
    colour = "regressed" if code else "equivalent"
    assert f'<article class="{colour}">' in (tmp_path / "r.html").read_text(), "it follows the exit code"
    assert json.loads(run("compare", "old", "new", *options, "--json", code=code))["regressed"] == [
        "host_memory"
    ]
    run("compare", "new", "old", code=0)  # less memory is better


class Out(io.TextIOWrapper):
    def __init__(self, encoding, terminal):
        self.written = io.BytesIO()
        super().__init__(self.written, encoding)
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def said(self):
        self.flush()
        return self.written.getvalue().decode()


@pytest.mark.parametrize(
    ("encoding", "tty", "environment", "said"),
    [
        ("utf-8", False, {}, "a: µ\nb: regressed; regressed"),
        ("ascii", False, {}, "a: u\nb: regressed; regressed"),
        ("utf-8", True, {}, "a: µ\nb: \x1b[31m\x1b[1mregressed\x1b[0m; regressed"),
        ("utf-8", True, {"NO_COLOR": "1"}, "a: µ\nb: regressed; regressed"),
        ("utf-8", True, {"TERM": "dumb"}, "a: µ\nb: regressed; regressed"),
    ],
)
def test_a_terminal_as_it_is(monkeypatch, encoding, tty, environment, said):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Out(encoding, tty)
    monkeypatch.setattr(sys, "stdout", out)
    terminal.say("a: µ\nb: regressed; regressed")
    assert out.said() == said


def test_a_claim_is_checked_instead_of_the_verdict(run, journal, tmp_path):
    old = journal("old.jsonl", [0.02, 0.0201, 0.0199])
    new = journal("new.jsonl", [0.012, 0.01205, 0.01195])
    out = run("compare", old, new, "--expect", "-40%", "--html", "page.html", code=0)
    assert out.startswith("resnet18: improved -40.")
    assert re.search(r"^  expected +-40\.0 % holds: -40\.\d % \[", out, re.MULTILINE)
    assert "-40.0 % holds" in Page((tmp_path / "page.html").read_text()).text
    refuted = json.loads(run("compare", old, new, "--expect", "-60%", "--json", code=1))
    assert refuted["verdict"] == "improved" and refuted["claim"]["state"] == "refuted"
    assert refuted["claim"]["shift"] == pytest.approx(-0.6) and refuted["exit_code"] == 1
    slower = run("compare", new, old, "--expect=+70%", code=0)
    assert slower.startswith("resnet18: regressed"), "that it is slower was expected"
    few = journal("few.jsonl", [0.012], count=3)
    out = run("compare", old, few, "--expect", "-40%", code=3)
    assert "-40.0 % is not known to hold" in " ".join(out.split())
    run("compare", old, new, "--expect", "40%", code=2)
