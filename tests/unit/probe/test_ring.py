"""The ring of raw runs and its cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.probe.report import Run
from infercanary.probe.ring import Ring


def run(sequence: int) -> Run:
    return Run(sequence, "c", 0.0, 0.0, "ok")


def sequences(runs: tuple[Run, ...]) -> list[int]:
    return [each.sequence for each in runs]


@given(st.lists(st.integers(0, 7), max_size=30))
def test_by_its_cursor_a_caller_gets_each_run_once_or_learns_that_it_is_lost(batches: list[int]) -> None:
    ring = Ring("boot", 5)
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
    ring = Ring("boot", 3)
    ring.extend(map(run, range(1, 6)))
    runs, after, lost = ring.since(cursor)
    assert sequences(runs) == [3, 4, 5]
    assert after == "boot.5"
    assert lost == 0


def test_empty_and_ahead() -> None:
    ring = Ring("boot", 3)
    assert ring.since("") == ((), "boot.0", 0)
    ring.extend([run(1)])
    assert ring.since("boot.999") == ((), "boot.1", 0)
    assert ring.since("boot.1") == ((), "boot.1", 0)
