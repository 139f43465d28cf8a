"""Restarts threads and tasks that must run as long as the exporter runs.

Each blocking call has its own thread. In asyncio's small pool, slow work of one part would delay other parts, and the
process would wait for every thread at its end.
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
    "Times that a thread or task of the exporter ended because of a bug in the exporter.",
    ("worker",),
    reading="Healthy is no increase. A worker is restarted once; at its second failure, the exporter ends with "
    "code 70.",
)

_ENDINGS = ("the worker is started again", "the exporter ends")


class Watch:
    """Restarts a thread or task that a bug ended; calls ``gave_up`` after the second failure."""

    def __init__(self) -> None:
        self.gave_up: Callable[[], object] = lambda: None
        """Called, from any thread, if a worker is not restarted."""
        self._failures: Counter[tuple[str, ...]] = Counter()

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Return a daemon thread that is not started yet.

        Args:
            name: Value of the metric's label ``worker``.
            work: Function of the thread, which returns when the exporter stops.
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
            name: Value of the metric's label ``worker``.
            work: Called at each start of the task.
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
        with suppress(Exception):  # a logging error must not end the worker
            log.error(
                "a worker ended because of a bug in the exporter", worker=name, then=ending, exc_info=error
            )


WATCH = Watch()


class _OwnThreads(ThreadPoolExecutor):
    """Runs each call in its own thread, and returns result or error to the caller. The process does not wait for the
    thread.

    asyncio accepts only a thread pool as executor, hence the base class. asyncio would wait for the pool's threads at
    the end, so the pool itself stays without threads.
    """

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # the call continues after its caller gives up

        def run() -> None:
            try:
                done.set_result(work(*given, **named))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="call", daemon=True).start()
        return done


def use_own_threads() -> None:
    """Run each :func:`asyncio.to_thread` call and DNS look-up of the running event loop in its own thread."""
    asyncio.get_running_loop().set_default_executor(_OwnThreads())
