"""Texts of the demo: progress and outcome."""

from rich.console import Console

from infercanary.command.exit_codes import ExitCode
from infercanary.demo.screen import outcome, progress, screen
from tests.scenarios import cases

SENTENCE = "regressed +178 % [+116, +259]: image; [bold]compute[/]"
REGRESSED = {"verdict": "regressed", "cause": "image", "sentence": SENTENCE}
OPEN = {"verdict": "unconfirmed", "cause": None, "sentence": "slower, unconfirmed"}


@cases(
    [
        ("baseline", None, {}, "baseline: starting the server"),
        ("baseline", 0, {}, "baseline: starting the server"),
        ("baseline", 6, {}, "baseline: run 7 of 12"),
        ("baseline", 12, {}, "baseline: 12 runs, waiting for the judge; so far: no answer"),
        ("upgrade", None, OPEN, "upgrade: starting the server"),
        ("upgrade", 2, OPEN, "upgrade: run 3 of 5"),
        ("upgrade", 6, OPEN, "upgrade: 6 runs, waiting for the judge; so far: slower, unconfirmed"),
    ],
)
def test_what_it_waits_for(phase, runs, answer, words):
    needed = {"baseline": 12, "upgrade": 5}[phase]
    latencies = None if runs is None else [0.1] * runs
    assert progress(phase, latencies, needed, answer).startswith(words)


@cases(
    [
        (REGRESSED, ExitCode.FINE, "The expected verdict, 48 s after"),
        (REGRESSED | {"cause": "host"}, ExitCode.REGRESSED, "Not the expected verdict"),
        (
            REGRESSED | {"verdict": "equivalent", "cause": None},
            ExitCode.REGRESSED,
            "Not the expected verdict",
        ),
        (OPEN, ExitCode.INCONCLUSIVE, "Last state: upgrade: run 3 of 5"),
        ({}, ExitCode.INCONCLUSIVE, "No verdict 48 s after"),
    ],
)
def test_the_exit_code_says_whether_the_verdict_was_right(answer, code, words):
    assert outcome(answer, 48.2, "upgrade: run 3 of 5")[0] == code
    assert words in outcome(answer, 48.2, "upgrade: run 3 of 5")[1]


@cases([(REGRESSED, True), (OPEN, False), ({}, False)])
def test_the_screen_shows_the_judges_final_sentence_as_it_is(answer, is_shown):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(
            screen("status page", {"baseline": [0.06, 0.05, 0.07], "upgrade": []}, answer, "[status]")
        )
    rows = {row.partition(" ")[0]: row.split() for row in map(str.strip, capture.get().splitlines())}
    assert rows["baseline"] == ["baseline", "3", "60", "ms"]
    assert rows["upgrade"] == ["upgrade", "0"]
    assert (answer.get("sentence", "?") in capture.get()) == is_shown
    assert rows["[status]"]
