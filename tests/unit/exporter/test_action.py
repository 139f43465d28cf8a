from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from infercanary.exporter.judging.schedule import Boot, NextAction, SeenStart, View, next_action, seen_now
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Result
from tests.results import upgraded

OLD, NEW = ("a", "b1"), ("a", "b2")
REPORTED = 1
UPGRADED = upgraded("settling", None, runs=3)


def action(
    runs: int,
    *,
    was: SeenStart | None = None,
    judgement: Result | None = UPGRADED,
    reported: int = REPORTED,
    policy: Policy = LIVE,
    new: Collection[Boot] = (NEW,),
) -> NextAction:
    """What is to be done about a canary whose new start has so many runs now."""
    seen = {OLD: SeenStart(200, 200, True, None)} | ({NEW: was} if was else {})
    return next_action(View(seen, {OLD: 200, NEW: runs}, {NEW: reported}, judgement, new=new), policy)


@pytest.mark.parametrize(
    ("was", "runs", "expected"),
    [
        (None, 1, NextAction.BOTH),  # of a start that it has not seen
        (2, 4, NextAction.COUNT),
        (3, 3, NextAction.NOTHING),
        (3, 12, NextAction.JUDGE),
        (8, 9, NextAction.COUNT),  # the judgement is from before that look
        (8, 12, NextAction.JUDGE),
        (80, 95, NextAction.NOTHING),
        (24, 500, NextAction.BOTH),
        (200, 239, NextAction.NOTHING),
        (200, 240, NextAction.DRIFT),
        (250, 350, NextAction.NOTHING),
        (250, 360, NextAction.DRIFT),
    ],
)
def test_the_next_action_by_the_runs_of_the_new_start(
    was: int | None, runs: int, expected: NextAction
) -> None:
    assert action(runs, was=None if was is None else SeenStart(was, was, False, REPORTED)) is expected


def test_runs_that_did_not_count_bring_no_look_nearer() -> None:
    assert action(9, was=SeenStart(7, 2, False, REPORTED)) is NextAction.COUNT
    assert action(10, was=SeenStart(7, 2, False, REPORTED)) is NextAction.JUDGE
    assert action(12, was=SeenStart(11, 2, False, REPORTED)) is NextAction.NOTHING, (
        "one that never gets steady is not watched for ever"
    )


@pytest.mark.parametrize(
    ("was", "runs", "expected"), [(3, 23, False), (23, 24, True), (24, 96, False), (100, 192, True)]
)
def test_a_start_of_the_old_image_beside_a_new_one_is_looked_at_as_a_restart(
    was: int, runs: int, expected: bool
) -> None:
    judgement = msgspec.structs.replace(UPGRADED, state="inconclusive", runs=12)
    due = action(runs, was=SeenStart(was, was, False, REPORTED), judgement=judgement, new=(OLD,))
    assert (due in (NextAction.JUDGE, NextAction.BOTH)) is expected


def test_before_any_upgrade_the_first_runs_are_judged_and_not_counted() -> None:
    first = Result(state="no_baseline", runs=3)
    assert action(4, was=SeenStart(3, 3, False, REPORTED), judgement=first) is NextAction.JUDGE
    assert action(4, was=SeenStart(3, 3, False, REPORTED), judgement=None) is NextAction.NOTHING, (
        "judging it failed; the next look tries again"
    )


def test_after_its_first_look_a_new_image_is_not_counted_run_by_run() -> None:
    judgement = msgspec.structs.replace(UPGRADED, state="inconclusive", runs=12)
    assert action(13, was=SeenStart(12, 12, False, REPORTED), judgement=judgement) is NextAction.NOTHING


def test_what_a_start_reports_late_waits_for_no_look() -> None:
    late = REPORTED + 1
    assert action(31, was=SeenStart(30, 30, False, REPORTED), reported=late) is NextAction.BOTH
    assert action(31, was=SeenStart(30, 30, False, late), reported=late) is NextAction.NOTHING


def test_a_start_that_was_thought_to_have_stopped_waits_for_no_look() -> None:
    assert action(31, was=SeenStart(30, 30, True, REPORTED)) is NextAction.BOTH
    assert action(30, was=SeenStart(30, 30, True, REPORTED)) is NextAction.NOTHING


def test_what_is_remembered_of_a_judgement() -> None:
    samples = [Sample(i, "c", float(i), "ok", 0.02) for i in range(7)]
    start = Generation(service="s", container="a", boot_id="b2", started_at=0.0)
    view = View({}, {OLD: 5, NEW: 9}, {NEW: REPORTED}, None)
    assert seen_now([Start(start, samples)], view) == {
        OLD: SeenStart(5, 0, True, None),
        NEW: SeenStart(9, 7, False, REPORTED),
    }


def test_other_looks_are_other_actions() -> None:
    was = SeenStart(12, 12, False, REPORTED)
    judgement = msgspec.structs.replace(UPGRADED, state="inconclusive", runs=12)
    assert action(13, was=was, judgement=judgement) is NextAction.NOTHING
    assert action(13, was=was, judgement=judgement, policy=LIVE.but(looks=(8, 13))) is NextAction.JUDGE
