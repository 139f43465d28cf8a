"""Calls with a deadline: what may hang (a model, a driver) runs in a thread of its own, and can be given up."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from infercanary.contract.text import printable

T = TypeVar("T")

Calls: TypeAlias = "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]"


class DeadlineExceeded(Exception):
    """The call did not come back in time; it goes on in its thread, which nobody can kill."""


class StillBusy(Exception):
    """An earlier call that exceeded its deadline still holds the thread: nothing was started."""


class Interrupted(Exception):
    """The wait was ended by :meth:`Worker.interrupt`; the call goes on in its thread."""


class Worker:
    """One daemon thread that runs one call at a time.

    The thread lives until :meth:`rest` or :meth:`stop`; the next call then starts another. When a call exceeds its
    deadline the worker is busy until that call returns, and then takes calls again by itself. One thread makes the
    calls; :meth:`interrupt` may come from any.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self.cpu_seconds = 0.0
        """CPU time of the calls that ended."""
        self._name = name
        self._calls: Calls = queue.SimpleQueue()
        self._answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._interrupted = False
        self.is_busy = False
        """Whether a call holds the thread, maybe one that exceeded its deadline."""
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Call ``function`` in the thread: :meth:`begin`, then :meth:`result`.

        Args:
            function: What to call.
            seconds: How long to wait for it.

        Returns:
            Its result.

        Raises:
            DeadlineExceeded: It has not returned in time; it goes on, and its result is lost.
            StillBusy: An earlier call hangs; nothing was started.
            Interrupted: :meth:`interrupt` was called.
            BaseException: Whatever ``function`` raised.
        """
        self.begin(function)
        result: T = self.result(seconds)
        return result

    def begin(self, function: Callable[[], Any]) -> None:
        """Start a call.

        Args:
            function: Called in the worker's thread, without arguments.

        Raises:
            StillBusy: An earlier call hangs.
        """
        if self.is_busy:
            raise StillBusy
        if self._thread is None:
            self._start()
        self.is_busy = True
        self._answer = queue.SimpleQueue()
        self._calls.put((function, self._answer))

    def result(self, seconds: float) -> Any:
        """Wait for the call that was begun last, and return or raise what it did.

        Args:
            seconds: How long to wait.

        Returns:
            What the function returned.

        Raises:
            DeadlineExceeded: It has not returned within ``seconds``; another call of this method goes on waiting.
            Interrupted: :meth:`interrupt` was called.
        """
        if self._interrupted:
            raise Interrupted
        try:
            succeeded, result = self._answer.get(timeout=seconds)
        except queue.Empty:
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
        if succeeded:
            return result
        try:
            raise result
        finally:
            del result  # a frame that holds its own exception keeps the model's tensors until the next gc

    def interrupt(self) -> None:
        """End the wait under way, and every later one, with :class:`Interrupted`."""
        self._interrupted = True
        self._answer.put((False, Interrupted()))

    def rest(self) -> None:
        """Let the thread end; a call that hangs keeps it.

        A thread that ran OpenMP code keeps a pool of threads for as long as it lives. Once pools outnumber the CPUs,
        libgomp hardly spins any more, in the whole process: with a canary's idle pool beside the server's own, a
        ResNet-18 on two CPUs took 62 ms instead of 35 (docs/adr/0006-threads-of-a-canary.md).
        """
        if self._thread is not None and not self.is_busy:
            self._calls.put(None)
            self._thread = None

    def stop(self, seconds: float, last: Callable[[], Any] | None = None) -> bool:
        """End the thread after the call under way, and after ``last``.

        Args:
            seconds: How long to wait for that.
            last: A call to make in the thread in the end.

        Returns:
            Whether it ended in time.
        """
        if self._thread is None and last is not None:
            with suppress(
                RuntimeError
            ):  # from Python 3.12 on an interpreter that is ending starts no more threads
                self._start()
        if self._thread is None:
            return True
        if last is not None:
            self._calls.put((last, queue.SimpleQueue()))
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self) -> None:
        self._calls = queue.SimpleQueue()  # the thread before, which is ending, has the old one
        thread = threading.Thread(target=self._work, args=(self._calls,), name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _work(self, calls: Calls) -> None:
        while (call := calls.get()) is not None:
            function, answer = call
            before = time.thread_time()
            try:
                outcome = (True, function())
            except BaseException as error:  # a model may raise anything; the caller handles it
                outcome = (False, error)
            self.cpu_seconds += time.thread_time() - before
            # Idle before the answer: who has the answer may call again immediately.
            self.is_busy = False
            answer.put(outcome)
            del call, function, answer, outcome


def one_line(error: BaseException) -> str:
    """Describe an error as ``RuntimeError: its first line``: a model's may be pages long, or fail while it is read.

    Args:
        error: Any exception.

    Returns:
        Printable text, with at most 200 characters of the error's own.
    """
    try:
        text = str(error).strip()
    except BaseException as broken:
        text = f"(its text cannot be read: {type(broken).__name__})"
    first = printable(text.partition("\n")[0], 200, " ")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def clear_frames(error: BaseException | None) -> None:
    """Release what an error's frames still hold: an engine there would outlive the stream that it runs on.

    Args:
        error: It and each error in whose handling it was raised; None for nothing.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
