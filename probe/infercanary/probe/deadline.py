"""Calls with a deadline. Code that may hang (a model, a driver) runs in a separate thread that can be abandoned."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from infercanary.contract.text import printable

T = TypeVar("T")

Calls: TypeAlias = "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]"


class DeadlineExceeded(Exception):
    """The call did not return in time. The call continues in its thread, because a thread cannot be killed."""


class StillBusy(Exception):
    """An earlier call that exceeded its deadline still holds the thread; no new call was started."""


class Interrupted(Exception):
    """:meth:`Worker.interrupt` ended the wait; the call continues in its thread."""


class Worker:
    """A daemon thread that runs one call at a time, and ends after each call.

    If a call exceeds its deadline, the worker is busy until that call returns, and then accepts calls again. All calls
    must come from one thread; :meth:`interrupt` may come from any thread.

    A thread that ran OpenMP code keeps a pool of threads for its whole life. With more pool threads than CPUs, libgomp
    hardly spins in the whole process: with a canary's idle pool in addition to the server's pool, a ResNet-18 on two
    CPUs took 62 ms instead of 35 ms (docs/adr/0006-threads-of-a-canary.md).

    Args:
        name: Name of the thread.
        stays: True to keep the thread for the next call, which is cheaper.
    """

    def __init__(self, name: str, *, stays: bool = False) -> None:
        self.cpu_seconds = 0.0
        """CPU time of the calls that have ended."""
        self._name = name
        self._stays = stays
        self._calls: Calls = queue.SimpleQueue()
        self._answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._interrupted = False
        self.is_busy = False
        """True if a call holds the thread, even after its deadline."""
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Call ``function`` in the thread: :meth:`begin`, then :meth:`result`.

        Raises:
            DeadlineExceeded: The function has not returned in time. It continues, and its result is lost.
            StillBusy: An earlier call hangs; the function was not started.
            Interrupted: :meth:`interrupt` was called.
            BaseException: Any exception that ``function`` raised.
        """
        self.begin(function)
        result: T = self.result(seconds)
        return result

    def begin(self, function: Callable[[], Any]) -> None:
        """Start a call of ``function`` in the worker's thread.

        Raises:
            StillBusy: An earlier call hangs.
        """
        if self.is_busy:
            raise StillBusy("still hanging in an earlier run")
        if self._thread is None:
            self._start()
        self.is_busy = True
        self._answer = queue.SimpleQueue()
        self._calls.put((function, self._answer))

    def result(self, seconds: float) -> Any:
        """Wait for the call that was begun last; return its result or raise its exception.

        Raises:
            DeadlineExceeded: The call has not returned within ``seconds``. Call this method again to continue
                waiting.
            Interrupted: :meth:`interrupt` was called.
        """
        if self._interrupted:
            raise Interrupted
        try:
            succeeded, result = self._answer.get(timeout=seconds)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
        if not (self._stays or self.is_busy):
            self._calls.put(None)
            self._thread = None
        if succeeded:
            return result
        try:
            raise result
        finally:
            # a frame that refers to its own exception keeps tensors until the next garbage collection
            del result

    def interrupt(self) -> None:
        """End the present wait and all later waits by raising :class:`Interrupted`."""
        self._interrupted = True
        self._answer.put((False, Interrupted()))

    def stop(self, seconds: float, last: Callable[[], Any] | None = None) -> bool:
        """End the thread after the present call, and after a final call of ``last``.

        Args:
            seconds: Longest wait for the end.
            last: Final call in the thread.

        Returns:
            True if the thread ended in time.
        """
        if last is not None:
            if self._thread is None:
                # from Python 3.12 on, no thread can be started while the interpreter exits
                with suppress(RuntimeError):
                    self._start()
            self._calls.put((last, queue.SimpleQueue()))
        if self._thread is None:
            return True
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self) -> None:
        self._calls = queue.SimpleQueue()  # the old queue belongs to the previous thread, which is ending
        thread = threading.Thread(target=self._work, args=(self._calls,), name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _work(self, calls: Calls) -> None:
        while (call := calls.get()) is not None:
            function, answer = call
            before = time.thread_time()
            try:
                outcome = (True, function())
            except BaseException as error:  # a model may raise any exception
                outcome = (False, error)
            self.cpu_seconds += time.thread_time() - before
            # Set idle before the answer is sent, because the receiver may call again immediately.
            self.is_busy = False
            answer.put(outcome)
            del call, function, answer, outcome


def close_all(closers: Iterable[Callable[[float], bool]], seconds: float) -> bool:
    """Close parts one after another. True if each part closed in time.

    Args:
        closers: The ``close`` methods of the parts, each called with its seconds.
        seconds: Time for all parts together; each part gets at least 0.1 s.
    """
    deadline = time.monotonic() + seconds
    ended = [close(max(0.1, deadline - time.monotonic())) for close in closers]
    return all(ended)


def one_line(error: BaseException) -> str:
    """Describe an error as ``RuntimeError: its first line``, because a model's error may be pages long or unreadable.

    Returns:
        Printable text, with at most 200 characters of the error's own text.
    """
    try:
        text = str(error).strip()
    except BaseException as broken:
        text = f"(the error's text cannot be read: {type(broken).__name__})"
    first = printable(text.partition("\n")[0], 200, " ")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def clear_frames(error: BaseException | None) -> None:
    """Release the objects in an error's frames: an engine in a frame would outlive its stream.

    Args:
        error: Clear this error and all errors in its context; None does nothing.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
