"""The GPUs and MIG devices that NVML shows to the container, and the CPUs that are near them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from infercanary.probe.samplers.nvml.calls import Gpu, Nvml


def gpus(nvml: Nvml, index: int) -> Iterator[Gpu]:
    """The GPU with this index, then its MIG devices. Keep them: a look-up takes milliseconds on some drivers.

    Args:
        nvml: An initialised NVML.
        index: NVML's, from 0 on.

    Yields:
        Devices; a MIG device is labelled ``GPU:place``.

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
        with suppress(pynvml.NVMLError):  # there may be none in this place, or it is another container's
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        if part is not None:
            yield Gpu(f"{index}:{place}", part, is_mig=True)


def local_cpus(nvml: Nvml, handle: Any) -> frozenset[int]:
    """The host's CPUs on the GPU's NUMA node; all of them where there is one node.

    Args:
        nvml: An initialised NVML.
        handle: Of the GPU, from NVML.

    Returns:
        Numbers of CPUs.
    """
    words = nvml.nvmlDeviceGetCpuAffinity(handle, max(16, -(-os.sysconf("SC_NPROCESSORS_CONF") // 64)))
    return frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def numa_node(pci_bus_id: str, sysfs: Path) -> int | None:
    """The GPU's NUMA node as the kernel has it; None where there is none, or where it cannot be read.

    NVML writes the domain with 8 digits, sysfs with 4 (or more if it must).

    Args:
        pci_bus_id: As NVML writes it, such as ``00000000:3B:00.0``.
        sysfs: Usually ``/sys``.

    Returns:
        The node's number.
    """
    domain, _, place = pci_bus_id.lower().partition(":")
    try:
        device = sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{place}"
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
