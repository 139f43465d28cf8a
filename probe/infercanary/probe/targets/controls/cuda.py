"""Controls of one GPU through the driver API only: arithmetic, memory, transfers between host and device, launches.

Kernels are PTX, which the driver compiles when it loads them. They are launched on a stream of the lowest priority,
in the context that the server's frameworks use; this context is the thread's current context only during a call.
Nothing of the image is used: no CUDA runtime, no cuBLAS, no cuDNN. Two influences remain: an image with
``cuda-compat`` brings its own driver library and compiler; and the server may use the GPU at the same time.

Events time batches of at least 100 µs; the result is the time of one execution.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_float, c_uint, c_uint64, c_void_p
from functools import partial
from typing import TypeAlias

from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets.controls.control import Control, Seconds
from infercanary.probe.targets.controls.machine_code import Code, int64s

_BLOCK = 256
# 8 blocks of 256 threads: the largest number of threads that a multiprocessor holds. A multiprocessor has 128 lanes
# (64 on some GPUs), so the kernel takes 0.1 to 0.3 ms.
_FMA_BLOCKS, _FMA_CHAINS, _FMA_UNROLL, _FMA_ROUNDS = 8, 8, 8, 256
_COPY_BYTES = 64 << 20  # source and copy together are larger than every present L2 cache (B200: 126 MB)
_TRANSFER_BYTES = 4 << 20
_WORD = 4

Enqueue: TypeAlias = Callable[[int], None]
Argument: TypeAlias = c_uint64 | c_uint | c_float

_BATCH_SECONDS = 100e-6
_MAX_BATCH = 1024
_WARM_UPS, _TRIES = 5, 3

# The kernel uses only registers, so its time depends only on the SM clock and on other work on the SMs. A matrix
# product would also depend on shared memory, on the L2 cache and on its tuning for this GPU. With a = b = 1, all sums
# are whole numbers and exact. a and b are arguments, so that the compiler cannot compute the result in advance.
_FMA = f"""
.visible .entry fma(.param .u64 out, .param .u32 rounds, .param .f32 a, .param .f32 b)
{{
    .reg .f32 %x<{_FMA_CHAINS}>, %a, %b;
    .reg .b32 %thread, %block, %size, %index, %left;
    .reg .b64 %out, %offset;
    .reg .pred %more;
    ld.param.u64 %out, [out];
    ld.param.u32 %left, [rounds];
    ld.param.f32 %a, [a];
    ld.param.f32 %b, [b];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %index, %block, %size, %thread;
    cvt.rn.f32.u32 %x0, %thread;
{"".join(f"    add.f32 %x{i}, %x{i - 1}, %b;" + chr(10) for i in range(1, _FMA_CHAINS))}
round:
{"".join(f"    fma.rn.f32 %x{i}, %x{i}, %a, %b;" + chr(10) for i in range(_FMA_CHAINS)) * _FMA_UNROLL}
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra round;
{"".join(f"    add.f32 %x0, %x0, %x{i};" + chr(10) for i in range(1, _FMA_CHAINS))}
    cvta.to.global.u64 %out, %out;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %out, %out, %offset;
    st.global.f32 [%out], %x0;
    ret;
}}
"""

# ISA 6.0 came with CUDA 9. PTX for an old target runs on every later GPU.
PTX = f"""
.version 6.0
.target sm_52
.address_size 64

.visible .entry empty()
{{
    ret;
}}

.visible .entry fill(.param .u64 to)
{{
    .reg .b32 %thread, %block, %size, %index;
    .reg .b64 %to, %offset;
    ld.param.u64 %to, [to];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %index, %block, %size, %thread;
    cvta.to.global.u64 %to, %to;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %to, %to, %offset;
    st.global.u32 [%to], %index;
    ret;
}}

.visible .entry copy(.param .u64 to, .param .u64 from)
{{
    .reg .b32 %thread, %block, %size, %index, %v<4>;
    .reg .b64 %to, %from, %offset;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %index, %block, %size, %thread;
    mul.wide.u32 %offset, %index, 16;
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    add.u64 %to, %to, %offset;
    add.u64 %from, %from, %offset;
    ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%from];
    st.global.v4.u32 [%to], {{%v0, %v1, %v2, %v3}};
    ret;
}}
{_FMA}"""


def cuda_controls(ordinal: int, code: Code) -> dict[str, Control]:
    """Make the controls of one GPU.

    Args:
        ordinal: CUDA's number of the GPU.
        code: Routines of this machine; None lets Python launch the kernels, which makes only empty kernels slower.

    Returns:
        Name → control.
    """
    prepared = {"gpu_fma": _fma, "gpu_copy": _copy, "gpu_transfer": _transfer, "gpu_launch": _launch}
    return {name: partial(_batches, ordinal, code, prepare) for name, prepare in prepared.items()}


@contextmanager
def _batches(
    ordinal: int,
    code: Code,
    prepare: Callable[[Device, Code], Enqueue],
) -> Iterator[Seconds]:
    """Open a GPU, let ``prepare`` allocate memory, and yield a function that times batches of the prepared work."""
    device = Device(ordinal)
    try:
        with device.current():
            enqueue = prepare(device, code)
            start, stop = device.event(), device.event()

        def time_batch(size: int) -> float:
            with device.current():
                start.record(device.stream)
                enqueue(size)
                stop.record(device.stream)
                stop.synchronize()
                return start.elapsed_time(stop) / 1e3

        for _ in range(_WARM_UPS):
            time_batch(1)
        size = 1
        while size < _MAX_BATCH and min(time_batch(size) for _ in range(_TRIES)) < _BATCH_SECONDS:
            size *= 2
        yield lambda: time_batch(size) / size
    finally:
        device.close()


def _fma(device: Device, code: Code) -> Enqueue:
    blocks = device.multiprocessors * _FMA_BLOCKS
    out = device.allocate(blocks * _BLOCK * _WORD)
    arguments = out, c_uint(_FMA_ROUNDS), c_float(1), c_float(1)
    return _Launches(device, code, device.kernels(PTX)("fma"), blocks, _BLOCK, arguments)


def _copy(device: Device, code: Code) -> Enqueue:
    source, target = device.allocate(_COPY_BYTES), device.allocate(_COPY_BYTES)
    kernels = device.kernels(PTX)
    _Launches(device, None, kernels("fill"), _COPY_BYTES // _WORD // _BLOCK, _BLOCK, [source])(1)
    blocks = _COPY_BYTES // (4 * _WORD) // _BLOCK
    return _Launches(device, code, kernels("copy"), blocks, _BLOCK, [target, source])


def _transfer(device: Device, code: Code) -> Enqueue:
    """Copy from pinned memory to the device and back. The time depends on the bus and the copy engines."""
    there = device.allocate(_TRANSFER_BYTES)
    here, back = device.pinned(_TRANSFER_BYTES), device.pinned(_TRANSFER_BYTES)
    ctypes.memmove(here, array("I", range(_TRANSFER_BYTES // _WORD)).tobytes(), _TRANSFER_BYTES)

    def enqueue(times: int) -> None:
        for _ in range(times):
            device.driver.call("cuMemcpyHtoDAsync_v2", there, here, _TRANSFER_BYTES, device.stream)
        for _ in range(times):
            device.driver.call("cuMemcpyDtoHAsync_v2", back, there, _TRANSFER_BYTES, device.stream)

    return enqueue


def _launch(device: Device, code: Code) -> Enqueue:
    """Launch empty kernels. The time depends on the rate at which the device accepts launches."""
    return _Launches(device, code, device.kernels(PTX)("empty"), 1, 1, [])


class _Launches:
    """Launches a kernel many times by machine code, because a ctypes call takes as long as the launch itself."""

    def __init__(
        self,
        device: Device,
        code: Code,
        kernel: c_void_p,
        blocks: int,
        block: int,
        arguments: Sequence[Argument],
    ) -> None:
        self._driver = device.driver
        self._code = code
        # kept alive, because the driver reads these objects through pointers at each launch
        self._arguments = arguments
        self._pointers = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, block, 1, 1, 0)  # grid, block, and no dynamic shared memory
        self._call = (kernel, *shape, device.stream, self._pointers, None)
        self._table = int64s(
            0,
            device.driver.address("cuLaunchKernel"),
            kernel.value or 0,
            *shape,
            device.stream.value or 0,
            ctypes.addressof(self._pointers),
            0,
        )

    def __call__(self, times: int) -> None:
        """Launch the kernel ``times`` times.

        Raises:
            CudaError: A launch failed; later launches are not made.
        """
        if self._code is None:
            for _ in range(times):
                self._driver.call("cuLaunchKernel", *self._call)
        else:
            self._table[0] = times
            result = self._code.call("launches", self._table)
            # the result is a 32-bit int; the register's upper half is undefined
            self._driver.check("cuLaunchKernel", result & 0xFFFF_FFFF)
