"""Watch over workers: one that ends by a fault is counted, logged and started again once."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from infercanary.contract.report import Point
from infercanary.exporter.watch import WATCH, Caller, Watch, in_thread, install_look_ups

CASES: dict[str, tuple[list[Exception | None], int, int, list[str]]] = {
    "fine": ([None], 1, 0, []),
    "one fault": ([ValueError(), None], 2, 1, ["it is started again"]),
    "two faults": ([ValueError(), ValueError()], 2, 2, ["it is started again", "the exporter ends"]),
}
"""Case → results of each start, number of starts, failures, and words of the log."""


def as_thread(watched: Watch, work: Callable[[], None]) -> None:
    thread = watched.thread("w", work)
    thread.start()
    thread.join(10)
    assert thread.daemon and not thread.is_alive()


def as_task(watched: Watch, work: Callable[[], None]) -> None:
    async def once() -> None:
        work()

    async def run() -> None:
        await watched.task("w", once)

    asyncio.run(run())


@pytest.mark.parametrize("run", [as_thread, as_task])
@pytest.mark.parametrize("case", CASES)
def test_workers(run: Any, case: str) -> None:
    results, starts, failures, words = CASES[case]
    watched, todo, gave_up = Watch(), [*results], []
    watched.gave_up = lambda: gave_up.append(1)

    def work() -> None:
        if (error := todo.pop(0)) is not None:
            raise error

    with capture_logs() as lines:
        run(watched, work)
    assert len(results) - len(todo) == starts
    assert [line["then"] for line in lines if line["worker"] == "w" and line["exc_info"]] == words
    [family] = watched.families()
    assert sum(point.value for point in family.points if isinstance(point.value, float)) == failures
    assert len(gave_up) == (failures > 1)


async def test_blocking_work_has_a_thread_of_its_own() -> None:
    """However many threads are stuck, another one starts."""
    release = threading.Event()
    stuck = [asyncio.create_task(in_thread(lambda: release.wait(20))) for _ in range(50)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(in_thread(threading.get_ident), 10) != threading.get_ident()
    release.set()
    assert all(await asyncio.gather(*stuck))


async def test_a_fault_of_the_work_is_its_callers_and_one_of_the_thread_is_counted() -> None:
    caller = Caller("reader-of-a-test")
    for work in (lambda: 1 / 0, lambda: sys.exit(1)):
        with pytest.raises((ZeroDivisionError, SystemExit)):
            await caller.call(work)
    assert await caller.call(lambda: threading.current_thread().name) == "reader-of-a-test"
    caller._calls.put(lambda: 1 / 0)  # type: ignore[arg-type]
    assert await asyncio.wait_for(caller.call(lambda: 7), 10) == 7, "it was started again"
    [family] = WATCH.families()
    assert Point(("reader-of-a-test",), 1.0) in family.points


async def test_a_name_is_looked_up_once_at_a_time_and_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, release = [], threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> str:
        asked.append(host)
        release.wait(20)
        if host == "odd":
            raise UnicodeError(host)
        return f"address of {host}"

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    install_look_ups()
    loop: Any = asyncio.get_running_loop()
    first, second, odd = (asyncio.create_task(loop.getaddrinfo(host, 80)) for host in ("a", "a", "odd"))
    await asyncio.sleep(0)
    first.cancel()
    release.set()
    assert await second == "address of a"
    with pytest.raises(UnicodeError):
        await odd
    assert asked == ["a", "odd"]
    assert await loop.getaddrinfo("a", 80) == "address of a" and asked == ["a", "odd", "a"]
