"""Look-ups of host names in threads of their own: a resolver that hangs holds up no login, reload, or end of process.

asyncio's own share a few threads with all else that blocks, and the process ends only once each of them has ended.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any

_MOST_THREADS = 64


def install() -> None:
    """Make the running event loop look up names in threads of their own, one for each name."""
    pending: dict[object, Future[Any]] = {}

    def look_up(key: object, answer: Future[Any], given: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            addresses = socket.getaddrinfo(*given, **named)
        except Exception as error:
            del pending[key]
            answer.set_exception(error)
        else:
            del pending[key]
            answer.set_result(addresses)

    async def getaddrinfo(*given: Any, **named: Any) -> Any:
        key = given, *named.items()
        answer = pending.get(key)
        if answer is None:
            if len(pending) >= _MOST_THREADS:
                raise OSError("the name server does not answer")
            answer = pending[key] = Future()
            answer.set_running_or_notify_cancel()  # a caller that gives up leaves the answer to the others
            threading.Thread(
                target=look_up, args=(key, answer, given, named), name="look-up", daemon=True
            ).start()
        return await asyncio.wrap_future(answer)

    loop: Any = asyncio.get_running_loop()
    loop.getaddrinfo = getaddrinfo
