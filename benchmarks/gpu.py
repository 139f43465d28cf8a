"""NVML's share of a run on this GPU; and for `make gpu` and the GPU tests CUPTI's kernels and the device's ceilings.

A ceiling is by what NVML says of the device: twice the cores times the highest SM clock (a fused multiply-add is two),
twice the bus width times the highest memory clock (all memory so far sends two bits a cycle of the clock that NVML
reports), and the PCIe link's bits without their encoding, of which the packets' headers take some more.
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
"""How far from 1."""

_REPEATS = 50
_WARM_UP_SECONDS = 0.5  # an idle GPU raises its clocks first
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def why_not() -> str:
    """Why CUDA has no device here; empty where it has one."""
    try:
        Device(0).close()
    except (Unavailable, CudaError) as error:
        return str(error)
    return ""


# Events ----------------------------------------------------------------------------------------------------

Mode = Literal["eager", "graph"]
MODES: tuple[Mode, ...] = ("eager", "graph")


def kernel_seconds(target: TorchTarget, repeats: int) -> float:
    """Seconds of kernels in a repeat, by the profiler; copies are not among them.

    Raises :class:`RuntimeError` where it sees none.
    """
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's, about itself
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
    """The most that a device can do in a second."""

    flops: float
    """In single precision, without tensor cores."""
    memory_bytes: float
    link_bytes: float
    """Of the PCIe link, in one direction; NaN where its generation is not known."""


def ceilings(ordinal: int = 0) -> Ceilings:
    """Of CUDA's device with that number, by NVML; of the whole GPU in MIG mode. Raises :class:`pynvml.NVMLError`."""
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
    """What a control achieves in a second, and the ceiling of that."""

    unit: str
    achieved: float
    most: float

    @property
    def share(self) -> float:
        """Of the ceiling."""
        return self.achieved / self.most

    def __str__(self) -> str:
        return f"{self.achieved:.3g} {self.unit}, {self.share:.1%} of {self.most:.3g}"


class Measured(NamedTuple):
    """Medians of one control, warmed up (s)."""

    working: float
    """One execution on the device."""
    repeat: float
    """One repeat, which is a batch of them, by the host's clock."""
    rates: list[Rate]


_FLOPS_OF_A_THREAD = 2 * cuda._FMA_ROUNDS * cuda._FMA_UNROLL * cuda._FMA_CHAINS


def measure(name: str, seconds: Seconds, most: Ceilings) -> Measured:
    """An open control."""
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
    """Print what a run spends in it: a sample just before and one just after the GPU has worked."""
    controls, _ = available_controls("cuda")
    with closing(NvmlSampler()) as sampler, controls["gpu_fma"]() as work:

        def sample() -> float:
            work()
            begin = time.perf_counter()
            tuple(sampler.sample())
            return time.perf_counter() - begin

        sample()  # initialises NVML
        seconds = [sample() for _ in range(_REPEATS)]
    median = statistics.median(seconds)
    print(
        f"nvml      {2 * median * 1e3:.2f} ms a run: two samples of {median * 1e3:.2f} ms "
        f"(at most {max(seconds) * 1e3:.2f} ms)"
    )


def main() -> None:
    """Measure it; without a CUDA device print why not."""
    if why := why_not():
        print(f"no CUDA device: {why}; nothing was measured")
        return
    show_nvml()


if __name__ == "__main__":
    main()
