"""Memory watcher: checks known memory needs of canaries and sweep points in advance, and watches unknown needs.

A thread reads the remaining host memory while a canary is open or is being opened. If memory falls to the reserve,
the thread restarts the probe's own process. In a server's process, the thread closes the largest canary instead
(docs/adr/0018-memory-is-watched.md).
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
"""Estimate of a round's short-term memory: outputs and heaps of threads; the controls' buffers take 18 MiB."""

_LEAST = 8 << 20  # bytes: to free less memory, no work is ended and no canary closed
# Fastest growth (bytes per second) that is noticed before memory runs out, and seconds between two looks.
_OPENING_RATE, _OPENING_PAUSE = 4 << 30, 0.01
_OPEN_RATE, _LEAST_PAUSE, _LONGEST_PAUSE = 400 << 20, 0.1, 1.0
_RUN_SECONDS = 1.0  # no look so early in a run, because a look would lengthen a short run
_UNKNOWN_SECONDS = 60.0
_FEWER_LOADS = "give fewer or smaller loads"


class Growth:
    """Growth of the process while a canary is opened, or while a point of its sweep runs.

    If a thread is given, :meth:`end` raises `MemoryError` in that thread at its next Python call: only once, and
    never after :meth:`finish`.
    """

    def __init__(self, canary: str, load: Load | None = None, thread: int | None = None) -> None:
        self.canary = canary
        self.load = load
        self.why = ""
        """Reason why the work was ended; empty if the work was not ended."""
        self.largest = 0
        """Largest observed growth, bytes."""
        self._thread = thread
        self._lock, self._is_finished = threading.Lock(), False
        self._before = resident()

    def look(self) -> int:
        """Return the present growth of the process, bytes."""
        size = max(0, resident() - self._before)
        self.largest = max(self.largest, size)
        return size

    def end(self, why: str) -> None:
        """Make the work raise an error with this reason, unless the work has finished."""
        with self._lock:
            if not (self._is_finished or self.why):
                self.why = why
                if self._thread is not None:
                    _raise_in(self._thread, MemoryError)

    def finish(self) -> None:
        """From now on, :meth:`end` raises no error. An error that was already raised may arrive until the next Python
        call.
        """
        with self._lock:
            self._is_finished = True

    def check(self) -> None:
        """Raise :class:`Failure` if the work was ended. A point of a sweep calls this method between requests."""
        if self.why:
            raise Failure("out_of_memory", self.why)


class Memory:
    """Guards the memory of all canaries of a probe. A target calls :meth:`ask` before it allocates, to check its needs.
    If memory runs out, the guard ends openings and sweep points, or closes canaries.
    """

    def __init__(
        self, targets: Mapping[str, Target], host: HostMemory | None = None, device_reserve: int | None = None
    ) -> None:
        self.owns_process = False
        """True in the probe's own process. This process may restart itself, and its engines get a memory limit.
        """
        self.run_began: float | None = None
        """Monotonic start of the present run, without a look in the first second; None between runs."""
        self.closing: list[Ended] = []
        """Canaries that the probe's thread must close, because the server needs memory."""
        self.alarm = threading.Event()
        """Event that a new entry in :attr:`closing` and :meth:`stop` set."""
        self._host = host or HostMemory()
        self._device_reserve = device_reserve
        self._ended: dict[tuple[str, tuple[int, int] | None], Ended] = {}
        self._sizes: dict[str, int] = {}  # open canary → bytes that its opening took
        # Canaries may open concurrently in their own threads, so each change of a list or dict is one atomic
        # operation.
        self._growing: list[Growth] = []
        self._points: dict[str, tuple[Load, int, int]] = {}  # canary → last load, host bytes, device bytes
        self._passing = 0  # bytes that the last run took for a short time
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._changed, self._stopping = threading.Event(), threading.Event()
        for name, target in targets.items():
            target.ask_for_memory = partial(self.ask, name, target.device)
            target.device_memory_left = partial(self.device_bound, target.device)

    def ask(self, canary: str, device: str, needs: Sequence[Need]) -> None:
        """Raise :class:`Failure` if the needs do not fit together. The error gives the place in the settings, size
        and fix.
        """
        on_host = [need for need in needs if need.where == "host"]
        _require(canary, on_host, self._host.left(), "grant more memory")
        on_device = [need for need in needs if need.where == "device"]
        if on_device and device.startswith("cuda"):
            left = memory.left_on_device(device, self._device_reserve)
            _require(canary, [_of_context(device), *on_device], left, "free device memory")

    def device_bound(self, device: str) -> int | None:
        """Return the bytes of device memory that an engine may take; None for no limit, as in a server's process."""
        if not self.owns_process or not device.startswith("cuda"):
            return None
        left = memory.left_on_device(device, self._device_reserve)
        return None if left is None else left.size

    def lack_for_round(self, extra: int = 0) -> str:
        """Return the reason why a round plus ``extra`` bytes does not fit; empty if the round fits, or if memory is
        unknown.
        """
        left = self._host.left_for_a_moment()
        need = max(ROUND, self._passing) + extra
        if left is None or left.size >= need:
            return ""
        return (
            f"runs are postponed: a run takes up to {readable(need)} for a short time; {readable(left.size)} are "
            f"left of {left.whose}, less {readable(left.reserve)} in reserve; grant more memory"
        )

    def note_run(self) -> None:
        """Store the memory that the last run used for a short time: the peak minus the present memory.

        In a server's process, the value is 0, because the peak includes the server's own work.
        """
        with suppress(OSError, ValueError, IndexError):
            self._passing = peak() - resident() if self.owns_process else 0

    def open(self, canary: str, work: Callable[[], T]) -> T:
        """Open a canary by ``work``, and watch its memory. Call this method in the thread that opens the canary.

        Raises:
            Failure: `out_of_memory`: the opening was ended, now or less than an hour ago.
            BaseException: Any exception of the work.
        """
        ended = self._ended.get((canary, None))
        if ended is not None and time.monotonic() < ended.retry_at:
            raise Failure("out_of_memory", ended.why)
        self._sizes.pop(canary, None)
        growth = Growth(canary, thread=None if self.owns_process else threading.get_ident())
        try:
            self._watch(growth)
            try:
                # Keep this call. In a loop written here, Python 3.13 might not raise the asynchronous error.
                result = work()
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
        """Watch a point of a sweep. First check that the point fits, based on the memory of the previous point.

        Raises:
            Failure: `out_of_memory`: the point does not fit, or was ended earlier because it grew too large.
        """
        if (ended := self._ended.get((canary, load))) is not None:
            raise Failure("out_of_memory", ended.why)
        if canary in self._points:
            before, on_host, on_device = self._points[canary]
            ratio = load.batch * load.concurrency / (before.batch * before.concurrency)
            what = f"{load.words}, estimated from {before.words},"
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
        """Keep the memory (bytes) of a successful point, which is the estimate for the next point."""
        self._points[canary] = load, on_host, on_device

    def own_process(self, ended: Iterable[Ended]) -> None:
        """Allow this process to restart itself if memory falls to the reserve. ``ended`` is work of the previous
        process.
        """
        self.owns_process = True
        self._ended = {(work.canary, work.load): work for work in ended}

    def stop(self) -> None:
        """Stop watching as soon as nothing is being opened. Callable from any thread."""
        self._stopping.set()
        self._changed.set()
        self.alarm.set()

    def look(self) -> float | None:
        """Check the memory once. Return the seconds until the next look; None if no canary is open or being opened.

        The probe's own growth must leave the whole reserve free. Later growth of others may use the reserve down to
        64 MiB, so that canaries that fit stay open in a server that is close to its limit at peak hours.
        """
        growing, sizes, began = list(self._growing), dict(self._sizes), self.run_began
        if not growing and not sizes:
            return None
        if not growing and began is not None and time.monotonic() - began < _RUN_SECONDS:
            return _LEAST_PAUSE
        left, last = self._host.left() if growing else None, self._host.left_for_a_moment()
        if last is None:
            return _UNKNOWN_SECONDS
        large = [growth for growth in growing if growth.look() >= _LEAST]
        largest = max(sizes, key=lambda name: sizes[name], default="")
        if left is not None and left.size == 0 and large:
            self._end(large, left)  # the ended work will release memory soon, so close no canary now
        elif last.size == 0 and sizes.get(largest, 0) >= _LEAST and not self.closing:
            self._close(largest, sizes[largest], last)
        if left is not None:
            return min(_LEAST_PAUSE, max(_OPENING_PAUSE, left.size / _OPENING_RATE))
        return min(_LONGEST_PAUSE, max(_LEAST_PAUSE, last.size / _OPEN_RATE))

    def _watch(self, growth: Growth) -> None:
        # Start the thread first: once the growth is listed, an asynchronous error could leave the lock locked.
        with self._start:
            if self._thread is None and not self._stopping.is_set():
                thread = threading.Thread(target=self._look_on, name="infercanary-memory", daemon=True)
                thread.start()  # if no thread can be started, no canary may open
                self._thread = thread
        self._growing.append(growth)
        self._changed.set()

    def _look_on(self) -> None:
        while self._growing or not self._stopping.is_set():
            try:
                pause = self.look()
            except Exception:
                log.exception("the remaining memory cannot be read: this is a defect of the probe")
                pause = _UNKNOWN_SECONDS
            self._changed.wait(pause)
            self._changed.clear()

    def _end(self, growing: Sequence[Growth], left: Left) -> None:
        """End the growing work; in the probe's own process, restart the process."""
        for growth in growing:
            why = _too_much(growth, left)
            if self.owns_process:
                self._note_ended(growth.canary, why, growth.load)
            else:
                growth.end(why)
        self._start_anew()

    def _close(self, canary: str, size: int, left: Left) -> None:
        """Close an open canary; in the probe's own process, restart the process."""
        ended = self._note_ended(
            canary,
            f"canaries.{canary}: closed to free {readable(size)}, because only {readable(left.reserve)} of "
            f"{left.whose} were left; opened again in an hour; grant more memory",
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
    """Raise :class:`Failure` if the needs do not fit together. ``more`` is an additional fix."""
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
    """Return the device memory for the controls and a CUDA context. If a context exists, count the driver's memory
    instead.
    """
    size, what = memory.CONTEXT + memory.CONTROLS, "a CUDA context, with the controls,"
    with suppress(Unavailable, CudaError):
        if has_context(memory.ordinal(device)):
            size, what = memory.BESIDE + memory.CONTROLS, "memory of the driver and the controls"
    return Need("device", size, what, "choose another GPU", "device")


def _too_much(growth: Growth, left: Left) -> str:
    work, fix = f"canaries.{growth.canary}: opening it", "use a smaller model or input"
    if growth.load is not None:
        work, fix = f"canaries.{growth.canary}.sweep: the point", _FEWER_LOADS
    return (
        f"{work} was ended after it took {readable(growth.largest)}, because only the reserve of "
        f"{readable(left.reserve)} of {left.whose} was left; {fix}, or grant more memory"
    )


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in a thread, at the thread's next call, return or loop in Python.

    The error is never withdrawn. Up to Python 3.12, a withdrawal makes all threads of the process check for errors
    forever, and a call then takes 35 ns instead of 22 ns.
    https://docs.python.org/3/c-api/init.html#c.PyThreadState_SetAsyncExc
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
