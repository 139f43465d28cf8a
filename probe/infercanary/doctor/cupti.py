"""CUPTI: whether this process is given the times of its kernels, as profiled repeats of torch canaries need them."""

from __future__ import annotations

import ctypes
import glob
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint32, c_void_p

from infercanary.doctor.ability import Ability, Machine, absent, check, limited, ok, refused
from infercanary.doctor.cuda_events import NoRoom, context
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets.controls.cuda import PTX

_CONCURRENT_KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_INSUFFICIENT_PRIVILEGES = (35, 40)  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, …_VIRTUALIZED_DEVICE_…
_BUFFER = 1 << 20
_MAJORS = range(19, 10, -1)  # of CUDA: the newest first
_WORDS, _KERNELS = 256, 5

_Requested = CFUNCTYPE(None, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_size_t))
_Completed = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_size_t, c_size_t)


def _library() -> ctypes.CDLL | None:
    """The one that torch's wheels bring, else the system's."""
    folders = [
        found for path in sys.path for found in glob.glob(f"{path}/nvidia/*/lib/libcupti.so.*") if path
    ]
    names = [*sorted(folders, reverse=True), *(f"libcupti.so.{major}" for major in _MAJORS), "libcupti.so"]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@check("CUPTI", "times of kernels", seconds=60.0)
def _kernels(machine: Machine) -> Ability:
    try:
        device = context(machine)
    except NoRoom as error:
        return refused(f"not tried: {error}")
    except Unavailable as error:
        return absent(f"{error}: profiles of a CPU need no CUPTI")
    if (library := _library()) is None:
        return limited(
            "",
            "no libcupti in this image: profiles of torch canaries have operators without kernels' times",
            "a torch with CUDA brings it (nvidia-cuda-cupti); or install cuda-cupti",
        )
    seen: list[int] = []
    keep: list[ctypes.Array[ctypes.c_char]] = []

    def requested(
        buffer: ctypes._Pointer[c_void_p], size: ctypes._Pointer[c_size_t], most: ctypes._Pointer[c_size_t]
    ) -> None:
        keep.append(ctypes.create_string_buffer(_BUFFER))
        buffer[0] = ctypes.addressof(keep[-1])
        size[0], most[0] = _BUFFER, 0

    def completed(_context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        record = c_void_p()
        while valid and not library.cuptiActivityGetNextRecord(
            c_void_p(buffer), c_size_t(valid), ctypes.byref(record)
        ):
            if record.value:
                seen.append(c_uint32.from_address(record.value).value)

    callbacks = _Requested(requested), _Completed(completed)
    for function, arguments in (
        ("cuptiActivityRegisterCallbacks", callbacks),
        ("cuptiActivityEnable", (c_int(_CONCURRENT_KERNEL),)),
    ):
        if code := getattr(library, function)(*arguments):
            return _refusal(library, function, code)
    with device.current():
        kernel = device.kernels(PTX)("fill")
        memory = device.allocate(4 * _WORDS)
        parameters = (c_void_p * 1)(ctypes.addressof(memory))
        for _ in range(_KERNELS):
            shape = (1, 1, 1, _WORDS, 1, 1, 0)
            device.driver.call("cuLaunchKernel", kernel, *shape, device.stream, parameters, None)
        device.read(memory.value, 4)
        code = library.cuptiActivityFlushAll(c_uint32(_FORCED))
        library.cuptiActivityDisable(c_int(_CONCURRENT_KERNEL))
    if code:
        return _refusal(library, "cuptiActivityFlushAll", code)
    count = seen.count(_CONCURRENT_KERNEL)
    if count != _KERNELS:
        return refused(
            f"of {_KERNELS} kernels it recorded {count}",
            "another tracer may hold CUPTI (Nsight, DCGM profiling, a profiler in this process): end it",
        )
    return ok(f"all of {_KERNELS} kernels were recorded")


def _refusal(library: ctypes.CDLL, function: str, code: int) -> Ability:
    name = c_char_p()
    library.cuptiGetResultString(c_int(code), ctypes.byref(name))
    said = (name.value or b"unknown error").decode(errors="replace")
    if code in _INSUFFICIENT_PRIVILEGES:
        return refused(
            f"{function}: {said} ({code}): profiles of torch canaries have no kernels' times (`no_cupti`)",
            "--cap-add SYS_ADMIN; or on the host: options nvidia NVreg_RestrictProfilingToAdminUsers=0 "
            "(https://developer.nvidia.com/ERR_NVGPUCTRPERM)",
        )
    return refused(f"{function}: {said} ({code})")
