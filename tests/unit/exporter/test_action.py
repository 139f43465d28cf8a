import pytest

from infercanary.exporter.judging.schedule import SeenStart, ServiceState, due, seen_now
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE

OLD, NEW = ("a", "b1"), ("a", "b2")


def extent(runs, was, policy=LIVE, *, has_upgrade=True):
    """Return the names of due judgements, if a canary's new start has this number of runs now."""
    seen = {OLD: SeenStart(200, 200)} | ({NEW: was} if was else {})
    judgements = due(seen, {OLD: 200, NEW: runs}, policy, has_upgrade=has_upgrade)
    return " ".join(name for name, is_due in judgements._asdict().items() if is_due)


@pytest.mark.parametrize(
    ("was", "runs", "has_upgrade", "expected"),
    [
        (None, 1, True, "upgrade measures drift"),  # a start that was not judged yet
        (None, 1, False, "upgrade measures drift"),
        (3, 4, True, ""),
        (3, 5, True, "upgrade"),
        (3, 11, False, ""),
        (3, 12, False, "upgrade"),
        (3, 12, True, "upgrade measures"),
        (12, 24, False, "upgrade"),
        (24, 95, False, ""),
        (80, 95, True, ""),
        (24, 500, True, "upgrade measures drift"),
        (192, 287, True, ""),
        (192, 288, False, "drift"),
        (288, 384, True, "drift"),
    ],
)
def test_judgements_that_are_due_by_the_runs_of_the_new_start(was, runs, has_upgrade, expected):
    before = None if was is None else SeenStart(was, was)
    assert extent(runs, before, has_upgrade=has_upgrade) == expected


def test_runs_that_did_not_count_bring_no_look_nearer_and_other_looks_are_others():
    start = Generation(service="s", container="a", boot_id="b2", started_at=0.0)
    counted = Start(start, [Sample(i, "c", float(i), "ok", 0.02) for i in range(2)])
    was = seen_now([counted], {OLD: 5, NEW: 7})
    assert was == {OLD: SeenStart(5, 0), NEW: SeenStart(7, 2)}
    assert [extent(runs, was[NEW]) for runs in (9, 10)] == ["", "upgrade"]
    was = SeenStart(12, 12)
    assert [extent(13, was, policy) for policy in (LIVE, LIVE.but(looks=(8, 13)))] == ["", "upgrade"]


def test_a_report_asks_the_store_only_if_a_judgement_may_be_due():
    def may_be_due(state, boot):
        return state.may_be_due("c", boot, 1, LIVE, has_upgrade=True)

    state = ServiceState()
    assert may_be_due(state, NEW), "not judged yet"
    state.seen["c"], state.reported["c"] = {NEW: SeenStart(2, 2)}, {NEW: 2}
    assert [may_be_due(state, NEW) for _ in range(3)] == [False, False, True], "5 runs are a look"
    assert may_be_due(state, OLD), "a start that was not judged"
