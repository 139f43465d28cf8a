import time
import tracemalloc

import msgspec
import pytest
from structlog.testing import capture_logs

from infercanary.contract.measures import HOST_MEMORY
from infercanary.contract.report import Run
from infercanary.exporter.judging import queue, schedule, siblings, worker
from infercanary.judge import Judge, drift
from infercanary.judge.model import ServiceKey, Start, kept
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED
from infercanary.store.base import LastRun, StoreError
from infercanary.store.retention import Retention
from infercanary.store.store import Store, open_store
from tests.scenarios import cases
from tests.unit.exporter.factories import Judged, S, generation, runs

OLD, NEW = generation(), generation("b2", "sha256:2")


@pytest.fixture
def judged():
    return Judged()


def test_weights_and_settings_that_were_exchanged_beside_one_image(tmp_path):
    """The store has starts of an older probe without digests, which count as starts of the same model."""
    store = tmp_path / "judge.sqlite"

    def start(number, **components):
        known = {f"{component}:c": value for component, value in components.items()}
        return generation(f"b{number}", started_at=1000.0 * number, environment={"torch": "2.7.0", **known})

    judged = Judged(store).take(start(0), runs(60)).take(start(1, model="file:1", settings="s1"), runs(60))
    assert judged.finding().result.upgraded_at is None
    weights = start(2, model="file:2", settings="s1")
    found = judged.take(weights, runs(60, seconds=0.03)).finding()
    assert (found.result.state, found.result.changed) == ("regressed", "model")
    assert [answer.upgraded_at for answer in found.answers] == [2000.0]
    judged = judged.again(store).take(weights, runs(1, 60, seconds=0.03))
    assert judged.finding().result.changed == "model"
    result = judged.take(start(3, model="file:2", settings="s2"), runs(20, seconds=0.09)).finding().result
    assert (result.state, result.settings_changed_at) == ("no_baseline", 3000.0)
    judged.close()


def test_more_memory_at_equal_latency(tmp_path):
    def measured(count, first=0, memory=1.3):
        return runs(count, first, measures={HOST_MEMORY: memory * 2.0**29, "newer": 1.0})

    store = tmp_path / "judge.sqlite"
    judged = Judged(store)
    for number in range(3):
        judged.take(generation(f"old-{number}"), measured(60, memory=1.0))
    assert judged.finding().measures == {}  # without an upgrade, there are no measures
    states = []
    for first in range(0, 12, 4):
        found = judged.take(NEW, measured(4, first)).finding()
        states.append(found.measures[HOST_MEMORY].state)
    assert states == ["settling", "regressed", "regressed"]
    assert found.result.state not in CHANGED
    for number, policy, state in ((24, LIVE, "regressed"), (25, LIVE.but(smallest_effect=0.5), "equivalent")):
        judged = judged.again(store, policy).take(NEW, measured(1, number))
        found = judged.finding()
        [last] = [answer for answer in found.answers if answer.measure]
        assert found.measures[HOST_MEMORY].state == last.state == state
        assert last.measure == HOST_MEMORY
    judged.close()


def test_an_end_for_memory_is_judged_though_the_start_never_runs_again(tmp_path):
    store = tmp_path / "judge.sqlite"
    judged = Judged(store).take(OLD, runs(60)).take(NEW, runs(60))
    assert judged.finding().result.causes.memory_kills == (0, 0)
    judged.take(msgspec.structs.replace(NEW, memory_kills=(700.0,)), ())
    assert judged.finding().result.causes.memory_kills == (0, 1)
    judged = judged.again(store).take(NEW, runs(61))
    assert judged.finding().result.causes.memory_kills == (0, 1)  # the store keeps memory kills
    judged.close()


def test_late_facts_of_a_new_start_count_at_its_next_run(judged):
    """Docker may report an image late, and a probe reports its output only after warm-up."""
    judged.take(generation(outputs={"c": (1.0, 2.0)}), runs(192)).state()
    states = [judged.take(start, runs(1, n)).state() for n, start in enumerate((generation("b2"), NEW, NEW))]
    assert states == ["no_baseline", "settling", "settling"]  # this looks like a restart at first
    result = judged.take(msgspec.structs.replace(NEW, outputs={"c": (1.0, 3.0)}), runs(1, 3)).finding().result
    assert result.runs == 4
    assert result.causes.output_changed


def test_a_restart_of_a_judged_image_is_judged_at_its_looks_and_the_drift_at_its_blocks(judged, monkeypatch):
    """A judgement reads all runs of the service's starts, which is slow after many restarts."""
    judged.take(OLD, runs(24)).take(NEW, runs(24)).state()
    at: dict[str, list[int]] = {"verdict": [], "detect": []}

    def noted(name, real):
        def called(*given):
            at[name].append(number)
            return real(*given)

        return called

    monkeypatch.setattr(Judge, "verdict", noted("verdict", Judge.verdict))
    monkeypatch.setattr(drift, "detect", noted("detect", drift.detect))
    for number in range(1, 250):
        judged.take(generation("b3", "sha256:2"), runs(1, number)).state()
    assert at == {"verdict": [1, *LIVE.decide.looks], "detect": [1, 96, 192]}


def test_a_rollout_that_was_stopped_half_way_is_rolled_back_and_judged_again_if_it_goes_on(judged):
    """At first, the judge cannot know whether the container has ended or its reports are late."""
    went_on, upgraded = runs(700), runs(240, seconds=0.03, at=2400)
    beside = generation("b2", "sha256:2", "b")
    assert judged.take(OLD, went_on[:240]).state() == "no_baseline"
    assert judged.take(OLD, went_on[240:288]).take(beside, upgraded[:48]).state() == "regressed"
    last = judged.take(OLD, went_on[288:383]).finding()
    assert last.result.state == "regressed"  # absent for less than ten minutes
    found = judged.take(OLD, went_on[383:384]).finding()
    assert (found.result.state, found.result.rolled_back_image) == ("no_baseline", "2")
    assert [(past.rolled_back, past.sentence) for past in found.answers] == [(True, last.sentence)]
    found = judged.take(beside, upgraded[48:240]).finding()
    assert found.result.state == "regressed"
    assert [past.rolled_back for past in found.answers] == [False]


@cases(["", "other:1", "other:2"])
def test_siblings_that_were_restarted_or_upgraded_since_tell_what_was_before(image, judged):
    judged.take(OLD, runs(192))
    for name in "xy":
        beside = generation("x1", "other:1", name, service=name)
        judged.take(beside, [*runs(240), *runs(240, 240, 0.03, at=2400)])
        if image:
            judged.take(
                generation("x2", image, name, service=name, started_at=9000.0), runs(240, 0, 0.03, at=9000)
            )
    judged.take(generation("b2", "sha256:2", started_at=2400.0), runs(192, 0, 0.03, at=2400))
    result = judged.finding().result
    assert (result.state, result.causes.cause) == ("regressed", "host")


def test_only_needed_fields_of_siblings_newest_runs_are_cached(monkeypatch):
    monkeypatch.setattr(siblings, "_MOST_RUNS", 30)
    wide = runs(20, phases={"compute": 0.01}, tags=("\U0001f600", "memory_limit", "cpu_wait_outside"))
    samples = [*map(kept, wide)]
    found = siblings.newest([Start(generation(boot), samples) for boot in ("b1", "b2", "b3")])
    assert [(start.generation.boot_id, len(start.samples)) for start in found] == [("b2", 10), ("b3", 20)]
    bare = [msgspec.structs.replace(sample, phases={}, tags=("memory_limit",)) for sample in samples[10:]]
    assert found[0].samples == bare
    ran = {"x": 9_950.0, "y": 9_990.0, "gone": 5_000.0, "future": 2.0**33}
    chosen = siblings.chosen([LastRun(ServiceKey("", name), "a", "c", at) for name, at in ran.items()], 1e4)
    # a wrong clock must not make other runs old
    assert [run.service.name for run in chosen] == ["future", "x", "y", "gone"]


@cases(
    [
        {"detail": "\U0001f600" * 500},
        {"phases": {f"\U0001f600{n:03}" + "a" * 240: 0.5 for n in range(100)}},
        {"tags": tuple(f"\U0001f600{n:03}" + "a" * 240 for n in range(32))},
    ],
)
def test_texts_count_as_what_they_take(wide):
    encoded = msgspec.json.encode(runs(200, **wide))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        report = queue.StartReport(generation(), msgspec.json.decode(encoded, type=list[Run]))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < report.size < 5 * taken


def test_a_full_queue_drops_the_oldest_reports_of_the_largest_container():
    few, *many = (queue.StartReport(generation(container=name), runs(10)) for name in ("few", *["many"] * 9))
    reports = queue.ReportQueue(5 * few.size)
    for report in (few, *many):
        reports.put(report)
    assert reports.waiting() == [few, *many[5:]]
    assert reports.dropped == 50
    reports.done([few, *many[4:7]])  # meanwhile the exporter dropped the first of these reports
    assert reports.waiting() == many[7:]
    wide = msgspec.structs.replace(runs(1)[0], latencies=(0.1,) * 10_000)
    reports.put(queue.StartReport(generation(), [wide]))
    assert reports.waiting() == many[7:]  # the exporter drops a report that is itself too large


def test_runs_that_come_while_it_judges_are_stored_before_the_queue_is_full(judged, monkeypatch):
    """After a restart of the exporter, every probe delivers its buffer, and every canary is due."""
    judged.judging._queue.most_bytes = queue.StartReport(OLD, runs(100)).size
    real, more = Judge.verdict, [runs(60, first) for first in range(100, 400, 60)]

    def verdict(*given):
        if more:  # probes deliver runs while the judge works
            judged.take(OLD, more.pop())
        return real(*given)

    monkeypatch.setattr(Judge, "verdict", verdict)
    judged.take(OLD, [run for n in range(8) for run in runs(10, canary=f"c{n}")])
    judged.judging.turn()
    judged.judging.turn()
    assert (judged.value("unjudged_runs_total"), judged.value("stored_runs_total")) == (0, 80 + 300)


def test_findings_on_a_removed_canary_are_forgotten(judged, monkeypatch):
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    removed = runs(20, canary="removed")

    def canaries(first, start=OLD, several=()):
        judged.take(start, several).take(OLD, runs(1, first)).finding()
        return {*judged.judging.findings[S]}

    canaries(0, OLD, removed)
    assert all(canaries(100 + turn) == {"c", "removed"} for turn in range(20))
    with monkeypatch.context() as removing:
        removing.setattr(schedule, "REMOVED_SECONDS", 0.0)
        assert canaries(120) == {"c"}
    assert canaries(121, generation("b2"), removed) == {"c", "removed"}
    monkeypatch.setattr(schedule, "REMOVED_SECONDS", 0.0)
    for first in range(130, 150):
        judged.take(generation(service="other"), runs(1, first)).judging.turn()
    assert {*judged.judging.findings} == {S, ServiceKey("", "other")}


def test_a_canary_that_cannot_be_judged_costs_no_other(judged, monkeypatch):
    real = Judge.verdict

    def verdict(judge, starts, siblings, canary, selection):
        if canary == "bad":
            raise RuntimeError("a fault on purpose")
        return real(judge, starts, siblings, canary, selection)

    monkeypatch.setattr(Judge, "verdict", verdict)
    judged.take(OLD, [*runs(20, 1000, canary="bad"), *runs(20)]).judging.turn()
    while judged.judging._due:  # the log call may take a turn for a traceback
        judged.judging.turn()
        assert judged.judging.up
    assert {*judged.judging.findings[S]} == {"c"}
    assert judged.value("store_errors_total") == 1


def test_the_log_says_whom_a_regression_is_blamed_on_when_that_changes(judged):
    def logged(start, first, count, seconds, control):
        several = [
            msgspec.structs.replace(run, controls={"cpu_spin": control * (1 + run.sequence % 3 / 1000)})
            for run in runs(count, first, seconds)
        ]
        with capture_logs() as lines:
            judged.take(start, several).judging.turn()
        return [line["verdict"] for line in lines if line["event"] == "verdict"]

    logged(OLD, 0, 192, 0.02, 0.001)
    blamed = logged(NEW, 0, 24, 0.04, 0.001)[-1]
    assert blamed.startswith("regressed")
    assert ": image" in blamed
    assert logged(NEW, 24, 24, 0.04, 0.001) == []
    [moved] = logged(NEW, 48, 144, 0.04, 0.002)
    assert moved.startswith("regressed")
    assert "host" in moved


def test_a_verdict_with_which_the_store_failed_is_found_by_the_next_turn_after_those_of_others(
    judged, monkeypatch
):
    judged.take(OLD, runs(192)).state()
    real, asked = Store.save, []

    def save(store, service, *rest):
        asked.append(service)
        if len(asked) < 3:
            raise StoreError("the disk is full")
        real(store, service, *rest)

    monkeypatch.setattr(Store, "save", save)
    other = ServiceKey("", "other")
    for service in (S, other):
        for boot, seconds in (("b1", 0.02), ("b2", 0.03)):
            judged.take(generation(boot, boot, service=service.name), runs(192, seconds=seconds))
    for _ in range(3):
        judged.judging.turn()
    states = {service: found["c"].result.state for service, found in judged.judging.findings.items()}
    assert states == {S: "regressed", other: "regressed"}
    assert {*asked[:2]} == {S, other}


@cases(
    [
        ("b", "b", "c", {"b": {"c": {"b"}}}),  # a container without a label is a separate service
        ("b", "s", "d", {"s": {"d": {"b"}}}),
        ("b", "s", "c", {"s": {"c": {"a", "b"}}}),
    ],
)
def test_findings_that_the_store_dropped_are_forgotten(container, service, canary, left, judged, monkeypatch):
    monkeypatch.setattr(worker, "_THIN_SECONDS", -1.0)
    store, began, judging = open_store(None, Retention(containers=1)), time.time(), judged.judging
    monkeypatch.setattr(worker, "open_store", lambda location: store)
    for start, name in (
        (generation(container="a"), "c"),
        (generation(container=container, service=service), canary),
    ):
        judged.take(start, runs(20, canary=name)).judging.turn()
        assert name in judging.findings[start.key]
        for day in range(4):  # a longer step would not count as elapsed time
            store.thin(began + 86_400 * day)
        judging.turn()
    found = {s.name: {c: {*finding.drifts} for c, finding in f.items()} for s, f in judging.findings.items()}
    assert found == left
    assert {s.name for s in judging._services} == {*found}
    judged.take(start, runs(240, canary=canary)).judging.turn()
    assert {*judging.findings[start.key][canary].drifts} == {"b"}
    store.close()


def test_canaries_of_a_service_beyond_the_limit_are_not_judged(judged, monkeypatch):
    monkeypatch.setattr(worker, "CANARIES", 2)
    for name in ("c", "d", "e", "c"):
        judged.take(OLD, runs(20, canary=name)).judging.turn()
    assert {*judged.judging.findings[S]} == {"c", "d"}
