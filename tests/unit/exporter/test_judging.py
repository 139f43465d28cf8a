from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from infercanary.contract.measures import HOST_MEMORY
from infercanary.contract.report import Metric, Run
from infercanary.contract.vocabulary import COLD_START_METRIC
from infercanary.exporter.judging import queue, schedule, siblings, worker
from infercanary.exporter.judging.findings import Finding, judge_canary
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.report_facts import read_facts
from infercanary.judge import Judge, Result, drift
from infercanary.judge.model import Generation, ServiceKey, Start, kept
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED
from infercanary.store.base import LastRun, StoreError
from infercanary.store.retention import Retention
from infercanary.store.store import Store, open_store

S = ServiceKey("", "s")

COLD = Metric(COLD_START_METRIC, "gauge", "Cold start.", ("canary", "step"))


def generation(boot: str = "b1", image: str = "sha256:1", container: str = "a") -> Generation:
    return Generation(service="s", container=container, boot_id=boot, started_at=0.0, image_id=image)


def runs(count: int, first: int = 0, seconds: float = 0.02) -> list[Run]:
    return [
        Run(sequence=first + i, canary="c", scheduled_at=10.0 * i, started_at=10.0 * i, outcome="ok",
            latencies=(seconds * (1 + 0.001 * (i % 3)),) * 5)
        for i in range(count)
    ]  # fmt: skip


def size(count: int) -> int:
    """Of ``count`` of these runs in one report, as they wait for the store."""
    return queue.StartReport(generation(), runs(count)).size


def value(judging: Judging, name: str) -> float:
    found = {family.name: family.points[0].value for family in judging.families() if family.points}
    number = found[name]
    assert isinstance(number, float)
    return number


@pytest.fixture
def judging() -> Judging:
    return Judging(None)


def test_what_is_delivered_twice_is_stored_once(judging: Judging) -> None:
    judging.submit(generation(), runs(20))
    judging.submit(generation(), runs(20))
    judging.turn()
    judging.submit(generation(), runs(25))
    judging.turn()
    assert value(judging, "infercanary_stored_runs_total") == 25
    assert value(judging, "infercanary_store_up") == 1


@pytest.mark.parametrize(
    ("each", "most"),
    [(2, 1 + 64), (8, 1 + 64 + 4)],
    ids=["too few runs to count", "as many as count"],
)
def test_containers_that_come_and_go_are_not_judged_for_ever(
    judging: Judging, monkeypatch: pytest.MonkeyPatch, each: int, most: int
) -> None:
    """Each has a name of its own; none is said to end: the work of a judgement stays the same, and its verdict."""
    judged: list[int] = []

    def counted(
        canary: str, before: Finding | None, starts: Sequence[Start], *rest: Any, **more: Any
    ) -> Finding:
        judged.append(len(starts))
        return judge_canary(canary, before, starts, *rest, **more)

    monkeypatch.setattr(worker, "judge_canary", counted)
    upgraded = set()
    judging.submit(generation(image="sha256:0"), later(-1e4, runs(960)))
    for number in range(150):
        judging.submit(
            msgspec.structs.replace(
                generation(), container=f"c{number}", boot_id=f"short-{number}", started_at=100.0 * number
            ),
            later(100.0 * number, runs(each)),
        )
        judging.turn()
        upgraded.add(judging.findings[S]["c"].result.upgraded_at)
    assert len(judged) == 150
    assert judged[-50:] == 50 * [most]
    assert upgraded == {0.0}, "it began with the first of them"


def test_two_namespaces_share_no_history_and_no_verdict(judging: Judging) -> None:
    prod, test = (msgspec.structs.replace(generation(), namespace=name) for name in ("prod", "test"))
    judging.submit(prod, runs(192))
    judging.submit(test, runs(192, seconds=0.03))
    judging.submit(msgspec.structs.replace(test, boot_id="b2", image_id="sha256:2"), runs(192, seconds=0.05))
    judging.turn()
    states = {str(key): found["c"].result.state for key, found in judging.findings.items()}
    assert states == {"prod/s": "no_baseline", "test/s": "regressed"}


def test_cold_starts_are_the_reports_gauges(judging: Judging) -> None:
    families = [
        COLD.family({("c", "load"): 2.5, ("c", "warm_up"): 1.0, ("c", "first_run"): 0.0}),
        Metric("infercanary_x", "gauge", "X.", ("canary",)).family({("c",): 1.0}),
    ]
    assert read_facts(families).cold_starts == {"c": {"load": 2.5}}
    assert read_facts([]).cold_starts == {}


def test_a_verdict_is_found_as_soon_as_a_look_is_reached(judging: Judging) -> None:
    judging.submit(generation(), runs(192))
    judging.turn()
    assert judging.findings[S]["c"].result.state == "no_baseline"
    for first in range(0, 192, 4):
        judging.submit(generation("b2", "sha256:2"), runs(4, first, seconds=0.03))
        judging.turn()
        state = judging.findings[S]["c"].result.state
        expected = "settling" if first + 4 < 5 else "regressed"
        assert state == expected, first


def of(boot: str, at: float, **components: str) -> Generation:
    """A start of the one image, with what its probe says of the canary."""
    known = {f"{component}:c": value for component, value in components.items()}
    return msgspec.structs.replace(generation(boot), started_at=at, environment={"torch": "2.7.0", **known})


def test_weights_and_settings_that_were_exchanged_beside_one_image(tmp_path: Path) -> None:
    """The store has starts of a probe without digests; they are starts of the same model."""
    judging = Judging(tmp_path / "judge.sqlite")
    judging.submit(of("b1", 0.0), runs(60))
    judging.submit(of("b2", 1000.0, model="file:1", settings="s1"), runs(60))
    judging.turn()
    assert judging.findings[S]["c"].result.upgraded_at is None
    judging.submit(of("b3", 2000.0, model="file:2", settings="s1"), runs(60, seconds=0.03))
    judging.turn()
    found = judging.findings[S]
    assert (found["c"].result.state, found["c"].result.changed) == ("regressed", "model")
    assert " with the new model: " in found["c"].sentence
    assert [answer.upgraded_at for answer in found["c"].answers] == [2000.0]
    assert judging._store is not None
    judging._store.close()
    judging = Judging(tmp_path / "judge.sqlite")
    judging.submit(of("b3", 2000.0, model="file:2", settings="s1"), runs(1, 60, seconds=0.03))
    judging.turn()
    assert judging.findings[S]["c"].result.changed == "model", "the store has what it was of"
    judging.submit(of("b4", 3000.0, model="file:2", settings="s2"), runs(20, seconds=0.09))
    judging.turn()
    found = judging.findings[S]
    assert found["c"].result.state == "no_baseline"
    assert "settings changed (1970-01-01 00:50:00 UTC)" in found["c"].sentence
    judging._store.close()  # type: ignore[union-attr]


def measured(count: int, first: int = 0, memory: float = 2.0**29) -> list[Run]:
    return [
        msgspec.structs.replace(run, measures={HOST_MEMORY: memory, "newer": 1.0})
        for run in runs(count, first)
    ]


def test_more_memory_at_equal_latency(tmp_path: Path) -> None:
    store = tmp_path / "judge.sqlite"
    judging = Judging(store)
    for number in range(3):
        judging.submit(generation(f"b{number}"), measured(60))
    judging.turn()
    assert judging.findings[S]["c"].measures == {}, "there was no upgrade"
    states = []
    for first in range(0, 24, 4):
        judging.submit(generation("new", "sha256:2"), measured(4, first, memory=1.3 * 2.0**29))
        judging.turn()
        states.append(judging.findings[S]["c"].measures[HOST_MEMORY].state)
    assert states == ["settling"] + 5 * ["regressed"]
    found = judging.findings[S]
    assert found["c"].result.state not in CHANGED
    assert judging._store is not None
    judging._store.close()
    judging = Judging(store)
    judging.submit(generation("new", "sha256:2"), measured(1, 24, memory=1.3 * 2.0**29))
    judging.turn()
    after = judging.findings[S]
    assert after["c"].measures[HOST_MEMORY].state == "regressed"
    [last] = [answer for answer in after["c"].answers if answer.measure]
    assert (last.measure, last.state) == (HOST_MEMORY, "regressed")
    assert last.sentence.startswith("host memory regressed +30.0 % [+")
    assert judging._store is not None
    judging._store.close()
    judging = Judging(store, LIVE.but(smallest_effect=0.5))
    judging.submit(generation("new", "sha256:2"), measured(1, 25, memory=1.3 * 2.0**29))
    judging.turn()
    assert judging.findings[S]["c"].measures[HOST_MEMORY].state == "equivalent"
    answers = {answer.measure: answer.state for answer in judging.findings[S]["c"].answers}
    assert answers[HOST_MEMORY] == "equivalent"


def test_an_end_for_memory_is_judged_though_the_start_never_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "judge.sqlite"
    judging = Judging(path)
    judging.submit(generation(), runs(60))
    judging.submit(generation("b2", "sha256:2"), runs(60))
    judging.turn()
    assert "memory" not in judging.findings[S]["c"].sentence
    ended = msgspec.structs.replace(generation("b2", "sha256:2"), memory_kills=(700.0,))
    judging.submit(ended, ())
    judging.turn()
    assert "killed for memory 0 → 1 times" in judging.findings[S]["c"].sentence
    judging.stop()
    assert judging._store is not None
    judging._store.close()
    # The next exporter does not know it, and the store keeps it.
    after = Judging(path)
    after.submit(generation("b2", "sha256:2"), runs(61))
    after.turn()
    assert "killed for memory 0 → 1 times" in after.findings[S]["c"].sentence
    assert after._store is not None
    after._store.close()


def test_what_a_new_start_reports_late_counts_at_its_next_run(judging: Judging) -> None:
    """Docker may be slow to name an image, and a probe knows its output only after its warm-up."""
    before = msgspec.structs.replace(generation(), outputs={"c": (1.0, 2.0)})
    judging.submit(before, runs(192))
    judging.turn()
    judging.submit(generation("b2"), runs(1))
    judging.turn()
    assert judging.findings[S]["c"].result.state == "no_baseline", "a restart, as far as is known"
    after = generation("b2", "sha256:2")
    judging.submit(after, runs(1, 1))
    judging.turn()
    assert judging.findings[S]["c"].result.state == "settling"
    judging.submit(after, runs(1, 2))
    judging.submit(msgspec.structs.replace(after, outputs={"c": (1.0, 3.0)}), runs(1, 3))
    judging.turn()
    judgement = judging.findings[S]["c"].result
    assert judgement.runs == 4 and judgement.causes.output_changed


def test_a_restart_of_a_judged_image_is_judged_at_its_looks_and_the_drift_at_its_blocks(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each judgement reads all runs of the service's starts, which is expensive where it was restarted often."""
    judging.submit(generation(), runs(24))
    judging.submit(generation("b2", "sha256:2"), runs(24))
    judging.turn()
    judged: list[int] = []
    drifts: list[int] = []
    verdict, look = Judge.verdict, drift.detect
    monkeypatch.setattr(Judge, "verdict", lambda *given: judged.append(number) or verdict(*given))  # type: ignore[func-returns-value, has-type]
    monkeypatch.setattr(drift, "detect", lambda *given: drifts.append(number) or look(*given))  # type: ignore[func-returns-value, has-type]
    for number in range(1, 250):
        judging.submit(generation("b3", "sha256:2"), runs(1, number))
        judging.turn()
    assert judged == [1, *LIVE.decide.looks]
    assert drifts == [1, 120, 240]


def later(seconds: float, several: list[Run]) -> list[Run]:
    return [msgspec.structs.replace(run, started_at=seconds + run.started_at) for run in several]


def test_a_rollout_that_was_stopped_half_way_is_rolled_back_and_judged_again_if_it_goes_on(
    judging: Judging,
) -> None:
    """Its container may be gone, or its reports are late: at first nobody knows."""

    def state() -> str:
        judging.turn()
        return judging.findings[S]["c"].result.state

    went_on, upgraded = later(0, runs(700)), later(2400, runs(240, seconds=0.03))
    judging.submit(generation(), went_on[:240])
    assert state() == "no_baseline"
    beside = generation("b2", "sha256:2", "b")
    judging.submit(generation(), went_on[240:288])
    judging.submit(beside, upgraded[:48])
    assert state() == "regressed"
    judging.submit(generation(), went_on[288:359])
    assert state() == "regressed", "gone for longer than ten minutes, which the next blocks show"
    last = judging.findings[S]["c"].sentence
    judging.submit(generation(), went_on[359:360])
    assert state() == "no_baseline"
    assert judging.findings[S]["c"].sentence == "nothing to judge: 2 was stopped"
    [past] = judging.findings[S]["c"].answers
    assert past.rolled_back and past.sentence == last
    judging.submit(beside, upgraded[48:96])
    assert state() == "regressed"
    [past] = judging.findings[S]["c"].answers
    assert not past.rolled_back


def test_siblings_that_were_restarted_or_upgraded_since_tell_what_was_before() -> None:
    """After a restart of the exporter all is judged again, with the same verdicts."""
    cause = []
    for image in ("", "other:1", "other:2"):
        judging = Judging(None)
        judging.submit(generation(), runs(192))
        for name in "xy":
            beside = Generation(
                service=name, container=name, boot_id="x1", started_at=0.0, image_id="other:1"
            )
            judging.submit(beside, [*runs(240), *later(2400, runs(240, 240, seconds=0.03))])
        upgraded = msgspec.structs.replace(generation("b2", "sha256:2"), started_at=2400.0)
        judging.submit(upgraded, later(2400, runs(192, seconds=0.03)))
        for name in "xy" if image else "":
            beside = Generation(service=name, container=name, boot_id="x2", started_at=9000.0, image_id=image)
            judging.submit(beside, later(9000, runs(240, seconds=0.03)))
        judging.turn()
        judgement = judging.findings[S]["c"].result
        cause.append((judgement.state, judgement.causes.cause))
    assert cause == [("regressed", "host")] * 3


def test_of_a_sibling_the_newest_runs_are_held_without_what_nobody_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(siblings, "_MOST_RUNS", 30)
    known = [Start(generation(boot), [kept(run) for run in runs(20)]) for boot in ("b1", "b2", "b3")]
    found = siblings.newest(known)
    assert [(start.generation.boot_id, len(start.samples)) for start in found] == [("b2", 10), ("b3", 20)]
    assert found[0].samples == [
        msgspec.structs.replace(sample, phases={}, controls={}) for sample in known[1].samples[10:]
    ]
    tagged = [
        msgspec.structs.replace(kept(run), tags=("\U0001f600", "memory_limit", "cpu_wait_outside"))
        for run in runs(20)
    ]
    [start] = siblings.newest([Start(generation(), tagged)])
    assert {sample.tags for sample in start.samples} == {("memory_limit",)}


def test_a_sibling_whose_clock_is_wrong_makes_no_other_one_old() -> None:
    def ran(name: str, at: float) -> LastRun:
        return LastRun(ServiceKey("", name), "a", "c", at)

    honest = [ran("x", 9_950.0), ran("y", 9_990.0), ran("gone", 5_000.0)]
    names = [run.service.name for run in siblings.chosen([*honest, ran("future", 2.0**33)], 10_000.0)]
    assert names == ["future", "x", "y", "gone"], "those that run by name, as without it"


@pytest.mark.parametrize(
    "wide",
    [
        {"detail": "\U0001f600" * 500},
        {"phases": {f"\U0001f600{n:03}" + "a" * 240: 0.5 for n in range(100)}},
        {"tags": tuple(f"\U0001f600{n:03}" + "a" * 240 for n in range(32))},
    ],
)
def test_texts_count_as_what_they_take(wide: dict[str, object]) -> None:
    def many() -> list[Run]:
        encoded = msgspec.json.encode([msgspec.structs.replace(run, **wide) for run in runs(200)])
        return msgspec.json.decode(encoded, type=list[Run])

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = queue.StartReport(generation(), many())
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < held.size < 5 * taken


def test_of_what_waits_for_a_store_who_has_most_loses_its_oldest() -> None:
    waiting = queue.ReportQueue(5 * size(10))
    few = queue.StartReport(generation(), runs(10))
    waiting.put(few)
    many = [
        queue.StartReport(msgspec.structs.replace(generation(), container="many"), runs(10, n))
        for n in range(9)
    ]
    for report in many:
        waiting.put(report)
    assert waiting.waiting() == [few, *many[5:]]
    assert waiting.dropped == 50
    waiting.done([few, *many[4:7]])  # the first of them was dropped since
    assert waiting.waiting() == many[7:]
    wide = msgspec.structs.replace(runs(1)[0], latencies=(0.1,) * 10_000)
    waiting.put(queue.StartReport(generation(), [wide]))
    assert waiting.waiting() == many[7:], "one that does not fit at all is dropped itself"


def test_what_comes_while_it_judges_is_taken_before_the_queue_is_full(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the exporter every probe hands over its ring, and every canary is to be judged."""
    judging._queue.most_bytes = size(100)
    real, more = Judge.verdict, [runs(60, first) for first in range(100, 400, 60)]

    def verdict(judge: Judge, starts: Sequence[Start], siblings: Sequence[Start], canary: str) -> Result:
        if more:  # while one canary is judged, probes go on
            judging.submit(generation(), more.pop())
        return real(judge, starts, siblings, canary)

    monkeypatch.setattr(Judge, "verdict", verdict)
    names = [msgspec.structs.replace(run, canary=f"c{n}") for n in range(8) for run in runs(10)]
    judging.submit(generation(), names)
    judging.turn()
    judging.turn()
    assert value(judging, "infercanary_unjudged_runs_total") == 0
    assert value(judging, "infercanary_stored_runs_total") == 80 + 300


def test_what_was_found_of_a_canary_that_was_removed_is_forgotten(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    removed = [msgspec.structs.replace(run, canary="removed") for run in runs(20)]
    judging.submit(generation(), [*runs(20), *removed])
    judging.turn()

    def go_on(first: int) -> set[str]:
        judging.submit(generation(), runs(1, 100 + first))
        judging.turn()
        return {*judging.findings[S]}

    assert all(go_on(turn) == {"c", "removed"} for turn in range(20)), "it may only be slow"
    monkeypatch.setattr(schedule, "REMOVED_SECONDS", 0.0)
    assert go_on(20) == {"c"}
    monkeypatch.undo()
    judging.submit(generation("b2"), [msgspec.structs.replace(run, canary="removed") for run in runs(20)])
    judging.turn()
    assert {*judging.findings[S]} == {"c", "removed"}, "it is back"


def test_a_service_that_stands_still_is_not_removed(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    monkeypatch.setattr(schedule, "REMOVED_SECONDS", 0.0)
    judging.submit(generation(), runs(20))
    other = msgspec.structs.replace(generation(), service="other")
    for first in range(30):
        judging.submit(other, runs(1, first))
        judging.turn()
    assert {*judging.findings} == {S, ServiceKey("", "other")}


def test_a_canary_that_cannot_be_judged_costs_no_other(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Judge.verdict

    def verdict(judge: Judge, starts: Sequence[Start], siblings: Sequence[Start], canary: str) -> Result:
        if canary == "bad":
            raise RuntimeError("a fault on purpose")
        return real(judge, starts, siblings, canary)

    monkeypatch.setattr(Judge, "verdict", verdict)
    bad = [
        Run(sequence=1000 + i, canary="bad", scheduled_at=0, started_at=0, outcome="ok", latencies=(1.0,))
        for i in range(20)
    ]
    judging.submit(generation(), [*bad, *runs(20)])
    judging.turn()
    assert judging.up
    while judging._due:  # a traceback may take a turn
        judging.turn()
        assert judging.up
    assert set(judging.findings[S]) == {"c"}
    assert value(judging, "infercanary_store_errors_total") == 1


def test_the_log_says_whom_a_regression_is_blamed_on_when_that_changes(judging: Judging) -> None:
    def at(first: int, count: int, seconds: float, control: float) -> list[Run]:
        return [
            msgspec.structs.replace(run, controls={"cpu_spin": control * (1 + run.sequence % 3 / 1000)})
            for run in runs(count, first, seconds)
        ]

    def logged() -> list[str]:
        with capture_logs() as lines:
            judging.turn()
        return [line["verdict"] for line in lines if line["event"] == "verdict"]

    judging.submit(generation(), at(0, 192, 0.02, 0.001))
    new = generation("b2", "sha256:2")
    judging.submit(new, at(0, 24, 0.04, 0.001))
    first = logged()
    assert first[-1].startswith("regressed") and ": image" in first[-1]
    judging.submit(new, at(24, 24, 0.04, 0.001))
    assert logged() == [], "nothing else is said"
    judging.submit(new, at(48, 144, 0.04, 0.002))
    [moved] = logged()
    assert moved.startswith("regressed") and "host" in moved


def test_a_file_that_was_deleted_is_shown_and_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "judge.sqlite"
    judging = Judging(path)
    judging.submit(generation(), runs(20))
    judging.turn()
    for file in tmp_path.iterdir():
        file.unlink()
    judging.submit(generation(), runs(5, first=20))
    judging.turn()
    assert value(judging, "infercanary_store_up") == 0
    assert value(judging, "infercanary_store_errors_total") == 1
    judging.turn()
    assert value(judging, "infercanary_store_up") == 1
    judging.start()
    judging.stop()
    store = open_store(path)
    assert [len(kept) for _, kept in store.generations(S, "c")] == [5]
    store.close()


def test_a_verdict_with_which_the_store_failed_is_found_by_the_next_turn_after_those_of_others(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging.submit(generation(), runs(192))
    judging.turn()
    real = Store.save
    asked = []

    def save(store: Store, service: ServiceKey, canary: str, *rest: object) -> None:
        asked.append(service)
        if len(asked) < 3:
            raise StoreError("the disk is full")
        real(store, service, canary, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "save", save)
    other = ServiceKey("", "other")
    for service in ("s", "other"):
        for boot in ("b1", "b2"):
            start = msgspec.structs.replace(generation(boot, f"sha256:{boot}"), service=service)
            judging.submit(start, runs(192, seconds=0.02 if boot == "b1" else 0.03))
    for _ in range(3):
        judging.turn()
    assert {service: found["c"].result.state for service, found in judging.findings.items()} == {
        S: "regressed", other: "regressed",
    }  # fmt: skip
    assert {*asked[:2]} == {S, other}


def test_what_waits_for_a_store_is_bounded_and_stored_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    judging = Judging(folder / "judge.sqlite", queue_bytes=5 * size(10))
    for first in range(0, 100, 10):
        judging.submit(generation(), runs(10, first))
        judging.turn()
    assert value(judging, "infercanary_store_up") == 0
    assert value(judging, "infercanary_unjudged_runs_total") == 50
    folder.mkdir()
    judging.turn()
    assert value(judging, "infercanary_store_up") == 1
    assert value(judging, "infercanary_stored_runs_total") == 50
    judging.stop()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judging]:
    """Its store keeps one container besides those that run, and is thinned at each turn."""
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    store = open_store(None, Retention(containers=1))
    monkeypatch.setattr(worker, "open_store", lambda location: store)
    yield Judging(None)
    store.close()


def pass_days(judging: Judging) -> None:
    now = time.time()
    for day in range(4):  # a longer step would be none that passed here
        worker.open_store(None).thin(now + 86_400 * day)  # type: ignore[attr-defined]
    judging.turn()


def test_a_service_that_the_store_forgot_is_forgotten(forgetful: Judging) -> None:
    """Each container that is run without a name is a service of its own."""
    for name in ("jolly_bell", "sad_curie"):
        start = Generation(service=name, container=name, boot_id="b", started_at=0.0, image_id="i")
        forgetful.submit(start, runs(20))
        forgetful.turn()
        assert start.key in forgetful.findings
        pass_days(forgetful)
    assert [*forgetful.findings] == [start.key]
    assert [*forgetful._services] == [start.key]


def test_a_canary_that_the_store_forgot_is_forgotten(forgetful: Judging) -> None:
    others = [msgspec.structs.replace(run, canary="d") for run in runs(20)]
    for name, several in (("a", runs(20)), ("b", others)):
        forgetful.submit(generation(container=name), several)
        forgetful.turn()
        pass_days(forgetful)
    found = forgetful.findings[S]
    assert {*found} == {"d"}
    assert {*found["d"].drifts} == {"b"}


def test_a_container_that_the_store_forgot_has_no_drift(forgetful: Judging) -> None:
    for name in "ab":
        forgetful.submit(generation(container=name), runs(20))
        forgetful.turn()
        pass_days(forgetful)
    assert {*forgetful.findings[S]["c"].drifts} == {"a", "b"}, "as at the last look"
    forgetful.submit(generation(container="b"), runs(120))
    forgetful.turn()
    assert {*forgetful.findings[S]["c"].drifts} == {"b"}


def test_canaries_of_a_service_beyond_the_limit_are_not_judged(
    judging: Judging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CANARIES", 2)
    for name in ("c", "d", "e", "c"):
        judging.submit(generation(), [msgspec.structs.replace(run, canary=name) for run in runs(20)])
        judging.turn()
    assert {*judging.findings[S]} == {"c", "d"}
