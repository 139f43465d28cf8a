"""Memory of the host and of a device: free size, errors that mean a shortage, and release of unused memory."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn

import msgspec
import psutil

from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.gpu.cuda_driver import CudaError, pci_bus_id
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup
from infercanary.probe.samplers.nvml import memory_of

Place = Literal["host", "device"]

RESERVE, RESERVE_SHARE = 64 << 20, 0.05
"""Host memory that the probe leaves free: bytes, or a share of the limit, whichever is more."""
DEVICE_RESERVE, DEVICE_RESERVE_SHARE = 256 << 20, 0.02
"""Device memory that the probe leaves free: bytes, or a share of all device memory, whichever is more."""
CONTEXT = 768 << 20
"""Estimate for a CUDA context with an engine's kernels: on an H200 with driver 580, a bare context took 524 MiB, and
torch's first matrix product 192 MiB more.
"""
BESIDE = 80 << 20
"""Estimate of the driver's memory for a canary in a process with a context: 72 MiB for the first canary on an H200."""
CONTROLS = 144 << 20
"""Device memory of the controls, which open with the first canary on a device: :mod:`.targets.controls.cuda`."""

_SMALL_LIMIT_SHARE = 8  # the reserve is at most an eighth of a small limit: 16 MiB of 128 MiB
_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")

# Words for a memory shortage in errors of torch (c10/core/impl/alloc_cpu.cpp), ONNX Runtime
# (core/framework/bfc_arena.cc), TensorRT (defaultAllocator.cpp), cuBLAS and cuDNN (…_STATUS_ALLOC_FAILED), XLA and
# TensorFlow (RESOURCE_EXHAUSTED), C++ and libc.
_WORDS = (
    "out of memory", "outofmemory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "failed to allocate memory", "alloc_failed", "resource_exhausted", "bad_alloc",
)  # fmt: skip
# glibc's "cannot allocate memory in static TLS block" is not a shortage: libraries were loaded in the wrong order
_OTHER_MEANING = "static tls block"
_HOST_WORDS = ("defaultcpuallocator", "alloc_cpu", "cumemhostalloc", "cannot allocate memory", "bad_alloc")
_DEVICE_WORDS = ("cuda", "cublas", "cudnn", "gpu", "device")
_LONG = 4000  # maximum number of characters of an error that are searched
_CHAIN = 8  # maximum number of searched errors in a chain of causes

_VARIABLE = "INFERCANARY_ENDED_FOR_MEMORY"
_PAUSE = 3600.0


class Bound(NamedTuple):
    """A limit on this process's memory, in bytes."""

    whose: str
    """Description of the limit: ``the container's limit of 300 MiB``."""
    limit: int
    used: int
    """Memory of all processes under the limit, without inactive page cache."""
    cached: int = 0
    """Active page cache, part of ``used``. The kernel reclaims page cache before it kills a process."""


class Left(NamedTuple):
    """Memory left under the tightest limit after subtracting the reserve of that limit, in bytes."""

    size: int
    reserve: int
    whose: str


def tightest(bounds: Iterable[Bound], reserve: int | None, least: int, share: float) -> Left | None:
    """Return the :class:`Left` of the tightest bound; None without bounds.

    ``reserve`` is in bytes; None means the larger of ``least`` (bytes) and ``share`` of the limit (0 to 1).
    """
    lefts = []
    for bound in bounds:
        kept = max(least, int(share * bound.limit)) if reserve is None else reserve
        lefts.append(Left(max(0, bound.limit - max(0, bound.used) - kept), kept, bound.whose))
    return min(lefts, key=lambda left: left.size, default=None)


class HostMemory:
    """Memory that this process may take from its container and from the host, minus a reserve (bytes)."""

    _root, _proc = _ROOT, _PROC

    def __init__(self, reserve: int | None = None) -> None:
        self._reserve = reserve

    def bounds(self) -> list[Bound]:
        """Read the limits of this control group, of the visible groups above it, and of the host."""
        bounds = []
        with suppress(Unavailable):
            for group in own_cgroup(self._root, self._proc / "self").memory_limits():
                whose = "a limit above the container" if group.above else "the container's limit"
                used = group.used - group.inactive
                bounds.append(Bound(f"{whose} of {readable(group.limit)}", group.limit, used, group.active))
        with suppress(OSError, KeyError):
            host = psutil.virtual_memory()
            bounds.append(
                Bound(f"the host's {readable(host.total)}", host.total, host.total - host.available)
            )
        return bounds

    def left(self) -> Left | None:
        """Read the memory that a canary may take permanently; None if unknown. Callable from any thread."""
        return tightest(self.bounds(), self._reserve, RESERVE, RESERVE_SHARE)

    def left_for_a_moment(self) -> Left | None:
        """Read the memory that is available for a short time, including reclaimable page cache; None if unknown."""
        bounds = self.bounds()
        reserve = min([RESERVE, *(bound.limit // _SMALL_LIMIT_SHARE for bound in bounds)])
        if self._reserve is not None:
            reserve = min(reserve, self._reserve)
        return tightest([bound._replace(used=bound.used - bound.cached) for bound in bounds], reserve, 0, 0)


def left_on_device(device: str, reserve: int | None = None) -> Left | None:
    """Read the available memory of ``cuda`` or ``cuda:N``, by NVML; None if unknown. Callable from any thread."""
    if (memory := device_memory(ordinal(device))) is None:
        return None
    used, total = memory
    bound = Bound(f"the {readable(total)} of {device}", total, used)
    return tightest([bound], reserve, DEVICE_RESERVE, DEVICE_RESERVE_SHARE)


def device_memory(number: int) -> tuple[int, int] | None:
    """Read used and total bytes of a GPU, given CUDA's number; None if unknown. Creates no CUDA context."""
    with suppress(Unavailable, CudaError):
        return memory_of(pci_bus_id(number))
    return None


def ordinal(device: str) -> int:
    """Return CUDA's number of ``cuda`` or ``cuda:N``."""
    return int(device.partition(":")[2] or 0)


def place_of(error: BaseException, device: str = "cpu") -> Place | None:
    """Return the place where memory ran out, according to an error or its causes; None for any other error."""
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
    if type(error).__name__ == "OutOfMemoryError":  # torch raises this error only on accelerators
        return "device"
    try:
        text = str(error)[:_LONG].lower()
    except BaseException:  # str() may raise, because the target may define the class of the error
        return None
    if _OTHER_MEANING in text or not any(words in text for words in _WORDS):
        return None
    if any(words in text for words in _HOST_WORDS):
        return "host"
    # An error that names no place belongs to the target's device.
    on_device = device.startswith("cuda") or any(words in text for words in _DEVICE_WORDS)
    return "device" if on_device else "host"


def describe_shortage(error: BaseException, place: Place, device: str) -> str:
    """Describe in one line which memory ran out, and its use. Call this function before any memory is released."""
    fact = ""
    with suppress(Exception):  # lack of memory may also make this query fail
        if place == "host":
            bound = min(HostMemory().bounds(), key=lambda bound: bound.limit - bound.used)
            fact = f"{readable(bound.used)} in use of {bound.whose}; "
        elif memory := device_memory(ordinal(device)):
            fact = f"{readable(memory[0])} of {readable(memory[1])} in use on cuda:{ordinal(device)}; "
    return printable(f"out of memory ({place}): {fact}{one_line(error)}", 400, " ")


def give_back() -> None:
    """Return unused memory to the device and to the kernel. Never raises.

    In a server's process, torch's cache is also released. Torch allocates it again for the server's next request.
    """
    gc.collect()
    with suppress(Exception):
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            cuda.empty_cache()
    trim()


def trim() -> None:
    """Return freed memory in the C library's heaps (one for each thread) to the kernel. Never raises."""
    with suppress(Exception):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def readable(size: float) -> str:
    """Format bytes for a person: ``412 MiB``."""
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"


class Ended(msgspec.Struct, frozen=True):
    """A canary, or a point of its sweep, that the probe ended before memory ran out."""

    canary: str
    why: str
    at: float
    """Monotonic time of the end, seconds. The clock continues when the process restarts itself."""
    load: tuple[int, int] | None = None
    """Batch and concurrency of a sweep's point; None for the canary itself."""

    @property
    def retry_at(self) -> float:
        """Monotonic time from which the canary may be opened again; a sweep's point needs a restart of the probe."""
        return self.at + _PAUSE


def take_ended() -> list[Ended]:
    """Return the ended work that this process noted in an environment variable before its self-restart, if any."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(os.environ.pop(_VARIABLE, "[]"), type=list[Ended])
    return []


def start_anew(ended: Iterable[Ended]) -> NoReturn:
    """Restart this process with the same command and PID, which frees all memory. Never returns.

    Callable from any thread: the function takes no lock except the GIL, and does not log. The new process logs the
    restart.
    """
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # a library may have opened files without O_CLOEXEC
            with suppress(OSError):
                if int(name) > 2:
                    os.set_inheritable(int(name), False)
    try:
        environment = {**os.environ, _VARIABLE: msgspec.json.encode(list(ended)).decode()}
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606
    finally:
        os._exit(1)


def be_ended_first() -> None:
    """Let the kernel kill this process before the server if memory runs out (needs no privilege)."""
    with suppress(OSError):
        # 1000, the highest value of oom_score_adj: the kernel kills this process first
        (_PROC / "self/oom_score_adj").write_text("1000")
