"""Watch over the threads and tasks that must not end while the exporter runs.

Blocking work never shares a few threads, as in asyncio's own pool: slow work of one part would hold up the others, and
the process would end only once each thread has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog

from infercanary.contract.report import Family, Metric

log = structlog.get_logger(__name__)

FAILURES = Metric(
    "infercanary_worker_failures_total",
    "counter",
    "Times that a thread or task of the exporter ended by a fault of the exporter.",
    ("worker",),
    reading="Healthy is no increase. It is started again; the second time, the exporter ends with code 70.",
)

_ENDINGS = ("it is started again", "the exporter ends")


class Watch:
    """Restart a thread or task that ended by a fault; the second time, give up."""

    def __init__(self) -> None:
        self.gave_up: Callable[[], object] = lambda: None
        """Called from any thread when a worker is not started again."""
        self._failures: Counter[tuple[str, ...]] = Counter()

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Make a daemon thread, not started yet.

        Args:
            name: Worker of the metric.
            work: Returns when the exporter stops.
        """

        def run() -> None:
            for ending in _ENDINGS:
                try:
                    work()
                except BaseException as error:
                    self._note(name, error, ending)
                else:
                    return
            self.gave_up()

        return threading.Thread(target=run, name=name, daemon=True)

    def task(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a task on the running event loop.

        Args:
            name: Worker of the metric.
            work: Called at each start.
        """

        async def run() -> None:
            for ending in _ENDINGS:
                try:
                    await work()
                except Exception as error:
                    self._note(name, error, ending)
                else:
                    return
            self.gave_up()

        return asyncio.create_task(run())

    def families(self) -> list[Family]:
        """Return the number of failures of each worker."""
        return [FAILURES.family(self._failures)]

    def _note(self, name: str, error: BaseException, ending: str) -> None:
        self._failures[name,] += 1
        with suppress(Exception):  # a log that fails must not end the worker, too
            log.error("a worker ended by a fault of the exporter", worker=name, then=ending, exc_info=error)


WATCH = Watch()
"""The watch of this process."""


class _OwnThreads(ThreadPoolExecutor):
    """Run each call in a thread that nobody else waits for; its result and its faults go to the caller.

    A pool by name only: asyncio takes no other executor, and waits for the threads of a pool at the end.
    """

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Begin a call."""
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # a caller that gives up leaves the call to itself

        def run() -> None:
            try:
                done.set_result(work(*given, **named))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="call", daemon=True).start()
        return done


def use_own_threads() -> None:
    """Give each :func:`asyncio.to_thread` and look-up of a name on the running event loop a thread of its own."""
    asyncio.get_running_loop().set_default_executor(_OwnThreads())
