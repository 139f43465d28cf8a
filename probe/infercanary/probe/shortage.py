"""Out of memory: which errors mean it, who has the memory, and how to give back what a run took."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

from infercanary.contract.text import printable
from infercanary.probe.deadline import one_line
from infercanary.probe.gpu.cuda_driver import CudaError, pci_bus_id
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.cgroup.hierarchy import own_cgroup
from infercanary.probe.samplers.nvml import memory_of

Place = Literal["host", "device"]

# torch (c10/core/impl/alloc_cpu.cpp), ONNX Runtime (core/framework/bfc_arena.cc), TensorRT (defaultAllocator.cpp),
# cuBLAS and cuDNN (…_STATUS_ALLOC_FAILED), XLA and TensorFlow (RESOURCE_EXHAUSTED), C++ and libc say it so.
_WORDS = (
    "out of memory", "outofmemory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "failed to allocate memory", "alloc_failed", "resource_exhausted", "bad_alloc",
)  # fmt: skip
_NOT_IT = (
    "static tls block"  # glibc's "cannot allocate memory in static TLS block" is about the order of libraries
)
_OF_THE_HOST = ("defaultcpuallocator", "alloc_cpu", "cumemhostalloc", "cannot allocate memory", "bad_alloc")
_OF_THE_DEVICE = ("cuda", "cublas", "cudnn", "gpu", "device")
_SHORT, _LONG = 100, 4000  # characters
_CHAIN = 8  # errors in whose handling another was raised
# What torch adds of other processes on the device, by NVML: c10/cuda/CUDACachingAllocator.cpp.
_OTHERS = re.compile(r"Process (\d+) has ([\d.]+) ([KMG]iB|bytes) memory in use")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")


class Process(NamedTuple):
    """A process and the memory that it has."""

    name: str
    resident: int
    """Bytes."""


def place_of(error: BaseException, device: str = "cpu") -> Place | None:
    """Say whether an error, or one in whose handling it was raised, means that memory did not suffice.

    Args:
        error: Whatever a target raised.
        device: Where the target computes, for words that fit both.

    Returns:
        Whose memory; None where the error means something else.
    """
    each: BaseException | None = error
    for _ in range(_CHAIN):
        if each is None:
            break
        if (found := _place_of_one(each, device)) is not None:
            return found
        each = each.__cause__ or each.__context__
    return None


def explained(error: BaseException, place: Place, device: str, proc: Path = _PROC, root: Path = _ROOT) -> str:
    """Say in a line what did not suffice: what is in use, the limit, and who has most of it.

    Call it before anything is released. Processes on a device are not listed, which would hold the driver's lock; torch
    does that itself where its allocator fails, and what it says is read.

    Args:
        error: What the target raised.
        place: From :func:`place_of`.
        device: ``cpu`` or ``cuda[:N]``.
        proc: Where procfs is mounted.
        root: Where cgroups are mounted.

    Returns:
        Printable text of 400 characters at most.
    """
    facts: list[str] = []
    with suppress(Exception):  # little memory is left for asking, too
        facts.extend(_host(proc, root) if place == "host" else _device(error, device))
    return printable(f"out of memory ({place}): {'; '.join([*facts, _said(error)])}", 400, " ")


def give_back() -> None:
    """Hand free memory back to the device and to the kernel. Never raises.

    In a server's process that includes what torch keeps for the server's next request: it asks for it again.
    """
    gc.collect()
    with suppress(Exception):
        if (cuda := _torch_cuda()) is not None:
            cuda.empty_cache()
    trim()


def trim() -> float:
    """Hand what the C library keeps of freed memory, in a heap of each thread, back to the kernel. Never raises.

    Returns:
        Seconds that it took: milliseconds.
    """
    begin = perf_counter()
    with suppress(Exception):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    return perf_counter() - begin


def _place_of_one(error: BaseException, device: str) -> Place | None:
    if isinstance(error, CudaError):
        is_host = error.function == "cuMemHostAlloc"
        return None if error.name != "CUDA_ERROR_OUT_OF_MEMORY" else "host" if is_host else "device"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    if type(error).__name__ == "OutOfMemoryError":  # torch's; it is for accelerators only
        return "device"
    text = _whole_text(error).lower()
    if _NOT_IT in text or not any(words in text for words in _WORDS):
        return None
    if any(words in text for words in _OF_THE_HOST):
        return "host"
    on_device = device.startswith("cuda") or any(words in text for words in _OF_THE_DEVICE)
    return "device" if on_device else "host"


def _host(proc: Path, root: Path) -> Iterator[str]:
    bound = None
    with suppress(Unavailable):
        limits = own_cgroup(root, proc / "self").memory_limits()
        bound = min(limits, key=lambda each: each.limit, default=None)
    if bound is not None:
        yield f"{readable(bound.used)} in use of the container's limit of {readable(bound.limit)}"
    elif found := machine(proc):
        yield f"{readable(found[0])} in use of the machine's {readable(found[1])}, and no limit"
    mapped, _ = resource.getrlimit(resource.RLIMIT_AS)
    if mapped != resource.RLIM_INFINITY:
        has = readable(_pages(proc / "self", 0))
        yield f"this process may map {readable(mapped)} (ulimit -v), and has mapped {has}"
    yield f"this process has {readable(_pages(proc / 'self', 1))}"
    if (other := largest_other(proc)) is not None:
        yield f"the largest other, {other.name}, {readable(other.resident)}"


def _device(error: BaseException, device: str) -> Iterator[str]:
    ordinal = int(device.partition(":")[2] or 0)
    memory, own = None, None
    with suppress(Exception):
        if (cuda := _torch_cuda()) is not None:
            free, total = cuda.mem_get_info(ordinal)
            memory, own = (total - free, total), cuda.memory_reserved(ordinal)
    memory = memory or of_device(ordinal)
    if memory is not None:
        yield f"{readable(memory[0])} of {readable(memory[1])} in use on cuda:{ordinal}"
    if own is not None:
        yield f"torch in this process holds {readable(own)}"
    others = [
        (float(amount) * _UNITS[unit], pid) for pid, amount, unit in _OTHERS.findall(_whole_text(error))
    ]
    if others:
        size, pid = max(others)
        yield f"the largest other, process {pid}, {readable(size)}"


def largest_other(proc: Path = _PROC) -> Process | None:
    """Find the process with most resident memory that is not this one.

    Args:
        proc: Where procfs is mounted; in a container it has the container's processes.

    Returns:
        It; None where there is no other, or none can be read.
    """
    found: Process | None = None
    for folder in proc.glob("[0-9]*"):
        if folder.name == str(os.getpid()):
            continue
        resident = _pages(folder, 1)
        if resident and (found is None or resident > found.resident):
            with suppress(OSError):
                name = printable((folder / "comm").read_text(errors="replace").strip(), 32)
                found = Process(name, resident)
    return found


def _pages(folder: Path, field: int) -> int:
    """Bytes of a field of ``statm``; 0 where the process is gone."""
    try:
        return int((folder / "statm").read_text().split()[field]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def machine(proc: Path = _PROC) -> tuple[int, int] | None:
    """Read how much memory of the machine is in use, and how much there is.

    Args:
        proc: Where procfs is mounted.

    Returns:
        Bytes that are not available without swapping, and all; None where they cannot be read.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        sizes = {
            name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)
        }
        return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, ValueError, IndexError, KeyError):
        return None


def of_device(ordinal: int) -> tuple[int, int] | None:
    """Read how much memory of a GPU is in use, and how much there is; it needs no context there, and makes none.

    Args:
        ordinal: CUDA's number of it.

    Returns:
        Bytes in use by whomever, and all; None where they are not known.
    """
    with suppress(Unavailable, CudaError):
        return memory_of(pci_bus_id(ordinal))
    return None


def _torch_cuda() -> Any | None:
    """``torch.cuda``, where the process uses it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _said(error: BaseException) -> str:
    """The error in a line; of a long text the part that says that memory did not suffice."""
    text = _whole_text(error)
    at = min((i for words in _WORDS if (i := text.lower().find(words)) >= 0), default=0)
    return (
        one_line(error) if at < _SHORT else f"{type(error).__name__}: …{text[at : at + 2 * _SHORT].strip()}"
    )


def _whole_text(error: BaseException) -> str:
    try:
        return str(error)[:_LONG]
    except BaseException:  # another one's class
        return ""


def readable(size: float) -> str:
    """Write a size as people read it.

    Args:
        size: Bytes.

    Returns:
        Text such as ``412 MiB``.
    """
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"
