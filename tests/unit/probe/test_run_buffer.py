"""The buffer of raw runs, and its cursor."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import Run
from infercanary.probe.run_buffer import RunBuffer


def run(sequence, boot_id=""):
    return Run(sequence, "c", 0.0, 0.0, "ok", boot_id=boot_id)


def got(ring, cursor, most=99):
    with patch("infercanary.probe.run_buffer.PAGE", most):
        runs, after, lost = ring.since(cursor)
    return [(run.boot_id, run.sequence) for run in runs], after, lost


@given(st.lists(st.integers(0, 7), max_size=30))
def test_by_its_cursor_a_caller_gets_each_run_once_or_learns_that_it_is_lost(batches):
    ring = RunBuffer("boot", 5)
    cursor, newest = "boot.0", 0
    for batch in batches:
        ring.extend(run(newest + k) for k in range(1, batch + 1))
        runs, cursor, missing = got(ring, cursor)
        assert missing == max(0, batch - 5)
        assert [sequence for _, sequence in runs] == [newest + k for k in range(1 + missing, batch + 1)]
        newest += batch


@given(st.integers(0, 12), st.integers(0, 9), st.integers(0, 12), st.integers(1, 5), st.integers(0, 3))
def test_page_by_page_each_run_comes_once(older, old, own, most, between):
    earlier = [(boot, n) for boot, count in (("older", older), ("old", old)) for n in range(1, count + 1)]
    ring = RunBuffer("new", 100, [run(n, boot) for boot, n in earlier])
    ring.extend(map(run, range(1, own + 1)))
    cursor, seen, newest = "", list[tuple[str, int]](), own
    for _ in range(100):
        page, cursor, lost = got(ring, cursor, most)
        assert len(page) <= most
        assert lost == 0
        seen += page
        if newest < own + between:
            newest += 1
            ring.extend([run(newest)])
    assert seen == [*earlier, *(("", n) for n in range(1, newest + 1))]


OLD, OWN = [("old", 8), ("old", 9)], [("", 1), ("", 2)]
NUMBERS = ("", "-1", "x", "²", "٣", "9" * 5000, "\x00")
UNKNOWN = ["", *(f"{boot}.{number}" for boot in ("other", "new", "") for number in NUMBERS)]
KNOWN = {"old.8": [*OLD[1:], *OWN], "old.9": OWN, "new.0": OWN, "new.1": OWN[1:], "new.2": [], "new.999": []}


@pytest.mark.parametrize(
    ("cursor", "expected"), [*((cursor, [*OLD, *OWN]) for cursor in UNKNOWN), *KNOWN.items()]
)
def test_a_cursor_that_is_not_known_gets_everything(cursor, expected):
    ring = RunBuffer("new", 3, [run(8, "old"), run(9, "old")])
    assert got(RunBuffer("new", 3), cursor) == ([], "new.0", 0)
    ring.extend(map(run, (1, 2)))
    assert got(ring, cursor) == (expected, "new.2", 0)
