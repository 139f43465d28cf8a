from __future__ import annotations

import msgspec
import pytest

from infercanary.exporter.judging.action import Due, Seen, due, seen
from infercanary.judge.model import Generation, Judgement, Sample, Start

OLD, NEW = ("a", "b1"), ("a", "b2")
SAID = Generation(service="s", container="a", boot_id="b2", started_at=0.0, image_id="sha256:2")
UPGRADED = Judgement(state="settling", upgraded_at=100.0, runs=3)


def asked(
    runs: int, *, was: Seen | None = None, told: Judgement | None = UPGRADED, said: Generation = SAID
) -> Due:
    """What is due of a canary whose new start has so many runs now."""
    known = {OLD: Seen(200, 200, True, None)} | ({NEW: was} if was else {})
    return due(known, {OLD: 200, NEW: runs}, {NEW: said}, told)


@pytest.mark.parametrize(
    ("was", "runs", "expected"),
    [
        (None, 1, Due.VERDICT),  # of a start that it has not seen
        (3, 4, Due.COUNT),
        (3, 3, Due.NOTHING),
        (3, 12, Due.VERDICT),
        (12, 23, Due.COUNT),  # `told` is from before that look
        (12, 24, Due.VERDICT),
        (24, 47, Due.NOTHING),
        (24, 500, Due.VERDICT),
        (200, 239, Due.NOTHING),
        (200, 240, Due.DRIFT),
        (250, 350, Due.NOTHING),
        (250, 360, Due.DRIFT),
    ],
)
def test_what_is_due_by_the_runs_of_the_new_start(was: int | None, runs: int, expected: Due) -> None:
    assert asked(runs, was=None if was is None else Seen(was, was, False, SAID)) is expected


def test_runs_that_did_not_count_bring_no_look_nearer() -> None:
    assert asked(20, was=Seen(15, 2, False, SAID)) is Due.COUNT
    assert asked(25, was=Seen(15, 2, False, SAID)) is Due.VERDICT
    assert asked(26, was=Seen(25, 2, False, SAID)) is Due.NOTHING, (
        "one that never gets steady is not watched for ever"
    )


def test_before_any_upgrade_the_first_runs_are_judged_and_not_counted() -> None:
    first = Judgement(state="no_baseline", runs=3)
    assert asked(4, was=Seen(3, 3, False, SAID), told=first) is Due.VERDICT
    assert asked(4, was=Seen(3, 3, False, SAID), told=None) is Due.NOTHING, (
        "judging it failed; the next look tries again"
    )


def test_after_its_first_look_a_new_image_is_not_counted_run_by_run() -> None:
    told = msgspec.structs.replace(UPGRADED, state="inconclusive", runs=12)
    assert asked(13, was=Seen(12, 12, False, SAID), told=told) is Due.NOTHING


def test_what_a_start_says_late_waits_for_no_look() -> None:
    late = msgspec.structs.replace(SAID, outputs={"c": (1.0,)})
    assert asked(31, was=Seen(30, 30, False, SAID), said=late) is Due.VERDICT
    assert asked(31, was=Seen(30, 30, False, late), said=late) is Due.NOTHING


def test_a_start_that_was_thought_to_have_stopped_waits_for_no_look() -> None:
    assert asked(31, was=Seen(30, 30, True, SAID)) is Due.VERDICT
    assert asked(30, was=Seen(30, 30, True, SAID)) is Due.NOTHING


def test_what_is_remembered_of_a_judgement() -> None:
    samples = [Sample(i, "c", float(i), "ok", 0.02) for i in range(7)]
    assert seen([Start(SAID, samples)], {OLD: 5, NEW: 9}, {NEW: SAID}) == {
        OLD: Seen(5, 0, True, None),
        NEW: Seen(9, 7, False, SAID),
    }
