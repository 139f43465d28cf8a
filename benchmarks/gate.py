"""Hold a probe back and let it go on, inside one server process: without a restart both sides are the same process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Gate(Executor):
    """The server's pool as the probe sees it: while it is shut the probe waits, and takes no turn."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self.open = threading.Event()
        self.open.set()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """As the pool does, once the gate is open."""
        self.open.wait()
        return self._pool.submit(function, *arguments, **named)
