"""GPUs and MIG devices visible to the container, and the CPUs near each GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from infercanary.probe.samplers.nvml.calls import Gpu, Nvml


def gpus(nvml: Nvml, index: int) -> Iterator[Gpu]:
    """Yield the GPU with this index, and then its MIG devices (labelled ``GPU:place``).

    Callers should cache the result, because NVML may take milliseconds.

    Raises:
        pynvml.NVMLError: The GPU is gone.
    """
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    places = range(0)
    with suppress(pynvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    yield Gpu(str(index), handle, is_split=bool(places))
    for place in places:
        part = None
        with suppress(pynvml.NVMLError):  # no MIG device in this place, or another container's device
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        if part is not None:
            yield Gpu(f"{index}:{place}", part, is_mig=True)


def local_cpus(nvml: Nvml, handle: Any) -> frozenset[int]:
    """Return the CPUs on the GPU's NUMA node; all CPUs on a host with one node."""
    words = nvml.nvmlDeviceGetCpuAffinity(handle, max(16, -(-os.sysconf("SC_NPROCESSORS_CONF") // 64)))
    return frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def numa_node(pci_bus_id: str, sysfs: Path) -> int | None:
    """Return the GPU's NUMA node; None if the node is unknown.

    NVML writes the PCI domain with 8 digits, sysfs with 4 (or more if needed).

    Args:
        pci_bus_id: NVML's form, such as ``00000000:3B:00.0``.
        sysfs: Usually ``/sys``.
    """
    domain, _, place = pci_bus_id.lower().partition(":")
    try:
        device = sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{place}"
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
