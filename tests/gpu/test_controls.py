"""The controls on a real GPU, by the driver alone. Run with: .venv/bin/python -m pytest tests/gpu -rP

-rP shows how near each comes to the device's ceiling.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import pynvml
import pytest

from gpu import ceilings, measure, why_not
from infercanary.probe.gpu.cuda_driver import pci_bus_id
from infercanary.probe.targets.controls import available_controls, working_seconds
from infercanary.probe.targets.controls.cuda import CudaControl, cuda_controls
from infercanary.probe.timing import Timing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(reason := why_not()), reason=f"no CUDA device: {reason}"),
]

NAMES = ("gpu_fma", "gpu_copy", "gpu_transfer", "gpu_launch")


@contextmanager
def opened(name: str) -> Iterator[CudaControl]:
    controls = {n.removesuffix("_python"): c for n, c in available_controls("cuda").items()}
    control = controls[name]
    assert isinstance(control, CudaControl)
    control.open()
    try:
        yield control
    finally:
        control.close()


@pytest.fixture
def gpu() -> Iterator[object]:
    """NVML's handle of CUDA's first GPU."""
    pynvml.nvmlInit()
    try:
        yield pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id(0))
    finally:
        pynvml.nvmlShutdown()


def repeats(control: CudaControl, number: int = 50) -> list[Timing]:
    return [control.clock.measure(control.run)[0] for _ in range(number)]


@pytest.mark.parametrize("name", NAMES)
def test_phases_fit_into_the_wall_time(name: str) -> None:
    with opened(name) as control:
        for timing in repeats(control):
            assert {"launch", "queue"} < set(timing.phases)
            assert all(seconds >= 0 for seconds in timing.phases.values())
            assert working_seconds(timing) <= timing.wall


def test_fma_comes_near_to_what_the_gpu_can() -> None:
    with opened("gpu_fma") as control:
        (rate,) = measure(control, ceilings()).rates
        assert list(control.values(None)) == [8 * thread + 28 + 64 * 256 for thread in range(256)]
    print(f"gpu_fma: {rate}")
    assert 0.5 < rate.share < 1.05


def test_copy_comes_near_to_the_memorys_bandwidth() -> None:
    with opened("gpu_copy") as control:
        (rate,) = measure(control, ceilings()).rates
        words = (64 << 20) // 4
        assert list(control.values(None)) == [*range(512), *range(words - 512, words)]
    print(f"gpu_copy: {rate}")
    assert 0.4 < rate.share < 1.05


def test_transfer_is_as_fast_as_the_bus() -> None:
    with opened("gpu_transfer") as control:
        rates = measure(control, ceilings()).rates
        assert list(control.values(None)) == list(range(0, 1 << 20, 1 << 11))
    print(f"gpu_transfer: {rates[0]}; {rates[1]}")
    for rate in rates:
        assert 1e9 < rate.achieved < 500e9, "PCIe 3 x1 to NVLink-C2C"


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_takes_less_than_a_millisecond(name: str) -> None:
    """By the host's clock, and whole: all that it costs a server each time."""
    with opened(name) as control:
        found = measure(control, ceilings())
    print(f"{name}: {found.repeat * 1e6:.0f} µs a repeat, {found.working * 1e6:.2f} µs an execution")
    assert found.working < found.repeat < 1e-3


def test_launches_take_microseconds() -> None:
    with opened("gpu_launch") as control:
        timings = repeats(control)
    assert 0.5e-6 < statistics.median(t.phases["compute"] for t in timings) < 50e-6
    assert 0.5e-6 < statistics.median(t.phases["launch"] for t in timings) < 50e-6


@pytest.mark.parametrize("name", NAMES)
def test_it_repeats(name: str) -> None:
    with opened(name) as control:
        measure(control, ceilings())  # warms up
        times = [working_seconds(t) for t in repeats(control, 100)]
    lower, median, upper = statistics.quantiles(times, n=4)
    assert (upper - lower) / median < 0.2


def test_launches_by_python_compute_the_same() -> None:
    for control in cuda_controls(0, None).values():
        control.open()
        try:
            repeats(control, 3)
            assert len(control.values(None)) <= 1024
        finally:
            control.close()


def test_memory_is_given_back(gpu: object) -> None:
    with opened("gpu_launch"):  # keeps the context
        before = pynvml.nvmlDeviceGetMemoryInfo(gpu).used
        for _ in range(5):
            with opened("gpu_copy"):
                assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used >= before + (100 << 20)
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used < before + (64 << 20)


def test_torchs_current_device_and_memory_are_left_alone() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.arange(1 << 20, device="cuda")
    for name in NAMES:
        with opened(name) as control:
            repeats(control, 3)
            assert int((x + 1).sum()) == (1 << 19) * ((1 << 20) + 1)
        assert int(x.sum()) == (1 << 19) * ((1 << 20) - 1)
