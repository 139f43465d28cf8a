from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from infercanary.exporter import lookups


async def test_a_name_is_looked_up_once_and_as_many_at_once_as_there_are_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answer = [], threading.Event()

    def hang(host: str, *_given: Any, **_named: Any) -> list[str]:
        asked.append(host)
        answer.wait(5)
        return [host]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    lookups.install()
    loop = asyncio.get_running_loop()
    names = [f"host-{number}" for number in range(64)]
    waiting = [asyncio.create_task(loop.getaddrinfo(name, 80)) for name in (*names, *names)]
    await asyncio.sleep(0.1)
    with pytest.raises(OSError, match="the name server does not answer"):
        await loop.getaddrinfo("another", 80)
    waiting[0].cancel()  # a caller that gives up leaves the answer to the others
    answer.set()
    answers: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
    assert answers[1:] == [[name] for name in (*names, *names)][1:]
    assert sorted(asked) == sorted(names)
    assert await loop.getaddrinfo("another", 80) == ["another"]
