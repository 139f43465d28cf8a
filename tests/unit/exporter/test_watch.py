"""Threads of the exporter. Who ends by a fault is started again: tests/integration/exporter/test_watch.py."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from infercanary.exporter.watch import use_own_threads


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
