"""Look-ups of host names in threads of their own: a resolver that hangs holds up no login, reload, or end of process.

asyncio's own share a few threads with all else that blocks, and the process ends only once each of them has ended.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

import aiohttp

_MOST_THREADS = 64


class Lookups:
    """Part of the event loop that aiohttp's resolver needs."""

    def __init__(self) -> None:
        self._pending: dict[object, Future[Any]] = {}

    def getaddrinfo(self, *given: Any, **named: Any) -> asyncio.Future[Any]:
        """See :meth:`asyncio.loop.getaddrinfo`. Callers that look up the same name share a thread."""
        key = given, tuple(named.items())
        answer = self._pending.get(key)
        if answer is None:
            if len(self._pending) >= _MOST_THREADS:
                raise OSError("the name server does not answer")
            answer = self._pending[key] = Future()
            answer.set_running_or_notify_cancel()  # a caller that gives up leaves the answer to the others

            def work(answer: Future[Any] = answer) -> None:
                try:
                    addresses = socket.getaddrinfo(*given, **named)
                except Exception as error:
                    del self._pending[key]
                    answer.set_exception(error)
                else:
                    del self._pending[key]
                    answer.set_result(addresses)

            threading.Thread(target=work, name="look-up", daemon=True).start()
        return asyncio.wrap_future(answer)


_lookups: Final[Any] = Lookups()


async def addresses(host: str, port: int) -> list[str]:
    """Look up ``host``.

    Args:
        host: Name or address.
        port: Of the server.

    Returns:
        Addresses, the preferred first.

    Raises:
        OSError: The name is unknown.
    """
    entries = await _lookups.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [entry[4][0] for entry in entries]


def connector() -> aiohttp.TCPConnector:
    """Make aiohttp's connector, with look-ups of names in threads of their own."""
    return aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver(loop=_lookups))
