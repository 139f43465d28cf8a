"""Ends the probe's growth before the kernel has to end a process: in a thread.

In a process of the probe's own all is watched. In a server's only what is being opened is, and that is interrupted.
What is left is read at a pace that follows how much there is. Decided in docs/adr/0018-memory-is-watched.md.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from infercanary.probe.measures import peak, resident
from infercanary.probe.room import Left, Room
from infercanary.probe.shortage import readable

log = logging.getLogger("infercanary.probe")

_PROC = Path("/proc/self")
_LEAST = 8 << 20  # ending what took less is no help
# Growth that is noticed before it takes what is left, in bytes a second, and seconds between two looks.
_OWN_RATE, _OWN_PAUSES = 4 << 30, (0.01, 0.2)  # while something is opened or swept
_OTHERS_RATE, _OTHERS_PAUSES = 400 << 20, (0.1, 1.0)
_RUN_SECONDS = 1.0  # a run that takes longer does not notice a look
_UNKNOWN_SECONDS = 60.0


class Growth:
    """Work of a canary that takes memory, from its beginning on.

    Args:
        canary: Whose.
        load: Batch and concurrency of a sweep's point; None where the canary is opened.
        proc: The process's folder in ``/proc``.
    """

    def __init__(self, canary: str, load: tuple[int, int] | None = None, proc: Path = _PROC) -> None:
        self.canary = canary
        self.load = load
        self.interrupted = ""
        """Why it was interrupted; empty where it was not."""
        self._proc = proc
        self._before = self._most = self._peak = 0
        with suppress(OSError, ValueError, IndexError):
            self._before = self._most = resident(proc)
            self._peak = peak(proc)

    def look(self) -> int:
        """Read how much the process has grown since the beginning.

        Returns:
            Bytes; 0 where it has not, or it cannot be read.
        """
        with suppress(OSError, ValueError, IndexError):
            now = resident(self._proc)
            self._most = max(self._most, now)
            return max(0, now - self._before)
        return 0

    @property
    def took(self) -> int:
        """The most that it had grown at any time, as far as that was seen."""
        self.look()
        with suppress(OSError, ValueError, IndexError):
            if (most := peak(self._proc)) > self._peak:  # else it was before, or another run has reset it
                self._most = max(self._most, most)
        return self._most - self._before


class Interrupter:
    """Raises `MemoryError` in the thread that enters it, at most once, where too little is left for what it opens.

    It may come at any call, also that of ``__exit__``: another ``with`` around this one takes what escapes. Once
    ``__exit__`` has returned, nothing comes any more. Around calls alone: what interrupts a loop that stands in the
    ``with`` itself passes that by in Python 3.13, whose compiler leaves its jump back out of the exception table.

    Args:
        growth: What is opened; it keeps why it was interrupted.
        room: Where it is read what is left.
    """

    def __init__(self, growth: Growth, room: Room) -> None:
        self._growth = growth
        self._room = room
        self._over, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        try:
            threading.Thread(target=self._watch, name="infercanary-memory", daemon=True).start()
        except RuntimeError as error:  # the container is out of threads
            log.warning("what is left of the memory is not watched: %s", error)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._over.set()  # calls of Python, at which what was raised comes, if it has not yet

    def _watch(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            size = self._growth.look()
            if (found := self._room.look()) is None:
                return
            room, _ = found
            if size >= _LEAST and room.size == 0:
                self._interrupt(_too_much(self._growth, size, room))
                return
            least, most = _OWN_PAUSES
            pause = min(most, max(least, room.size / _OWN_RATE))

    def _interrupt(self, why: str) -> None:
        with self._lock:
            if not self._over.is_set():
                self._growth.interrupted = why
                _raise_in(self._thread, MemoryError)


Ends = Callable[[Sequence[tuple[str, "tuple[int, int] | None", int, str]]], None]
"""Called with the canary, the load, the bytes and the reason of each work that must end."""


class Watcher:
    """Knows what is growing and what is held; once started, it looks whether enough is left.

    Args:
        room: Where it is read what is left.
    """

    def __init__(self, room: Room) -> None:
        self.held: dict[str, int] = {}
        """Canary → bytes that it took when it was opened, for as long as it is open."""
        self.is_guest = False
        """Whether this is a server's process."""
        self._room = room
        self._growing: list[Growth] = []
        self._changed = threading.Event()
        self._stopping = threading.Event()

    @contextmanager
    def growing(self, canary: str, load: tuple[int, int] | None = None) -> Iterator[Growth]:
        """Watch closely for as long as the context lasts.

        Args:
            canary: Whose work may take memory.
            load: Of a sweep's point.

        Yields:
            How much it takes.
        """
        growth = Growth(canary, load)
        self._growing = [*self._growing, growth]
        self._changed.set()
        try:
            yield growth
        finally:
            self._growing = [each for each in self._growing if each is not growth]

    def interrupting(self, growth: Growth) -> AbstractContextManager[object]:
        """Where opening can only be interrupted: around it, in its thread.

        Args:
            growth: What it takes.

        Returns:
            An :class:`Interrupter` in a server's process; elsewhere nothing.
        """
        return Interrupter(growth, self._room) if self.is_guest else nullcontext()

    def start(self, ends: Ends, running_since: Callable[[], float | None]) -> None:
        """Look from now on, in a daemon thread.

        Args:
            ends: Called in that thread where too little is left; it need not return.
            running_since: When the run under way began (monotonic); None between runs.
        """

        def work() -> None:
            while not self._stopping.is_set():
                try:
                    pause = self.look(ends, running_since())
                except Exception:
                    log.exception("what is left of the memory cannot be read: this is a defect of the probe")
                    pause = _UNKNOWN_SECONDS
                self._changed.wait(pause)
                self._changed.clear()

        try:
            threading.Thread(target=work, name="infercanary-memory", daemon=True).start()
        except RuntimeError as error:  # the container is out of threads
            log.warning("what is left of the memory is not watched: %s", error)

    def stop(self) -> None:
        """Look no more; callable from any thread."""
        self._stopping.set()
        self._changed.set()

    def look(self, ends: Ends, running_since: float | None) -> float:
        """Look once, unless that would disturb a run.

        What the probe itself takes leaves the whole reserve alone. What others take later may go down to 64 MiB of it:
        a server that is close to its limit by day does not end canaries that had room.

        Args:
            ends: Called where too little is left.
            running_since: When the run under way began.

        Returns:
            Seconds until the next look.
        """
        growing = self._growing
        rate, (least, most) = (_OWN_RATE, _OWN_PAUSES) if growing else (_OTHERS_RATE, _OTHERS_PAUSES)
        if not growing and running_since is not None and time.monotonic() - running_since < _RUN_SECONDS:
            return least
        grown = [(growth, growth.look()) for growth in growing]
        if (found := self._room.look()) is None:
            return _UNKNOWN_SECONDS
        room, last = found
        own = [(growth, size) for growth, size in grown if size >= _LEAST]
        if own and room.size == 0 and not self._stopping.is_set():
            ends([(growth.canary, growth.load, size, _too_much(growth, size, room)) for growth, size in own])
        canary = max(self.held, key=self.held.__getitem__, default="")
        held = self.held.get(canary, 0)
        if held >= _LEAST and last.size == 0 and not self._stopping.is_set():
            ends([(canary, None, held, _given_back(canary, held, last))])
        return min(most, max(least, (room if growing else last).size / rate))


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in a thread, at its next call, return or loop of Python.

    It is never taken back: up to Python 3.12 that leaves all threads of the process looking for it for ever, and each
    call then takes half as long again (22 and 35 ns).
    https://docs.python.org/3/c-api/init.html#c.PyThreadState_SetAsyncExc
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _too_much(growth: Growth, size: int, room: Left) -> str:
    place, what = f"canaries.{growth.canary}", "opening it"
    fix = "take a smaller model or input"
    if growth.load is not None:
        place, what, fix = f"{place}.sweep", "the point", "name fewer or smaller loads"
    return (
        f"{place}: {what} was ended when it had taken {readable(size)}, with nothing left of {room.whose} but the "
        f"{readable(room.reserve)} in reserve; {fix}, or grant more memory"
    )


def _given_back(canary: str, size: int, room: Left) -> str:
    return (
        f"canaries.{canary}: it was closed to give {readable(size)} back, with nothing left of {room.whose} but "
        f"{readable(room.reserve)}; it is opened again when there is room; grant more memory"
    )
