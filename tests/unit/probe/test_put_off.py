"""Runs are put off where too little memory is left for what a round takes for a moment: control groups made by hand."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fresh import in_a_fresh_process

from infercanary.contract.report import Run
from infercanary.probe.canary import Canary
from infercanary.probe.failing import DETAIL, FAILURES
from infercanary.probe.footprint import RoundFootprint
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import resident
from infercanary.probe.room import Room
from infercanary.probe.rounds import Rounds
from infercanary.probe.sampling import Sampling
from infercanary.probe.sweep import Sweep, Sweeping
from infercanary.probe.targets import Target
from infercanary.probe.timing import HostClock

MIB = 1 << 20


class Container:
    """Of v2, with a process in it; sizes in MiB. The host has 64 GiB."""

    def __init__(self, folder: Path, limit: int = 1000) -> None:
        self.root, self.proc = folder / "cgroup", folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        self.root.mkdir()
        (self.root / "cgroup.controllers").touch()
        (self.root / "memory.max").write_text(str(limit * MIB))
        (self.root / "memory.stat").write_text("inactive_file 0\n")
        (self.proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {64 << 20} kB\n")
        (self.proc / "self/cgroup").write_text("0::/\n")
        self.process(100, 100)
        self.uses(400)

    def uses(self, size: int) -> None:
        """What is taken of the limit, by all."""
        (self.root / "memory.current").write_text(str(size * MIB))

    def process(self, resident: int, peak: int) -> None:
        """What the process has, and its peak since that was counted anew."""
        pages = resident * MIB // resource.getpagesize()
        (self.proc / "self/statm").write_text(f"9999999 {pages} 0 0 0 0 0\n")
        (self.proc / "self/status").write_text(f"Name:\tx\nVmHWM:\t{peak << 10} kB\nVmRSS:\t1 kB\n")
        (self.proc / "self/clear_refs").write_text("")

    def footprint(self, reserve: int | None = None) -> RoundFootprint:
        return RoundFootprint(Room(reserve, self.root, self.proc), self.proc / "self")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


class Counting(Target):
    """A canary's target that counts its repeats."""

    clock = HostClock()
    repeats = 0

    def open(self) -> None:
        pass

    def run(self, phase: Any) -> None:
        self.repeats += 1

    def values(self, result: None) -> list[float]:
        return [1.0]

    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def test_runs_wait_while_the_server_has_their_room_and_then_go_on(
    container: Container, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, tally = Counting(), Tally()
    canary = Canary("a", target, tally, 30, 300)
    canary.open(300)
    room = Room(None, container.root, container.proc)
    rounds = Rounds(
        [canary], [], None, Sampling((), tally), RoundFootprint(room, container.proc / "self"), tally,
        threading.Event(),
    )  # fmt: skip
    now = 0.0
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", lambda: now)

    def run() -> list[Run]:
        return rounds.run([(canary, 5)], time.monotonic())[0]

    assert [ran.outcome for ran in run()] == ["ok"]
    container.uses(910)
    before, waits = target.repeats, []
    for used in (910, 911, 912, 913, 914):
        container.uses(used)
        [ran] = run()
        assert (ran.outcome, ran.latencies, ran.controls) == ("raised", (), {})
        assert not run(), "5 s or more pass before it is tried again"
        waits.append(round(canary._retry_at - now))
        now = canary._retry_at + 1
    assert target.repeats == before
    assert waits == [5, 10, 20, 40, 80]
    said = (
        "runs are put off: they take up to 32 MiB for a moment; 26 MiB are left of the container's limit of 1000 MiB, "
        "less 64 MiB in reserve; grant more memory"
    )
    assert canary.state == "out_of_memory" and ran.detail == said
    points = {f.name: {p.labels: p.value for p in f.points} for f in tally.families()}
    assert points[FAILURES.name]["a", "out_of_memory"] == 5
    assert list(points[DETAIL.name]) == [("a", "out_of_memory", said)]
    container.uses(400)
    assert [ran.outcome for ran in run()] == ["ok"]
    assert canary.state in ("warming", "steady") and target.repeats > before
    assert [record.getMessage() for record in caplog.records] == [f"canary a: {said}"]


def test_the_largest_of_the_last_rounds_tells_what_the_next_takes(container: Container) -> None:
    footprint = container.footprint()
    footprint.begin()
    assert (container.proc / "self/clear_refs").read_text() == "5"
    container.process(110, 180)
    footprint.look()
    container.process(105, 120)  # another run has counted it anew
    footprint.look()
    footprint.end()
    container.uses(1000 - 64 - 80)
    assert not footprint.lacks()
    container.uses(1000 - 64 - 79)
    assert "they take up to 80 MiB for a moment; 79 MiB are left" in footprint.lacks()
    for _ in range(9):
        footprint.lacks()
    assert not footprint.lacks(), "it is forgotten with time: the server may have taken it"
    container.uses(1000 - 64 - 7)
    assert "up to 8 MiB" in footprint.lacks()


def test_in_a_servers_process_an_earlier_peak_is_not_the_rounds(container: Container) -> None:
    footprint = container.footprint()
    footprint.is_guest = True
    container.process(100, 900)
    for now, peak in ((140, 900), (100, 950)):
        footprint.begin()
        assert (container.proc / "self/clear_refs").read_text() == ""
        container.process(now, peak)
        footprint.look()
        footprint.end()
        container.uses(930)
        took = 40 if peak == 900 else 950 - 140
        assert f"they take up to {took} MiB for a moment" in footprint.lacks()


@pytest.mark.parametrize(
    ("limit", "reserve", "is_left", "is_put_off"),
    [
        *((128, None, 48, False), (128, None, 47, True)),
        *((1000, 0, 32, False), (1000, 0, 31, True)),
        *((1000, 16 * MIB, 48, False), (1000, 16 * MIB, 47, True)),
    ],
)
def test_a_small_limit_keeps_an_eighth_and_a_small_reserve_itself(
    tmp_path: Path, limit: int, reserve: int | None, is_left: int, is_put_off: bool
) -> None:
    container = Container(tmp_path, limit)
    container.uses(limit - is_left)
    assert bool(container.footprint(reserve).lacks()) == is_put_off


def test_page_cache_is_no_lack(container: Container) -> None:
    container.uses(1000)
    assert container.footprint().lacks()
    (container.root / "memory.stat").write_text(f"inactive_file {40 * MIB}\nactive_file {56 * MIB}\n")
    assert not container.footprint().lacks()


def test_where_nothing_can_be_read_nothing_is_put_off(tmp_path: Path) -> None:
    assert not RoundFootprint(Room(None, tmp_path, tmp_path), tmp_path).lacks()


class Scattering(Counting):
    """Each request takes 64 MiB in pieces that malloc keeps in the thread's heap, below one that stays."""

    scatters = False

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def copy_with_batch(self, batch: int) -> Scattering:
        return self

    def run(self, phase: Any) -> None:
        if not self.scatters:
            return
        pieces = [b"\1" * 100_000 for _ in range(640)]
        if len(self.kept) < 4:
            self.kept.append(pieces[-1])


def grown_by_a_sweep() -> int:
    """Bytes."""
    target, tally = Scattering(), Tally()
    canary = Canary("a", target, tally, 30, 300)
    canary.open(300)
    sweeping = Sweeping(canary, target, Sweep(batches=(1, 2), seconds=1), 1e-6, 30.0, tally)
    target.scatters, before = True, resident()
    assert before is not None
    for _ in range(2):
        sweeping.step(sweeping.next_at + 1)
    assert target.kept and sweeping._left is None
    after = resident()
    canary.close(5)
    assert after is not None
    return after - before


def test_what_a_sweep_took_is_given_back() -> None:
    """In a process of its own, for malloc keeps more once it freed a large block."""
    assert in_a_fresh_process(grown_by_a_sweep) < 16 * MIB
