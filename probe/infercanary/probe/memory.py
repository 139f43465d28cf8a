"""Memory of the host and of a device: how much is left, which errors mean that it ran out, and how it is given back."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.gpu.cuda_driver import CudaError, pci_bus_id
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup
from infercanary.probe.samplers.nvml import memory_of

Place = Literal["host", "device"]

RESERVE, RESERVE_SHARE = 64 << 20, 0.05
"""Host memory that the probe leaves alone: bytes, or a share of the limit if that is more."""
DEVICE_RESERVE, DEVICE_RESERVE_SHARE = 256 << 20, 0.02
"""The same of a device's memory."""
CONTEXT = 768 << 20
"""Estimate of a CUDA context with an engine's kernels: on an H200 with driver 580 a bare context took 524 MiB, and
torch's first product 192 more."""
BESIDE = 80 << 20
"""Estimate of what the driver takes for a canary in a process with a context: 72 MiB for the first on an H200."""
CONTROLS = 144 << 20
"""Device memory of the controls, which open with the first canary there: :mod:`.targets.controls.cuda`."""

_SMALL_LIMIT_SHARE = 8  # a probe alone in 128 MiB runs with an eighth of it in reserve
_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")

# torch (c10/core/impl/alloc_cpu.cpp), ONNX Runtime (core/framework/bfc_arena.cc), TensorRT (defaultAllocator.cpp),
# cuBLAS and cuDNN (…_STATUS_ALLOC_FAILED), XLA and TensorFlow (RESOURCE_EXHAUSTED), C++ and libc say it so.
_WORDS = (
    "out of memory", "outofmemory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "failed to allocate memory", "alloc_failed", "resource_exhausted", "bad_alloc",
)  # fmt: skip
_OTHER_MEANING = "static tls block"  # glibc's "cannot allocate memory in …": order of libraries
_HOST_WORDS = ("defaultcpuallocator", "alloc_cpu", "cumemhostalloc", "cannot allocate memory", "bad_alloc")
_DEVICE_WORDS = ("cuda", "cublas", "cudnn", "gpu", "device")
_LONG = 4000  # characters of an error that are read
_CHAIN = 8  # errors in whose handling another was raised

_VARIABLE = "INFERCANARY_ENDED_FOR_MEMORY"
_PAUSE = 3600.0


class Bound(NamedTuple):
    """A limit on this process's memory. Sizes in bytes."""

    whose: str
    """In words: ``the container's limit of 300 MiB``."""
    limit: int
    used: int
    """By all processes under the limit, without page cache that was not used lately."""
    cached: int = 0
    """Page cache in use, part of ``used``: the kernel takes it back before it ends a process."""


class Left(NamedTuple):
    """Bytes that may still be taken under the tightest bound, after its reserve."""

    size: int
    reserve: int
    whose: str


def tightest(bounds: Iterable[Bound], reserve: int | None, least: int, share: float) -> Left | None:
    """Find the bound that leaves least; None without bounds.

    The reserve is so many bytes; None for the larger of ``least`` (bytes) and ``share`` of the limit (0 to 1).
    """
    lefts = []
    for bound in bounds:
        kept = max(least, int(share * bound.limit)) if reserve is None else reserve
        lefts.append(Left(max(0, bound.limit - max(0, bound.used) - kept), kept, bound.whose))
    return min(lefts, key=lambda left: left.size, default=None)


class HostMemory:
    """Memory that this process may take of its container and of the host, but for a reserve (bytes)."""

    def __init__(self, reserve: int | None = None, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._reserve = reserve
        self._root = root
        self._proc = proc

    def bounds(self) -> list[Bound]:
        """Read the limits of the own control group, of those above it that are visible, and of the host."""
        bounds = []
        with suppress(Unavailable):
            for group in own_cgroup(self._root, self._proc / "self").memory_limits():
                whose = "a limit above the container" if group.above else "the container's limit"
                used = group.used - group.inactive
                bounds.append(Bound(f"{whose} of {readable(group.limit)}", group.limit, used, group.active))
        with suppress(OSError, ValueError, IndexError, KeyError):
            lines = (self._proc / "meminfo").read_text().splitlines()
            sizes = dict(line.split()[:2] for line in lines)
            total, available = (int(sizes[f"Mem{name}:"]) << 10 for name in ("Total", "Available"))
            bounds.append(Bound(f"the host's {readable(total)}", total, total - available))
        return bounds

    def left(self) -> Left | None:
        """Read what a canary may take for longer; None if unknown. Callable from any thread."""
        return tightest(self.bounds(), self._reserve, RESERVE, RESERVE_SHARE)

    def left_for_a_moment(self) -> Left | None:
        """Read what may be taken before the kernel has to end a process, with page cache; None if unknown."""
        bounds = self.bounds()
        reserve = min([RESERVE, *(bound.limit // _SMALL_LIMIT_SHARE for bound in bounds)])
        if self._reserve is not None:
            reserve = min(reserve, self._reserve)
        return tightest([bound._replace(used=bound.used - bound.cached) for bound in bounds], reserve, 0, 0)


def left_on_device(device: str, reserve: int | None = None) -> Left | None:
    """Read what may be taken of ``cuda`` or ``cuda:N``, by NVML; None if unknown. Callable from any thread."""
    if (memory := device_memory(ordinal(device))) is None:
        return None
    used, total = memory
    bound = Bound(f"the {readable(total)} of {device}", total, used)
    return tightest([bound], reserve, DEVICE_RESERVE, DEVICE_RESERVE_SHARE)


def device_memory(number: int) -> tuple[int, int] | None:
    """Read bytes in use and bytes in all of a GPU, by CUDA's number of it; None if unknown. Makes no context."""
    with suppress(Unavailable, CudaError):
        return memory_of(pci_bus_id(number))
    return None


def ordinal(device: str) -> int:
    """Return CUDA's number of ``cuda`` or ``cuda:N``."""
    return int(device.partition(":")[2] or 0)


def place_of(error: BaseException, device: str = "cpu") -> Place | None:
    """Say whose memory ran out, by an error or one in whose handling it was raised; None if it means something else."""
    cause: BaseException | None = error
    for _ in range(_CHAIN):
        if cause is None:
            break
        if (place := _place_of_one(cause, device)) is not None:
            return place
        cause = cause.__cause__ or cause.__context__
    return None


def _place_of_one(error: BaseException, device: str) -> Place | None:
    if isinstance(error, CudaError):
        is_host = error.function == "cuMemHostAlloc"
        return None if error.name != "CUDA_ERROR_OUT_OF_MEMORY" else "host" if is_host else "device"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    if type(error).__name__ == "OutOfMemoryError":  # torch's; it is for accelerators only
        return "device"
    try:
        text = str(error)[:_LONG].lower()
    except BaseException:  # the target's own class
        return None
    if _OTHER_MEANING in text or not any(words in text for words in _WORDS):
        return None
    if any(words in text for words in _HOST_WORDS):
        return "host"
    # Words that fit both mean the device on which the target computes.
    on_device = device.startswith("cuda") or any(words in text for words in _DEVICE_WORDS)
    return "device" if on_device else "host"


def describe_shortage(error: BaseException, place: Place, device: str, host: HostMemory | None = None) -> str:
    """Say in a line what ran out and how much of it is in use. Call it before anything is released."""
    fact = ""
    with suppress(Exception):  # little memory is left for asking, too
        if place == "host":
            bound = min((host or HostMemory()).bounds(), key=lambda bound: bound.limit - bound.used)
            fact = f"{readable(bound.used)} in use of {bound.whose}; "
        elif memory := device_memory(ordinal(device)):
            fact = f"{readable(memory[0])} of {readable(memory[1])} in use on cuda:{ordinal(device)}; "
    return printable(f"out of memory ({place}): {fact}{one_line(error)}", 400, " ")


def give_back() -> None:
    """Hand free memory back to the device and to the kernel. Never raises.

    In a server's process that includes what torch keeps for the server's next request: it asks for it again.
    """
    gc.collect()
    with suppress(Exception):
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            cuda.empty_cache()
    trim()


def trim() -> None:
    """Hand what the C library keeps of freed memory, in a heap of each thread, back to the kernel. Never raises."""
    with suppress(Exception):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def readable(size: float) -> str:
    """Write bytes as people read them: ``412 MiB``."""
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"


class Ended(msgspec.Struct, frozen=True):
    """A canary, or a point of its sweep, that was ended before memory ran out."""

    canary: str
    why: str
    at: float
    """Monotonic seconds: they go on where the process starts anew."""
    load: tuple[int, int] | None = None
    """Batch and concurrency of a sweep's point; None for the canary itself."""

    @property
    def retry_at(self) -> float:
        """When the canary may be opened again (monotonic); a point only by a new start."""
        return self.at + _PAUSE


def take_ended() -> list[Ended]:
    """Take what the process before this one left in the environment; empty if this process did not start anew."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(os.environ.pop(_VARIABLE, "[]"), type=list[Ended])
    return []


def start_anew(ended: Iterable[Ended]) -> NoReturn:
    """Replace this process by one of the same command and pid, which gives all its memory back; never returns.

    Callable from any thread: it takes no lock but the interpreter's and logs nothing; the new process does.
    """
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # a library may have opened some without O_CLOEXEC
            with suppress(OSError):
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
    try:
        environment = {**os.environ, _VARIABLE: msgspec.json.encode(list(ended)).decode()}
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606
    finally:
        os._exit(1)


def be_ended_first() -> None:
    """Let the kernel end this process before the server beside it, by ``oom_score_adj``: raising it needs no right."""
    with suppress(OSError):
        (_PROC / "self/oom_score_adj").write_text("1000")  # the highest
