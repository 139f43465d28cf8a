"""Controls of the host's CPU: arithmetic, memory, the kernel's file path, and the delay in waking a thread.

The controls are machine code (``machine_code.py``) and use nothing of the image. They still run in the image's
process: they share its allowed CPUs, its cgroup, and its cache and memory traffic.

If machine code is refused, Python does the work under the same name. That is different work: the environment then has
the component ``controls_made_of``, and starts that differ in this component are not compared by their controls. In
Python, ``cpu_spin`` depends fully on CPython's version and build; ``memory_copy`` on libc's ``memcpy``; ``page_io``
on two calls from Python, which take less than 1 % of its time; ``thread_wake`` on CPython, and on the GIL that a waking
thread needs.
"""

from __future__ import annotations

import ctypes
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

# Each control takes 0.2 to 1 ms on a server's CPU: long compared with a reading of the clock, short compared with the
# canary's run.
_SPINS, _SPIN_CHAINS = 100_000, 16
_PYTHON_SPINS = 10_000
# Larger than a core's private caches, and smaller than most servers' shared last-level cache.
_COPY_BYTES = 8 << 20
_FILE_BYTES, _FILE_TIMES = 1 << 20, 2
_WAKES, _MESSAGE_BYTES = 64, 8
_FOREVER = 1 << 62
_STOP_SECONDS = 1.0
# With whole numbers, x = x·1 + 3 is exact, so the result shows the number of repetitions.
_FACTOR, _SUMMAND = 1.0, 3.0


def cpu_controls(code: Code) -> dict[str, Control]:
    """Make the controls of the CPU.

    Args:
        code: Routines of this machine; None lets Python do the work.

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
    """Time a call by Python's clock. The time includes waiting for the GIL."""

    def seconds() -> float:
        begin = perf_counter()
        call()
        return perf_counter() - begin

    return seconds


@contextmanager
def _spin(code: Code) -> Iterator[Seconds]:
    """Multiply and add in 8 independent chains of pairs, because more chains would not be faster."""
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
    """Copy memory with instructions that every CPU has, because libc's ``memcpy`` depends on the CPU and on libc's
    version.
    """
    with _memory(_COPY_BYTES) as source, _memory(_COPY_BYTES) as target:
        arguments = _address(target), _address(source), _COPY_BYTES
        yield code.timed("copy", *arguments) if code else _timed(partial(ctypes.memmove, *arguments))


@contextmanager
def _file(code: Code) -> Iterator[Seconds]:
    """Write and read a file in memory. This work tests the kernel's path to its page cache and back, without a disk."""
    with (
        _memory(_FILE_BYTES) as source,
        _memory(_FILE_BYTES) as target,
        os.fdopen(memory_file("infercanary-page-io"), "r+b", 0) as opened,
    ):
        file = opened.fileno()

        def write_and_read() -> None:
            for _ in range(_FILE_TIMES):
                os.pwrite(file, source, 0)
                os.preadv(file, [target], 0)

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
    """Let two threads wake each other in turn. Each thread blocks in ``read`` on its own pipe; machine code needs no
    GIL.
    """
    if code is None:
        with _echoing(_echo_in_python) as pipes:
            yield _timed(partial(_ask_in_python, pipes))
        return
    read, write, size = code.numbers.read, code.numbers.write, _MESSAGE_BYTES
    message, echoed = int64s(1), int64s(0)
    here, there = ctypes.addressof(message), ctypes.addressof(echoed)

    def echo(pipes: Pipes) -> None:
        # A short message ends the loop, because it is an unexpected result.
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
    """A pair of system calls, repeated ``times`` times.

    Args:
        code: Machine code with the routine that makes the calls.
        times: Number of pairs in a repeat.
        first: Six integers of the first call: its number, 4 arguments, and the correct result.
        second: The same six integers of the second call.
    """

    def __init__(self, code: MachineCode, times: int, first: Sequence[int], second: Sequence[int]) -> None:
        self._times = times
        self._table = int64s(times, *first, *second)
        self._timed = code.timed("syscalls", ctypes.addressof(self._table))

    def __call__(self) -> float:
        self._table[0] = self._times
        seconds = self._timed()
        if self._table[0]:
            raise OSError(f"a system call gave {self._timed.result} (an error's number if negative)")
        return seconds


class Pipes(NamedTuple):
    """File descriptors of the ends of two pipes."""

    ask_out: int
    ask_in: int
    answer_out: int
    answer_in: int


@contextmanager
def _echoing(echo: Callable[[Pipes], None]) -> Iterator[Pipes]:
    """Make two pipes, and a thread that answers on them.

    A short message ends the thread. Closing the pipe would not be enough: a forked child may still have that end
    open.
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
        if not thread.is_alive():  # otherwise the thread could read from a new file with the same descriptor
            for descriptor in pipes:
                os.close(descriptor)


@contextmanager
def _memory(size: int) -> Iterator[mmap.mmap]:
    """Map a filled buffer that begins at a page boundary and uses only small pages.

    Buffers of malloc begin at a different offset at each start and use huge pages by chance: that adds restart
    variance.
    """
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with buffer:
        with suppress(OSError):  # a kernel without huge pages rejects this advice
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
        piece = bytes(range(1, 252)) * 256  # 251 is prime, so no two pages are equal
        # write in pieces, because a second buffer of this size would need more memory
        while left := size - buffer.tell():
            buffer.write(piece[:left])
        yield buffer


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _doubles(values: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(values))(*values)
