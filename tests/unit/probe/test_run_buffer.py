"""The ring of raw runs and its cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import Run
from infercanary.probe.run_buffer import RunBuffer


def run(sequence: int) -> Run:
    return Run(sequence, "c", 0.0, 0.0, "ok")


def sequences(runs: tuple[Run, ...]) -> list[int]:
    return [each.sequence for each in runs]


@given(st.lists(st.integers(0, 7), max_size=30))
def test_by_its_cursor_a_caller_gets_each_run_once_or_learns_that_it_is_lost(batches: list[int]) -> None:
    ring = RunBuffer("boot", 5)
    cursor, got, lost, newest = "boot.0", [], 0, 0
    for batch in batches:
        ring.extend(run(newest + k) for k in range(1, batch + 1))
        newest += batch
        runs, cursor, missing = ring.since(cursor)
        got += sequences(runs)
        lost += missing
        assert missing == max(0, batch - 5)
    assert got == sorted(set(got))
    assert len(got) + lost == newest


@given(st.integers(0, 12), st.integers(0, 9), st.integers(0, 12), st.integers(1, 5), st.integers(0, 3))
def test_page_by_page_each_run_comes_once(older: int, found: int, own: int, most: int, between: int) -> None:
    earlier = [*(("older", n) for n in range(1, older + 1)), *(("old", n) for n in range(1, found + 1))]
    ring = RunBuffer("new", 100, [Run(n, "a", 0.0, 0.0, "ok", boot_id=boot) for boot, n in earlier])
    ring.extend(map(run, range(1, own + 1)))
    cursor, got, newest = "", [], own
    for page in range(100):
        runs, cursor, lost = ring.since(cursor, most)
        assert len(runs) <= most and lost == 0
        got += [(each.boot_id, each.sequence) for each in runs]
        if not runs:
            break
        if page < between:  # it goes on while it is read
            newest += 1
            ring.extend([run(newest)])
    assert got == [*earlier, *(("", n) for n in range(1, newest + 1))]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "other.2",
        "boot",
        "boot.",
        "boot.-1",
        "boot.x",
        "boot.²",
        "boot.٣",
        ".",
        "boot." + "9" * 5000,
        "\x00",
    ],
)
def test_a_cursor_that_is_not_ours_gets_everything(cursor: str) -> None:
    ring = RunBuffer("boot", 3)
    ring.extend(map(run, range(1, 6)))
    runs, after, lost = ring.since(cursor)
    assert sequences(runs) == [3, 4, 5]
    assert after == "boot.5"
    assert lost == 0


def test_what_an_earlier_probe_left_is_for_whoever_does_not_have_it() -> None:
    found = [Run(n, "a", 0.0, 0.0, "ok", boot_id="old") for n in (7, 8, 9)]
    ring = RunBuffer("new", 10, found)
    ring.extend([Run(1, "a", 0.0, 0.0, "ok")])

    def got(cursor: str) -> list[tuple[str, int]]:
        return [(run.boot_id, run.sequence) for run in ring.since(cursor)[0]]

    everything = [("old", 7), ("old", 8), ("old", 9), ("", 1)]
    assert got("") == got("other.8") == got("garbage") == everything
    assert got("old.8") == [("old", 9), ("", 1)]
    assert got("old.9") == [("", 1)]
    assert got("new.0") == [("", 1)]
    assert got("new.1") == []
    assert ring.since("old.8")[1:] == ("new.1", 0)
