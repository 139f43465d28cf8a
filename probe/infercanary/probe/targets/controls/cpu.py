"""Controls of the host's CPU: arithmetic, memory, the kernel's file path, and how soon a thread is woken.

They are machine code (``machine_code.py``) and use nothing of the image. They still share its process: the CPUs that it
may run on, its cgroup, and its cache and memory traffic.

Where machine code is refused, Python does the work under the same name. That is other work: the environment then has
the component ``controls_made_of``, and starts that differ in it are not compared by their controls. ``cpu_spin`` then
depends on CPython's version and build, fully; ``memory_copy`` on libc's ``memcpy``; ``page_io`` on two calls from
Python, under 1 %; ``thread_wake`` on CPython, and on the GIL that a waking thread needs.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

from infercanary.probe.targets.controls.control import Control, Seconds
from infercanary.probe.targets.controls.machine_code import Code, MachineCode, int64s, memory_file

# Each takes 0.2 to 1 ms on a server's CPU: long against the clock's reading, short against what it measures beside.
_SPINS, _SPIN_CHAINS = 100_000, 16
_PYTHON_SPINS = 10_000
# More than a core's own caches, and less than the last level that it shares on most servers.
_COPY_BYTES = 8 << 20
_FILE_BYTES, _FILE_TIMES = 1 << 20, 2
_WAKES, _MESSAGE_BYTES = 64, 8
_FOREVER = 1 << 62
_STOP_SECONDS = 1.0
# x = x·1 + 3 in whole numbers: exact, so that a result shows how often it was done.
_FACTOR, _SUMMAND = 1.0, 3.0


def cpu_controls(code: Code) -> dict[str, Control]:
    """Make the controls of the CPU.

    Args:
        code: This machine's; without it Python does the work.

    Returns:
        Name → control.
    """
    return {
        "cpu_spin": partial(_spin, code),
        "memory_copy": partial(_copy, code),
        "page_io": partial(_file, code),
        "thread_wake": partial(_wake, code),
    }


def _timed(call: Callable[[], object]) -> Seconds:
    """Time a call that has no clock of its own; waiting for the GIL is in it."""

    def seconds() -> float:
        begin = perf_counter()
        call()
        return perf_counter() - begin

    return seconds


@contextmanager
def _spin(code: Code) -> Iterator[Seconds]:
    """Multiply and add in 8 independent chains of pairs: more chains are not faster."""
    if code is None:
        yield _timed(_spin_in_python)
        return
    given = _doubles([*range(_SPIN_CHAINS), _FACTOR, _FACTOR, _SUMMAND, _SUMMAND])
    out = _doubles([0.0] * _SPIN_CHAINS)
    yield code.timed("spin", _SPINS, ctypes.addressof(given), ctypes.addressof(out))


def _spin_in_python() -> None:
    x = 0.0
    for _ in range(_PYTHON_SPINS):
        x = x * _FACTOR + _SUMMAND


@contextmanager
def _copy(code: Code) -> Iterator[Seconds]:
    """Copy sixteen bytes at a time, as any CPU can; libc's ``memcpy`` depends on the CPU and on its version."""
    with _memory(_COPY_BYTES) as source, _memory(_COPY_BYTES) as target:
        arguments = _address(target), _address(source), _COPY_BYTES
        yield code.timed("copy", *arguments) if code else _timed(partial(ctypes.memmove, *arguments))


@contextmanager
def _file(code: Code) -> Iterator[Seconds]:
    """Write a file in memory, and read it: the kernel's way to its page cache and back, without a disk."""
    with (
        _memory(_FILE_BYTES) as source,
        _memory(_FILE_BYTES) as target,
        os.fdopen(memory_file("infercanary-page-io"), "r+b", 0) as opened,
    ):
        file = opened.fileno()

        def write_and_read() -> None:
            for _ in range(_FILE_TIMES):
                if os.pwrite(file, source, 0) + os.preadv(file, [target], 0) != 2 * _FILE_BYTES:
                    raise OSError("a file in memory was written or read in part")

        if code is None:
            yield _timed(write_and_read)
            return
        yield Calls(
            code,
            _FILE_TIMES,
            (code.numbers.pwrite64, file, _address(source), _FILE_BYTES, 0, _FILE_BYTES),
            (code.numbers.pread64, file, _address(target), _FILE_BYTES, 0, _FILE_BYTES),
        )


@contextmanager
def _wake(code: Code) -> Iterator[Seconds]:
    """Two threads wake each other in turn, each blocked in ``read`` on a pipe of its own; no GIL in machine code."""
    if code is None:
        with _echoing(_echo_in_python) as pipes:
            yield _timed(partial(_ask_in_python, pipes))
        return
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
        yield Calls(
            code,
            _WAKES,
            (write, pipes.ask_in, here, size, 0, size),
            (read, pipes.answer_out, here, size, 0, size),
        )


def _echo_in_python(pipes: Pipes) -> None:
    while len(received := os.read(pipes.ask_out, _MESSAGE_BYTES)) == _MESSAGE_BYTES:
        os.write(pipes.answer_in, received)


def _ask_in_python(pipes: Pipes) -> None:
    for _ in range(_WAKES):
        os.write(pipes.ask_in, bytes(_MESSAGE_BYTES))
        os.read(pipes.answer_out, _MESSAGE_BYTES)


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
        self._timed = code.timed("syscalls", ctypes.addressof(self._table))

    def __call__(self) -> float:
        self._table[0] = self._times
        seconds = self._timed()
        if self._table[0]:
            result = self._timed.result
            number = -result if result < 0 else errno.EIO
            raise OSError(number, f"a system call gave {result}: {os.strerror(number)}")
        return seconds


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
def _memory(size: int) -> Iterator[mmap.mmap]:
    """Map a filled buffer that begins with a page, and lies in small pages only.

    malloc's buffers begin elsewhere at each start, and lie in huge pages by chance: noise of restarts.
    """
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with buffer:
        with suppress(OSError):  # a kernel without huge pages
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
        piece = bytes(range(1, 252)) * 256  # 251 is prime: no two pages are the same
        while left := size - buffer.tell():  # in pieces, to need no copy
            buffer.write(piece[:left])
        yield buffer


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _doubles(values: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(values))(*values)
