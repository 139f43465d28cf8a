"""Check of CUPTI: can this process time its kernels? Profiles of torch canaries need kernel times."""

from __future__ import annotations

import ctypes
import glob
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any

from infercanary.doctor.ability import Ability, Machine, Refusal, check, limited, ok, refused
from infercanary.doctor.cuda_events import device, kernel

_CONCURRENT_KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_INSUFFICIENT_PRIVILEGES = (35, 40)  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, …_VIRTUALIZED_DEVICE_…
_BUFFER = 1 << 20
_MAJORS = range(19, 10, -1)  # major CUDA versions that are tried, newest first
_KERNELS = 5

_Requested = CFUNCTYPE(None, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_size_t))
_Completed = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_size_t, c_size_t)


def _library() -> ctypes.CDLL | None:
    """Return the CUPTI library of torch's wheels; if they have none, the library of the system."""
    wheels = [found for path in sys.path for found in glob.glob(f"{path}/nvidia/*/lib/libcupti.so.*")]
    for name in [*sorted(wheels, reverse=True), *(f"libcupti.so.{major}" for major in _MAJORS)]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@check("CUPTI", "times of kernels", seconds=60.0)
def _kernels(machine: Machine) -> Ability:
    gpu = device(machine.device)
    library = _library()
    if library is None:
        return limited(
            "",
            "no libcupti in this image: profiles of torch canaries have no kernel times",
            "install torch with CUDA, which includes CUPTI (nvidia-cuda-cupti), or install cuda-cupti",
        )
    kinds: list[int] = []
    buffers: list[Any] = []

    def requested(buffer: Any, size: Any, most: Any) -> None:
        buffers.append(ctypes.create_string_buffer(_BUFFER))
        buffer[0] = ctypes.addressof(buffers[-1])
        size[0], most[0] = _BUFFER, 0

    def completed(_context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        record = c_void_p()
        place = c_void_p(buffer), c_size_t(valid), ctypes.byref(record)
        while valid and not library.cuptiActivityGetNextRecord(*place):
            if record.value:
                kinds.append(c_uint32.from_address(record.value).value)

    callbacks = _Requested(requested), _Completed(completed)
    _call(library, "cuptiActivityRegisterCallbacks", *callbacks)
    _call(library, "cuptiActivityEnable", c_int(_CONCURRENT_KERNEL))
    with gpu.current():
        launch, memory = kernel(gpu)
        for _ in range(_KERNELS):
            launch()
        gpu.read(memory.value, 4)
        _call(library, "cuptiActivityFlushAll", c_uint32(_FORCED))
    count = kinds.count(_CONCURRENT_KERNEL)
    if count != _KERNELS:
        return refused(
            f"{count} of {_KERNELS} kernels were recorded",
            "another tracer may use CUPTI (Nsight, DCGM profiling, a profiler in this process): end that "
            "tracer",
        )
    return ok(f"all of {_KERNELS} kernels were recorded")


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    code = getattr(library, function)(*arguments)
    if not code:
        return
    name = c_char_p()
    library.cuptiGetResultString(c_int(code), ctypes.byref(name))
    why = f"{function}: {(name.value or b'unknown error').decode(errors='replace')} ({code})"
    if code in _INSUFFICIENT_PRIVILEGES:
        raise Refusal(
            f"{why}: profiles of torch canaries have no kernel times (`no_cupti`)",
            "--cap-add SYS_ADMIN; or on the host: options nvidia NVreg_RestrictProfilingToAdminUsers=0 "
            "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)",
        )
    raise Refusal(why)
