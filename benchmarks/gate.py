"""Pauses and resumes a probe inside one server process, so that both sides are measured in the same process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Gate(Executor):
    """A pool in front of the server's pool: while the gate is shut, the probe waits and gets no turn."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self.open = threading.Event()
        self.open.set()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run a call in the server's pool, once the gate is open."""
        self.open.wait()
        return self._pool.submit(function, *arguments, **named)
