"""Watch over the threads and tasks that must not end while the exporter runs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

import structlog

from infercanary.contract.report import Family, Metric

log = structlog.get_logger(__name__)

T = TypeVar("T")

FAILURES = Metric(
    "infercanary_worker_failures_total",
    "counter",
    "Times that a thread or task of the exporter ended by a fault of the exporter.",
    ("worker",),
    reading="Healthy is no increase. It is started again; the second time within ten minutes, the exporter ends "
    "with code 70.",
)
METRICS = (FAILURES,)

_STEADY_SECONDS = 600.0


class Watch:
    """Restart a thread or task that ended by a fault; give up if it did so shortly before."""

    def __init__(self) -> None:
        self.gave_up: Callable[[], object] = lambda: None
        """Called from any thread when a worker is not started again."""
        self._failures: Counter[str] = Counter()

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Make a daemon thread, not started yet.

        Args:
            name: Worker of the metric.
            work: Returns when the exporter stops.
        """

        def run() -> None:
            failed_at = -math.inf
            while True:
                try:
                    return work()
                except BaseException as error:
                    if not self._restarts(name, error, failed_at):
                        return None
                    failed_at = time.monotonic()

        return threading.Thread(target=run, name=name, daemon=True)

    def task(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a task on the running event loop.

        Args:
            name: Worker of the metric.
            work: Called at each start.
        """

        async def run() -> None:
            failed_at = -math.inf
            while True:
                try:
                    return await work()
                except Exception as error:
                    if not self._restarts(name, error, failed_at):
                        return None
                    failed_at = time.monotonic()

        return asyncio.create_task(run())

    def families(self) -> list[Family]:
        """Return the number of failures of each worker."""
        return [FAILURES.family({(name,): float(count) for name, count in self._failures.items()})]

    def _restarts(self, name: str, error: BaseException, failed_at: float) -> bool:
        gives_up = time.monotonic() - failed_at < _STEADY_SECONDS
        self._failures[name] += 1
        with suppress(Exception):  # a log that fails must not end the worker, too
            log.error(
                "a worker ended by a fault of the exporter",
                worker=name,
                then="the exporter ends" if gives_up else "it is started again",
                exc_info=error,
            )
        if gives_up:
            self.gave_up()
        return not gives_up


WATCH = Watch()
"""The watch of this process."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own, which the end of the process does not wait for.

    In a shared pool, slow work of one part would hold up the others.
    """
    loop = asyncio.get_running_loop()
    done: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    done.set_running_or_notify_cancel()  # a caller that gives up leaves the thread to itself
    threading.Thread(target=run, name="call", daemon=True).start()
    return await asyncio.wrap_future(done, loop=loop)
