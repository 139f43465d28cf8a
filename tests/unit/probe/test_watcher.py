"""Who is ended when too little memory is left, how often it is looked, and what a process that starts anew knows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from infercanary.probe import anew, openings, watcher
from infercanary.probe.anew import Carried, Ended, carried, start_anew
from infercanary.probe.openings import Openings
from infercanary.probe.room import Left, Room
from infercanary.probe.targets import Failure, Need, Target
from infercanary.probe.watcher import Growth, Interrupter, Watcher

MIB = 1 << 20
LIMIT = "the container's limit of 300 MiB"

Work = tuple[str, "tuple[int, int] | None", int, str]


class FakeRoom(Room):
    """As much is left as the test says, in MiB, after the reserve of 100 and until the last 64."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.mib = size

    def look(self) -> tuple[Left, Left] | None:
        if self.mib is None:
            return None
        kept = Left(max(0, self.mib) * MIB, 100 * MIB, LIMIT)
        return kept, Left(max(0, self.mib + 36) * MIB, 64 * MIB, LIMIT)

    def left(self) -> Left | None:
        found = self.look()
        return None if found is None else found[0]


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the process holds and has held at most, in MiB; a test changes it."""
    sizes = {"now": 50, "peak": 50}
    monkeypatch.setattr(watcher, "resident", lambda proc: sizes["now"] * MIB)
    monkeypatch.setattr(watcher, "peak", lambda proc: sizes["peak"] * MIB)
    return sizes


def looked(watched: Watcher, running_since: float | None = None) -> tuple[list[Work], float]:
    ended: list[Work] = []
    return ended, watched.look(ended.extend, running_since)


def test_what_grows_is_ended_where_the_reserve_is_touched(resident: dict[str, int]) -> None:
    room = FakeRoom(1)
    watched = Watcher(room)
    with watched.growing("a"), watched.growing("b", (8, 1)):
        resident["now"] = 90
        with watched.growing("c"):
            resident["now"] += 7
            assert looked(watched)[0] == []
            room.mib = 0
            found, _ = looked(watched)
    assert [work[:3] for work in found] == [("a", None, 47 * MIB), ("b", (8, 1), 47 * MIB)]
    assert found[0][3] == (
        f"canaries.a: opening it was ended when it had taken 47 MiB, with nothing left of {LIMIT} but the 100 MiB in "
        "reserve; take a smaller model or input, or grant more memory"
    )
    assert found[1][3].startswith("canaries.b.sweep: the point was ended") and "name fewer" in found[1][3]
    assert looked(watched)[0] == []


def test_what_others_take_ends_the_largest_at_the_last_64_mib(resident: dict[str, int]) -> None:
    room = FakeRoom(-35)
    watched = Watcher(room)
    watched.held |= {"a": 20 * MIB, "b": 30 * MIB, "c": MIB}
    assert looked(watched)[0] == []
    room.mib = -36
    [work] = looked(watched)[0]
    assert work[:3] == ("b", None, 30 * MIB) and "to give 30 MiB back, with nothing left of" in work[3]
    watched.held = {"c": 7 * MIB}
    assert looked(watched)[0] == []
    watched.stop()
    watched.held = {"c": 70 * MIB}
    assert looked(watched)[0] == []


@pytest.mark.parametrize(
    ("mib", "opening", "pause"),
    [
        (0, False, 0.1), (20, False, 0.14), (1000, False, 1.0), (None, False, 60.0),
        (0, True, 0.01), (200, True, 0.0488), (5000, True, 0.2), (None, True, 60.0),
    ],
)  # fmt: skip
def test_it_is_looked_as_often_as_little_is_left(
    resident: dict[str, int], mib: int | None, opening: bool, pause: float
) -> None:
    watched = Watcher(FakeRoom(mib))
    if opening:
        with watched.growing("a"):
            assert looked(watched)[1] == pytest.approx(pause, rel=0.01)
    else:
        assert looked(watched)[1] == pytest.approx(pause, rel=0.02)


def test_a_run_is_not_disturbed_in_its_first_second(resident: dict[str, int]) -> None:
    watched = Watcher(FakeRoom(-99))
    watched.held["a"] = 30 * MIB
    assert looked(watched, time.monotonic()) == ([], 0.1)
    assert looked(watched, time.monotonic() - 2)[0] != []
    with watched.growing("b"):
        assert looked(watched, time.monotonic())[0] != []


def test_the_thread_ends(resident: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watcher(FakeRoom(0))
    ended: list[Work] = []

    def ends(works: Sequence[Work]) -> None:
        ended.extend(works)
        watched.stop()

    watched.start(ends, lambda: None)
    with watched.growing("a"):
        resident["now"] = 500
        deadline = time.monotonic() + 10
        while not ended:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert [work[:2] for work in ended] == [("a", None)]


def test_the_new_process_knows_what_the_old_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def execve(path: str, argv: list[str], environment: dict[str, str]) -> None:
        seen.append((path, argv, environment[anew.VARIABLE]))
        raise OSError

    def exit_(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "_exit", exit_)
    monkeypatch.setattr(os, "listdir", lambda path: [])
    left = Carried((Ended("a", None, 5, "why — é", 1.5, 2), Ended("a", (8, 1), 5, "why", 1.5)), {"a": 5})
    with pytest.raises(SystemExit):
        start_anew(left)
    [(path, argv, text)] = seen
    assert (path, argv) == (sys.executable, sys.orig_argv)
    monkeypatch.setenv(anew.VARIABLE, text)
    assert carried() == left
    assert anew.VARIABLE not in os.environ
    monkeypatch.setenv(anew.VARIABLE, "junk")
    assert carried() == Carried()


def test_pauses_grow_to_a_day() -> None:
    pauses = [Ended("a", None, 1, "", 0.0, times).pause / 3600 for times in range(1, 6)]
    assert pauses == [1, 4, 16, 24, 24]
    assert [Ended("a", None, 1, "", 0.0, times).rest / 60 for times in (1, 2)] == [1, 4]


class Plain(Target):
    """Needs nothing that is known beforehand."""

    def open(self) -> None: ...

    def run(self, phase: Any) -> None: ...

    def values(self, result: None) -> list[float]:
        return []


class Asking(Plain): ...


def opened(of: Openings, canary: str) -> str:
    """Why it was not; empty where it was."""
    try:
        with of.of[canary] as watched, watched:
            pass
    except Failure as error:
        return f"{error}" if error.reason == "out_of_memory" else error.reason
    return ""


def alone(room: Room, left: Carried) -> Openings:
    of: Openings = Openings(room, {"a": Plain(), "b": Plain()})
    of.watcher.start = lambda *_: None  # type: ignore[method-assign]
    of.watch(left, lambda: None)
    return of


def test_what_was_ended_waits_for_room_or_for_long(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("infercanary.probe.openings.time.monotonic", lambda: now)
    room = FakeRoom(200)
    left = Carried((Ended("a", None, 100 * MIB, "why", 1000.0),), {"a": 100 * MIB, "b": 10 * MIB})
    of = alone(room, left)
    assert (opened(of, "a"), opened(of, "b")) == ("why", "")
    now += 61
    room.mib = 124
    assert opened(of, "a") == "why"
    room.mib = 125
    assert opened(of, "a") == ""
    assert of.ended["a"].is_over
    of = alone(room, left)
    room.mib, now = 0, 1000.0 + 3599
    assert opened(of, "a") == "why"
    now += 1
    assert opened(of, "a") == ""


def test_one_that_went_well_is_refused_where_it_would_not_fit_now(resident: dict[str, int]) -> None:
    room = FakeRoom(9)
    of = alone(room, Carried((), {"b": 10 * MIB}))
    assert opened(of, "b").startswith(
        "canaries.b.target: opening it, by what it took before, needs 10 MiB; 9 MiB are left of the container's limit"
    )
    room.mib = 10
    assert opened(of, "b") == ""


def test_what_goes_along(resident: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infercanary.probe.openings.time.monotonic", lambda: 1000.0)
    went: list[Carried] = []
    monkeypatch.setattr(openings, "start_anew", went.append)
    old = Ended("a", None, 100, "old", 900.0)
    point = Ended("b", (2, 1), 7, "point", 800.0)
    of = alone(FakeRoom(200), Carried((old, point), {"a": 100}))
    resident["peak"] = 60
    with of.of["b"]:
        resident["now"] = resident["peak"] = 70
    assert of.watcher.held == {"b": 20 * MIB}
    of._start_anew([("a", None, 300, "new"), ("b", (8, 1), 9, "larger")])
    [found] = went
    assert found.ended == (
        Ended("a", None, 300, "new", 1000.0, 2), point, Ended("b", (8, 1), 9, "larger", 1000.0)
    )  # fmt: skip
    assert found.took == {"a": 100, "b": 20 * MIB}


def test_a_guest_keeps_what_canaries_took_beside_the_journal(
    resident: dict[str, int], tmp_path: Path
) -> None:
    room = FakeRoom(500)

    def guest(**targets: Target) -> Openings:
        of = Openings(room, targets, tmp_path / "journal")
        of.be_a_guest()
        return of

    of = guest(a=Asking(), b=Plain())
    assert opened(of, "b") == ""
    with of.of["a"]:
        of.of["a"].ask([Need("model", 30 * MIB, "its file", "")])
        resident["now"] += 80
    of.of["a"].ask([Need("sweep", 1, "", "")])  # not while it is opened: nothing to remember
    room.mib = 70
    of = guest(a=Asking(), b=Plain())
    assert opened(of, "b") == ""
    with pytest.raises(Failure) as caught, of.of["a"]:
        of.of["a"].ask([Need("model", 30 * MIB, "its file", "")])
    assert str(caught.value).startswith(
        "canaries.a.target: opening it, by what it took before (journal.memory, to be removed if that is no longer so),"
        " needs 80 MiB; 70 MiB are left of the container's limit of 300 MiB"
    )
    with of.of["a"]:  # another model
        of.of["a"].ask([Need("model", 31 * MIB, "its file", "")])
    (tmp_path / "journal.memory").write_text("junk")
    assert opened(guest(a=Asking(), b=Plain()), "b") == ""
    (tmp_path / "journal.memory").unlink()
    (tmp_path / "journal.memory").mkdir()
    assert opened(guest(a=Asking(), b=Plain()), "b") == ""


@pytest.mark.parametrize("late", [False, True])
def test_in_a_servers_process_an_opening_is_interrupted(resident: dict[str, int], late: bool) -> None:
    """What comes too late for it does not reach what its thread does next; and it waits as in a process of its own."""
    room = FakeRoom(1)
    of: Openings = Openings(room, {"a": Plain(), "b": Plain()})
    of.be_a_guest()

    def opens() -> None:
        with of.of["a"] as watched, watched:
            [growth] = of.watcher._growing
            resident["now"], room.mib = 120, 0
            opening(growth)

    def opening(growth: Growth) -> None:
        """A call, as in the product: what interrupts a loop that stands in the `with` itself may pass it by in 3.13."""
        deadline = time.monotonic() + 10
        while not (late and growth.interrupted):  # else one without an end
            assert time.monotonic() < deadline

    with pytest.raises(Failure) as caught:
        opens()
    for _ in range(1000):  # an error that is pending would be raised here
        pass
    why = "canaries.a: opening it was ended when it had taken 70 MiB, with nothing left of"
    assert caught.value.reason == "out_of_memory" and str(caught.value).startswith(why)
    assert opened(of, "a") == str(caught.value)
    room.mib = 1000
    assert opened(of, "b") == ""


def test_an_interruption_may_hit_any_instruction(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call and return, where Python looks for it, as long as it may come: this opening ends, and no more."""
    monkeypatch.setattr(Interrupter, "_watch", lambda self: None)  # this test interrupts in its place
    of: Openings = Openings(FakeRoom(1000), {"a": Plain(), "b": Plain()})
    of.be_a_guest()
    files = {watcher.__file__, openings.__file__}
    hits = 0

    def interrupted_at(n: int) -> str:
        watched: Any = None
        seen = 0

        def profile(frame: FrameType, event: str, arg: object) -> None:
            nonlocal seen
            if watched is None or not (frame.f_code is work.__code__ or frame.f_code.co_filename in files):
                return
            if hasattr(watched, "_thread") and not watched._over.is_set() and not watched._lock.locked():
                seen += 1
                if seen == n:
                    sys.setprofile(None)
                    watched._interrupt(f"hit {n}")  # raised here, and so in the frame that is profiled

        def opens() -> None:
            nonlocal watched
            of.ended = {}
            with of.of["a"] as watched, watched:
                work()

        def work() -> None:
            pass

        why = ""
        sys.setprofile(profile)
        try:
            opens()
        except Failure as error:
            why = f"{error.reason}: {error}"
        finally:
            sys.setprofile(None)
        return why

    while why := interrupted_at(hits + 1):
        hits += 1
        assert why == f"out_of_memory: hit {hits}"
        assert of.watcher._growing == [] and of.ended["a"].why == f"hit {hits}"
        assert opened(of, "b") == ""
    assert hits > 2
