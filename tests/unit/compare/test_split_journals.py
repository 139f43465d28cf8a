"""A journal split into two files gives the same answers of `compare` and `report`."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LEVELS = [0.02, 0.0203, 0.0199], [0.0212, 0.0216]


@pytest.fixture
def answer(infercanary):
    def answer(*arguments):
        _, out, err = infercanary(*arguments, "--json")
        assert err == ""
        return json.loads(out, object_hook=lambda each: {k: v for k, v in each.items() if k != "files"})

    return answer


def pieces(path, cuts):
    """Split a journal at these lines, which may be out of range or equal."""
    lines = Path(path).read_text().splitlines(keepends=True)
    ends = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    found = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        if begin < end:  # A piece may contain only the environment of a start, and no run.
            found.append(f"{path}-{number}")
            Path(found[-1]).write_text("".join(lines[begin:end]))
    return found


def also(option, files):
    return [argument for file in files for argument in (option, file)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_in_several_files_gives_the_same_verdict(answer, journal, data):
    sides = [Path(name).name for name in ("old", "new")]
    if not Path(sides[0]).exists():
        for name, levels, torch, output in zip(sides, LEVELS, ("2.7.0", "2.13.0"), (2.0, 3.0), strict=True):
            journal(name, levels, torch=torch, outputs={"resnet18": (1.0, output)})
        journal("new", [0.02], count=12, boot="failing", outcome="raised", latencies=())
    whole = answer("compare", *sides)
    assert whole["verdict"] in ("regressed", "inconclusive")
    assert whole["runs"] == 200
    cut = []
    for name in sides:
        parts = pieces(name, data.draw(st.lists(st.integers(0, 140), min_size=1, max_size=3)))
        cut.append(data.draw(st.permutations(parts)))
    (old, *more_old), (new, *more_new) = cut
    arguments = [*also("--more-baseline", more_old), *also("--more-candidate", more_new)]
    assert answer("compare", old, new, *arguments) == whole
