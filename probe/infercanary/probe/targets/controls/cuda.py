"""Controls of one GPU, through the driver API alone: arithmetic, memory, the way from and to the host, launches.

Kernels are PTX, compiled by the driver when they are loaded; they are launched on a stream of the lowest priority in
the context that the host's frameworks use, which is the thread's current one only during a call. Nothing of the
image is used: no CUDA runtime, no cuBLAS, no cuDNN. Two influences remain: ``cuda-compat``, where an image carries it,
brings another driver library and compiler; and the host's own work on the GPU at the same time.

Repeats are batches of at least 100 µs, which events time well. Each number is one execution's: the sum over the batch
size, except for ``queue``, which a batch waits once.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple, TypeVar

from infercanary.contract.vocabulary import Bottleneck
from infercanary.probe.gpu.cuda_driver import Device
from infercanary.probe.targets.controls.control import Control, Work
from infercanary.probe.targets.controls.machine_code import MachineCode, int64s
from infercanary.probe.timing import Clock, HostClock, Phase, Timing

T = TypeVar("T")

_BLOCK = 256
# As many threads as a multiprocessor holds, at most. One of them has 128 lanes (a few kinds 64): 0.1 to 0.3 ms.
_FMA_BLOCKS, _FMA_CHAINS, _FMA_UNROLL, _FMA_ROUNDS = 8, 8, 8, 256
_COPY_BYTES = 64 << 20  # with its copy more than any L2 cache so far (B200: 126 MB)
_TRANSFER_BYTES = 4 << 20
_VALUES = 512
_WORD = 4

_BATCH_SECONDS = 100e-6
_MAX_BATCH = 1024
_WARM_UPS, _TRIES = 5, 3

# Registers only, so that it depends on the SM clock and on who else is on the SMs, and on nothing else: a matrix
# product would be bound by shared memory and the L2 cache as well, and by how well it is written for this GPU.
# With a = b = 1 all sums are whole numbers, and exact; a and b are arguments, so nothing can be computed beforehand.
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
    mul.wide.u32 %offset, %index, {_WORD};
    add.u64 %out, %out, %offset;
    st.global.f32 [%out], %x0;
    ret;
}}
"""

# ISA 6.0 is CUDA 9's; PTX for an old target runs on every later GPU.
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
    mul.wide.u32 %offset, %index, {_WORD};
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
    mul.wide.u32 %offset, %index, {4 * _WORD};
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    add.u64 %to, %to, %offset;
    add.u64 %from, %from, %offset;
    ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%from];
    st.global.v4.u32 [%to], {{%v0, %v1, %v2, %v3}};
    ret;
}}
{_FMA}"""


class CudaBatch(NamedTuple):
    """One execution's work, what enqueues a number of them, and numbers of the result."""

    work: Work
    enqueue: Callable[[Phase, int], None]
    values: Callable[[], Sequence[float]]


class CudaControl(Control):
    """A control on a GPU: ``prepare`` makes what it needs there, for as long as it is open.

    Args:
        bottleneck: What limits it.
        ordinal: CUDA's number of the GPU.
        prepare: From the device to what one batch does; called inside ``with device.current()``.
    """

    def __init__(self, bottleneck: Bottleneck, ordinal: int, prepare: Callable[[Device], CudaBatch]) -> None:
        self.bottleneck: Bottleneck = bottleneck
        self.work = Work()
        self.clock: Clock = HostClock()
        self._ordinal = ordinal
        self._prepare = prepare
        self._device: Device | None = None

    def open(self) -> None:
        """Make the stream, buffers and kernels, and find the batch size.

        Raises:
            Unavailable: There is no such GPU.
            CudaError: Anything else failed.
        """
        device = Device(self._ordinal)
        try:
            with device.current():
                step = self._prepare(device)
                clock = device.clock()
            batches = _BatchClock(device, clock, step)
            batches.calibrate()
        except BaseException:
            device.close()
            raise
        self._device, self._step, self._batches = device, step, batches
        self.work, self.clock = step.work, batches

    def run(self, phase: Phase) -> None:
        """Make one batch; called by the clock."""
        if self._device is None:
            raise RuntimeError("the control is not open")
        self._batches.enqueue(phase)

    def values(self, result: Any) -> Sequence[float]:
        """Return numbers of what the last batch left on the device; they are always the same."""
        if self._device is None:
            return []
        with self._device.current():
            return self._step.values()

    def environment(self) -> Mapping[str, str]:
        """Report the newest CUDA that the driver knows."""
        return {"cuda_driver": self._device.cuda_version} if self._device else {}

    def close(self) -> None:
        """Release all that."""
        device, self._device = self._device, None
        self.clock = HostClock()
        if device is not None:
            device.close()


class _BatchClock:
    """A clock that measures batches and reports the times of one execution."""

    def __init__(self, device: Device, clock: Clock, step: CudaBatch) -> None:
        self._device = device
        self._clock = clock
        self._step = step
        self._size = 1

    def enqueue(self, phase: Phase) -> None:
        """Make one batch."""
        self._step.enqueue(phase, self._size)

    def calibrate(self) -> None:
        """Double the batch until each of its phases is long enough."""
        for _ in range(_WARM_UPS):
            self._batch(self.enqueue)
        while self._size < _MAX_BATCH and self._shortest() < _BATCH_SECONDS:
            self._size *= 2

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`~infercanary.probe.timing.Clock`."""
        (wall, phases), result = self._batch(run)
        each = {name: s if name == "queue" else s / self._size for name, s in phases.items()}
        return Timing(wall / self._size, each), result

    def _batch(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        with self._device.current():
            return self._clock.measure(run)

    def _shortest(self) -> float:
        batches = [self._batch(self.enqueue)[0].phases for _ in range(_TRIES)]
        return min(s for phases in batches for name, s in phases.items() if name not in ("launch", "queue"))


def cuda_controls(ordinal: int, code: MachineCode | None) -> dict[str, CudaControl]:
    """Make the controls of one GPU.

    Args:
        ordinal: CUDA's number of it.
        code: This machine's; without it Python launches the kernels, which matters for empty ones only.

    Returns:
        Name → control.
    """
    launch = "gpu_launch" if code else "gpu_launch_python"
    return {
        "gpu_fma": CudaControl("compute", ordinal, lambda device: _fma(device, code)),
        "gpu_copy": CudaControl("memory", ordinal, lambda device: _copy(device, code)),
        "gpu_transfer": CudaControl("io", ordinal, _transfer),
        launch: CudaControl("scheduling", ordinal, lambda device: _launch(device, code)),
    }


def _fma(device: Device, code: MachineCode | None) -> CudaBatch:
    blocks = device.multiprocessors * _FMA_BLOCKS
    out = device.allocate(blocks * _BLOCK * _WORD)
    kernel = device.kernels(PTX)("fma")
    launches = _Launches(
        device, code, kernel, blocks, _BLOCK, [out, c_uint(_FMA_ROUNDS), c_float(1), c_float(1)]
    )
    flops = 2 * _FMA_ROUNDS * _FMA_UNROLL * _FMA_CHAINS * blocks * _BLOCK
    return CudaBatch(Work(flops=flops), launches, lambda: array("f", device.read(out.value, _BLOCK * _WORD)))


def _copy(device: Device, code: MachineCode | None) -> CudaBatch:
    source, target = device.allocate(_COPY_BYTES), device.allocate(_COPY_BYTES)
    kernels = device.kernels(PTX)
    fill = _Launches(device, None, kernels("fill"), _COPY_BYTES // _WORD // _BLOCK, _BLOCK, [source])
    fill.times(1)
    blocks = _COPY_BYTES // (4 * _WORD) // _BLOCK
    launches = _Launches(device, code, kernels("copy"), blocks, _BLOCK, [target, source])

    def values() -> Sequence[float]:
        size = _VALUES * _WORD
        ends = [device.read(target.value + at, size) for at in (0, _COPY_BYTES - size)]
        return array("I", b"".join(ends))

    return CudaBatch(Work(bytes=2 * _COPY_BYTES), launches, values)


def _transfer(device: Device) -> CudaBatch:
    """Copy from pinned memory to the device and back: the bus, and the copy engines."""
    there, here, back = (
        device.allocate(_TRANSFER_BYTES),
        device.pinned(_TRANSFER_BYTES),
        device.pinned(_TRANSFER_BYTES),
    )
    words = array("I", range(_TRANSFER_BYTES // _WORD))
    ctypes.memmove(here, words.tobytes(), _TRANSFER_BYTES)
    call = device.driver.call

    def enqueue(phase: Phase, times: int) -> None:
        with phase("h2d"):
            for _ in range(times):
                call("cuMemcpyHtoDAsync_v2", there, here, _TRANSFER_BYTES, device.stream)
        with phase("d2h"):
            for _ in range(times):
                call("cuMemcpyDtoHAsync_v2", back, there, _TRANSFER_BYTES, device.stream)

    def values() -> Sequence[float]:
        found = (c_uint * len(words)).from_address(back.value or 0)
        return found[:: len(found) // _VALUES]

    return CudaBatch(Work(bytes=2 * _TRANSFER_BYTES), enqueue, values)


def _launch(device: Device, code: MachineCode | None) -> CudaBatch:
    """Launch empty kernels: how fast the host launches (``launch``), and the device takes them (``compute``)."""
    return CudaBatch(Work(), _Launches(device, code, device.kernels(PTX)("empty"), 1, 1, []), list)


class _Launches:
    """Launches a kernel many times, by machine code: a call by ctypes takes as long as the driver's launch."""

    def __init__(
        self,
        device: Device,
        code: MachineCode | None,
        kernel: c_void_p,
        blocks: int,
        block: int,
        arguments: Sequence[c_uint64 | c_uint | c_float],
    ) -> None:
        self._driver = device.driver
        self._code = code
        self._arguments = arguments  # the driver reads them, by these pointers, at each launch
        self._pointers = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, block, 1, 1, 0)  # and no dynamic shared memory
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

    def __call__(self, phase: Phase, times: int) -> None:
        with phase("compute"):
            self.times(times)

    def times(self, times: int) -> None:
        """Launch it so many times.

        Raises:
            CudaError: At the first launch that fails.
        """
        if self._code is None:
            for _ in range(times):
                self._driver.call("cuLaunchKernel", *self._call)
        else:
            self._table[0] = times
            result = self._code.call("launches", self._table)
            self._driver.check(
                "cuLaunchKernel", result & 0xFFFF_FFFF
            )  # an int: the register's upper half is chance
