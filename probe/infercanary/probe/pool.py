"""The server's own pool of threads, where its model runs and the canary takes its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from infercanary.probe.deadline import one_line

log = logging.getLogger("infercanary.probe")


class NoTurn(Exception):
    """The server's pool, or its GPU, was busy for so long that the canary got no turn; that is no failure of it."""


class Pool:
    """The server's own pool: its threads run the repeats, between requests.

    ``on_hang`` is called when a canary holds one of those threads past its deadline. It may return another pool to use
    from then on, so that a server with few threads goes on serving.

    Args:
        executor: The server's.
        on_hang: Called in the probe's thread; None, and its returning None, keep the pool.
    """

    def __init__(self, executor: Executor, on_hang: Callable[[], Executor | None] | None) -> None:
        self._executor = executor
        self._on_hang = on_hang

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """As :meth:`concurrent.futures.Executor.submit`.

        Args:
            work: Called in one of the pool's threads.

        Returns:
            Its result, later.
        """
        return self._executor.submit(work)

    def lost_a_thread(self) -> None:
        """A canary hangs in it. Never raises."""
        if self._on_hang is None:
            return
        try:
            self._executor = self._on_hang() or self._executor
        except BaseException as error:  # the host's code, in the probe's thread
            log.error("on_hang failed: %s", one_line(error))
