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

CASES = [([], 1), (["it is started again"], 2), (["it is started again", "the exporter ends"], 2)]
"""Words of the log, one for each fault, and the number of starts."""


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
@pytest.mark.parametrize(("words", "starts"), CASES)
def test_workers(run: Any, words: list[str], starts: int) -> None:
    watched, began, gave_up = Watch(), [], []
    watched.gave_up = lambda: gave_up.append(1)

    def work() -> None:
        began.append(1)
        if len(began) <= len(words):
            raise ValueError

    with capture_logs() as lines:
        run(watched, work)
    assert len(began) == starts and len(gave_up) == (len(words) > 1)
    assert [line["then"] for line in lines if line["worker"] == "w" and line["exc_info"]] == words
    [family] = watched.families()
    assert [point.value for point in family.points] == ([len(words)] if words else [])


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
