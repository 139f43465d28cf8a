"""Past verdicts: the exporter keeps the last verdict on each upgrade, even over restarts."""

import msgspec

from infercanary.exporter.judging.findings import Finding
from infercanary.exporter.judging.past_verdicts import record
from infercanary.judge.model import ServiceKey
from infercanary.pages.sentence import sentence
from infercanary.store.store import open_store
from tests.results import upgraded

S = ServiceKey("", "s")


def remember(store, canary, verdict, before=None):
    last = Finding(result=before, sentence=sentence(before)) if before is not None else None
    return record(store, S, canary, last, Finding(result=verdict, sentence=sentence(verdict))).answers


def verdict(state, upgraded_at=100.0, image="search:2"):
    return upgraded(state, upgraded_at=upgraded_at, candidate_image=image, runs=24)


def test_the_last_answer_on_each_upgrade_stands(tmp_path):
    store = open_store(tmp_path / "judge.sqlite")
    for result in (verdict("no_baseline", None), verdict("settling")):
        assert remember(store, "c", result) == ()
    [first] = remember(store, "c", verdict("inconclusive"))
    [second] = remember(store, "c", verdict("regressed"))
    assert (first.state, second.state) == ("inconclusive", "regressed")
    assert second.answered_at > first.answered_at
    assert second.sentence == sentence(verdict("regressed"))
    assert remember(store, "c", verdict("regressed")) == (second,)
    assert len(store.history(S, "c", "verdict")) == 2
    store.save(S, "c", "verdict", 1, b"not JSON")
    store.close()
    store = open_store(tmp_path / "judge.sqlite")
    before, after = remember(store, "c", verdict("improved", 500.0, "search:3"))
    assert before == second
    assert (after.upgraded_at, after.candidate_image) == (500.0, "search:3")
    assert remember(store, "other", verdict("settling")) == ()
    store.close()


def test_the_last_verdict_stands_and_a_rolled_back_upgrade_is_marked():
    """Regression: the numbers of the first look stayed, and so did the verdict on an image that no longer runs."""
    store = open_store(None)
    last = msgspec.structs.replace(verdict("regressed"), shift=0.2, low=0.18, high=0.22)
    edited = verdict("no_baseline", None)
    alone = msgspec.structs.replace(edited, rolled_back_image="search:2")
    improved = verdict("improved", 500.0)
    for result, before, rolled_back, said in (
        (verdict("regressed"), None, [False], verdict("regressed")),
        (edited, last, [False], last),
        (alone, None, [True], last),  # equal after a restart of the exporter
        (alone, None, [True], last),
        (verdict("regressed"), None, [False], verdict("regressed")),
        (improved, last, [False, False], last),
        (improved, verdict("settling", 900.0), [False, False], last),
    ):
        answers = remember(store, "c", result, before)
        assert [answer.rolled_back for answer in answers] == rolled_back
        assert (answers[0].sentence, answers[0].upgraded_at) == (sentence(said), 100.0)
    store.close()


def test_the_last_ones_are_in_memory_and_all_in_the_store():
    store = open_store(None)
    for number in range(30):
        answers = remember(store, "c", verdict("regressed", 100.0 * number))
    assert [answer.upgraded_at for answer in answers] == [100.0 * number for number in range(14, 30)]
    assert len(store.history(S, "c", "verdict")) == 30
    store.close()
