"""Look-ups of host names in threads of their own: a resolver that hangs holds up no login, reload, or end of process.

asyncio's own share a few threads with all else that blocks, and the process ends only once each of them has ended.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import aiohttp

_MOST_THREADS = 64


class Lookups:
    """Stands in for the event loop in aiohttp's resolver, which asks it for nothing else than these two."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[object, Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._pending: dict[object, Future[Any]] = {}
        self._threads = 0

    def getaddrinfo(self, *given: Any, **named: Any) -> asyncio.Future[Any]:
        """See :meth:`asyncio.loop.getaddrinfo`."""
        return self._ask(socket.getaddrinfo, given, named)

    def getnameinfo(self, *given: Any, **named: Any) -> asyncio.Future[Any]:
        """See :meth:`asyncio.loop.getnameinfo`."""
        return self._ask(socket.getnameinfo, given, named)

    def _ask(
        self, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> asyncio.Future[Any]:
        """Callers that look up the same name share the answer: a name that hangs takes one thread."""
        key = function, given, tuple(named.items())
        answer = self._pending.get(key)
        if answer is None:
            answer = self._pending[key] = Future()
            answer.set_running_or_notify_cancel()  # one who gives up leaves it to the others
            self._queue.put((key, partial(function, *given, **named), answer))
            if self._threads < min(_MOST_THREADS, len(self._pending)):
                self._threads += 1
                threading.Thread(target=self._work, name="look-up", daemon=True).start()
        return asyncio.wrap_future(answer)

    def _work(self) -> None:
        while True:
            key, ask, answer = self._queue.get()
            try:
                found = ask()
            except Exception as error:
                del self._pending[key]
                answer.set_exception(error)
            else:
                del self._pending[key]
                answer.set_result(found)


_lookups: Final[Any] = Lookups()


def connector(**settings: Any) -> aiohttp.TCPConnector:
    """Make aiohttp's connector, with look-ups of names in threads of their own.

    Args:
        settings: As aiohttp takes them.
    """
    return aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver(loop=_lookups), **settings)
