"""Measures the time that NVML takes in a run on this GPU.

``make gpu`` and the GPU tests also use this module, for kernel times by CUPTI and for the device's ceilings. A ceiling
comes from NVML: twice the cores times the highest SM clock (a fused multiply-add is two operations), twice the bus
width times the highest memory clock (current memory sends two bits per cycle of this clock), and the PCIe link's bits
without encoding. Headers of packets are not subtracted.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import pynvml

from infercanary.probe import TorchTarget
from infercanary.probe.gpu.cuda_driver import CudaError, Device, pci_bus_id
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml import NvmlSampler
from infercanary.probe.targets.controls import Seconds, available_controls, cuda

GOAL = 0.02
"""Largest accepted distance from 1 of the ratio of phase `compute` to the profiler's kernel time."""

_REPEATS = 50
_WARM_UP_SECONDS = 0.5  # warm-up, because an idle GPU first raises its clocks
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def why_not() -> str:
    """Return the reason why no CUDA device is usable, or an empty text."""
    try:
        Device(0).close()
    except (Unavailable, CudaError) as error:
        return str(error)
    return ""


# Events ----------------------------------------------------------------------------------------------------

Mode = Literal["eager", "graph"]
MODES: tuple[Mode, ...] = ("eager", "graph")


def kernel_seconds(target: TorchTarget, repeats: int) -> float:
    """Return the kernel time of one repeat in seconds, by the profiler, without copies.

    Raises :class:`RuntimeError` if the profiler sees no kernel.
    """
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the profiler about itself
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(repeats):
                target.clock.measure(target.run)
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    microseconds = [float(event["dur"]) for event in events if event.get("cat") == "kernel"]
    if not microseconds:
        raise RuntimeError("the profiler saw no kernels: CUPTI may not be used here")
    return sum(microseconds) / 1e6 / repeats


# Controls --------------------------------------------------------------------------------------------------


class Ceilings(NamedTuple):
    """Largest possible rates of a device, per second."""

    flops: float
    """Floating-point operations in single precision, without Tensor Cores."""
    memory_bytes: float
    link_bytes: float
    """Bytes over the PCIe link in one direction; NaN if its generation is unknown."""


def ceilings(ordinal: int = 0) -> Ceilings:
    """Return the ceilings of a CUDA device by NVML; in MIG mode, those of the whole GPU.

    Raises :class:`pynvml.NVMLError`.
    """
    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id(ordinal))
        sm_clock = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6
        memory_clock = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM) * 1e6
        lane = _LANE_BYTES.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), math.nan)
        return Ceilings(
            flops=2 * pynvml.nvmlDeviceGetNumGpuCores(gpu) * sm_clock,
            memory_bytes=2 * memory_clock * pynvml.nvmlDeviceGetMemoryBusWidth(gpu) / 8,
            link_bytes=lane * pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
        )
    finally:
        pynvml.nvmlShutdown()


class Rate(NamedTuple):
    """Rate of a control per second, and the ceiling of this rate."""

    unit: str
    achieved: float
    most: float

    @property
    def share(self) -> float:
        """Rate as a fraction of the ceiling."""
        return self.achieved / self.most

    def __str__(self) -> str:
        return f"{self.achieved:.3g} {self.unit}, {self.share:.1%} of {self.most:.3g}"


class Measured(NamedTuple):
    """Median times of one control after warm-up, in seconds, and its rates."""

    working: float
    """Time of one execution, by the device's clock."""
    repeat: float
    """Time of one repeat (a batch of executions), by the host's clock."""
    rates: list[Rate]


_FLOPS_OF_A_THREAD = 2 * cuda._FMA_ROUNDS * cuda._FMA_UNROLL * cuda._FMA_CHAINS


def measure(name: str, seconds: Seconds, most: Ceilings) -> Measured:
    """Measure an open control."""
    until = time.perf_counter() + _WARM_UP_SECONDS
    while time.perf_counter() < until:
        seconds()
    times, repeats = [], []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        times.append(seconds())
        repeats.append(time.perf_counter() - begin)
    working = statistics.median(times)
    rates = []
    if name == "gpu_fma":
        device = Device(0)
        threads = device.multiprocessors * cuda._FMA_BLOCKS * cuda._BLOCK
        device.close()
        rates = [Rate("FLOP/s", threads * _FLOPS_OF_A_THREAD / working, most.flops)]
    elif name == "gpu_copy":
        rates = [Rate("B/s", 2 * cuda._COPY_BYTES / working, most.memory_bytes)]
    elif name == "gpu_transfer":
        rates = [Rate("B/s", 2 * cuda._TRANSFER_BYTES / working, most.link_bytes)]
    return Measured(working, statistics.median(repeats), rates)


# NVML ------------------------------------------------------------------------------------------------------


def show_nvml() -> None:
    controls, _ = available_controls("cuda")
    with closing(NvmlSampler()) as sampler, controls["gpu_fma"]() as work:

        def sample() -> float:
            work()
            begin = time.perf_counter()
            tuple(sampler.sample())
            return time.perf_counter() - begin

        sample()  # the first sample initialises NVML
        seconds = [sample() for _ in range(_REPEATS)]
    median = statistics.median(seconds)
    print(
        f"nvml      {2 * median * 1e3:.2f} ms a run: two samples of {median * 1e3:.2f} ms "
        f"(at most {max(seconds) * 1e3:.2f} ms)"
    )


def main() -> None:
    if why := why_not():
        print(f"no CUDA device: {why}; nothing was measured")
        return
    show_nvml()


if __name__ == "__main__":
    main()
