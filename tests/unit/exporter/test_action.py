from infercanary.exporter.judging.schedule import SeenStart, ServiceState, due, seen_now
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from tests.scenarios import cases, typed

OLD, NEW = ("a", "b1"), ("a", "b2")


def extent(runs, was, policy=LIVE, *, has_upgrade=True):
    seen = {OLD: SeenStart(200, 200)} | ({NEW: was} if was else {})
    judgements = due(seen, {OLD: 200, NEW: runs}, policy, has_upgrade=has_upgrade)
    return " ".join(name for name, is_due in judgements._asdict().items() if is_due)


DUE = """
# A start that was not judged yet.
~   | 1   | true  | upgrade measures drift
~   | 1   | false | upgrade measures drift
3   | 4   | true  | ''
3   | 5   | true  | upgrade
3   | 11  | false | ''
3   | 12  | false | upgrade
3   | 12  | true  | upgrade measures
12  | 24  | false | upgrade
24  | 95  | false | ''
80  | 95  | true  | ''
24  | 500 | true  | upgrade measures drift
192 | 287 | true  | ''
192 | 288 | false | drift
288 | 384 | true  | drift
"""
"""Runs of the new start at the last judgement and now; whether there is an upgrade; and the judgements that are due."""


@cases(typed(DUE))
def test_judgements_that_are_due_by_the_runs_of_the_new_start(was, runs, has_upgrade, expected):
    before = None if was is None else SeenStart(was, was)
    assert extent(runs, before, has_upgrade=has_upgrade) == expected


def test_runs_that_did_not_count_bring_no_look_nearer_and_other_looks_are_others():
    start = Generation(service="s", container="a", boot_id="b2", started_at=0.0)
    counted = Start(start, [Sample(i, "c", float(i), "ok", 0.02) for i in range(2)])
    was = seen_now([counted], {OLD: 5, NEW: 7})
    assert was == {OLD: SeenStart(5, 0), NEW: SeenStart(7, 2)}
    assert [extent(runs, was[NEW]) for runs in (9, 10)] == ["", "upgrade"]
    other_looks = [extent(13, SeenStart(12, 12), policy) for policy in (LIVE, LIVE.but(looks=(8, 13)))]
    assert other_looks == ["", "upgrade"]


def test_a_report_asks_the_store_only_if_a_judgement_may_be_due():
    def may_be_due(state, boot):
        return state.may_be_due("c", boot, 1, LIVE, has_upgrade=True)

    state = ServiceState()
    assert may_be_due(state, NEW)  # the judge has not seen the canary yet
    state.seen["c"], state.reported["c"] = {NEW: SeenStart(2, 2)}, {NEW: 2}
    assert [may_be_due(state, NEW) for _ in range(3)] == [False, False, True]  # 5 runs are due for a look
    assert may_be_due(state, OLD)
