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
from infercanary.compare.text import pieces
from jsonschema import ValidationError, validate

from infercanary.command import cli as cli
from infercanary.compare import terminal
from infercanary.compare.parts import PartShift
from infercanary.compare.read import read
from infercanary.judge import compare
from infercanary.judge.policy import FILES
from infercanary.judge.samples import compare_starts

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


def test_compare_as_text(run, journal):
    old = journal("old.jsonl", [0.02, 0.0201])
    out = run("compare", "old.jsonl", journal("new.jsonl", [0.024, 0.0241], torch="2.13.0"), code=1)
    lines = out.splitlines()
    assert re.match(
        r"resnet18: regressed \+2\d\.\d % \[\+1\d\.\d, \+2\d\.\d]: image; torch 2\.7\.0 → 2\.13\.0;", lines[0]
    )
    assert re.search(r"^  medians      20\.0\d ms → 24\.0\d ms$", out, re.MULTILINE)
    sure = f"{100 * FILES.decide.confidence:g} % confidence"
    assert f"  rests on     80 runs of 2 starts and 80 runs of 2 starts; {sure}\n" in out
    assert re.search(
        r"^  restarts     starts of one image differ by 0\.\d+ % \(SD\), from 2 restarts",
        out,
        re.MULTILINE,
    )
    assert re.search(
        r"^  phases       compute \+22\.\d % \[.*], 100 % of the change; 1 flat$", out, re.MULTILINE
    )
    assert re.search(r"^  controls     none moved by 3 %: cpu_spin ", out, re.MULTILINE)
    assert re.search(r"^  baseline     [▁▂▃▄▅▆▇█ ]*█[▁▂▃▄▅▆▇█ ]*\n +▲ 20\.0\d ms$", out, re.MULTILINE)
    assert max(map(len, lines)) <= 80 and "\x1b" not in out and "\xa0" not in out
    assert not any(line != line.rstrip() for line in lines)
    assert Path(old).exists()


def test_the_bottleneck_of_what_may_be_no_change_is_not_named(run, journal):
    """ "unknown 228 %, scheduling -35 % of the change" stood under a shift of -3.2 % [-31.5, +36.8]."""
    journal("old", [0.02, 0.0201])
    waiting = {"phases": {"queue": 0.010}}
    journal("shaky", [0.016, 0.027], **waiting)
    assert "  bottleneck " not in run("compare", "old", "shaky", code=3)
    out = run("compare", "old", journal("new", [0.026, 0.0261], **waiting), code=1)
    assert re.search(r"^  bottleneck   scheduling \d+ %", out, re.MULTILINE)


def test_compare_says_what_to_do_next(run, journal):
    journal("a", [0.02])
    journal("b", [0.0201], torch="2.13.0")
    out = run("compare", "a", "b", code=3)
    assert re.search(r"^resnet18: inconclusive [+-]0\.\d % \[-\d+\.\d, \+\d+\.\d]", out, re.MULTILINE)
    text = " ".join(out.split())
    assert (
        "restarts starts of one image differ by 1.2 % (SD), assumed: no restart of one image is in these files"
        in text
    )
    assert re.search(r"next \d more starts? a side would settle it", text)
    assert "give it with --restart-sd (0 if nothing was restarted)" in text
    assert run("compare", "a", "b", "--restart-sd", "0", code=0).startswith("resnet18: equivalent ")
    assert "nothing was restarted, as given" in run("compare", "a", "b", "--restart-sd", "0", code=0)


def test_two_files_of_numbers_are_one_series_and_say_so(run, write, numbers):
    out = run("compare", write("a", numbers()), write("b", numbers(seed=2)), code=0)
    assert out.startswith("equivalent ")
    said = "restarts two files of numbers count as one series without a restart between them; if there was one, give"
    assert said in " ".join(out.split())
    assert run("compare", "a", "b", "--restart-sd", "1", code=3).startswith("inconclusive ")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("12", "12", "inconclusive: all values are 12"),
        ("0.012", "12e-3", "inconclusive: all values are 0.012"),
        ("4", "5", "inconclusive +25.0 % [+0.0, +66.7]"),
    ],
)
def test_whole_milliseconds_hide_a_change_of_less_than_one(run, write, before, after, said):
    out = run("compare", write("a", [before] * 40), write("b", [after] * 40), code=3)
    assert out.startswith(said)
    assert "the values are too coarse" in " ".join(out.split())
    assert run("scan", write("both", [before] * 40 + [after] * 40), code=0).startswith("steady")


def test_a_ratio_in_place_of_a_percentage_is_noted(run, write, numbers):
    write("a", numbers())
    write("b", numbers(seed=2))
    note = "--restart-sd 0.01 is 0.01 %: it is a percentage, so 1 % is 1"
    assert note in " ".join(run("compare", "a", "b", "--restart-sd", "0.01", code=0).split())
    for sd, code in {"0": 0, "1": 3}.items():
        assert "is a percentage" not in run("compare", "a", "b", "--restart-sd", sd, code=code)


def test_milliseconds_against_seconds_are_asked_about(run, write, numbers, journal):
    """Once it was "improved -99.9 %", with exit code 0."""
    seconds, milliseconds = write("s", numbers()), write("ms", numbers(level=20))
    for old, new in ((seconds, milliseconds), (milliseconds, seconds)):
        line = run("compare", old, new, code=2)
        assert "are both in one unit, such as ms? Convert one, or give --same-unit if they are" in line
    assert run("compare", seconds, milliseconds, "--same-unit", code=1).startswith("regressed ×")
    assert run("compare", seconds, write("x19", numbers(level=0.38)), code=1).startswith("regressed ×19")
    # Journals know their unit.
    journal("fast", [0.02, 0.0201])
    journal("slow", [2.0, 2.01])
    assert run("compare", "fast", "slow", code=1).startswith("resnet18: regressed ×")


def test_a_schema_refuses_what_is_not_as_it_says(run, write, numbers):
    found = json.loads(run("compare", write("a", numbers()), write("b", numbers(0.03)), "--json", code=1))
    schema = json.loads((SCHEMAS / "compare.v1.json").read_text())
    for broken in ({**found, "verdict": "slower"}, {**found, "schema_version": 2}, {**found, "runs": "many"}):
        with pytest.raises(ValidationError):
            validate(broken, schema)


def test_junit_has_a_case_for_each_canary(run, journal, tmp_path):
    journal("old", [0.02, 0.0201], canaries=("a<b", "same"))
    journal("new", [0.024, 0.0241], canaries=("a<b",))
    journal("new", [0.0201, 0.02], canaries=("same",))
    run("compare", "old", "new", "--restart-sd", "0", "--junit", "junit.xml", code=1)
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("skipped")) == ("2", "1", "0")
    slow, same = suites.iter("testcase")
    assert slow.get("name") == "a<b" and same.get("name") == "same"
    assert [case.find("failure") is None for case in (slow, same)] == [False, True]
    assert 'type="regressed" message="regressed +20' in (tmp_path / "junit.xml").read_text()
    assert "equivalent " in (same.findtext("system-out") or "")
    line = run("compare", "old", "new", "--junit", "none/junit.xml", code=2)
    assert line.endswith(
        "--junit none/junit.xml: cannot be written (No such file or directory); give another file\n"
    )


def test_what_is_not_clear_is_not_said_to_be_small():
    wild = {"compute": PartShift(3.284, -0.5, 9.0, moved=False)}
    assert pieces(wild, 0.03).startswith("none moved clearly: compute +328.4 %")
    assert pieces({"compute": PartShift(0.001, -0.01, 0.01, moved=False)}, 0.03).startswith(
        "none moved by 3 %: "
    )


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
    assert (
        said("a", "b", "--confidence", "0.95")
        == compare_starts([a], [b], restart_sd=0.0, policy=FILES.but(confidence=0.95))[0]
    )
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
    assert "400 runs of 4 starts and 400 runs of 4 starts" in out
    assert "from 6 restarts" in out


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
    assert (result["restart_sd"], result["restart_sd_from"], result["runs"], result["starts"]) == (
        0.0,
        "none",
        200,
        2,
    )
    journal("old", [0.02, 0.0201], canaries=("x", "y", "gone"))
    journal("new", [0.024, 0.0241], canaries=("x",), torch="2.13.0")
    journal("new", [0.0201, 0.02], canaries=("y",), torch="2.13.0")
    result = json.loads(run("compare", "old", "new", "--json", code=1))
    assert result["canary"] == "x" and [each["canary"] for each in result["canaries"]] == ["gone", "x", "y"]
    assert result["controls"]["cpu_spin"]["moved"] is False and result["phases"]["compute"]["moved"] is True
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


def test_several_canaries_are_judged_each_and_the_worst_is_the_exit_code(run, journal):
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.024, 0.0241, 0.024], canaries=("x",))
    journal("new", [0.02, 0.0201, 0.02], canaries=("y",))
    out = run("compare", "old", "new", code=1)
    assert re.findall(r"^(\w): (\w+)", out, re.MULTILINE) == [("x", "regressed"), ("y", "equivalent")]
    assert run("compare", "old", "new", "--canary", "y", code=0).startswith("y: equivalent")


def test_a_canary_that_never_ran_in_the_candidate_does_not_pass(run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.02, 0.0201, 0.02], canaries=("x", "z"))
    out = run("compare", "old", "new", "--html", "r.html", code=3)
    first = "y: inconclusive: no runs in the candidate"
    assert out.splitlines()[0] == first
    assert re.findall(r"^(\w): (\w+)", out, re.MULTILINE) == [("y", "inconclusive"), ("x", "equivalent")]
    assert "find out why it never ran or never opened" in " ".join(out.split())
    assert out.endswith("note         new: only here, and so not judged: z\n")
    page = Page((tmp_path / "r.html").read_text())
    assert page.text.index(first) < page.text.index("x: equivalent")
    result = json.loads(run("compare", "old", "new", "--json", code=3))
    assert (result["canary"], result["sentence"]) == ("y", first.removeprefix("y: "))
    assert result["candidate"]["attempts"] == {"begun": 0, "failed": 0} and result["failures_rose"] is None
    assert run("compare", "old", "new", "--canary", "y", code=3).startswith(first)
    run("compare", "old", "new", "--canary", "q", code=2)
    # It is not asked for; and what is slower outweighs it.
    run("compare", "old", "new", "--canary", "x", code=0)
    journal("slow", [0.024, 0.0241, 0.024], canaries=("x",))
    assert run("compare", "old", "slow", code=1).startswith("y: inconclusive: no runs in the candidate")


def test_a_canary_that_never_opened_in_the_candidate_does_not_pass(run, journal):
    """A canary that cannot be opened is tried again after minutes: a run or two, and each is tagged."""
    journal("old", [0.02, 0.0201, 0.02], canaries=("x", "y"))
    journal("new", [0.02, 0.0201, 0.02], canaries=("x",))
    journal("new", [0.02], count=2, canaries=("y",), outcome="raised", latencies=(), tags=("failing",))
    out = run("compare", "old", "new", code=3)
    assert "\ny: inconclusive: no runs that count in the candidate\n" in out
    said = "out of memory (host): 1.00 GiB in use"
    journal("new", [0.02], count=1, boot="b", canaries=("y",), outcome="raised", latencies=(), detail=said)
    assert f"of the last one it says: {said}" in " ".join(run("compare", "old", "new", code=3).split())


def test_a_candidate_that_fails_does_not_pass(run, journal, tmp_path):
    journal("old", [0.02, 0.0201, 0.02])
    journal("new", [0.02, 0.0201, 0.02])
    journal("new", [0.02], count=480, boot="bad", outcome="timed_out", latencies=())
    said = "inconclusive: 480 of 600 runs failed, 0 of 120 before; the others: equivalent "
    out = run("compare", "old", "new", "--html", "r.html", code=3)
    assert " ".join(out.split()).startswith(f"resnet18: {said}")
    assert "next find out why its runs fail" in " ".join(out.split()) and "settle it" not in out
    page = (tmp_path / "r.html").read_text()
    assert said in Page(page).text and '<article class="inconclusive">' in page
    result = json.loads(run("compare", "old", "new", "--json", code=3))
    assert result["sentence"].startswith(said) and result["failures_rose"] is True
    assert (result["baseline"]["attempts"], result["candidate"]["attempts"]) == (
        {"begun": 120, "failed": 0},
        {"begun": 600, "failed": 480},
    )
    assert -0.03 < result["low"] < result["high"] < 0.03


def test_scan_as_text_and_json(run, write, numbers):
    write("s", [*numbers(count=60), *numbers(0.024, count=60)])
    out = run("scan", "s", code=1)
    assert out.startswith("slower: 1 change of level in 120 runs, the last level is +20.")
    assert re.search(r"^     index  shift\n +\d\d  \+\d\d\.\d % \[\+1\d\.\d, \+2\d\.\d]$", out, re.MULTILINE)
    line, marks = (re.search(rf"^  {name} +(.*)$", out, re.MULTILINE) for name in ("runs", "changes"))
    assert line is not None and marks is not None and marks[1] == "▲" and len(line[1]) == 65
    result = json.loads(run("scan", "s", "--json", code=1))
    assert result["verdict"] == "slower" and result["changes"][0]["index"] == pytest.approx(60, abs=3)
    assert result["changes"][0]["at"] is None and len(result["levels"]) == 2
    assert run("scan", write("t", numbers()), code=0).startswith("steady: no change of level in 100 runs\n")
    assert run("scan", write("u", [1, 2]), code=3).startswith("inconclusive: 2 runs are too few")


def test_scan_of_a_journal_shows_the_time_and_the_boot(run, journal):
    journal("a", [0.02, 0.026])
    out = run("scan", "a", code=1)
    assert re.search(
        r"^        40  2023-11-16 02:00:00 UTC  \+3\d\.\d % \[.*]; boot a-1 begins$", out, re.MULTILINE
    )


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
    assert "Changes" in Page((tmp_path / "r.html").read_text()).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "a", "none"], "infercanary: none: cannot be read (No such file or directory)"),
        (
            ["compare", "-", "-"],
            "infercanary: compare: standard input (`-`) can be one file only; save the other",
        ),
        (["compare", "a", "j"], "infercanary: j: a journal, but a holds numbers; give two of one kind"),
        (["compare", "j", "k"], "infercanary: k: no canary of j is here; there: x; here: y"),
        (["compare", "j", "k", "--canary", "q"], "infercanary: j: no canary `q`; there are: x"),
        (["compare", "a", "a", "--canary", "x"], "infercanary: a: holds numbers, without canaries"),
        (
            ["compare", "a", "a", "--restart-sd", "-1"],
            "infercanary: --restart-sd -1: give a percentage from 0 to 100",
        ),
        (["compare", "a", "a", "--restart-sd", "nan"], "infercanary: --restart-sd nan: give a percentage"),
        (
            ["compare", "a", "a", "--confidence", "99"],
            "infercanary: --confidence 99: give a share from 0.5 to 0.999999",
        ),
        (["compare", "a", "a", "--level", "0.9"], "infercanary: --level: give --confidence=…\n"),
        (
            ["compare", "a", "a", "--smallest-effect", "nan"],
            "infercanary: --smallest-effect nan: give a percentage from 0.1 to 50, such as 3\n",
        ),
        (
            ["compare", "a", "a", "--clear-zone", "-1"],
            "infercanary: --clear-zone -1: give a percentage from 0 to 50, such as 1\n",
        ),
        (
            ["compare", "a", "a", "--smallest-effect", "1"],
            "infercanary: --clear-zone (1 %) must be below --smallest-effect (1 %): change one of them\n",
        ),
        (
            ["compare", "a", "a", "--clear-zone", "5"],
            "infercanary: --clear-zone (5 %) must be below --smallest-effect (3 %): change one of them\n",
        ),
        (
            ["compare", "a", "a", "--format", "junit"],
            "infercanary: Invalid value for '--format': 'junit' is not",
        ),
        (["compare", "a", "a", "--baseline-id", "x"], "infercanary: a: holds numbers, without ids"),
        (["compare", "a", "a", "--html", "."], "infercanary: --html .: is a folder; name a file in it"),
        (
            ["compare", "a", "a", "--html", "no/r"],
            "infercanary: --html no/r: cannot be written (No such file or",
        ),
        (["scan", "a", "--column", "x"], "infercanary: a: one number a line, without columns"),
        (["scan", "j", "--canary", "z"], "infercanary: j: no canary `z`; there are: x"),
    ],
)
def test_mistakes(run, write, numbers, journal, arguments, message):
    write("a", numbers())
    journal("j", [0.02], canaries=("x",))
    journal("k", [0.02], canaries=("y",))
    assert run(*arguments, code=2).startswith(message)


def test_the_numbers_that_decide_can_be_set(run, write, numbers, journal):
    write("a", numbers(0.02, count=400, noise=0.002))
    write("b", numbers(0.0204, count=400, seed=2, noise=0.002))
    plain = json.loads(run("compare", "a", "b", "--restart-sd", "0", "--json", code=0))
    own = FILES.decide
    assert (plain["verdict"], plain["smallest_effect"]) == ("equivalent", own.smallest_effect)
    assert plain["level"] == own.confidence
    stricter = ("--restart-sd", "0", "--smallest-effect", "1.5", "--clear-zone", "0.5")
    found = json.loads(run("compare", "a", "b", *stricter, "--confidence", "0.9", "--json", code=1))
    assert (found["verdict"], found["smallest_effect"], found["level"]) == ("regressed", 0.015, 0.9)
    assert found["low"] > plain["low"] and found["shift"] == plain["shift"]


def test_texts_name_the_smallest_effect_in_use(run, journal, tmp_path):
    journal("old", [0.02, 0.0201])
    journal("new", [0.02, 0.0201])
    for options, effect in (((), "3"), (("--smallest-effect", "20"), "20")):
        out = run("compare", "old", "new", "--restart-sd", "0", *options, "--html", "r.html", code=0)
        assert out.count(f"none moved by {effect} %:") == 2
        assert Page((tmp_path / "r.html").read_text())


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
        ("utf-8", False, {}, "▁ regressed"),
        ("ascii", False, {}, ". regressed"),
        ("utf-8", True, {}, "▁ \x1b[31m\x1b[1mregressed\x1b[0m"),
        ("utf-8", True, {"NO_COLOR": "1"}, "▁ regressed"),
        ("utf-8", True, {"TERM": "dumb"}, "▁ regressed"),
    ],
)
def test_a_terminal_as_it_is(monkeypatch, encoding, tty, environment, said):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Out(encoding, tty)
    monkeypatch.setattr(sys, "stdout", out)
    terminal.say("▁ regressed", "regressed")
    assert out.said() == said


def test_a_claim_is_checked_instead_of_the_verdict(run, journal, tmp_path):
    old = journal("old.jsonl", [0.02, 0.0201, 0.0199])
    new = journal("new.jsonl", [0.012, 0.01205, 0.01195])
    out = run("compare", old, new, "--expect", "-40%", "--html", "page.html", code=0)
    assert out.startswith("resnet18: improved -40.")
    assert re.search(r"^  expected     -40\.0 % holds: -40\.\d % \[", out, re.MULTILINE)
    assert "-40.0 % holds" in Page((tmp_path / "page.html").read_text()).text
    refuted = json.loads(run("compare", old, new, "--expect", "-60%", "--json", code=1))
    assert refuted["verdict"] == "improved" and refuted["claim"]["state"] == "refuted"
    assert refuted["claim"]["shift"] == pytest.approx(-0.6) and refuted["exit_code"] == 1
    slower = run("compare", new, old, "--expect=+70%", code=0)
    assert slower.startswith("resnet18: regressed"), "that it is slower was expected"
    few = journal("few.jsonl", [0.012], count=3)
    out = run("compare", old, few, "--expect", "-40%", code=3)
    assert "not known whether -40.0 % holds" in " ".join(out.split())
    assert "--expect: more starts on both sides narrow the interval" in " ".join(out.split())
    run("compare", old, new, "--expect", "40%", code=2)
