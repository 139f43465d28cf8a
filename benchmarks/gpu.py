"""What only a GPU shows: the accuracy of the event clock, the throughput of the controls, and the cost of samples.

events    the phase ``compute`` by CUDA events, over the time of its kernels by CUDA's profiler (CUPTI); goal: within
          2 %. The work is large: the host enqueues it while the inputs are still under way, so that there are hardly
          any gaps between kernels, which the phase includes and no kernel does.
controls  what each achieves, as a share of the device's ceiling. That is by what NVML says of the device: twice the
          cores times the highest SM clock (a fused multiply-add is two), twice the bus width times the highest memory
          clock (all memory so far sends two bits a cycle of the clock that NVML reports), and the PCIe link's bits
          without their encoding, of which the packets' headers take some more.
nvml      milliseconds of a run that are spent in NVML.

Exits with 1 where the goal is missed; without a CUDA device with 0 and one line. What the probe costs a tenant on a GPU
is the step ``tenant`` of ``make gpu``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
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


def product(mode: Mode) -> TorchTarget:
    """One kernel, of tens of milliseconds."""
    import torch

    matrix = torch.randn(8192, 8192, device="cuda")
    return TorchTarget(lambda x: x @ matrix, [{"shape": [8192, 8192]}], device="cuda", mode=mode)


def resnet18(mode: Mode) -> TorchTarget:
    """About a hundred kernels, of which most take some 100 µs."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))
    from model import SHAPE, build

    shape = [256, *SHAPE[1:]]
    return TorchTarget(build().cuda(), [{"shape": shape}], device="cuda", mode=mode)


WORKLOADS: dict[str, Callable[[Mode], TorchTarget]] = {"matrix product": product, "ResNet-18": resnet18}


class Compute(NamedTuple):
    """Seconds of the same work: by events (the median), and of its kernels by the profiler (the mean)."""

    events: float
    kernels: float

    @property
    def ratio(self) -> float:
        """Above 1: there were gaps, or events are late."""
        return self.events / self.kernels


def compare(target: TorchTarget, repeats: int = 20) -> Compute:
    """Both of an unopened target, which is closed in the end. The profiler's repeats are between the others."""

    def events() -> list[float]:
        return [target.clock.measure(target.run)[0].phases["compute"] for _ in range(repeats)]

    target.open()
    try:
        events()  # warms up
        before, kernels, after = events(), kernel_seconds(target, repeats), events()
        return Compute(statistics.median([*before, *after]), kernels)
    finally:
        target.close()


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


def check_events() -> bool:
    """Print; whether the goal was met."""
    good = True
    for name, workload in WORKLOADS.items():
        for mode in MODES:
            try:
                found = compare(workload(mode))
            except RuntimeError as error:  # out of memory is one too
                print(f"events    {name}, {mode}: {error}", flush=True)
                good = False
                continue
            good &= abs(found.ratio - 1) <= GOAL
            print(
                f"events    {name}, {mode}: compute {found.events * 1e3:.3f} ms, kernels {found.kernels * 1e3:.3f} ms: "
                f"ratio {found.ratio:.4f} (goal: within {GOAL:.0%} of 1)",
                flush=True,
            )
    return good


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


def show_controls() -> None:
    """Print what each achieves."""
    most = ceilings()
    controls, _ = available_controls("cuda")
    for name, control in controls.items():
        with control() as seconds:
            found = measure(name, seconds, most)
        rates = "; ".join(map(str, found.rates)) or "no ceiling"
        print(
            f"controls  {name}: {found.working * 1e6:.2f} µs each, {found.repeat * 1e6:.0f} µs a repeat; {rates}",
            flush=True,
        )


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
    """Measure all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    if why := why_not():
        print(f"no CUDA device: {why}; nothing was measured")
        return
    import torch

    if not torch.cuda.is_available():
        print(
            f"no CUDA device for torch {torch.__version__} (CUDA {torch.version.cuda}); nothing was measured"
        )
        return
    device = torch.cuda.get_device_name(0)
    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    print(f"{device}, driver {driver}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    good = check_events()
    show_controls()
    show_nvml()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
