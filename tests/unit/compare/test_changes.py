"""The result of `scan` on a series of latencies."""

from typing import Any

import numpy as np
import pytest

from infercanary.compare.changes import LEAST, MOST, scan_runs
from infercanary.compare.read import read
from infercanary.compare.recording import RecordedRuns
from tests.scenarios import cases, typed


def stepped(numbers, *levels, count=60):
    return RecordedRuns([np.concatenate([numbers(level, count, seed=i) for i, level in enumerate(levels)])])


LEVELS = """
[0.02]               | steady  | 0
[0.02, 0.024]        | slower  | 1
[0.024, 0.02]        | faster  | 0
[0.02, 0.024, 0.02]  | changed | 0
[0.02, 0.026, 0.023] | slower  | 1
"""


@cases(typed(LEVELS))
def test_the_last_level_against_the_first(levels, verdict, code, numbers):
    result = scan_runs("", stepped(numbers, *levels))
    assert (result.verdict, result.exit_code) == (verdict, code)
    assert len(result.changes) == len(levels) - 1
    for number, change in enumerate(result.changes, 1):
        assert change.index == pytest.approx(60 * number, abs=3)
        assert change.low < levels[number] / levels[number - 1] - 1 < change.high
    first, last = result.levels[0].median, result.levels[-1].median
    assert result.shift == pytest.approx(last / first - 1)  # errors of steps would add up
    assert [level.median for level in result.levels] == pytest.approx(levels, rel=0.01)
    assert sum(level.runs for level in result.levels) == result.runs
    assert result.sentence.startswith(verdict)


def test_too_short_series(numbers):
    result = scan_runs("", RecordedRuns([np.array(numbers(count=LEAST - 1))]))
    assert (result.verdict, result.exit_code, result.shift, result.levels) == ("inconclusive", 3, None, [])
    assert result.sentence == f"inconclusive: a scan needs {LEAST} runs, but there are {LEAST - 1}"
    assert scan_runs("", RecordedRuns([np.array(numbers(count=LEAST))])).verdict == "steady"
    assert scan_runs("", RecordedRuns([])).exit_code == 3


def test_a_restart_of_another_image_is_reported_with_its_changes(journal):
    path = journal("a", [0.02, 0.02])
    recording = read([path, journal("b", [0.03], torch="2.13.0", scheduled_at=0.0, boot="new")])
    series = recording.canaries["resnet18"]
    # starts in the order of files, not of time
    parts: list[Any] = [[each[i] for i in (0, 2, 1)] for each in series[:3]]
    series = RecordedRuns(*parts)
    result = scan_runs("resnet18", series, components=recording.components)
    (change,) = result.changes
    assert change.index == 80
    assert change.start == "new-0"
    assert change.at == pytest.approx(1.7e9)
    assert [(c.component, c.before, c.after) for c in change.changes] == [("torch", "2.7.0", "2.13.0")]
    assert result.unit == "s"
    assert result.starts == 3


def test_a_change_names_all_that_began_near_it(journal):
    paths = [
        journal("a", [0.02]),
        journal("b", [0.03], count=2, torch="2.8.0"),
        journal("c", [0.03], torch="2.13.0"),
    ]
    recording = read(paths)
    (change,) = scan_runs("", recording.canaries["resnet18"], components=recording.components).changes
    assert (change.start, change.index) == ("c-0", pytest.approx(40, abs=2))
    assert [(c.before, c.after) for c in change.changes] == [("2.7.0", "2.13.0")]


def test_a_long_series_is_scanned_in_blocks():
    points = np.exp(np.random.default_rng(2).normal(0, 0.05, 20 * MOST))
    points[12_000:] *= 1.1
    result = scan_runs("", RecordedRuns([points]))
    assert result.block == 20
    assert result.exit_code == 1
    assert sum(level.runs for level in result.levels) == points.size
    assert result.changes[0].index == pytest.approx(12_000, abs=100)
