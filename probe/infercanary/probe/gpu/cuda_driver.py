"""The functions of CUDA's driver API for controls and for targets without torch, called through ctypes.

``libcuda.so.1`` and its PTX compiler come with the host's driver, not with the image (except in images with
``cuda-compat``). Names and types: https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from types import SimpleNamespace
from typing import Any

from infercanary.probe.samplers import Unavailable
from infercanary.probe.timing import CudaClock

_LIBRARY = "libcuda.so.1"
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: do not wait for the default stream, because the server may use it
_TEXT_BYTES = 256  # bytes for a GPU's name (256 at most) or its PCI address
_HANDLE = c_void_p
_OUT = c_void_p  # address of a result, from `byref`

# CUdeviceptr is a 64-bit integer. cuda.h maps some functions to names with the suffix _v2.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (c_int, _OUT),
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxGetState": (c_int, _OUT, _OUT),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuCtxGetStreamPriorityRange": (_OUT, _OUT),
    "cuStreamCreateWithPriority": (_OUT, c_uint, c_int),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (_OUT, _HANDLE, _HANDLE),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleGetFunction": (_OUT, _HANDLE, c_char_p),
    "cuModuleUnload": (_HANDLE,),
    "cuLaunchKernel": (_HANDLE, *[c_uint] * 7, _HANDLE, _OUT, _OUT),
    "cuMemAlloc_v2": (_OUT, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, _HANDLE),
}


class NoSuchGpu(Unavailable):
    """No GPU has this number, but there are other GPUs."""


# CUDA_ERROR_STUB_LIBRARY, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE
_WITHOUT_GPU = {34: Unavailable, 100: Unavailable, 101: NoSuchGpu}


class CudaError(Exception):
    """A call of the driver failed: one line with the function and CUDA's name of the error.

    Args:
        function: Failed function, such as ``cuInit``.
        code: A ``CUresult``.
        name: CUDA's name of the code.
    """

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.function, self.code, self.name = function, code, name


class Driver:
    """The library's functions. Each call is checked for errors.

    After a failure, only :meth:`end` still calls the library: a failed kernel makes every later call fail until the
    process ends.

    Raises:
        Unavailable: The library lacks a function.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._failed: tuple[str, int, str] | None = None
        for name, types in _PROTOTYPES.items():
            try:
                getattr(library, name).argtypes = types
            except AttributeError:
                raise Unavailable(f"this driver's {_LIBRARY} has no {name}: the driver is too old") from None

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library.

        Args:
            function: Name of the function, such as ``cuInit``.
            arguments: Values for :mod:`ctypes`.

        Raises:
            CudaError: This call or an earlier call failed.
        """
        if self._failed is not None:
            raise CudaError(*self._failed)
        self.check(function, getattr(self._library, function)(*arguments))

    def end(self, function: str, *arguments: Any) -> bool:
        """Call a release function, even after a failure. True if the function succeeded."""
        return not getattr(self._library, function)(*arguments)

    def check(self, function: str, code: int) -> None:
        """Raise :class:`CudaError` for any result but CUDA_SUCCESS."""
        if code:
            name = c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            self._failed = (function, code, (name.value or b"unknown error").decode())
            raise CudaError(*self._failed)

    def number(self, function: str, *arguments: Any) -> int:
        """Return the integer that a function writes to the address in its first argument."""
        found = c_int()
        self.call(function, ctypes.byref(found), *arguments)
        return found.value

    def text(self, function: str, device: int) -> str:
        """Call a function that writes a text about a GPU, and return the text."""
        found = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, found, len(found), device)
        return found.value.decode(errors="replace")

    def address(self, function: str) -> int:
        """Return the address of a function, for machine code that calls it."""
        return ctypes.cast(getattr(self._library, function), c_void_p).value or 0


class Device:
    """One GPU: the primary context, which is shared with frameworks in the same process, and a stream of the lowest
    priority.

    Call all methods but :meth:`close` inside ``with current()``.
    """

    def __init__(self, ordinal: int) -> None:
        """Retain the context and make the stream.

        Args:
            ordinal: CUDA's number of the GPU.

        Raises:
            Unavailable: There is no driver, or no GPU.
            NoSuchGpu: There are GPUs, but none with this number.
            CudaError: Another call failed.
        """
        try:
            self.driver, self._device = _found(ordinal)
        except CudaError as error:
            if error.code not in _WITHOUT_GPU:
                raise
            raise _WITHOUT_GPU[error.code](f"no GPU {ordinal} here ({error})") from None
        self._held = ExitStack()  # resources of the device, which close() releases inside the context
        self._closed = False
        self._in_use = threading.Lock()
        self.name = self.driver.text("cuDeviceGetName", self._device)
        self.multiprocessors = self.driver.number("cuDeviceGetAttribute", _MULTIPROCESSORS, self._device)
        self._context, self.stream = c_void_p(), c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            with self.current():
                lowest = self.driver.number("cuCtxGetStreamPriorityRange", None)
                self.stream = self._made(
                    "cuStreamCreateWithPriority", "cuStreamDestroy_v2", _NON_BLOCKING, lowest
                )
        except CudaError:
            self.close()
            raise

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread until the end of the block. Other threads wait until then.

        Raises:
            RuntimeError: The device is closed.
        """
        with self._in_use:
            if self._closed:
                raise RuntimeError("the device is closed")
            self.driver.call("cuCtxPushCurrent_v2", self._context)
            try:
                yield
            finally:
                self.driver.end("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))

    def close(self) -> None:
        """Release everything, unless an abandoned call still uses the device.

        This call may block while the server keeps the device busy, because freeing device memory waits for that work.
        """
        if not self._in_use.acquire(blocking=False):
            return
        self._closed = True
        self._in_use.release()
        if self.driver.end("cuCtxPushCurrent_v2", self._context):
            # Copies may still be pending after a failure. A missing stream (0) would be the server's default stream.
            if self.stream:
                self.driver.end("cuStreamSynchronize", self.stream)
            self._held.close()
            self.driver.end("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))
        self._held.pop_all()  # without a context, no resource can be released
        self.driver.end("cuDevicePrimaryCtxRelease_v2", self._device)

    def kernels(self, ptx: str) -> Callable[[str], c_void_p]:
        """Compile and load a module until :meth:`close`; return a function that finds its kernels by name."""
        module = self._made("cuModuleLoadData", "cuModuleUnload", ptx.encode())

        def kernel(name: str) -> c_void_p:
            found = c_void_p()
            self.driver.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
            return found

        return kernel

    def allocate(self, size: int) -> c_uint64:
        """Allocate device memory (bytes) that lives until :meth:`close`; return a ``CUdeviceptr``."""
        memory = c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(memory), size)
        self._held.callback(self.driver.end, "cuMemFree_v2", memory)
        return memory

    def pinned(self, size: int) -> c_void_p:
        """Allocate pinned host memory (bytes) that lives until :meth:`close`."""
        return self._made("cuMemHostAlloc", "cuMemFreeHost", size, 0)

    def read(self, memory: int, size: int) -> bytes:
        """Copy bytes from device memory, after the stream's pending work."""
        found = ctypes.create_string_buffer(size)
        self.driver.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(found), memory, size, self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)
        return found.raw

    def before_close(self, function: Callable[[], object]) -> None:
        """Register a function that :meth:`close` calls inside the context, before it releases older resources."""
        self._held.callback(function)

    def event(self) -> Event:
        """Make a timing event that lives until :meth:`close`."""
        return Event(self.driver, self._made("cuEventCreate", "cuEventDestroy_v2", 0))

    def clock(self, is_inside: bool = True) -> CudaClock:
        """Make the clock that PyTorch targets use, with this device's events and stream.

        Args:
            is_inside: True if the clock is used inside ``with current()``; otherwise the clock enters the block
                itself.
        """
        cuda = SimpleNamespace(
            Stream=lambda device, priority: self.stream,
            Event=lambda enable_timing: self.event(),
            stream=nullcontext if is_inside else lambda _: self.current(),
        )
        return CudaClock(cuda, self)

    def _made(self, function: str, end: str, *arguments: Any) -> c_void_p:
        """Create a resource; :meth:`close` then calls the function that releases it."""
        made = c_void_p()
        self.driver.call(function, ctypes.byref(made), *arguments)
        self._held.callback(self.driver.end, end, made)
        return made


class Event:
    """An event with the methods of a torch event that :class:`~infercanary.probe.timing.CudaClock` calls."""

    def __init__(self, driver: Driver, event: c_void_p) -> None:
        self._driver = driver
        self._event = event

    def record(self, stream: c_void_p) -> None:
        """Enqueue the event. The event is complete when the stream reaches it."""
        self._driver.call("cuEventRecord", self._event, stream)

    def synchronize(self) -> None:
        self._driver.call("cuEventSynchronize", self._event)

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds to a later event."""
        found = c_float()
        self._driver.call("cuEventElapsedTime", ctypes.byref(found), self._event, later._event)
        return found.value


@cache
def pci_bus_id(ordinal: int) -> str:
    """Return the PCI address of a GPU, such as ``0000:3B:00.0``. CUDA and NVML may number GPUs differently.

    Args:
        ordinal: CUDA's number of the GPU.

    Raises:
        Unavailable: There is no driver.
        CudaError: The call failed, for example because there is no such GPU.
    """
    driver, device = _found(ordinal)
    return driver.text("cuDeviceGetPCIBusId", device)


def has_context(ordinal: int) -> bool:
    """True if this process has a context on a GPU. A context takes hundreds of megabytes.

    Args:
        ordinal: CUDA's number of the GPU.

    Raises:
        Unavailable: There is no driver.
        CudaError: The call failed, for example because there is no such GPU.
    """
    driver, device = _found(ordinal)
    flags, is_active = c_uint(), c_int()
    driver.call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(is_active))
    return bool(is_active.value)


def _found(ordinal: int) -> tuple[Driver, int]:
    """Return the driver and a GPU; do not make a context."""
    driver = load_driver()
    driver.call("cuInit", 0)
    return driver, driver.number("cuDeviceGet", ordinal)


def load_driver() -> Driver:
    """Return the functions of the driver's library; do not call any function.

    Raises:
        Unavailable: The container has no such library, or its library is too old.
    """
    if (library := cuda_library()) is None:
        raise Unavailable(f"no {_LIBRARY} here")
    return Driver(library)


@cache
def cuda_library() -> ctypes.CDLL | None:
    """Load the driver's library, but call no function; None if the container has no such library."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
