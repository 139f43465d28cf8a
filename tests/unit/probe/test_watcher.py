"""Work that is refused in advance, and work that is ended or closed at the reserve, with simulated control groups."""

import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
from watching import until

from infercanary.probe import memory, watcher
from infercanary.probe.canary import Canary
from infercanary.probe.canary_metrics import DETAIL, FAILURES
from infercanary.probe.histogram import Tally
from infercanary.probe.load import Load
from infercanary.probe.loop import Probe
from infercanary.probe.memory import CONTEXT, CONTROLS, Ended, HostMemory
from infercanary.probe.rounds import Rounds
from infercanary.probe.sampling import Sampling
from infercanary.probe.sweep import LATENCY, Sweep, Sweeping
from infercanary.probe.targets import DeviceMemory, Failure, Need
from infercanary.probe.watcher import Growth, Memory
from tests.kernel_files import tree
from tests.targets import Scripted, opened, points

GIB, MIB = 1 << 30, 1 << 20
LIMIT = "the container's limit of 1000 MiB"


class Container:
    """A container with cgroup v2 and one process; sizes are in MiB. The host has 64 GiB."""

    def __init__(self, folder):
        self.root, self.proc = folder / "cgroup", folder / "proc"
        tree(self.proc, {"self/cgroup": "0::/\n"})
        tree(self.root, {"cgroup.controllers": ""})
        self.set(100, 400)

    def set(self, resident, used, limit=1000, cached=0, peak=100):
        self.resident, self.peak = resident * MIB, peak * MIB
        (self.root / "memory.max").write_text(str(limit * MIB))
        (self.root / "memory.current").write_text(str(used * MIB))
        (self.root / "memory.stat").write_text(f"inactive_file 0\nactive_file {cached * MIB}\n")

    def disappear(self):
        self.root.rename(self.root.with_name("gone"))

    def host(self, reserve=None):
        host = HostMemory(reserve)
        host._root, host._proc = self.root, self.proc
        return host

    def memory(self, reserve=None, is_guest=False, **targets):
        memory = Memory(targets, self.host(reserve))
        memory.owns_process = not is_guest
        memory._thread = threading.current_thread()  # the test calls look() itself
        return memory


@pytest.fixture
def container(tmp_path, monkeypatch):
    found = Container(tmp_path)
    machine = SimpleNamespace(total=64 * GIB, available=64 * GIB)

    def host_memory():
        os.stat(found.root)  # raises an OSError
        return machine

    monkeypatch.setattr(psutil, "virtual_memory", host_memory)
    monkeypatch.setattr(watcher, "resident", lambda: found.resident)
    monkeypatch.setattr(watcher, "peak", lambda: found.peak)
    return found


@pytest.fixture
def anew(monkeypatch):
    found = []
    monkeypatch.setattr(memory, "start_anew", lambda ended: found.append(list(ended)))
    return found


def why_not(work):
    try:
        work()
    except Failure as error:
        return str(error) if error.reason == "out_of_memory" else f"for another reason: {error.reason}"
    return ""


# Requests


def test_a_line_says_place_need_room_whose_and_fix(container):
    found = container.memory()
    needs = [
        Need("inputs[0]", 700 * MIB, "[9] int8", "give a smaller shape"),
        Need("model", 2 * MIB, "it", ""),
    ]
    why = why_not(lambda: found.ask("big", "cpu", needs))
    assert why.startswith("canaries.big.inputs[0]: [9] int8")
    assert needs[0].fix in why
    assert LIMIT in why
    assert re.findall("[0-9]+ MiB", why) == ["700 MiB", "702 MiB", "536 MiB", "1000 MiB", "64 MiB"]
    needs[0] = needs[0]._replace(size=534 * MIB)
    found.ask("big", "cpu", needs)
    container.set(100, 400, cached=300)
    assert why_not(lambda: found.ask("big", "cpu", [*needs, needs[1]])), "a server's page cache is left alone"


def test_a_device_is_asked_for_with_a_context_and_bound(container, monkeypatch):
    """Without a driver on this machine, no process has a CUDA context."""
    left = CONTEXT + CONTROLS + 2 * MIB
    used = {1: (80 * GIB - int(0.02 * 80 * GIB) - left, 80 * GIB)}
    monkeypatch.setattr(memory, "device_memory", lambda number: used.get(number))
    model = Need("model", 2 * MIB, "its file", "take a smaller model", "device")
    target = Scripted(needs=[model], device="cuda:1")
    found = container.memory(a=target)
    target.open()
    assert target.device_memory_left() == left
    target.needs = [model._replace(size=3 * MIB)]
    why = why_not(target.open)
    assert why.startswith("canaries.a.device: a CUDA context, with the controls, needs 912 MiB")
    found.owns_process = False
    assert target.device_memory_left() is None, "a server's allocator is not available to the probe"
    used.clear()
    target.open()
    found.ask("a", "cpu", [model._replace(size=GIB << 9)])


def test_the_probe_answers_its_targets():
    target = Scripted(needs=[Need("inputs[0]", 1, "it", "give less")])
    probe = Probe({"a": target}, memory_reserve=1 << 60)
    assert not probe._memory.owns_process, "the process may be anyone's: only the command may restart it"
    assert "1073741824.00 GiB in reserve" in why_not(target.open)


@pytest.mark.parametrize("is_opening", [True, False])
def test_work_without_memory_waits_longer_each_time_and_then_continues(
    container, monkeypatch, caplog, is_opening
):
    target, tally, now = (
        Scripted(needs=[Need("inputs[0]", 200 * MIB, "[9] int8", "give less")]),
        Tally(),
        100.0,
    )
    host = container.memory(a=target)
    canary = Canary("a", target, tally, 30, 300, memory=host)
    rounds = Rounds([canary], [], None, Sampling((), tally), host, tally, threading.Event())
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", lambda: now)
    if not is_opening:
        canary.open(30)

    def work():
        canary.open(30)
        return rounds.run([(canary, 5)], time.monotonic())[0] if not is_opening else rounds.failed()

    waits, before = [], target.repeats
    for used in range(910, 916):
        container.set(100, used)
        [ran] = work()
        assert (ran.outcome, ran.latencies, ran.controls) == ("raised", (), {})
        waits.append(round(canary._retry_at - now))
        assert not work(), "nothing happens before the retry time"
        now = canary._retry_at + 1
    assert (canary.state, target.opened, target.repeats) == ("out_of_memory", int(not is_opening), before)
    assert waits == ([60, 120, 240, 480, 600, 600] if is_opening else [5, 10, 20, 40, 80, 160])
    assert points(tally, FAILURES)["a", "out_of_memory"] == 6
    [(_, reason, detail)] = points(tally, DETAIL)
    words = "canaries.a.inputs[0]: [9] int8" if is_opening else "runs are postponed: a run takes up to 32 MiB"
    assert reason == "out_of_memory"
    assert words in detail
    assert sum(words in record.getMessage() for record in caplog.records) == (6 if is_opening else 1)
    container.set(100, 600)
    work()
    assert canary.is_fit
    assert target.opened == 1
    assert target.repeats > before


# Rounds


def test_a_points_device_memory_is_estimated_by_the_point_before(container, monkeypatch):
    used, looks = 0, set[Load | None]()
    monkeypatch.setattr(memory, "device_memory", lambda number: (used * GIB, 80 * GIB))
    monkeypatch.setattr(Growth, "check", lambda growth: looks.add(growth.load))

    class Counting(Sweepable):
        def memory(self):
            return DeviceMemory(2 * GIB, 5 * GIB)

        def run(self, phase):
            return 0

    sweep = Sweep(batches=(1, 4), seconds=2)
    sweeping, details = swept(Counting(device="cuda"), container.memory(), sweep, Tally()), []
    for used in (60, 70):  # noqa: B007 - 12 GiB are left, and then 2 GiB
        for _ in sweep.batches:
            sweeping.step(sweeping.next_at + 1)
        details.append([missing.detail.partition(";")[0] for missing in sweeping._too_much.values()])
    needs = "needs 12.00 GiB, 12.89 GiB with the others"
    assert details == [[], [f"canaries.a.sweep: batch 4, estimated from batch 1, {needs}"]]
    assert looks == {Load(1, 1), Load(4, 1)}, "each point looks whether it was ended"


def test_memory_that_a_round_needs(container):
    """A round needs 32 MiB, or the memory that the last run used at its peak and then freed."""
    for limit, reserve, left, needs in (
        (128, None, 48, 32), (1000, 0, 32, 32), (1000, 16 * MIB, 48, 32), (1000, None, 144, 80),
    ):  # fmt: skip
        found = container.memory(reserve)

        def lack(more, extra=0, cached=0):
            container.set(100, limit - left + more, limit, cached, 100 + needs)  # noqa: B023
            found.note_run()  # noqa: B023
            return found.lack_for_round(extra)  # noqa: B023

        assert f"up to {needs} MiB for a short time; {needs - 1} MiB are left" in lack(1)
        assert f"up to {needs + 2} MiB" in lack(1, 2 * MIB)
        assert lack(0) == lack(1, cached=1) == "", "the kernel gives page cache back before it ends a process"
        found.owns_process = False
        assert ("up to 32 MiB" in lack(1)) == (needs == 32), (
            "the peak of a server's process is not the probe's"
        )
    container.disappear()
    assert not Memory({}, container.host()).lack_for_round()


# Watching


@pytest.mark.parametrize("is_guest", [False, True])
def test_growing_work_is_ended_at_the_reserve(container, anew, is_guest):
    found = container.memory(is_guest=is_guest)
    assert found.look() is None
    container.set(50, 400)
    found.open("open", lambda: container.set(100, 400))
    with found.point("a", Scripted(), Load(2, 1)) as a, found.point("b", Scripted(), Load(8, 1)) as b:
        container.set(147, 400)
        with found.point("c", Scripted(), Load(1, 1)) as c:
            container.set(154, 935)
            assert (found.look(), anew, a.why) == (0.01, [], "")
            container.set(154, 950)
            found.look()
    assert found.closing == [], "an opening that grows is ended before canaries are closed"
    if is_guest:
        assert "took 54 MiB" in a.why
        assert why_not(a.check) == a.why
        assert (bool(b.why), c.why, anew) == (True, "", [])
    else:
        [ended] = anew
        assert [(each.canary, each.load) for each in ended] == [("a", (2, 1)), ("b", (8, 1))]
        assert all("took 54 MiB" in each.why for each in ended)


@pytest.mark.parametrize("is_guest", [False, True])
def test_memory_use_by_others_closes_the_largest_at_the_last_64_mib(container, anew, is_guest):
    found = container.memory(is_guest=is_guest)
    for name, size in (("a", 20), ("b", 30), ("c", 1)):
        container.set(100, 400)
        found.open(name, lambda size=size: container.set(100 + size, 400))
    container.set(101, 960, cached=25)
    assert found.look() == 0.1
    assert not anew
    assert not (found.closing)
    container.set(101, 960, cached=24)
    found.run_began = time.monotonic()
    assert found.look() == 0.1 and not (anew or found.closing), "a run is not disturbed in its first second"
    found.run_began -= 2
    found.look()
    ended = found.closing if is_guest else anew[0]
    assert [each.canary for each in ended] == ["b"]
    assert "closed to free 30 MiB, because only" in ended[0].why
    if is_guest:
        found.look()
        assert len(ended) == 1 and found.alarm.is_set(), "canaries are closed one at a time"
        for closed in (["a"], []):
            ended.clear()
            found.look()
            assert [each.canary for each in ended] == closed, "closing the third canary would not help"


def test_it_is_looked_as_often_as_little_is_left(container):
    found = container.memory()
    found.open("a", lambda: None)
    # first for open canaries, then for a canary that is opening
    for pauses in ([0.1, 0.39, 1.0], [0.01, 0.0381, 0.1]):
        for used, pause in zip((936, 780, 100), pauses, strict=True):
            container.set(100, used)
            assert found.look() == pytest.approx(pause, rel=0.01)
        found._growing.append(Growth("a"))
    container.disappear()
    assert found.look() == 60.0


def test_one_thread_watches_what_opens_side_by_side_and_outlives_a_broken_file(container, monkeypatch):
    found, looks = container.memory(is_guest=True), [0]
    found._thread, growing = None, found._growing

    def left():
        looks[0] += 1
        raise ValueError("as if a file were broken")

    monkeypatch.setattr(found._host, "left", left)
    monkeypatch.setattr(watcher, "_UNKNOWN_SECONDS", 0.001)
    with ThreadPoolExecutor(4) as pool, found.point("p", Scripted(), Load(1, 1)):
        list(pool.map(lambda name: [found.open(name, lambda: None) for _ in range(100)], "abcd"))
        until(lambda: looks[0] > 2)
        assert sum(thread.name == "infercanary-memory" for thread in threading.enumerate()) == 1
    assert found._growing is growing and growing == [], "a copy could lose what another thread adds meanwhile"
    assert len(found._sizes) == 4
    found.stop()
    assert found._thread is not None
    found._thread.join(10)
    assert not found._thread.is_alive()


def test_ended_work_waits_an_hour(container, anew, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("infercanary.probe.watcher.time.monotonic", lambda: now)
    found = container.memory()
    found.own_process([Ended("a", "why", 1000.0), Ended("b", "point", 900.0, (2, 1))])
    assert not why_not(lambda: found.open("b", lambda: None))
    for now in (1000.0, 4599.0):  # noqa: B007
        assert why_not(lambda: found.open("a", lambda: None)) == "why"
    now = 4600.0

    def grow():
        container.set(200, 950)
        found.look()

    found.open("a", grow)
    [ended] = anew
    assert {each.canary: each.at for each in ended} == {"a": now, "b": 900.0}
    assert why_not(lambda: found.open("a", lambda: None)).startswith("canaries.a: opening it was ended")


@pytest.mark.parametrize(("late", "stopped"), [(False, False), (True, False), (False, True)])
def test_in_a_servers_process_an_opening_is_interrupted(container, late, stopped):
    """The probe may have stopped meanwhile. A late interruption must not reach the thread's next work."""
    found = container.memory(is_guest=True)
    found._thread = None

    def opening():
        [growth] = found._growing
        if stopped:
            found.stop()
        container.set(170, 990)
        deadline = time.monotonic() + 10
        while not (late and growth.why):  # otherwise the opening would never end
            assert time.monotonic() < deadline

    why = why_not(lambda: found.open("a", opening))
    for _ in range(1000):  # a pending error would be raised here
        pass
    assert why.startswith(
        "canaries.a: opening it was ended after it took 70 MiB, because only the reserve of"
    )
    assert why_not(lambda: found.open("a", lambda: None)) == why
    assert not why_not(lambda: found.open("b", lambda: None))
    found.stop()


@pytest.mark.parametrize("blocks", ["open", "run", "close"])
def test_a_canary_is_closed_once_for_memory_and_never_beside_its_run(container, blocks):
    """The canary may be in a run, or close at any moment. A closed engine can crash the server's process."""
    target, found = Scripted(), container.memory()
    canary = Canary("a", target, Tally(), 0.3, 300, memory=found)
    target.blocks = "open" if blocks == "open" else ""
    canary.open(0 if blocks == "open" else 300)
    target.blocks = blocks
    if blocks == "open":
        target.goes_on.set()
        until(lambda: "a" in found._sizes)  # it has just opened, and nobody has read the result
    if blocks == "run":
        done = canary.round(5)
        assert done is not None
        assert done.outcome == "timed_out"
    repeats = target.repeats
    canary.close_for_memory(Ended("a", "why", time.monotonic() - 3600))
    assert canary.is_open == (blocks == "run")
    assert target.closed == (blocks == "open")
    canary.open(0)  # has no effect while the thread hangs
    assert blocks == "open" or target.opened == 1
    target.goes_on.set()
    until(lambda: not canary._worker.is_busy)
    if blocks != "open":
        assert canary.round(5) is None and target.repeats <= repeats + 5, "another run was begun"
        assert (canary.is_open, canary.state, target.closed) == (False, "out_of_memory", 1)
    until(lambda: not canary._worker.is_busy)
    canary.open(10)
    assert canary.is_open and target.opened == 2, "the canary is not opened again after an hour"
    assert canary.close(10)


def test_an_interruption_may_hit_any_instruction(container):
    """Python raises the interruption at a call or return. At each possible point, only this opening may end."""
    found = container.memory()
    found.owns_process = False
    hits = 0

    def interrupted_at(n):
        seen = 0

        def work():
            pass

        def profile(frame, event, arg):
            nonlocal seen
            if not (frame.f_code is work.__code__ or frame.f_code.co_filename == watcher.__file__):
                return
            for growth in found._growing:
                if not growth._is_finished and not growth._lock.locked():
                    seen += 1
                    if seen == n:
                        sys.setprofile(None)
                        growth.end(f"hit {n}")  # raised here, and therefore in the profiled frame

        found._ended = {}
        sys.setprofile(profile)
        try:
            return why_not(lambda: found.open("a", work))
        finally:
            sys.setprofile(None)

    while why := interrupted_at(hits + 1):
        hits += 1
        assert why == f"hit {hits}"
        assert found._growing == []
        assert found._ended["a", None].why == f"hit {hits}"
        assert not why_not(lambda: found.open("b", lambda: None))
    assert hits > 2


# Sweeps


class Sweepable(Scripted):
    is_sweepable = True
    batch = 1

    def copy_with_batch(self, batch):
        return type(self)(batch=batch)

    def run(self, phase):
        held = b"\1" * (self.batch * 10 * MIB)
        time.sleep(0.15)
        return len(held)


def swept(target, host, sweep, tally):
    return Sweeping(opened(target, tally=tally), sweep, 1e-6, tally, host)


def test_a_sweep_stops_before_the_point_that_does_not_fit(tmp_path, caplog, monkeypatch):
    container, trims = Container(tmp_path), list[str]()
    container.set(100, 500)
    monkeypatch.setattr("infercanary.probe.sweep.trim", lambda: trims.append("trimmed"))
    tally, target = Tally(), Sweepable()
    host = Memory({}, container.host())
    sweeping = swept(target, host, Sweep(batches=(1, 2, 64, 128), seconds=20), tally)
    for _ in range(4):
        sweeping.step(sweeping.next_at + 1)
    host.stop()
    assert set(points(tally, LATENCY)) == {("a", "1", "1"), ("a", "2", "1")}
    [line, *_] = (record.getMessage() for record in caplog.records if "sweep of" in record.getMessage())
    assert "short_of_memory: canaries.a.sweep: batch 64, estimated from batch 2, needs" in line
    assert set(sweeping._too_much) == {Load(64, 1), Load(128, 1)}
    assert trims == ["trimmed"] * 3, "after each point, except one that another point's failure implies"
    sweeping._begin(0.0)
    assert not sweeping._too_much, "with room all points are tried again"
    host.own_process([Ended("a", "why", 1.0, (2, 1)), Ended("a", "why", 1.0), Ended("b", "why", 1.0, (1, 1))])
    for _ in range(4):
        sweeping.step(sweeping.next_at + 1)
    assert set(sweeping._too_much) == {Load(2, 1), Load(64, 1), Load(128, 1)}, "this point and larger points"
