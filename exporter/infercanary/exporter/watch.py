"""The threads and tasks that must not end while the exporter runs, and what happens when one does."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

from infercanary.contract.report import Family, Metric

log = structlog.get_logger(__name__)

ENDED = Metric(
    "infercanary_worker_failures_total",
    "counter",
    "Times that a thread or task of the exporter ended by a fault of the exporter.",
    ("worker",),
    reading="Healthy is no increase. It is started again; the second time within ten minutes, the exporter ends "
    "with code 70.",
)
METRICS = (ENDED,)

_STEADY_SECONDS = 600.0


class Watch:
    """Starts what ended by a fault once more, and gives up when that ends soon again."""

    def __init__(self) -> None:
        self.gave_up: Callable[[], object] = lambda: None
        """Called from any thread when something ended for good."""
        self._ended: Counter[str] = Counter()

    def thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A daemon thread, not started yet.

        Args:
            name: Of the worker, for the metric.
            work: Returns when the exporter stops.
        """

        def run() -> None:
            failed_at: float | None = None
            while True:
                try:
                    return work()
                except BaseException as error:
                    if not self._may_restart(name, error, failed_at):
                        return None
                    failed_at = time.monotonic()

        return threading.Thread(target=run, name=name, daemon=True)

    def task(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task of the running event loop.

        Args:
            name: Of the worker, for the metric.
            work: Gives what is awaited, at each start.
        """

        async def run() -> None:
            failed_at: float | None = None
            while True:
                try:
                    return await work()
                except Exception as error:
                    if not self._may_restart(name, error, failed_at):
                        return None
                    failed_at = time.monotonic()

        return asyncio.create_task(run())

    def families(self) -> list[Family]:
        """How often each one ended."""
        return [ENDED.family({(name,): float(count) for name, count in self._ended.items()})]

    def _may_restart(self, name: str, error: BaseException, failed_at: float | None) -> bool:
        is_first = failed_at is None or time.monotonic() - failed_at >= _STEADY_SECONDS
        self._ended[name] += 1
        event = "a worker ended by a fault of the exporter"
        then = "it is started again" if is_first else "the exporter ends"
        try:
            log.error(event, worker=name, then=then, exc_info=error)
        except Exception:  # as the log itself does where the clock is past the year 2262
            sys.stderr.write(f"infercanary: {event}: {name}: {error!r}; {then}\n")
            traceback.print_exception(error)
        if not is_first:
            self.gave_up()
        return is_first


WATCH = Watch()
"""The watch of this process."""
