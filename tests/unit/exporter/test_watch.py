"""Watch over workers: one that ends by a fault is counted, logged and started again once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from infercanary.exporter.watch import Watch, use_own_threads

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
    use_own_threads()
    release = threading.Event()
    stuck = [asyncio.create_task(asyncio.to_thread(release.wait, 20)) for _ in range(50)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(threading.get_ident), 10) != threading.get_ident()
    stuck.pop().cancel()
    loop = asyncio.get_running_loop()
    [(*_, address)] = await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
    assert address == ("127.0.0.1", 80)
    with pytest.raises(socket.gaierror):
        await loop.getaddrinfo("no.such.name.invalid", 80)
    release.set()
    assert all(await asyncio.gather(*stuck))
