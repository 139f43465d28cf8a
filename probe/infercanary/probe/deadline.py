"""Calls with a deadline: what may hang (a model, a driver) runs in a thread of its own that can be given up on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """The call did not come back in time; it goes on in its thread, which nobody can kill."""


class StillBusy(Exception):
    """An earlier call that exceeded its deadline still holds the thread: nothing was started."""


class Worker:
    """One daemon thread that runs one call at a time.

    All calls of a worker run in the same thread, which matters to what keeps state per thread (CUDA's current
    device, OpenMP's pool). When a call exceeds its deadline the worker is busy until that call returns, and then
    takes calls again by itself.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """``function()``'s result, or what it raised.

        Raises :class:`DeadlineExceeded` after ``seconds``, and :class:`StillBusy` at once while an earlier call hangs.
        """
        if not self._idle.is_set():
            raise StillBusy
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle.clear()
        self._calls.put((function, answer))
        try:
            succeeded, result = answer.get(timeout=seconds)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
        if succeeded:
            return result  # type: ignore[no-any-return]
        raise result

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return not self._idle.is_set()

    def stop(self, seconds: float) -> bool:
        """End the thread after the call under way; whether it ended within ``seconds``."""
        if self._thread is None:
            return True
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            try:
                outcome = (True, function())
            except BaseException as error:  # a model may raise anything; it is the caller's to judge
                outcome = (False, error)
            # Idle before the answer: whoever has the answer may call again at once.
            self._idle.set()
            answer.put(outcome)
            del call, function, answer, outcome
