"""Asks for memory before a canary or a point of a sweep takes it, and watches what nobody knows beforehand.

One thread reads what is left of the host's memory while something is opened or open. At the reserve it starts the
probe's own process anew; in a server's process it closes the largest canary (docs/adr/0018-memory-is-watched.md).
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from infercanary.probe import memory
from infercanary.probe.gpu.cuda_driver import CudaError, has_context
from infercanary.probe.load import Load
from infercanary.probe.measures import peak, resident
from infercanary.probe.memory import Ended, HostMemory, Left, readable
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets import Failure, Need, Target

T = TypeVar("T")

log = logging.getLogger("infercanary.probe")

ROUND = 32 << 20
"""Estimate of what a round takes for a moment: outputs, heaps of threads; the controls' buffers have 18 MiB."""

_LEAST = 8 << 20  # closing what took less is no help
# Growth that is noticed before it takes what is left, in bytes a second, and seconds between two looks.
_OPENING_RATE, _OPENING_PAUSE = 4 << 30, 0.01
_OPEN_RATE, _LEAST_PAUSE, _LONGEST_PAUSE = 400 << 20, 0.1, 1.0
_RUN_SECONDS = 1.0  # a longer run does not notice a look
_UNKNOWN_SECONDS = 60.0
_FEWER_LOADS = "name fewer or smaller loads"


class Growth:
    """Growth of the process while a canary is opened, or a point of its sweep runs.

    With a thread, :meth:`end` raises `MemoryError` there, at any call of Python: once, never after :meth:`finish`.
    """

    def __init__(self, canary: str, load: Load | None = None, thread: int | None = None) -> None:
        self.canary = canary
        self.load = load
        self.why = ""
        """Why it was ended; empty if it was not."""
        self.largest = 0
        """The most bytes that were seen."""
        self._thread = thread
        self._lock, self._finished = threading.Lock(), threading.Event()
        self._before = _resident()

    def look(self) -> int:
        """Return the bytes by which the process has grown."""
        size = max(0, _resident() - self._before)
        self.largest = max(self.largest, size)
        return size

    def end(self, why: str) -> None:
        """Let the work raise an error for this reason, unless it is over."""
        with self._lock:
            if not self._finished.is_set() and not self.why:
                self.why = why
                if self._thread is not None:
                    _raise_in(self._thread, MemoryError)

    def finish(self) -> None:
        """Let nothing interrupt the thread any more: a call comes after the lock is taken, and nothing later."""
        with self._lock:
            self._finished.set()

    def check(self) -> None:
        """Raise :class:`Failure` if it was ended: a point of a sweep calls it between requests."""
        if self.why:
            raise Failure("out_of_memory", self.why)


class Memory:
    """Memory of all canaries of a probe, whose targets are set up to ask here before they take some."""

    def __init__(
        self, targets: Mapping[str, Target], host: HostMemory | None = None, device_reserve: int | None = None
    ) -> None:
        self.owns_process = False
        """Whether this process serves nobody else: it may start anew, and its engines get a bound."""
        self.run_began: float | None = None
        """Monotonic start of the run under way, which no look is to disturb; None between runs."""
        self.closing: list[Ended] = []
        """Canaries that the probe's thread is to close for the server's sake, until it has."""
        self.alarm = threading.Event()
        """Set if :attr:`closing` has a new one, and by :meth:`stop`."""
        self._host = host or HostMemory()
        self._device_reserve = device_reserve
        self._ended: dict[tuple[str, tuple[int, int] | None], Ended] = {}
        self._sizes: dict[str, int] = {}  # canary → bytes that opening it took, while it is open
        # Canaries may open side by side, in threads of their own: lists and dicts change in place, by one operation.
        self._growing: list[Growth] = []
        self._points: dict[str, tuple[Load, int, int]] = {}  # canary → last load, bytes of host and device
        self._passing = 0  # bytes that the last run took at its peak and gave back
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._changed, self._stopping = threading.Event(), threading.Event()
        for name, target in targets.items():
            target.ask_for_memory = partial(self.ask, name, target.device)
            target.device_memory_left = partial(self.device_bound, target.device)

    def ask(self, canary: str, device: str, needs: Sequence[Need]) -> None:
        """Refuse needs that do not fit together: a `Failure` with the place in the settings, the size and the fix."""
        on_host = [need for need in needs if need.where == "host"]
        _require(canary, on_host, self._host.left(), "grant more memory")
        on_device = [need for need in needs if need.where == "device"]
        if on_device and device.startswith("cuda"):
            left = memory.left_on_device(device, self._device_reserve)
            _require(canary, [_of_context(device), *on_device], left, "free device memory")

    def device_bound(self, device: str) -> int | None:
        """Say how many bytes of its device an engine may take; None if unbounded, as in a server's process."""
        if not self.owns_process or not device.startswith("cuda"):
            return None
        left = memory.left_on_device(device, self._device_reserve)
        return None if left is None else left.size

    def lack_for_round(self, extra: int = 0) -> str:
        """Say why a round that takes ``extra`` bytes has no room; empty if it has, or if that is unknown."""
        left = self._host.left_for_a_moment()
        need = max(ROUND, self._passing) + extra
        if left is None or left.size >= need:
            return ""
        return (
            f"runs are put off: they take up to {readable(need)} for a moment; {readable(left.size)} are left of "
            f"{left.whose}, less {readable(left.reserve)} in reserve; grant more memory"
        )

    def note_run(self) -> None:
        """Read what the run that has just ended took and gave back; a server's process has a peak of its own."""
        with suppress(OSError, ValueError, IndexError):
            self._passing = peak() - resident() if self.owns_process else 0

    def open(self, canary: str, work: Callable[[], T]) -> T:
        """Do the work that opens a canary, watched; in the thread that opens it.

        Raises:
            Failure: `out_of_memory`: it was ended, now or less than an hour ago.
            BaseException: Whatever the work raises.
        """
        ended = self._ended.get((canary, None))
        if ended is not None and time.monotonic() < ended.retry_at:
            raise Failure("out_of_memory", ended.why)
        self._sizes.pop(canary, None)
        growth = Growth(canary, thread=None if self.owns_process else threading.get_ident())
        try:
            self._watch(growth)
            try:
                result = work()  # a call: Python 3.13 lets an interruption pass by a loop that stands here
            finally:
                growth.finish()
        finally:
            self._growing.remove(growth)
            if growth.why:
                self._note_ended(canary, growth.why)
                raise Failure("out_of_memory", growth.why) from None
        self._sizes[canary] = growth.look()
        self._changed.set()
        return result

    @contextmanager
    def point(self, canary: str, target: Target, load: Load) -> Iterator[Growth]:
        """Watch a point of a sweep, if it fits by what the point before it took.

        Raises:
            Failure: `out_of_memory`: it does not fit, or was ended before for growing too large.
        """
        if (ended := self._ended.get((canary, load))) is not None:
            raise Failure("out_of_memory", ended.why)
        if canary in self._points:
            before, on_host, on_device = self._points[canary]
            ratio = load.batch * load.concurrency / (before.batch * before.concurrency)
            what = f"{load.words}, by what {before.words} took,"
            need = Need("sweep", int(ratio * on_host), what, _FEWER_LOADS)
            more = [need._replace(size=int(ratio * on_device), where="device")] if on_device else []
            self.ask(canary, target.device, [need, *more])
        growth = Growth(canary, load)
        self._watch(growth)
        try:
            yield growth
        finally:
            self._growing.remove(growth)

    def note_point(self, canary: str, load: Load, on_host: int, on_device: int) -> None:
        """Keep the bytes that a point took which gave numbers, for the next one."""
        self._points[canary] = load, on_host, on_device

    def own_process(self, ended: Iterable[Ended]) -> None:
        """Start this process anew at the reserve; leave alone what the process before it ended."""
        self.owns_process = True
        self._ended = {(work.canary, work.load): work for work in ended}

    def stop(self) -> None:
        """Watch no more once nothing is being opened; callable from any thread."""
        self._stopping.set()
        self._changed.set()
        self.alarm.set()

    def look(self) -> float | None:
        """Look once; the seconds until the next look, None if nothing is opened or open.

        What the probe itself takes leaves the whole reserve alone. What others take later may go down to 64 MiB of
        it: a server that is close to its limit by day does not close canaries that had room.
        """
        growing, sizes, began = list(self._growing), dict(self._sizes), self.run_began
        if not growing and not sizes:
            return None
        if not growing and began is not None and time.monotonic() - began < _RUN_SECONDS:
            return _LEAST_PAUSE
        left, last = self._host.left() if growing else None, self._host.left_for_a_moment()
        if last is None:
            return _UNKNOWN_SECONDS
        large = [growth for growth in growing if max(growth.look(), growth.largest) >= _LEAST]
        if left is not None and left.size == 0 and large:
            self._end(large, left)  # which gives memory back, in a moment
        elif last.size == 0 and sizes and not self.closing:
            canary = max(sizes, key=lambda name: sizes[name])
            self._close(canary, sizes[canary], last)
        if left is not None:
            return min(_LEAST_PAUSE, max(_OPENING_PAUSE, left.size / _OPENING_RATE))
        return min(_LONGEST_PAUSE, max(_LEAST_PAUSE, last.size / _OPEN_RATE))

    def _watch(self, growth: Growth) -> None:
        # First: an interruption, which may come once the growth is listed, could leave it locked.
        with self._start:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._look_on, name="infercanary-memory", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the container is out of threads
                    self._thread = None
                    log.warning("what is left of the memory is not watched: %s", error)
        self._growing.append(growth)
        self._changed.set()

    def _look_on(self) -> None:
        while self._growing or not self._stopping.is_set():
            try:
                pause = self.look()
            except Exception:
                log.exception("what is left of the memory cannot be read: this is a defect of the probe")
                pause = _UNKNOWN_SECONDS
            self._changed.wait(pause)
            self._changed.clear()

    def _end(self, growing: Sequence[Growth], left: Left) -> None:
        """End what grows: in a process of the probe's own by starting anew."""
        for growth in growing:
            why = _too_much(growth, left)
            if self.owns_process:
                self._note_ended(growth.canary, why, growth.load)
            else:
                growth.end(why)
        self._start_anew()

    def _close(self, canary: str, size: int, left: Left) -> None:
        """Close a canary that is open: in a process of the probe's own by starting anew."""
        if size < _LEAST:
            return
        ended = self._note_ended(
            canary,
            f"canaries.{canary}: it was closed to give {readable(size)} back, with nothing left of {left.whose} but "
            f"{readable(left.reserve)}; it is opened again in an hour; grant more memory",
        )
        self._start_anew()
        self._sizes.pop(canary, None)
        self.closing.append(ended)
        self.alarm.set()

    def _start_anew(self) -> None:
        if self.owns_process and not self._stopping.is_set():
            memory.start_anew(list(self._ended.values()))

    def _note_ended(self, canary: str, why: str, load: Load | None = None) -> Ended:
        ended = Ended(canary, why, time.monotonic(), load)
        self._ended[canary, load] = ended
        return ended


def _require(canary: str, needs: Sequence[Need], left: Left | None, more: str) -> None:
    """Raise :class:`Failure` if needs do not fit together; ``more`` is a fix beside that of the largest need."""
    total = sum(need.size for need in needs)
    if left is None or total <= left.size:
        return
    largest = max(needs, key=lambda need: need.size)
    together = f", {readable(total)} with the others" if total > largest.size else ""
    raise Failure(
        "out_of_memory",
        f"canaries.{canary}.{largest.place}: {largest.what} needs {readable(largest.size)}{together}; "
        f"{readable(left.size)} are left of {left.whose}, less {readable(left.reserve)} in reserve; "
        f"{largest.fix}, or {more}",
    )


def _of_context(device: str) -> Need:
    """What this process's context takes on a device, if it has none yet, and what the controls take."""
    size, what = memory.CONTEXT + memory.CONTROLS, "a CUDA context, with the controls,"
    with suppress(Unavailable, CudaError):
        if has_context(memory.ordinal(device)):
            size, what = memory.BESIDE + memory.CONTROLS, "what the driver and the controls take"
    return Need("device", size, what, "choose another GPU", "device")


def _resident() -> int:
    with suppress(OSError, ValueError, IndexError):
        return resident()
    return 0


def _too_much(growth: Growth, left: Left) -> str:
    work, fix = f"canaries.{growth.canary}: opening it", "take a smaller model or input"
    if growth.load is not None:
        work, fix = f"canaries.{growth.canary}.sweep: the point", _FEWER_LOADS
    return (
        f"{work} was ended when it had taken {readable(growth.largest)}, with nothing left of {left.whose} but "
        f"the {readable(left.reserve)} in reserve; {fix}, or grant more memory"
    )


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in a thread, at its next call, return or loop of Python.

    It is never taken back: up to Python 3.12 that leaves all threads of the process looking for it for ever, and each
    call then takes half as long again (22 and 35 ns).
    https://docs.python.org/3/c-api/init.html#c.PyThreadState_SetAsyncExc
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
