"""Controls on a real GPU, without torch."""

import ctypes
import statistics
from array import array
from contextlib import contextmanager

import pynvml
import pytest

from gpu import ceilings, measure
from infercanary.probe.gpu.cuda_driver import Device, pci_bus_id
from infercanary.probe.targets.controls import available_controls
from infercanary.probe.targets.controls.cuda import cuda_controls

NAMES = ("gpu_fma", "gpu_copy", "gpu_transfer", "gpu_launch")


@contextmanager
def opened(name):
    with available_controls("cuda")[0][name]() as seconds:
        yield seconds


class Recorded:
    """Records the memory that the controls allocate, so that a test can read the content."""

    def __init__(self, monkeypatch):
        self.device: Device
        self.memory = []
        for method in (Device.allocate, Device.pinned):
            monkeypatch.setattr(Device, method.__name__, self._recording(method))

    def _recording(self, method):
        def allocate(device, size):
            memory = method(device, size)
            self.device = device
            self.memory.append(memory.value)
            return memory

        return allocate

    def words(self, place, first, count, kind="I"):
        with self.device.current():
            return [*array(kind, self.device.read(self.memory[place] + 4 * first, 4 * count))]


@pytest.fixture
def recorded(monkeypatch):
    return Recorded(monkeypatch)


@pytest.fixture
def gpu():
    pynvml.nvmlInit()
    try:
        yield pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id(0))
    finally:
        pynvml.nvmlShutdown()


def test_fma_comes_near_to_what_the_gpu_can(recorded):
    with opened("gpu_fma") as seconds:
        (rate,) = measure("gpu_fma", seconds, ceilings()).rates
        assert recorded.words(0, 0, 256, "f") == [8 * thread + 28 + 64 * 256 for thread in range(256)]
    print(f"gpu_fma: {rate}")
    assert 0.5 < rate.share < 1.05


def test_copy_comes_near_to_the_memorys_bandwidth(recorded):
    with opened("gpu_copy") as seconds:
        (rate,) = measure("gpu_copy", seconds, ceilings()).rates
        words = (64 << 20) // 4
        for first in (0, words - 512):
            assert recorded.words(1, first, 512) == [*range(first, first + 512)]
    print(f"gpu_copy: {rate}")
    assert 0.4 < rate.share < 1.05


def test_transfer_is_as_fast_as_the_bus(recorded):
    with opened("gpu_transfer") as seconds:
        (rate,) = measure("gpu_transfer", seconds, ceilings()).rates
        back = (ctypes.c_uint * (1 << 20)).from_address(recorded.memory[2])
        assert back[:: 1 << 11] == [*range(0, 1 << 20, 1 << 11)]
    print(f"gpu_transfer: {rate}")
    assert 1e9 < rate.achieved < 500e9  # bandwidth of PCIe 3 x1, and of NVLink-C2C


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_takes_less_than_a_millisecond_and_repeats(name):
    """The host's clock measures a whole repeat of a control, which is the control's full cost for a server."""
    with opened(name) as seconds:
        found = measure(name, seconds, ceilings())  # warms up
        times = [seconds() for _ in range(100)]
    print(f"{name}: {found.repeat * 1e6:.0f} µs a repeat, {found.working * 1e6:.2f} µs an execution")
    assert found.working < found.repeat < 1e-3
    lower, median, upper = statistics.quantiles(times, n=4)
    assert (upper - lower) / median < 0.2
    assert name != "gpu_launch" or 0.5e-6 < median < 50e-6


def test_launches_by_python_compute_the_same(recorded):
    with cuda_controls(0, None)["gpu_copy"]() as seconds:
        assert seconds() > 0
        assert recorded.words(1, 0, 512) == [*range(512)]


def test_memory_is_given_back(gpu):
    with opened("gpu_launch"):  # An open target keeps the CUDA context.
        before = pynvml.nvmlDeviceGetMemoryInfo(gpu).used
        for _ in range(5):
            with opened("gpu_copy"):
                assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used >= before + (100 << 20)
        assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used < before + (64 << 20)


def test_torchs_current_device_and_memory_are_left_alone():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.arange(1 << 20, device="cuda")
    for name in NAMES:
        with opened(name) as seconds:
            assert all(seconds() > 0 for _ in range(3))
            assert int((x + 1).sum()) == (1 << 19) * ((1 << 20) + 1)
        assert int(x.sum()) == (1 << 19) * ((1 << 20) - 1)
