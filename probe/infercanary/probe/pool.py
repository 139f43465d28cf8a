"""The server's own pool of threads, which runs the server's model. A canary waits for a turn in this pool."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from infercanary.probe.deadline import one_line

log = logging.getLogger("infercanary.probe")


class NoTurn(Exception):
    """The canary got no turn, because the server's pool or its GPU was busy for too long. This is not a failure of
    the canary.
    """


class Pool:
    """The server's own pool. Its threads run the repeats between requests.

    ``on_hang`` is called if a canary holds a thread of the pool past its deadline. The function may return a new pool
    for later work, so that a server with few threads can continue to serve.

    Args:
        executor: The server's executor.
        on_hang: Called in the probe's thread. The pool stays if ``on_hang`` is None or returns None.
    """

    def __init__(self, executor: Executor, on_hang: Callable[[], Executor | None] | None) -> None:
        self._executor = executor
        self._on_hang = on_hang

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` in a thread of the pool, as :meth:`concurrent.futures.Executor.submit`."""
        return self._executor.submit(work)

    def lost_a_thread(self) -> None:
        """Tell the server that a canary hangs in a thread. If the server returns a new pool, use that pool. Never
        raises.
        """
        if self._on_hang is None:
            return
        try:
            self._executor = self._on_hang() or self._executor
        except BaseException as error:  # the server's own code, which runs in the probe's thread
            log.error("on_hang failed: %s", one_line(error))
