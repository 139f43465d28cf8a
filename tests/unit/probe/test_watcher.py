"""What is refused before it is taken, and what is ended or closed at the reserve: control groups made by hand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fresh import in_a_fresh_process

from infercanary.command.settings import UsageError
from infercanary.contract.report import Run
from infercanary.probe import measures, memory, watcher
from infercanary.probe.canary import Canary
from infercanary.probe.canary_metrics import DETAIL, FAILURES
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load
from infercanary.probe.loop import Probe
from infercanary.probe.memory import CONTEXT, CONTROLS, Ended, HostMemory
from infercanary.probe.rounds import Rounds
from infercanary.probe.sampling import Sampling
from infercanary.probe.sweep import LATENCY, Sweep, Sweeping
from infercanary.probe.targets import DeviceMemory, Failure, Need, Target
from infercanary.probe.watcher import Memory

GIB, MIB = 1 << 30, 1 << 20
LIMIT = "the container's limit of 1000 MiB"


class Container:
    """Of v2, with a process in it; sizes in MiB. The host has 64 GiB."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc = folder / "cgroup", folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        self.root.mkdir()
        (self.root / "cgroup.controllers").touch()
        (self.root / "memory.max").write_text(str(1000 * MIB))
        self.caches(0)
        (self.proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {64 << 20} kB\n")
        (self.proc / "self/cgroup").write_text("0::/\n")
        self.process(100)
        self.uses(400)

    def uses(self, size: int) -> None:
        """What is taken of the limit, by all."""
        (self.root / "memory.current").write_text(str(size * MIB))

    def caches(self, active: int) -> None:
        (self.root / "memory.stat").write_text(f"inactive_file 0\nactive_file {active * MIB}\n")

    def process(self, resident: int, peak: int = 100) -> None:
        """What the process has, and its peak since that was counted anew."""
        self.resident, self.peak = resident * MIB, peak * MIB

    def memory(self, reserve: int | None = None, **targets: Target) -> Memory:
        found = Memory(targets, HostMemory(reserve, self.root, self.proc))
        found.owns_process = True
        found._thread = threading.current_thread()  # a test looks itself
        return found


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    found = Container(tmp_path)
    monkeypatch.setattr(watcher, "resident", lambda: found.resident)
    monkeypatch.setattr(watcher, "peak", lambda: found.peak)
    return found


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[list[Ended]]:
    """What each new process would know."""
    found: list[list[Ended]] = []
    monkeypatch.setattr(memory, "start_anew", lambda ended: found.append(list(ended)))
    return found


class Small(Target):
    """Counts its repeats; asks for what a test says."""

    def __init__(self, *needs: Need, device: str = "cpu") -> None:
        self.needs, self.device = needs, device
        self.opened = self.closed = self.repeats = 0

    def open(self) -> None:
        self.ask_for_memory(self.needs)
        self.opened += 1

    def run(self, phase: Any) -> Any:
        self.repeats += 1

    def values(self, result: Any) -> list[float]:
        return [1.0]

    def close(self) -> None:
        self.closed += 1


def points(tally: Tally, metric: Any) -> dict[tuple[str, ...], Any]:
    return {p.labels: p.value for f in tally.families() if f.name == metric.name for p in f.points}


def why_not(work: Callable[[], Any]) -> str:
    """Why memory did not suffice; empty if it did."""
    try:
        work()
    except Failure as error:
        return str(error) if error.reason == "out_of_memory" else f"for another reason: {error.reason}"
    return ""


# Asking


def test_a_line_says_place_need_room_whose_and_fix(container: Container) -> None:
    found = container.memory()
    needs = [
        Need("inputs[0]", 700 * MIB, "[9] int8", "give a smaller shape"),
        Need("model", 2 * MIB, "it", ""),
    ]
    assert why_not(lambda: found.ask("big", "cpu", needs)) == (
        "canaries.big.inputs[0]: [9] int8 needs 700 MiB, 702 MiB with the others; 536 MiB are left of "
        f"{LIMIT}, less 64 MiB in reserve; give a smaller shape, or grant more memory"
    )
    needs[0] = needs[0]._replace(size=534 * MIB)
    found.ask("big", "cpu", needs)
    container.caches(300)
    assert why_not(lambda: found.ask("big", "cpu", [*needs, needs[1]])), "a server's page cache is left alone"


def test_a_device_is_asked_for_with_a_context_and_bound(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no driver here, so that no process has a context."""
    left = CONTEXT + CONTROLS + 2 * MIB
    used = {1: (80 * GIB - int(0.02 * 80 * GIB) - left, 80 * GIB)}
    monkeypatch.setattr(memory, "device_memory", lambda number: used.get(number))
    model = Need("model", 2 * MIB, "its file", "take a smaller model", "device")
    target = Small(model, device="cuda:1")
    found = container.memory(a=target)
    target.open()
    assert target.device_memory_left() == left
    target.needs = (model._replace(size=3 * MIB),)
    assert why_not(target.open).startswith(
        "canaries.a.device: a CUDA context, with the controls, needs 912 MiB"
    )
    used.clear()
    target.open()
    assert target.device_memory_left() is None
    used[1] = (0, GIB)
    found.owns_process = False
    assert target.device_memory_left() is None, "a server's allocator serves the server"
    found.ask("a", "cpu", [model._replace(size=GIB << 9)])


def test_a_canary_waits_for_room_and_then_opens(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    container.uses(900)
    tally, target = Tally(), Small(Need("inputs[0]", 200 * MIB, "[9] int8", "give less"))
    canary = Canary("a", target, tally, 30, 300, memory=container.memory(a=target))
    now = 100.0
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", lambda: now)
    waits = []
    for _ in range(6):
        canary.open(30)
        waits.append(round(canary._retry_at - now))
        canary.open(30)  # before its time nothing happens
        now = canary._retry_at + 1
    assert (canary.state, target.opened, waits) == ("out_of_memory", 0, [60, 120, 240, 480, 600, 600])
    assert points(tally, FAILURES)["a", "out_of_memory"] == 6
    [(name, reason, detail)] = points(tally, DETAIL)
    assert (name, reason) == ("a", "out_of_memory") and "canaries.a.inputs[0]: [9] int8 needs" in detail
    container.uses(600)
    canary.open(30)
    assert canary.is_fit and target.opened == 1


def test_the_probe_answers_its_targets() -> None:
    target = Small(Need("inputs[0]", 1, "it", "give less"))
    probe = Probe({"a": target}, listen="127.0.0.1:0", memory_reserve=1 << 60, controls=False, samplers=())
    assert not probe._memory.owns_process, "it may be anybody's: only the command says that it may start anew"
    assert "1073741824.00 GiB in reserve" in why_not(target.open)
    for name in ("memory_reserve", "device_memory_reserve"):
        with pytest.raises(UsageError, match=f"Probe: {name}: expected a whole number >= 0"):
            Probe({"a": target}, **{name: -1})  # type: ignore[arg-type]


# Rounds


def test_runs_wait_while_the_server_has_their_room_and_then_go_on(
    container: Container, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, tally = Small(), Tally()
    canary = Canary("a", target, tally, 30, 300)
    canary.open(300)
    rounds = Rounds([canary], [], None, Sampling((), tally), container.memory(), tally, threading.Event())
    now = 0.0
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", lambda: now)

    def run() -> list[Run]:
        return rounds.run([(canary, 5)], time.monotonic())[0]

    assert [ran.outcome for ran in run()] == ["ok"]
    before, waits = target.repeats, []
    for used in (910, 911, 912, 913, 914):
        container.uses(used)
        [ran] = run()
        assert (ran.outcome, ran.latencies, ran.controls) == ("raised", (), {})
        assert not run(), "5 s or more pass before it is tried again"
        waits.append(round(canary._retry_at - now))
        now = canary._retry_at + 1
    assert (target.repeats, waits) == (before, [5, 10, 20, 40, 80])
    said = (
        f"runs are put off: they take up to 32 MiB for a moment; 26 MiB are left of {LIMIT}, less 64 MiB in reserve; "
        "grant more memory"
    )
    assert canary.state == "out_of_memory" and ran.detail == said
    assert points(tally, FAILURES)["a", "out_of_memory"] == 5
    assert list(points(tally, DETAIL)) == [("a", "out_of_memory", said)]
    container.uses(400)
    assert [ran.outcome for ran in run()] == ["ok"]
    assert canary.state in ("warming", "steady") and target.repeats > before
    assert [record.getMessage() for record in caplog.records] == [f"canary a: {said}"]


@pytest.mark.parametrize(
    ("limit", "reserve", "left", "needs"),
    [(128, None, 48, 32), (1000, 0, 32, 32), (1000, 16 * MIB, 48, 32), (1000, None, 144, 80)],
)
def test_what_a_round_needs(
    container: Container, tmp_path: Path, limit: int, reserve: int | None, left: int, needs: int
) -> None:
    """32 MiB; or what the last run took at its peak and gave back."""
    (container.root / "memory.max").write_text(str(limit * MIB))
    found = container.memory(reserve)
    container.process(100, 100 + needs)
    found.note_run()
    container.uses(limit - left)
    assert found.lack_for_round() == ""
    container.uses(limit - left + 1)
    assert f"up to {needs} MiB for a moment; {needs - 1} MiB are left" in found.lack_for_round()
    assert f"up to {needs + 2} MiB" in found.lack_for_round(2 * MIB)
    container.caches(1)
    assert not found.lack_for_round(), "the kernel gives page cache back before it ends a process"
    container.caches(0)
    found.owns_process = False
    found.note_run()
    assert ("up to 32 MiB" in found.lack_for_round()) == (needs == 32), "a server's peak is its own"
    assert not Memory({}, HostMemory(None, tmp_path / "none", tmp_path / "none")).lack_for_round()


# Watching


@pytest.mark.parametrize("is_guest", [False, True])
def test_what_grows_is_ended_where_the_reserve_is_touched(
    container: Container, anew: list[list[Ended]], is_guest: bool
) -> None:
    found = container.memory()
    found.owns_process = not is_guest
    assert found.look() is None
    container.process(50)
    found.open("open", lambda: container.process(100))
    with found.point("a", Small(), Load(2, 1)) as a, found.point("b", Small(), Load(8, 1)) as b:
        container.process(147)
        with found.point("c", Small(), Load(1, 1)) as c:
            container.process(154)
            container.uses(935)
            assert (found.look(), anew, a.why) == (0.01, [], "")
            container.uses(950)
            found.look()
    assert found.closing == [], "what grows gives its memory back first"
    why = (
        f"canaries.a.sweep: the point was ended when it had taken 54 MiB, with nothing left of {LIMIT} but the 64 MiB "
        "in reserve; name fewer or smaller loads, or grant more memory"
    )
    if is_guest:
        assert (a.why, bool(b.why), c.why, anew) == (why, True, "", [])
        assert why_not(a.check) == why
        return
    [ended] = anew
    assert [(each.canary, each.load) for each in ended] == [("a", (2, 1)), ("b", (8, 1))] and ended[
        0
    ].why == why


@pytest.mark.parametrize("is_guest", [False, True])
def test_what_others_take_closes_the_largest_at_the_last_64_mib(
    container: Container, anew: list[list[Ended]], is_guest: bool
) -> None:
    found = container.memory()
    found.owns_process = not is_guest
    for name, size in (("a", 20), ("b", 30), ("c", 1)):
        container.process(100)
        found.open(name, lambda size=size: container.process(100 + size))  # type: ignore[misc]
    container.uses(960)
    container.caches(25)
    assert found.look() == 0.1 and not (anew or found.closing)
    container.caches(24)
    found.run_began = time.monotonic()
    assert found.look() == 0.1 and not (anew or found.closing), "a run is not disturbed in its first second"
    found.run_began -= 2
    found.look()
    ended = found.closing if is_guest else anew[0]
    assert [each.canary for each in ended] == ["b"] and "to give 30 MiB back, with nothing left" in ended[
        0
    ].why
    if is_guest:
        assert found.alarm.is_set()
        found.look()
        assert [each.canary for each in ended] == ["b"], "one after the other"
        for closed in ("a", None):
            ended.clear()
            found.look()
            assert [each.canary for each in ended] == [closed] * bool(closed), "closing the third is no help"


@pytest.mark.parametrize(
    ("used", "opening", "pause"),
    [
        (936, False, 0.1), (780, False, 0.39), (100, False, 1.0),
        (936, True, 0.01), (100, True, 0.1), (736, True, 0.0488),
    ],
)  # fmt: skip
def test_it_is_looked_as_often_as_little_is_left(
    container: Container, used: int, opening: bool, pause: float
) -> None:
    found = container.memory()
    container.uses(used)
    found.open("a", lambda: None)
    if opening:
        with found.point("a", Small(), Load(1, 1)):
            assert found.look() == pytest.approx(pause, rel=0.01)
    else:
        assert found.look() == pytest.approx(pause, rel=0.01)
    container.root.rename(container.root.with_name("gone"))
    (container.proc / "meminfo").unlink()
    assert found.look() == 60.0


def test_the_thread_looks_while_something_is_opened(container: Container) -> None:
    found = container.memory()
    found._thread = None
    looks = 0

    def left() -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ValueError("as if a file were broken")

    found._host.left = left  # type: ignore[method-assign]
    with found.point("a", Small(), Load(1, 1)):
        deadline = time.monotonic() + 10
        while looks < 2:
            found._changed.set()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    found.stop()
    assert found._thread is not None
    found._thread.join(10)
    assert not found._thread.is_alive()


def test_what_was_ended_waits_an_hour(
    container: Container, anew: list[list[Ended]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("infercanary.probe.watcher.time.monotonic", lambda: now)
    found = container.memory()
    found.own_process([Ended("a", "why", 1000.0), Ended("b", "point", 900.0, (2, 1))])
    assert why_not(lambda: found.open("a", lambda: None)) == "why"
    assert not why_not(lambda: found.open("b", lambda: None))
    now += 3599
    assert why_not(lambda: found.open("a", lambda: None)) == "why"
    now += 1

    def grow() -> None:
        container.process(200)
        container.uses(950)
        found.look()

    found.open("a", grow)
    [ended] = anew
    assert {each.canary: each.at for each in ended} == {"a": now, "b": 900.0}
    assert why_not(lambda: found.open("a", lambda: None)).startswith("canaries.a: opening it was ended")


@pytest.mark.parametrize(("late", "stopped"), [(False, False), (True, False), (False, True)])
def test_in_a_servers_process_an_opening_is_interrupted(
    container: Container, late: bool, stopped: bool
) -> None:
    """Also when the probe was stopped. What comes too late for it does not reach what its thread does next."""
    found = container.memory()
    found.owns_process, found._thread = False, None

    def opening() -> None:
        [growth] = found._growing
        if stopped:
            found.stop()
        container.process(170)
        container.uses(990)
        deadline = time.monotonic() + 10
        while not (late and growth.why):  # else one without an end
            assert time.monotonic() < deadline

    why = why_not(lambda: found.open("a", opening))
    for _ in range(1000):  # an error that is pending would be raised here
        pass
    assert why.startswith("canaries.a: opening it was ended when it had taken 70 MiB, with nothing left of")
    assert why_not(lambda: found.open("a", lambda: None)) == why
    assert not why_not(lambda: found.open("b", lambda: None))
    found.stop()


def test_canaries_may_open_side_by_side(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    found, watching = container.memory(), []
    found.owns_process, found._thread = False, None
    growing = found._growing
    monkeypatch.setattr(found, "_look_on", lambda: watching.append("once"))

    def open_often(name: str) -> None:
        for _ in range(300):
            found.open(name, lambda: None)

    threads = [threading.Thread(target=open_often, args=(f"c{number}",)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert found._growing is growing and growing == [], "a copy could lose what another thread adds meanwhile"
    assert len(found._sizes) == 4
    assert watching == ["once"], "one thread watches them all"


class Blocking(Small):
    """A method waits for the test, once that says which."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.goes_on = "", threading.Event()

    def open(self) -> None:
        assert self.blocks != "open" or self.goes_on.wait(30)
        super().open()

    def run(self, phase: Any) -> Any:
        super().run(phase)
        assert self.blocks != "run" or self.goes_on.wait(30)

    def close(self) -> None:
        assert self.blocks != "close" or self.goes_on.wait(30)
        super().close()


def blocked(blocks: str) -> tuple[Blocking, Canary]:
    target = Blocking()
    canary = Canary("a", target, Tally(), 0.3, 300)
    canary.open(300)
    assert canary.is_open
    target.blocks = blocks
    return target, canary


def settled(canary: Canary) -> None:
    """Wait until its thread is free."""
    deadline = time.monotonic() + 10
    while canary._worker.is_busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_canary_whose_closing_hangs_never_runs_again() -> None:
    """It may be closed at any moment, and an engine that was closed can end the server's process."""
    target, canary = blocked("close")
    repeats = target.repeats
    canary.close_for_memory(Ended("a", "why", time.monotonic() - 3600))
    assert (canary.is_open, canary.state) == (False, "out_of_memory")
    canary.open(0)
    assert canary.round(5) is None and (target.repeats, target.opened) == (repeats, 1)
    target.goes_on.set()
    settled(canary)
    canary.open(10)
    assert canary.is_open and (target.closed, target.opened) == (1, 2), "an hour later it is opened again"
    assert canary.close(10)


def test_a_canary_that_hangs_in_a_run_is_closed_after_it() -> None:
    target, canary = blocked("run")
    done = canary.round(5)
    assert done is not None and done.outcome == "timed_out"
    repeats = target.repeats
    canary.close_for_memory(Ended("a", "why", time.monotonic()))
    assert canary.is_open and not target.closed, "never beside its run"
    target.goes_on.set()
    settled(canary)
    assert canary.round(5) is None
    assert (canary.state, canary.is_open, target.closed) == ("out_of_memory", False, 1)
    assert target.repeats <= repeats + 5, "no other run was begun"
    assert canary.close(10) and target.closed == 1


def test_a_canary_that_was_opened_just_now_can_be_closed(container: Container) -> None:
    found, target = container.memory(), Blocking()
    target.blocks = "open"
    canary = Canary("a", target, Tally(), 30, 300, memory=found)
    canary.open(0)
    target.goes_on.set()
    deadline = time.monotonic() + 10
    while "a" not in found._sizes:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert canary.is_opening and not canary.is_open
    canary.close_for_memory(Ended("a", "why", time.monotonic()))
    assert (canary.state, canary.is_open, target.closed) == ("out_of_memory", False, 1)


def test_an_interruption_may_hit_any_instruction(container: Container) -> None:
    """At each call and return, where Python looks for it, as long as it may come: this opening ends, and no more."""
    found = container.memory()
    found.owns_process = False
    hits = 0

    def interrupted_at(n: int) -> str:
        seen = 0

        def work() -> None:
            pass

        def profile(frame: FrameType, event: str, arg: object) -> None:
            nonlocal seen
            if not (frame.f_code is work.__code__ or frame.f_code.co_filename == watcher.__file__):
                return
            for growth in found._growing:
                if not growth._finished.is_set() and not growth._lock.locked():
                    seen += 1
                    if seen == n:
                        sys.setprofile(None)
                        growth.end(f"hit {n}")  # raised here, and so in the frame that is profiled

        found._ended = {}
        sys.setprofile(profile)
        try:
            return why_not(lambda: found.open("a", work))
        finally:
            sys.setprofile(None)

    while why := interrupted_at(hits + 1):
        hits += 1
        assert why == f"hit {hits}"
        assert found._growing == [] and found._ended["a", None].why == f"hit {hits}"
        assert not why_not(lambda: found.open("b", lambda: None))
    assert hits > 2


def test_a_server_gets_its_memory_back(container: Container, caplog: pytest.LogCaptureFixture) -> None:
    """A probe in its process: the larger canary is closed while the loop waits, and the other one goes on."""

    class Large(Small):
        def open(self) -> None:
            super().open()
            container.process(200)

    large, small = Large(), Small()
    probe = Probe(
        {"large": large, "small": small}, listen="127.0.0.1:0", interval_seconds=0.1, duty_cap=1, controls=False,
        samplers=(),
    )  # fmt: skip
    probe._memory._host = container.memory()._host

    def until(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with probe:
        until(lambda: large.repeats and small.repeats)
        container.uses(950)
        until(lambda: large.closed)
        container.uses(500)
        before, opened = small.repeats, large.repeats
        until(lambda: small.repeats > before + 5)
        states = {canary.name: canary.state for canary in probe._canaries}
        assert states["large"] == "out_of_memory" and large.repeats == opened
    [said] = [r.getMessage() for r in caplog.records if "it was closed to give" in r.getMessage()]
    assert said.startswith("canary large: canaries.large: it was closed to give 100 MiB back")


# Sweeps


class Sweepable(Small):
    """Takes 40 MiB for each sample."""

    is_sweepable = True
    batch = 1

    def copy_with_batch(self, batch: int) -> Target:
        copy = type(self)()
        copy.batch = batch
        return copy

    def run(self, phase: Any) -> int:
        held = b"\1" * (self.batch * 40 * MIB)
        time.sleep(0.3)
        return len(held)


def swept(target: Target, host: Memory, sweep: Sweep, tally: Tally) -> Sweeping:
    canary = Canary("a", target, tally, 30, 300)
    canary.open(300)
    return Sweeping(canary, sweep, 1e-6, tally, host)


def test_a_sweep_stops_before_the_point_that_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Real memory, and the room of a control group made by hand: 436 MiB."""
    container = Container(tmp_path)
    container.uses(500)
    tally, target = Tally(), Sweepable()
    host = Memory({}, HostMemory(None, container.root, container.proc))
    sweeping = swept(target, host, Sweep(batches=(1, 2, 64, 128), seconds=20), tally)
    for _ in range(4):
        sweeping.step(sweeping.next_at + 1)
    host.stop()
    assert set(points(tally, LATENCY)) == {("a", "1", "1"), ("a", "2", "1")}
    [line, *_] = (record.getMessage() for record in caplog.records if "sweep of" in record.getMessage())
    assert "sweep of batch 64: out_of_memory: canaries.a.sweep: batch 64, by what batch 2 took, needs" in line
    assert set(sweeping._too_much) == {Load(64, 1), Load(128, 1)}
    sweeping._begin(0.0)
    assert not sweeping._too_much, "with room they are asked for again"
    host.own_process([Ended("a", "why", 1.0, (2, 1)), Ended("a", "why", 1.0), Ended("b", "why", 1.0, (1, 1))])
    for _ in range(4):
        sweeping.step(sweeping.next_at + 1)
    assert set(sweeping._too_much) == {Load(2, 1), Load(64, 1), Load(128, 1)}, "that one and larger ones"


def test_a_points_device_memory_is_estimated_by_the_point_before(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 60
    monkeypatch.setattr(memory, "device_memory", lambda number: (used * GIB, 80 * GIB))

    class Counting(Sweepable):
        def memory(self) -> DeviceMemory:
            return DeviceMemory(2 * GIB, 5 * GIB)

        def run(self, phase: Any) -> int:
            return 0

    tally = Tally()
    sweeping = swept(Counting(device="cuda"), container.memory(), Sweep(batches=(1, 4), seconds=2), tally)
    sweeping.step(sweeping.next_at + 1)
    sweeping.step(sweeping.next_at + 1)
    assert set(points(tally, LATENCY)) == {("a", "1", "1"), ("a", "4", "1")}, "12 GiB are left"
    used = 70
    sweeping.step(sweeping.next_at + 1)
    sweeping.step(sweeping.next_at + 1)
    assert [why.detail.partition(";")[0] for why in sweeping._too_much.values()] == [
        "canaries.a.sweep: batch 4, by what batch 1 took, needs 12.00 GiB, 12.89 GiB with the others"
    ]


def test_in_a_servers_process_a_point_is_given_up_where_the_server_takes_what_was_left(
    container: Container,
) -> None:
    class Taking(Sweepable):
        """While it is swept its server takes more and more."""

        def run(self, phase: Any) -> int:
            self.repeats += 1
            container.process(100 + 10 * self.repeats)
            container.uses(400 + 10 * self.repeats)
            time.sleep(0.02)
            return 0

    host = container.memory()
    host.owns_process, host._thread = False, None
    tally = Tally()
    sweeping = swept(Taking(), host, Sweep(batches=(1,), seconds=30), tally)
    container.process(100)
    container.uses(400)
    sweeping.step(sweeping.next_at + 1)
    host.stop()
    [(load, missing)] = sweeping._too_much.items()
    assert (load, missing.reason, missing.was_tried) == (Load(1, 1), "out_of_memory", False)
    assert missing.detail.startswith("canaries.a.sweep: the point was ended when it had taken")


class Scattering(Small):
    """Each request takes 64 MiB in pieces that malloc keeps in the thread's heap, below one that stays."""

    is_sweepable = True
    scatters = False

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bytes] = []

    def copy_with_batch(self, batch: int) -> Target:
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
    sweeping = swept(target, Memory({}), Sweep(batches=(1, 2), seconds=10), tally)
    target.scatters, before = True, measures.resident()
    for _ in range(2):
        sweeping.step(sweeping.next_at + 1)
    assert target.kept and sweeping._left is None
    return measures.resident() - before


def test_what_a_sweep_took_is_given_back() -> None:
    """In a process of its own, for malloc keeps more once it freed a large block."""
    assert in_a_fresh_process(grown_by_a_sweep) < 16 * MIB
