"""A journal that is cut in two files is the same journal: what `compare` and `report` answer does not change."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infercanary.command import cli
from infercanary.judge.model import Generation, Sample
from infercanary.store.store import open_store

Answer = Callable[..., Any]

LEVELS = [0.02, 0.0203, 0.0199], [0.0212, 0.0216]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Answer:
    """What the command prints as JSON, without the names of the files."""

    def answer(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["infercanary", *arguments, "--json"])
        with pytest.raises(SystemExit):
            cli.main()
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out, object_hook=lambda each: {k: v for k, v in each.items() if k != "files"})

    monkeypatch.chdir(tmp_path)
    return answer


def pieces(path: str, cuts: Sequence[int]) -> list[str]:
    """The journal in files that begin at these lines, which may be out of range or empty."""
    lines = Path(path).read_text().splitlines(keepends=True)
    ends = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    found = []
    for number, (begin, end) in enumerate(pairwise(ends)):
        if begin < end:  # one that says what was there, and has no run, is a part of it too
            found.append(f"{path}-{number}")
            Path(found[-1]).write_text("".join(lines[begin:end]))
    return found


def also(option: str, files: Sequence[str]) -> list[str]:
    return [argument for file in files for argument in (option, file)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_in_several_files_gives_the_same_verdict(
    answer: Answer, journal: Callable[..., str], data: st.DataObject
) -> None:
    """Wherever it is cut, between starts or within one, and in whatever order the files are named."""
    sides = [Path(name).name for name in ("old", "new")]
    if not Path(sides[0]).exists():
        for name, levels, torch, output in zip(sides, LEVELS, ("2.7.0", "2.13.0"), (2.0, 3.0), strict=True):
            journal(name, levels, torch=torch, outputs={"resnet18": (1.0, output)})
        journal("new", [0.02], count=12, boot="failing", outcome="raised", latencies=())
    whole = answer("compare", *sides)
    assert whole["verdict"] in ("regressed", "inconclusive") and whole["runs"] == 200
    cut = []
    for name in sides:
        parts = pieces(name, data.draw(st.lists(st.integers(0, 140), min_size=1, max_size=3)))
        cut.append(data.draw(st.permutations(parts)))
    (old, *more_old), (new, *more_new) = cut
    arguments = [*also("--more-baseline", more_old), *also("--more-candidate", more_new)]
    assert answer("compare", old, new, *arguments) == whole


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 40), max_size=3), turned=st.booleans())
def test_a_start_that_came_in_parts_is_one_row_of_the_report(
    answer: Answer, tmp_path: Path, cuts: list[int], turned: bool
) -> None:
    generation = Generation(service="service", container="one", boot_id="boot", image="image", started_at=1e9)
    samples = [
        Sample(sequence=i, canary="canary", started_at=1e9 + i, outcome="ok", median=0.02 + 1e-5 * (i % 7))
        for i in range(40)
    ]
    rows = []
    for name, ends in (("whole", []), ("parts", sorted(cuts))):
        path = tmp_path / f"{name}.sqlite"
        path.unlink(missing_ok=True)
        store = open_store(path)
        begins = [0, *ends, len(samples)]
        parts = [samples[a:b] for a, b in pairwise(begins)]
        for part in parts[::-1] if turned else parts:
            store.take(generation, part)
        store.close()
        rows.append(answer("report", f"host={path}"))
    assert rows[0] == rows[1] and rows[0][0]["runs"] == 40
