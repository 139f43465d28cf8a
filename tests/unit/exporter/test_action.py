from __future__ import annotations

import pytest

from infercanary.exporter.judging.schedule import Due, SeenStart, due, seen_now
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE, Policy

OLD, NEW = ("a", "b1"), ("a", "b2")


def extent(runs: int, was: SeenStart | None, policy: Policy = LIVE) -> Due:
    """What is to be judged of a canary whose new start has so many runs now."""
    seen = {OLD: SeenStart(200, 200)} | ({NEW: was} if was else {})
    return due(seen, {OLD: 200, NEW: runs}, policy)


@pytest.mark.parametrize(
    ("was", "runs", "expected"),
    [
        (None, 1, "all"),  # of a start that it has not seen
        (1, 4, ""),
        (3, 3, ""),
        (3, 5, "upgrade"),
        (3, 12, "upgrade"),
        (80, 95, ""),
        (24, 500, "all"),
        (200, 239, ""),
        (200, 240, "drift"),
        (250, 350, ""),
        (250, 360, "drift"),
    ],
)
def test_what_is_judged_by_the_runs_of_the_new_start(was: int | None, runs: int, expected: Due) -> None:
    assert extent(runs, None if was is None else SeenStart(was, was)) == expected


def test_runs_that_did_not_count_bring_no_look_nearer_and_other_looks_are_others() -> None:
    assert [extent(runs, SeenStart(7, 2)) for runs in (9, 10)] == ["", "upgrade"]
    was = SeenStart(12, 12)
    assert [extent(13, was, policy) for policy in (LIVE, LIVE.but(looks=(8, 13)))] == ["", "upgrade"]


def test_what_is_remembered_of_a_judgement() -> None:
    samples = [Sample(i, "c", float(i), "ok", 0.02) for i in range(7)]
    start = Generation(service="s", container="a", boot_id="b2", started_at=0.0)
    assert seen_now([Start(start, samples)], {OLD: 5, NEW: 9}) == {
        OLD: SeenStart(5, 0),
        NEW: SeenStart(9, 7),
    }
