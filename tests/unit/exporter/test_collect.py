import asyncio
import math
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from infercanary.contract.report import Run
from infercanary.exporter import collect
from infercanary.exporter.collect import backoff
from infercanary.exporter.discovery.base import Container, MemoryKill
from infercanary.exporter.history import History, RunSummary, waiting_share
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.poll import prepared
from infercanary.judge.model import kept
from infercanary.judge.origin import Origin
from infercanary.store.store import open_store
from tests.scenarios import cases
from tests.unit.exporter.factories import COLD_START, S, collecting, generation, probe, report, run


@pytest.fixture
def judging(tmp_path):
    return Judging(tmp_path / "judge.sqlite")


@pytest.fixture
def collector(judging):
    return collecting(judging)


async def stored(collector, judging, path):
    await collector.close()
    judging.start()
    judging.stop()
    with closing(open_store(path / "judge.sqlite")) as store:
        found = store.generations(S, "a")
        return {start.boot_id: (start, [sample.sequence for sample in several]) for start, several in found}


def test_the_first_retries_are_quick_and_the_last_not_for_ever():
    assert [backoff(failed, 5.0) for failed in (0, 3, 4, 5, 6, 7, 10_000)] == [5, 5, 10, 20, 40, 60, 60]
    assert backoff(9, 300.0) == 300.0  # a report does not shorten a longer poll interval


@cases(
    [
        (10, 0.005, 0.25),
        (4, 0.005, math.nan),  # four runs are too few
        (10, None, math.nan),  # an older probe does not report CPU wait
        (10, 0.0, 0.0),
        (10, 0.001, 0.05),  # on two cores, almost every run has a short CPU wait
    ],
)
def test_the_share_of_the_latency_that_is_waiting(runs, waited, share):
    def summaries(begin, count, waited):
        return [RunSummary(begin + 60 * n, "ok", "", 0.02, 0.02, 0.02, waited) for n in range(count)]

    over = summaries(0.0, 10, 0.02)
    assert waiting_share([*over, *summaries(2000.0, runs, waited)]) == pytest.approx(share, nan_ok=True)


def test_history_is_bounded_in_runs_and_in_canaries():
    history = History()
    history.take(run(n, started_at=float(n)) for n in range(500))
    assert [history["a"][0].started_at, len(history["a"])] == [380.0, 120]
    history.take(run(n, f"bomb-{n}") for n in range(1000))
    assert len(history) == 16
    assert "a" not in history


async def test_runs_that_a_crashed_probe_left_are_taken_once(collector):
    asked, counts = probe(), []
    for boot, several in (
        ("one", [("", 1), ("", 2)]),
        # The probe died after its 4th run. The next probe found runs 1 to 4 in the journal, of which 3 and 4
        # are new.
        ("two", [("one", 3), ("one", 4), ("", 1)]),
        ("two", [("", 1), ("", 2)]),
        # A probe that lies about the exporter's position cannot make a run count twice.
        ("three", [("two", 1), ("two", 2), ("", 1), ("", 1)]),
        # A probe that dies before its first run leaves the journal of an earlier probe to the next probe.
        *((f"dies-{n}", [("one", 1), ("one", 4)]) for n in range(20)),
    ):
        await collector.absorb(asked, report(boot, [run(number, of=of) for of, number in several]))
        counts.append(asked.runs_collected)
    await collector.close()
    assert counts == [2, 5, 6, 7, *[7] * 20]
    assert len(asked.sequences) == 3


async def test_the_judge_learns_that_a_container_is_gone(collector, judging):
    asked, never_ran = probe(), probe("d")
    collector.probes = {each.key: each for each in (asked, never_ran)}
    await collector.absorb(asked, report("boot", [run(1)]))
    before = time.time()
    collector.follow([])
    after = time.time()
    await collector.absorb(probe(), report("boot", [run(1)]))
    await collector.close()
    ran, gone, returned = (each.generation.ended_at for each in judging._queue.waiting())
    assert ran == returned == 0.0  # the container existed all the time
    assert before <= gone <= after


async def test_runs_that_a_crashed_probe_left_keep_the_cold_start_of_their_own(collector, judging, tmp_path):
    asked = probe()
    reports: list[tuple[str, dict[tuple[str, ...], float], list[Run]]] = [
        ("one", {("a", "load"): 2.0, ("a", "warm_up"): 1.0, ("a", "first_run"): 0.0}, [run(1)]),
        ("two", {}, [run(2, of="one")]),
        ("two", {("a", "load"): 9.0}, [run(3, of="one"), run(1)]),
    ]
    for boot, steps, several in reports:
        await collector.absorb(asked, report(boot, several, [COLD_START.family(steps)]))
    found = await stored(collector, judging, tmp_path)
    cold = {boot: (start.cold_start, numbers) for boot, (start, numbers) in found.items()}
    assert cold == {"one": ({"a": {"load": 2.0}}, [1, 2, 3]), "two": ({"a": {"load": 9.0}}, [1])}


async def test_a_start_that_the_kernel_ended_is_known_to_the_judge(collector, judging):
    asked = probe(id="1" * 64, image="i:2", image_id="sha256:2")
    collector.probes[asked.key] = asked
    for boot, runs, killed_at, of in (
        ("one", [run(1)], 10.0, "1"),
        ("two", [], 20.0, "1"),
        ("three", [run(1)], 30.0, "2"),
        ("three", [run(2)], None, ""),
    ):
        await collector.absorb(asked, report(boot, runs))
        if killed_at:
            collector.note_end(MemoryKill(asked.container, of * 64, killed_at))
    await collector.close()
    starts = [(each.generation, len(each.runs)) for each in judging._queue.waiting()]
    queued = [(start.boot_id, start.memory_kills, count) for start, count in starts]
    assert queued == [("one", (), 1), ("one", (10.0,), 0), ("three", (20.0,), 1), ("three", (20.0,), 1)]
    [family] = [family for family in collector.kills.families() if family.points]
    assert [(point.labels, point.value) for point in family.points] == [(("s", "c", "i:2", "sha256:2"), 3.0)]


@cases([True, False])
async def test_runs_of_a_start_before_the_exporters_own_are_the_stores_to_place(
    is_known, collector, judging, tmp_path
):
    """The probe died while no exporter ran, so only the store can know the start's image."""
    if is_known:
        with closing(open_store(tmp_path / "judge.sqlite")) as store:
            store.take(generation("one", container="c", started_at=5.0), [kept(run(1))])
    asked = probe(image_id="sha256:2", origin=Origin("9f8e7d6c5b4a"))
    several = [*(run(number, of="one") for number in (1, 2, 3)), run(1)]
    await collector.absorb(asked, report("two", several, started_at=9.0))
    found = await stored(collector, judging, tmp_path)
    assert found["two"][0].origin == asked.container.origin
    places = {boot: (start.image_id, start.started_at, numbers) for boot, (start, numbers) in found.items()}
    earlier = {"one": ("sha256:1", 5.0, [1, 2, 3])} if is_known else {}
    assert places == {**earlier, "two": ("sha256:2", 9.0, [1])}


async def test_a_sidecars_runs_count_though_the_clock_was_set_back_after_its_server_started(collector):
    asked = probe(watched_id="7" * 64, watched_since=time.time() + 3600)
    for number, ago in enumerate((100, 0)):
        at = time.time() - ago
        await collector.absorb(asked, report("one", [run(number, started_at=at)], started_at=at))
    await collector.close()
    assert (asked.sequences, asked.runs_collected) == ({"one": 1}, 1)


@cases([(1000.0, True), (1030.0, True), (5000.0, False)])
async def test_a_sidecars_start_is_not_that_of_a_server_that_came_later(since, counts, collector):
    """The start's cold start and reference outputs belong to the earlier server."""
    asked, steps = probe(watched_id="7" * 64, watched_since=since), COLD_START.family({("a", "load"): 2.0})
    body = report("one", (), [steps], started_at=1000.0, outputs={"a": (1.0, 2.0)})
    await collector.absorb(asked, body)
    await collector.close()
    start = asked.generations["one"]
    assert (start.outputs, bool(start.cold_start)) == ({"a": (1.0, 2.0)} if counts else {}, counts)


async def test_a_service_ends_with_its_last_container_and_is_named_for_an_hour(collector, monkeypatch):
    now = 100.0
    monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: now))
    for seconds, containers, ended in (
        (0, "a1 a2 b1", []),
        (0, "a2 b1", []),
        (0, "a2", [("b", "b1", 0.0)]),
        (10, "", [("b", "b1", 10.0), ("a", "a2", 0.0)]),
        (0, "b1", [("a", "a2", 0.0)]),
        (3600, "b1", []),
    ):
        now += seconds
        collector.follow([Container(service=n[0], name=n, id=n * 32) for n in containers.split()])
        assert [(gone.service, gone.replica, now - at) for gone, at in collector.ended] == ended
    await collector.close()


async def test_reports_that_come_at_once_are_read_one_by_one(collector, monkeypatch):
    """Regression: a thousand reports in parallel threads blocked the event loop for 300 ms, and each needs memory."""
    reading, most = 0, 0

    def noted(*given):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.001)
        reading -= 1
        return prepared(*given)

    monkeypatch.setattr(collect, "prepared", noted)
    probes = [probe(f"c{n}", id="") for n in range(20)]
    await asyncio.gather(*(collector.absorb(each, report()) for each in probes))
    await collector.close()
    assert all(each.up for each in probes)
    assert most == 1
