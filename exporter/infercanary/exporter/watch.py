"""Watch over the threads and tasks that must not end while the exporter runs.

Blocking work never runs in asyncio's own pool: its few threads are shared, so that slow work of one part would hold up
the others, and the process ends only once each of them has ended. Here it gets a daemon thread: one of its own
(:func:`in_thread`), or the watched thread of a :class:`Caller`. A fault in the work is raised in the task that asked
for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import structlog

from infercanary.contract.report import Family, Metric

log = structlog.get_logger(__name__)

T = TypeVar("T")

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
        self._failures: Counter[str] = Counter()

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
        return [FAILURES.family({(name,): float(count) for name, count in self._failures.items()})]

    def _note(self, name: str, error: BaseException, ending: str) -> None:
        self._failures[name] += 1
        with suppress(Exception):  # a log that fails must not end the worker, too
            log.error("a worker ended by a fault of the exporter", worker=name, then=ending, exc_info=error)


WATCH = Watch()
"""The watch of this process."""


def _begin(work: Callable[[], T], start: Callable[[Callable[[], None]], object]) -> Future[T]:
    """Start work in a thread; its result and its faults go to the future."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a caller that gives up leaves the work to itself

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    start(run)
    return done


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="call", daemon=True).start()


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own."""
    return await asyncio.wrap_future(_begin(work, _start_thread))


class Caller:
    """Run blocking work of the event loop in a watched thread, one call after another.

    Args:
        name: Worker of the metric.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        WATCH.thread(name, self._work).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``."""
        return await asyncio.wrap_future(_begin(work, self._calls.put))

    def _work(self) -> None:
        while True:
            self._calls.get()()  # bound to no name, which would keep a report until the next one


def install_look_ups() -> None:
    """Make the running event loop look up each host name in a thread of its own: a resolver may hang."""
    pending: dict[object, Future[Any]] = {}

    async def getaddrinfo(*given: Any, **named: Any) -> Any:
        question = given, *named.items()
        for answered in [key for key, answer in pending.items() if answer.done()]:
            del pending[answered]
        if question not in pending:
            pending[question] = _begin(partial(socket.getaddrinfo, *given, **named), _start_thread)
        return await asyncio.wrap_future(pending[question])

    loop: Any = asyncio.get_running_loop()
    loop.getaddrinfo = getaddrinfo
