"""The probe's own machine code, for controls that consist of the same bytes in every image.

Everything that Python can call to exercise a CPU, its memory or the kernel belongs to the image: CPython, libc, zlib,
OpenSSL. The routines here depend on none of these. They use only instructions that every x86-64 and every AArch64 CPU
has, and run with the GIL released. They also read the clock, so that waiting for the GIL after the work is not
measured: in a busy server that wait is up to the interpreter's switch interval of 5 ms, and the host does not cause
it.

The code lies in a memory file, written through its descriptor and then mapped as executable, never as writable. The
loader maps a library in the same way. So protection against memory that is both writable and executable (PR_SET_MDWE,
systemd's MemoryDenyWriteExecute) allows this, and the kernel itself updates the instruction cache of an ARM CPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias


class Architecture(NamedTuple):
    """Routines of one architecture as lines of ``bytes | assembly``, and the numbers of their system calls."""

    routines: dict[str, str]
    read: int
    write: int
    pread64: int
    pwrite64: int


# spin(times, in, out)       8 chains of pairs of doubles: x = x·a + b, a product and then a sum, never fused.
#                            in: 16 initial values, then a twice, then b twice; out: 16 doubles. 32 operations a time.
# copy(to, from, size)       Copies 64 bytes at a time.
# syscalls(table)            table: times, then twice (number, 4 arguments, expected result). Repeats both calls;
#                            stops at an unexpected result and returns this result. Repeats a call after EINTR.
# launches(table)            table: times, function, 11 arguments (cuLaunchKernel's). Stops at a non-zero result.
# timed(table)               table: routine, 3 arguments, and space for two timespecs of CLOCK_MONOTONIC, read before
#                            and after the call.
# Calling conventions: System V ABI, https://gitlab.com/x86-psABIs/x86-64-ABI, https://github.com/ARM-software/abi-aa
_X86_64 = {
    "spin": """
        660f1006 660f104e10 | movupd xmm0, [rsi]; movupd xmm1, [rsi+16]
        660f105620 660f105e30 | movupd xmm2, [rsi+32]; movupd xmm3, [rsi+48]
        660f106640 660f106e50 | movupd xmm4, [rsi+64]; movupd xmm5, [rsi+80]
        660f107660 660f107e70 | movupd xmm6, [rsi+96]; movupd xmm7, [rsi+112]
        66440f108680000000 66440f108e90000000 | movupd xmm8, [rsi+128]; movupd xmm9, [rsi+144]
        66410f59c0 66410f59c8 66410f59d0 | 1: mulpd xmm0, xmm8; mulpd xmm1, xmm8; mulpd xmm2, xmm8
        66410f59d8 66410f59e0 66410f59e8 | mulpd xmm3, xmm8; mulpd xmm4, xmm8; mulpd xmm5, xmm8
        66410f59f0 66410f59f8 66410f58c1 | mulpd xmm6, xmm8; mulpd xmm7, xmm8; addpd xmm0, xmm9
        66410f58c9 66410f58d1 66410f58d9 | addpd xmm1, xmm9; addpd xmm2, xmm9; addpd xmm3, xmm9
        66410f58e1 66410f58e9 66410f58f1 | addpd xmm4, xmm9; addpd xmm5, xmm9; addpd xmm6, xmm9
        66410f58f9 48ffcf 75ab | addpd xmm7, xmm9; dec rdi; jnz 1b
        660f1102 660f114a10 | movupd [rdx], xmm0; movupd [rdx+16], xmm1
        660f115220 660f115a30 | movupd [rdx+32], xmm2; movupd [rdx+48], xmm3
        660f116240 660f116a50 | movupd [rdx+64], xmm4; movupd [rdx+80], xmm5
        660f117260 660f117a70 c3 | movupd [rdx+96], xmm6; movupd [rdx+112], xmm7; ret
    """,
    "copy": """
        0f1006 0f104e10 | 1: movups xmm0, [rsi]; movups xmm1, [rsi+16]
        0f105620 0f105e30 0f1107 | movups xmm2, [rsi+32]; movups xmm3, [rsi+48]; movups [rdi], xmm0
        0f114f10 0f115720 | movups [rdi+16], xmm1; movups [rdi+32], xmm2
        0f115f30 4883c640 4883c740 | movups [rdi+48], xmm3; add rsi, 64; add rdi, 64
        4883ea40 75d4 | sub rdx, 64; jnz 1b
        c3 | ret
    """,
    "syscalls": """
        53 4889fb | push rbx; mov rbx, rdi
        488b4308 488b7b10 488b7318 | 1: mov rax, [rbx+8]; mov rdi, [rbx+16]; mov rsi, [rbx+24]
        488b5320 4c8b5328 0f05 | mov rdx, [rbx+32]; mov r10, [rbx+40]; syscall
        4883f8fc 74e4 | cmp rax, -4; je 1b
        483b4330 7527 | cmp rax, [rbx+48]; jne 3f
        488b4338 488b7b40 488b7348 | 2: mov rax, [rbx+56]; mov rdi, [rbx+64]; mov rsi, [rbx+72]
        488b5350 4c8b5358 0f05 | mov rdx, [rbx+80]; mov r10, [rbx+88]; syscall
        4883f8fc 74e4 | cmp rax, -4; je 2b
        483b4360 7505 | cmp rax, [rbx+96]; jne 3f
        48ff0b 75b7 | dec qword ptr [rbx]; jnz 1b
        5b c3 | 3: pop rbx; ret
    """,
    "launches": """
        53 4889fb | push rbx; mov rbx, rdi
        4883ec08 ff7360 ff7358 | 1: sub rsp, 8; push qword ptr [rbx+96]; push qword ptr [rbx+88]
        ff7350 ff7348 | push qword ptr [rbx+80]; push qword ptr [rbx+72]
        ff7340 4c8b4b38 4c8b4330 | push qword ptr [rbx+64]; mov r9, [rbx+56]; mov r8, [rbx+48]
        488b4b28 488b5320 488b7318 | mov rcx, [rbx+40]; mov rdx, [rbx+32]; mov rsi, [rbx+24]
        488b7b10 ff5308 | mov rdi, [rbx+16]; call [rbx+8]
        4883c430 85c0 7505 | add rsp, 48; test eax, eax; jnz 2f
        48ff0b 75c5 | dec qword ptr [rbx]; jnz 1b
        5b c3 | 2: pop rbx; ret
    """,
    "timed": """
        53 4889fb b8e4000000 bf01000000 | push rbx; mov rbx, rdi; mov eax, 228; mov edi, 1
        488d7320 0f05 | lea rsi, [rbx+32]; syscall
        488b7b08 488b7310 488b5318 | mov rdi, [rbx+8]; mov rsi, [rbx+16]; mov rdx, [rbx+24]
        ff13 | call [rbx]
        50 b8e4000000 bf01000000 488d7330 | push rax; mov eax, 228; mov edi, 1; lea rsi, [rbx+48]
        0f05 | syscall
        58 5b c3 | pop rax; pop rbx; ret
    """,
}
_AARCH64 = {
    "spin": """
        200440ad 220c41ad 241442ad | ldp q0, q1, [x1]; ldp q2, q3, [x1, #32]; ldp q4, q5, [x1, #64]
        261c43ad 304444ad | ldp q6, q7, [x1, #96]; ldp q16, q17, [x1, #128]
        00dc706e 21dc706e | 1: fmul v0.2d, v0.2d, v16.2d; fmul v1.2d, v1.2d, v16.2d
        42dc706e 63dc706e | fmul v2.2d, v2.2d, v16.2d; fmul v3.2d, v3.2d, v16.2d
        84dc706e a5dc706e | fmul v4.2d, v4.2d, v16.2d; fmul v5.2d, v5.2d, v16.2d
        c6dc706e e7dc706e | fmul v6.2d, v6.2d, v16.2d; fmul v7.2d, v7.2d, v16.2d
        00d4714e 21d4714e | fadd v0.2d, v0.2d, v17.2d; fadd v1.2d, v1.2d, v17.2d
        42d4714e 63d4714e | fadd v2.2d, v2.2d, v17.2d; fadd v3.2d, v3.2d, v17.2d
        84d4714e a5d4714e | fadd v4.2d, v4.2d, v17.2d; fadd v5.2d, v5.2d, v17.2d
        c6d4714e e7d4714e | fadd v6.2d, v6.2d, v17.2d; fadd v7.2d, v7.2d, v17.2d
        000400f1 e1fdff54 | subs x0, x0, #1; b.ne 1b
        400400ad 420c01ad 441402ad | stp q0, q1, [x2]; stp q2, q3, [x2, #32]; stp q4, q5, [x2, #64]
        461c03ad c0035fd6 | stp q6, q7, [x2, #96]; ret
    """,
    "copy": """
        2004c1ac 220cc1ac | 1: ldp q0, q1, [x1], #32; ldp q2, q3, [x1], #32
        000481ac 020c81ac 420001f1 | stp q0, q1, [x0], #32; stp q2, q3, [x0], #32; subs x2, x2, #64
        61ffff54 | b.ne 1b
        c0035fd6 | ret
    """,
    "syscalls": """
        f30f1ff8 f30300aa | str x19, [sp, #-16]!; mov x19, x0
        680640f9 600641a9 | 1: ldr x8, [x19, #8]; ldp x0, x1, [x19, #16]
        620e42a9 010000d4 | ldp x2, x3, [x19, #32]; svc #0
        1f1000b1 60ffff54 | cmn x0, #4; b.eq 1b
        691a40f9 1f0009eb c1010054 | ldr x9, [x19, #48]; cmp x0, x9; b.ne 3f
        681e40f9 600644a9 | 2: ldr x8, [x19, #56]; ldp x0, x1, [x19, #64]
        620e45a9 010000d4 | ldp x2, x3, [x19, #80]; svc #0
        1f1000b1 60ffff54 | cmn x0, #4; b.eq 2b
        693240f9 1f0009eb a1000054 | ldr x9, [x19, #96]; cmp x0, x9; b.ne 3f
        690240f9 290500f1 690200f9 61fdff54 | ldr x9, [x19]; subs x9, x9, #1; str x9, [x19]; b.ne 1b
        f30741f8 c0035fd6 | 3: ldr x19, [sp], #16; ret
    """,
    "launches": """
        f37bbfa9 f30300aa ff8300d1 | stp x19, x30, [sp, #-16]!; mov x19, x0; sub sp, sp, #32
        698240a9 618a41a9 | 1: ldp x9, x0, [x19, #8]; ldp x1, x2, [x19, #24]
        639242a9 659a43a9 | ldp x3, x4, [x19, #40]; ldp x5, x6, [x19, #56]
        67aa44a9 6bb245a9 | ldp x7, x10, [x19, #72]; ldp x11, x12, [x19, #88]
        ea2f00a9 ec0b00f9 20013fd6 | stp x10, x11, [sp]; str x12, [sp, #16]; blr x9
        a0000035 | cbnz w0, 2f
        690240f9 290500f1 690200f9 61feff54 | ldr x9, [x19]; subs x9, x9, #1; str x9, [x19]; b.ne 1b
        ff830091 f37bc1a8 c0035fd6 | 2: add sp, sp, #32; ldp x19, x30, [sp], #16; ret
    """,
    "timed": """
        f37bbea9 f40b00f9 f30300aa | stp x19, x30, [sp, #-32]!; str x20, [sp, #16]; mov x19, x0
        280e80d2 200080d2 61820091 010000d4 | mov x8, #113; mov x0, #1; add x1, x19, #32; svc #0
        690240a9 610a41a9 20013fd6 | ldp x9, x0, [x19]; ldp x1, x2, [x19, #16]; blr x9
        f40300aa 280e80d2 200080d2 | mov x20, x0; mov x8, #113; mov x0, #1
        61c20091 010000d4 | add x1, x19, #48; svc #0
        e00314aa f40b40f9 f37bc2a8 | mov x0, x20; ldr x20, [sp, #16]; ldp x19, x30, [sp], #32
        c0035fd6 | ret
    """,
}
# Sources of the numbers: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
ARCHITECTURES = {
    "x86_64": Architecture(_X86_64, read=0, write=1, pread64=17, pwrite64=18),
    "aarch64": Architecture(_AARCH64, read=63, write=64, pread64=67, pwrite64=68),
}
_ALIGNMENT = 64
_Function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Refused(Exception):
    """Machine code cannot run: this CPU has no routines, or the container forbids machine code."""


class MachineCode:
    """The routines of one architecture in an executable page.

    Args:
        architecture: Architecture of this machine.

    Raises:
        OSError: The container forbids executable memory.
    """

    def __init__(self, architecture: Architecture) -> None:
        page = b""
        offsets = {}
        for name, lines in architecture.routines.items():
            page += b"\0" * (-len(page) % _ALIGNMENT)
            offsets[name] = len(page)
            page += assembled(lines)
        base = _executable(page)
        self.numbers = architecture
        self._addresses = {name: base + offset for name, offset in offsets.items()}

    def call(self, routine: str, table: ctypes.Array[ctypes.c_int64]) -> int:
        """Call a routine with its table, and return the integer that it returns.

        Args:
            routine: Key in the architecture's ``routines``.
            table: Values that the routine reads and writes.
        """
        result: int = _Function(self._addresses[routine])(ctypes.addressof(table))
        return result

    def timed(self, routine: str, *arguments: int) -> TimedCall:
        """Return a reusable callable that runs a routine, and reads the clock right before and right after the
        routine.

        Args:
            routine: Key in the architecture's ``routines``.
            arguments: Integers, such as addresses.
        """
        return TimedCall(_Function(self._addresses["timed"]), self._addresses[routine], arguments)


Code: TypeAlias = MachineCode | None
"""None if Python does the work."""


class TimedCall:
    """Calls a routine and returns its seconds. Both clock readings happen with the GIL released.

    Args:
        timed: Routine that reads the clock before and after it calls another routine.
        routine: Address of that other routine.
        arguments: At most 3 integers.
    """

    def __init__(self, timed: Callable[[int], int], routine: int, arguments: Sequence[int]) -> None:
        self._timed = timed
        self._table = int64s(routine, *arguments, *[0] * (7 - len(arguments)))
        self.result = 0
        """Integer that the routine returned last."""

    def __call__(self) -> float:
        self.result = self._timed(ctypes.addressof(self._table))
        begin, begin_ns, end, end_ns = self._table[4:]
        return end - begin + (end_ns - begin_ns) / 1e9


@cache
def mapped_code() -> MachineCode:
    """Map this machine's routines once. The mapping stays until the process ends, because a thread may still run
    them.

    Returns:
        The same object at each call.

    Raises:
        Refused: No routines exist for this machine, or the container forbids them.
    """
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None or sys.platform != "linux" or sys.maxsize < 2**32:
        raise Refused(
            f"no machine code exists for {sys.platform} on {platform.machine()}, {platform.architecture()[0]}"
        )
    try:
        return MachineCode(architecture)
    except (OSError, AttributeError) as error:  # an old libc has no memfd_create
        raise Refused(f"this container may not run machine code ({error})") from None


def assembled(lines: str) -> bytes:
    """Return the bytes in lines of ``bytes | assembly``. The bytes are hexadecimal, before the bar."""
    return bytes.fromhex("".join(line.partition("|")[0] for line in lines.splitlines()))


def int64s(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """Make a routine's table: an array of 64-bit integers in the machine's byte order."""
    return (ctypes.c_int64 * len(values))(*values)


def memory_file(name: str) -> int:
    """Make a file in memory through libc, because a Python built for an old libc has no ``os.memfd_create``.

    Args:
        name: Name in ``/proc``; need not be unique.

    Returns:
        File descriptor.

    Raises:
        AttributeError: libc has no such function.
        OSError: The kernel has no such function.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.memfd_create(name.encode(), 1)  # 1: MFD_CLOEXEC
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"memfd_create: {os.strerror(ctypes.get_errno())}")
    return descriptor


def _executable(code: bytes) -> int:
    """Map code and return its address. Python's mmap cannot give the address of a read-only mapping."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    descriptor = memory_file("infercanary-controls")
    try:
        os.write(descriptor, code)
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        address: int = libc.mmap(None, len(code), protection, mmap.MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    return address
