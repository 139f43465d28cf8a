"""Pauses and resumes a probe, to measure latency with and without the probe in one server process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Gate(Executor):
    """Executor that passes the probe's calls to the server's pool. While the gate is shut, the calls wait."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self.open = threading.Event()
        self.open.set()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Wait until the gate is open; then run a call in the server's pool."""
        self.open.wait()
        return self._pool.submit(function, *arguments, **named)
