"""Controls of the host's CPU: arithmetic, memory, the kernel's file path, and how soon a thread is woken.

They are machine code (``machine_code.py``) and use nothing of the image. They still share its process: the CPUs that it
may run on, its cgroup, and its cache and memory traffic.

Where machine code is refused, Python does the same instead, and the control has another name (``cpu_spin_python``): it
is another kind of work, and must never be compared with the first. These depend on the image:
``cpu_spin_python`` on CPython's version and build, fully; ``memory_copy_python`` on libc's ``memcpy``, which musl has
another one of; ``page_io_python`` on two calls from Python, under 1 %; ``thread_wake_python`` on CPython, and on the
GIL that a waking thread needs. All of them wait for the GIL at the end.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

from infercanary.contract.vocabulary import Bottleneck
from infercanary.probe.targets.controls.control import Control, Work
from infercanary.probe.targets.controls.machine_code import (
    MachineCode,
    TimedCall,
    int64s,
    memory_file,
)
from infercanary.probe.timing import Clock, HostClock, Phase, Timing

T = TypeVar("T")

# Each takes 0.2 to 1 ms on a server's CPU: long against the clock's reading, short against what it measures beside.
_SPINS, _SPIN_CHAINS, _SPIN_FLOPS = 100_000, 16, 32
_PYTHON_SPINS = 10_000
# More than a core's own caches, and less than the last level that it shares on most servers.
_COPY_BYTES = 8 << 20
_FILE_BYTES, _FILE_TIMES = 1 << 20, 2
_WAKES, _MESSAGE_BYTES = 64, 8
_FOREVER = 1 << 62
_VALUES = 16
_STOP_SECONDS = 1.0

# x = x·1 + b in whole numbers: exact, so that a result shows how often it was done.
_STARTS = tuple(float(chain) for chain in range(_SPIN_CHAINS))
_FACTOR, _SUMMAND = 1.0, 3.0


class CpuRepeat(NamedTuple):
    """One repeat's work, and numbers of its result."""

    call: Callable[[], Any]
    values: Callable[[], Sequence[float]]
    timed: TimedCall | None = None
    """The call that timed itself, where it does."""


def _not_open() -> None:
    raise RuntimeError("the control is not open")


_CLOSED = CpuRepeat(_not_open, list)


class CpuControl(Control):
    """A control on the CPU: ``prepare`` takes what it needs for as long as it is open.

    Args:
        bottleneck: What limits it.
        work: What one repeat does, in units.
        prepare: Gives the repeat, within ``with``.
        code: What it is made of, for the environment: machine code or Python.
    """

    def __init__(
        self,
        bottleneck: Bottleneck,
        work: Work,
        prepare: Callable[[], AbstractContextManager[CpuRepeat]],
        code: str,
    ) -> None:
        self.bottleneck: Bottleneck = bottleneck
        self.work = work
        self.clock: Clock = HostClock()
        self._prepare = prepare
        self._code = code
        self._open: AbstractContextManager[CpuRepeat] | None = None
        self._step = _CLOSED
        self._running = threading.Lock()

    def open(self) -> None:
        """Take buffers, files and threads, and touch them once."""
        opening = self._prepare()
        self._step = opening.__enter__()
        self._open = opening
        self.clock = HostClock() if self._step.timed is None else _OwnClock(self._step.timed)
        try:
            self._step.call()
        except OSError:
            self.close()
            raise

    def run(self, phase: Phase) -> Sequence[float]:
        """Make one repeat."""
        with self._running:
            with phase("compute"):
                self._step.call()
            return self._step.values()

    def values(self, result: Sequence[float]) -> Sequence[float]:
        """Return numbers that are always the same."""
        return result

    def environment(self) -> dict[str, str]:
        """Report whether it is machine code or the image's Python."""
        return {"control_code": self._code}

    def close(self) -> None:
        """Release all that, unless a repeat that its caller has given up on still uses it."""
        if self._running.acquire(blocking=False):
            try:
                opened, self._open, self._step = self._open, None, _CLOSED
                if opened is not None:
                    opened.__exit__(None, None, None)
            finally:
                self._running.release()


class _OwnClock:
    """For a call that reads the clock itself, so that waiting for the GIL afterwards does not count."""

    def __init__(self, timed: TimedCall) -> None:
        self._timed = timed

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`~infercanary.probe.timing.Clock`."""
        entered: list[str] = []

        def phase(name: str) -> AbstractContextManager[None]:
            entered.append(name)
            return nullcontext()

        result = run(phase)
        seconds = self._timed.seconds
        return Timing(seconds, dict.fromkeys(entered, seconds)), result


def cpu_controls(code: MachineCode | None) -> dict[str, CpuControl]:
    """Make the controls of the CPU.

    Args:
        code: This machine's; without it Python does the work, under other names.

    Returns:
        Name → control.
    """
    spin = Work(flops=_SPIN_FLOPS * _SPINS)
    copy = Work(bytes=2 * _COPY_BYTES)
    file = Work(bytes=2 * _FILE_BYTES * _FILE_TIMES)
    if code is None:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        controls = {
            "cpu_spin_python": CpuControl("compute", Work(flops=2 * _PYTHON_SPINS), _python_spin, python),
            "memory_copy_python": CpuControl("memory", copy, _libc_copy, python),
            "thread_wake_python": CpuControl("scheduling", Work(), _python_wake, python),
        }
        with suppress(OSError), _memory_file():  # it may be what was refused
            controls["page_io_python"] = CpuControl("io", file, _python_file, python)
        return controls
    own = f"machine code for {platform.machine()}"
    return {
        "cpu_spin": CpuControl("compute", spin, lambda: _spin(code), own),
        "memory_copy": CpuControl("memory", copy, lambda: _copy(code), own),
        "page_io": CpuControl("io", file, lambda: _file(code), own),
        "thread_wake": CpuControl("scheduling", Work(), lambda: _wake(code), own),
    }


@contextmanager
def _spin(code: MachineCode) -> Iterator[CpuRepeat]:
    """Multiply and add in 8 independent chains of pairs: more chains are not faster."""
    constants = [*_STARTS, _FACTOR, _FACTOR, _SUMMAND, _SUMMAND]
    given, out = _doubles(constants), _doubles(_STARTS)
    timed = code.timed("spin", _SPINS, ctypes.addressof(given), ctypes.addressof(out))
    yield CpuRepeat(timed, lambda: list(out), timed)
    del given  # the routine reads it until here


@contextmanager
def _python_spin() -> Iterator[CpuRepeat]:
    x = 0.0

    def spin() -> None:
        nonlocal x
        x = 0.0
        for _ in range(_PYTHON_SPINS):
            x = x * _FACTOR + _SUMMAND

    yield CpuRepeat(spin, lambda: [x])


@contextmanager
def _copy(code: MachineCode) -> Iterator[CpuRepeat]:
    """Copy sixteen bytes at a time, as any CPU can; libc's ``memcpy`` depends on the CPU and on its version."""
    with _memory(_COPY_BYTES) as source, _memory(_COPY_BYTES) as target:
        timed = code.timed("copy", _address(target), _address(source), _COPY_BYTES)
        yield CpuRepeat(timed, lambda: _spread(target), timed)


@contextmanager
def _libc_copy() -> Iterator[CpuRepeat]:
    with _memory(_COPY_BYTES) as source, _memory(_COPY_BYTES) as target:
        to, start = _address(target), _address(source)
        yield CpuRepeat(lambda: ctypes.memmove(to, start, _COPY_BYTES), lambda: _spread(target))


@contextmanager
def _file(code: MachineCode) -> Iterator[CpuRepeat]:
    """Write a file in memory, and read it: the kernel's way to its page cache and back, without a disk."""
    with _memory(_FILE_BYTES) as source, _memory(_FILE_BYTES) as target, _memory_file() as file:
        calls = Calls(
            code,
            _FILE_TIMES,
            (code.numbers.pwrite64, file, _address(source), _FILE_BYTES, 0, _FILE_BYTES),
            (code.numbers.pread64, file, _address(target), _FILE_BYTES, 0, _FILE_BYTES),
        )
        yield CpuRepeat(calls, lambda: _spread(target), calls.timed)


@contextmanager
def _python_file() -> Iterator[CpuRepeat]:
    with _memory(_FILE_BYTES) as source, _memory(_FILE_BYTES) as target, _memory_file() as file:

        def write_and_read() -> None:
            for _ in range(_FILE_TIMES):
                if os.pwrite(file, source, 0) + os.preadv(file, [target], 0) != 2 * _FILE_BYTES:
                    raise OSError("a file in memory was written or read in part")

        yield CpuRepeat(write_and_read, lambda: _spread(target))


@contextmanager
def _wake(code: MachineCode) -> Iterator[CpuRepeat]:
    """Two threads wake each other in turn, each blocked in ``read`` on a pipe of its own: no Python, so no GIL."""
    read, write, size = code.numbers.read, code.numbers.write, _MESSAGE_BYTES
    message, echoed = int64s(1), int64s(0)
    here, there = ctypes.addressof(message), ctypes.addressof(echoed)

    def echo(pipes: Pipes) -> None:
        # Until a message is too short.
        table = int64s(
            _FOREVER,
            *(read, pipes.ask_out, there, size, 0, size),
            *(write, pipes.answer_in, there, size, 0, size),
        )
        code.call("syscalls", table)

    with _echoing(echo) as pipes:
        calls = Calls(
            code,
            _WAKES,
            (write, pipes.ask_in, here, size, 0, size),
            (read, pipes.answer_out, here, size, 0, size),
        )
        yield CpuRepeat(calls, lambda: [float(message[0])], calls.timed)


@contextmanager
def _python_wake() -> Iterator[CpuRepeat]:
    message, answer = b"\1" * _MESSAGE_BYTES, b""

    def echo(pipes: Pipes) -> None:
        while len(received := os.read(pipes.ask_out, _MESSAGE_BYTES)) == _MESSAGE_BYTES:
            os.write(pipes.answer_in, received)

    with _echoing(echo) as pipes:

        def ask() -> None:
            nonlocal answer
            for _ in range(_WAKES):
                os.write(pipes.ask_in, message)
                answer = os.read(pipes.answer_out, _MESSAGE_BYTES)

        yield CpuRepeat(ask, lambda: [float(byte) for byte in answer])


class Calls:
    """A pair of system calls, made ``times`` times; each is its number, 4 arguments, and the result that is right.

    Args:
        code: Has the routine that makes them.
        times: Pairs in a repeat.
        first: Six integers, of the first call.
        second: Six integers, of the second call.
    """

    def __init__(self, code: MachineCode, times: int, first: Sequence[int], second: Sequence[int]) -> None:
        self._times = times
        self._table = int64s(times, *first, *second)
        self.timed = code.timed("syscalls", ctypes.addressof(self._table))

    def __call__(self) -> None:
        self._table[0] = self._times
        result = self.timed()
        if self._table[0]:
            number = -result if result < 0 else errno.EIO
            raise OSError(number, f"a system call gave {result}: {os.strerror(number)}")


class Pipes(NamedTuple):
    """Two pipes, by the descriptor of each end."""

    ask_out: int
    ask_in: int
    answer_out: int
    answer_in: int


@contextmanager
def _echoing(echo: Callable[[Pipes], None]) -> Iterator[Pipes]:
    """Make pipes, and a thread that answers on them.

    The thread ends at a short message, not at a closed pipe: if the host process forked meanwhile, its child has that
    end open too.
    """
    pipes = Pipes(*os.pipe(), *os.pipe())
    thread = threading.Thread(target=echo, args=(pipes,), name="infercanary-control", daemon=True)
    try:
        thread.start()
        yield pipes
    finally:
        if thread.ident is not None:
            os.write(pipes.ask_in, b"\0")
            thread.join(_STOP_SECONDS)
        if not thread.is_alive():  # else it would read from whatever file gets the number next
            for descriptor in pipes:
                os.close(descriptor)


@contextmanager
def _memory_file() -> Iterator[int]:
    descriptor = memory_file("infercanary-page-io")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _memory(size: int) -> Iterator[mmap.mmap]:
    """Map a filled buffer that begins with a page, and lies in small pages only.

    malloc's buffers begin elsewhere at each start, and lie in huge pages by chance: noise of restarts.
    """
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with buffer:
        with suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
        piece = (
            bytes(range(1, 252)) * 256
        )  # 251 is prime: no two pages are the same; in pieces, to need no copy
        while left := size - buffer.tell():
            buffer.write(piece[:left])
        yield buffer


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _spread(buffer: mmap.mmap) -> list[float]:
    return [float(buffer[i]) for i in range(0, len(buffer), len(buffer) // _VALUES)]


def _doubles(values: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(values))(*values)
