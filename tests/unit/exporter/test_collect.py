from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stores import starts_of

from infercanary.contract.report import Metric, Report, Run, encode
from infercanary.contract.vocabulary import COLD_START_METRIC
from infercanary.exporter import collect
from infercanary.exporter.collect import Collector, backoff
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container, MemoryKill
from infercanary.exporter.expose import Exposition
from infercanary.exporter.history import History, RunSummary, summarise, waiting_share
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.poll import Prepared, prepared
from infercanary.exporter.probe_state import PolledProbe
from infercanary.judge.model import Generation, ServiceKey, kept
from infercanary.judge.origin import Origin
from infercanary.store.store import open_store

S = ServiceKey("", "s")


@pytest.mark.parametrize(
    ("failed", "seconds"),
    [(0, 5), (1, 5), (3, 5), (4, 10), (5, 20), (6, 40), (7, 60), (10_000, 60)],
)
def test_the_first_retries_are_quick_and_the_last_not_for_ever(failed: int, seconds: float) -> None:
    assert backoff(failed, 5.0) == seconds


def test_polling_slower_than_the_longest_back_off_stays_that_slow() -> None:
    assert backoff(9, 300.0) == 300.0


def run(canary: str, number: int, *latencies: float) -> Run:
    return Run(number, canary, 0.0, float(number), "ok" if latencies else "raised", latencies)


def test_a_run_in_short() -> None:
    summary = summarise(run("resnet18", 1, *(n / 1000 for n in range(20, 0, -1))))
    assert (summary.low, summary.high) == (0.001, 0.02)
    assert summary.median == pytest.approx(0.0105)
    assert summarise(run("resnet18", 1)).median is None


def test_the_share_of_the_latency_that_is_waiting() -> None:
    def waits(*each: tuple[float, float | None]) -> float:
        return waiting_share([RunSummary(at, "ok", "", 0.02, 0.02, 0.02, waited) for at, waited in each])

    assert waits(*((at, 0.005) for at in range(0, 600, 60))) == pytest.approx(0.25)
    assert math.isnan(waits(*((at, 0.005) for at in range(0, 240, 60)))), "of four runs nothing is known"
    assert math.isnan(waits(*((at, None) for at in range(0, 600, 60)))), "an older probe does not say it"
    old = [(at, 0.02) for at in range(0, 600, 60)]
    assert waits(*old, *((2000.0 + at, 0.0) for at in range(0, 600, 60))) == 0.0, "what is over is over"
    # On two cores nearly each run meets somebody, for a moment.
    assert waits(*((at, 0.001) for at in range(0, 600, 60))) == pytest.approx(0.05)


def test_history_is_bounded_in_runs_and_in_canaries() -> None:
    history = History()
    history.take(run("a", n, 0.01) for n in range(500))
    assert [history["a"][0].started_at, len(history["a"])] == [380.0, 120]
    history.take(run(f"bomb-{n}", n, 0.01) for n in range(1000))
    assert len(history) == 16
    assert "a" not in history


async def test_runs_that_a_crashed_probe_left_are_taken_once() -> None:
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64))
    sequences: list[int] = []

    async def answer(boot: str, *runs: tuple[str, int]) -> None:
        reported_runs = tuple(Run(number, "a", 0.0, 0.0, "ok", (0.01,), boot_id=of) for of, number in runs)
        newest = max((number for of, number in runs if not of), default=0)
        await collector.absorb(
            probe, encode(Report(1, boot, 0.0, f"{boot}.{newest}", 0, (), {}, reported_runs))
        )
        sequences.append(probe.runs_collected)

    await answer("one", ("", 1), ("", 2))
    # It died after its 4th run, and the next one found 1 to 4 in the journal: 3 and 4 are new to us.
    await answer("two", ("one", 3), ("one", 4), ("", 1))
    await answer("two", ("", 1), ("", 2))
    # Whoever lies about what we have gets nothing counted twice.
    await answer("three", ("two", 1), ("two", 2), ("", 1), ("", 1))
    await collector.close()
    assert sequences == [2, 5, 6, 7]


async def test_the_judge_learns_that_a_container_is_gone() -> None:
    judging = Judging(None)
    collector = Collector(ExporterConfig(), Exposition(), judging, ())
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64))
    never_ran = PolledProbe(Container(service="s", name="d", id="1" * 64))
    collector.probes = {each.key: each for each in (probe, never_ran)}
    report = Report(1, "boot", 0.0, "boot.1", 0, (), {}, (Run(1, "a", 0.0, 0.0, "ok", (0.01,)),))

    def ended_at() -> list[float]:
        judging.turn()
        assert judging._store is not None
        return [start.ended_at for start in starts_of(judging._store, S)]

    await collector.absorb(probe, encode(report))
    assert ended_at() == [0.0]
    before = time.time()
    collector.follow([])
    [at] = ended_at()
    assert before <= at <= time.time()
    back = PolledProbe(probe.container)
    await collector.absorb(back, encode(report))
    await collector.close()
    assert ended_at() == [0.0], "it was there all the time"


async def test_runs_that_a_crashed_probe_left_keep_the_cold_start_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "judge.sqlite"
    judging = Judging(path)
    collector = Collector(ExporterConfig(), Exposition(), judging, ())
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64))
    load = Metric(COLD_START_METRIC, "gauge", "Cold start.", ("canary", "step"))

    async def answer(boot: str, loaded: float | None, *runs: tuple[str, int]) -> None:
        reported_runs = tuple(Run(number, "a", 0.0, 0.0, "ok", (0.01,), boot_id=of) for of, number in runs)
        families = (load.family({("a", "load"): loaded}),) if loaded is not None else ()
        await collector.absorb(
            probe, encode(Report(1, boot, 0.0, f"{boot}.0", 0, families, {}, reported_runs))
        )

    await answer("one", 2.0, ("", 1))
    await answer("two", None, ("one", 2))  # it still opens
    await answer("two", 9.0, ("one", 3), ("", 1))
    await collector.close()
    judging.start()
    judging.stop()
    store = open_store(path)
    found = {
        start.boot_id: (start.cold_start, [s.sequence for s in several])
        for start, several in store.generations(S, "a")
    }
    store.close()
    assert found == {"one": ({"a": {"load": 2.0}}, [1, 2, 3]), "two": ({"a": {"load": 9.0}}, [1])}


async def test_a_start_that_the_kernel_ended_is_known_to_the_judge() -> None:
    judging = Judging(None)
    collector = Collector(ExporterConfig(), Exposition(), judging, ())
    container = Container(service="s", name="c", id="1" * 64, image="i:2", image_id="sha256:2")
    probe = collector.probes[container.key] = PolledProbe(container)

    async def answer(boot: str, *numbers: int) -> None:
        reported_runs = tuple(Run(number, "a", 0.0, 0.0, "ok", (0.01,)) for number in numbers)
        await collector.absorb(probe, encode(Report(1, boot, 0.0, f"{boot}.0", 0, (), {}, reported_runs)))

    def end(at: float, of: str = "1" * 64) -> None:
        collector.note_end(MemoryKill(container, of, at))

    await answer("one", 1)
    end(10.0)  # it does not report again
    await answer("two")
    end(20.0)  # before it ran
    await answer("three", 1)
    end(30.0, "2" * 64)  # another container of that name
    await answer("three", 2)
    await collector.close()
    queued = [
        (r.generation.boot_id, r.generation.memory_kills, len(r.runs)) for r in judging._queue.waiting()
    ]
    assert queued == [("one", (), 1), ("one", (10.0,), 0), ("three", (20.0,), 1), ("three", (20.0,), 1)]
    [point] = [point for family in collector.kills.families() for point in family.points]
    assert (point.labels, point.value) == (("s", "c", "i:2", "sha256:2"), 3.0)


async def test_a_crash_loop_counts_no_run_again() -> None:
    """Each probe that dies before it has run anything leaves the journal of an earlier one to the next."""
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64))
    for boot in ("one", *(f"dies-{number}" for number in range(20))):
        of = "" if boot == "one" else "one"
        reported_runs = tuple(Run(number, "a", 0.0, 0.0, "ok", (0.01,), boot_id=of) for number in (1, 2, 3))
        await collector.absorb(probe, encode(Report(1, boot, 0.0, f"{boot}.0", 0, (), {}, reported_runs)))
    await collector.close()
    assert probe.runs_collected == 3
    assert len(probe.sequences) == 1


@pytest.mark.parametrize("is_known", [True, False])
async def test_runs_of_a_start_before_the_exporters_own_are_the_stores_to_place(
    tmp_path: Path, is_known: bool
) -> None:
    """The probe died while no exporter ran: only the store can know which image that start had."""
    path = tmp_path / "judge.sqlite"
    if is_known:
        store = open_store(path)
        start = Generation(service="s", container="c", boot_id="one", started_at=5.0, image_id="sha256:1")
        store.take(start, [kept(run("a", 1, 0.01))])
        store.close()
    judging = Judging(path)
    collector = Collector(ExporterConfig(), Exposition(), judging, ())
    origin = Origin("9f8e7d6c5b4a")
    probe = PolledProbe(Container(service="s", name="c", id="0" * 64, image_id="sha256:2", origin=origin))
    reported_runs = tuple(Run(number, "a", 0.0, 0.0, "ok", (0.01,), boot_id="one") for number in (1, 2, 3))
    own = Run(1, "a", 0.0, 0.0, "ok", (0.01,))
    await collector.absorb(probe, encode(Report(1, "two", 9.0, "two.1", 0, (), {}, (*reported_runs, own))))
    await collector.close()
    judging.start()
    judging.stop()
    store = open_store(path)
    found = {
        start.boot_id: (start.image_id, start.started_at, [s.sequence for s in several])
        for start, several in store.generations(S, "a")
    }
    started = store.start_of(S, "c", "two")
    store.close()
    earlier = {"one": ("sha256:1", 5.0, [1, 2, 3])} if is_known else {}
    assert found == {**earlier, "two": ("sha256:2", 9.0, [1])}
    assert started is not None and started.origin == origin


async def test_a_sidecars_runs_count_though_the_clock_was_set_back_after_its_server_started() -> None:
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    probe = PolledProbe(
        Container(service="s", name="c", id="0" * 64, watched_id="7" * 64, watched_since=time.time() + 3600)
    )
    for number, ago in enumerate((100, 0)):
        at = time.time() - ago
        run = Run(
            sequence=number, canary="c", scheduled_at=at, started_at=at, outcome="ok", latencies=(0.01,)
        )
        await collector.absorb(probe, encode(Report(1, "one", at, f"one.{number}", 0, (), {}, (run,))))
    await collector.close()
    assert probe.sequences == {"one": 1}
    assert probe.runs_collected == 1


@pytest.mark.parametrize(("since", "counts"), [(1000.0, True), (1030.0, True), (5000.0, False)])
async def test_a_sidecars_start_is_not_that_of_a_server_that_came_later(since: float, counts: bool) -> None:
    """Its own start, and the answers that it compares with, were those of the server before."""
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    watching = Container(service="s", name="c", id="0" * 64, watched_id="7" * 64, watched_since=since)
    probe = PolledProbe(watching)
    load = Metric(COLD_START_METRIC, "gauge", "Cold start.", ("canary", "step")).family({("a", "load"): 2.0})
    report = Report(1, "one", 1000.0, "one.0", 0, (load,), {}, (), {"a": (1.0, 2.0)})
    await collector.absorb(probe, encode(report))
    await collector.close()
    generation = probe.generations["one"]
    assert generation.outputs == ({"a": (1.0, 2.0)} if counts else {})
    assert bool(generation.cold_start) is counts


async def test_a_service_ends_with_its_last_container_and_is_named_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(collect, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: now))
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())

    def ended(*containers: str) -> list[tuple[str, str, float]]:
        collector.follow([Container(service=name[0], name=name, id=name * 32) for name in containers])
        return [(gone.service, gone.replica, now - at) for gone, at in collector.ended]

    assert ended("a1", "a2", "b1") == []
    assert ended("a2", "b1") == [], "one replica less"
    assert ended("a2") == [("b", "b1", 0.0)]
    now += 10.0
    assert ended() == [("b", "b1", 10.0), ("a", "a2", 0.0)]
    assert ended("b1") == [("a", "a2", 0.0)]
    now += 3600.0
    assert ended("b1") == []
    await collector.close()


async def test_reports_that_come_at_once_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To hand a thousand to threads at once held up the event loop for 300 ms; each takes memory while it is read."""
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    reading, most = 0, 0

    def noted(*given: Any) -> Prepared:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.001)
        reading -= 1
        return prepared(*given)

    monkeypatch.setattr(collect, "prepared", noted)
    probes = [PolledProbe(Container(service="s", name=f"c{n}")) for n in range(20)]
    body = encode(Report(1, "boot", 0.0, "boot.0", 0, (), {}, ()))
    await asyncio.gather(*(collector.absorb(probe, body) for probe in probes))
    await collector.close()
    assert all(probe.up for probe in probes) and most == 1
