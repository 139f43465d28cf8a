"""Look-ups of host names in threads of their own: a resolver that hangs holds up no login, reload, or end of process.

asyncio's own share a few threads with all else that blocks, and the process ends only once each of them has ended.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

from infercanary.exporter.watch import in_thread

_MOST_THREADS = 64


def install() -> None:
    """Make the running event loop look up names in threads of their own, one for each name."""
    pending: dict[object, asyncio.Future[Any]] = {}

    async def getaddrinfo(*given: Any, **named: Any) -> Any:
        key = given, *named.items()
        if key not in pending:
            if len(pending) >= _MOST_THREADS:
                raise OSError("the name server does not answer")
            pending[key] = asyncio.ensure_future(in_thread(partial(socket.getaddrinfo, *given, **named)))
            pending[key].add_done_callback(lambda _answer: pending.pop(key))
        return await asyncio.shield(pending[key])  # a caller that gives up leaves the answer to the others

    loop: Any = asyncio.get_running_loop()
    loop.getaddrinfo = getaddrinfo
