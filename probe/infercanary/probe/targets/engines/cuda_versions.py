"""Compatibility of an engine with the driver, by NVIDIA's rules. Opens a GPU, or explains why it cannot be opened.

https://docs.nvidia.com/deploy/cuda-compatibility/: a newer driver runs engines that were built for an older CUDA.
From CUDA 11 on, a driver also runs engines that were built for a newer minor release with the same major number
(minor-version compatibility; code that must be compiled from PTX is excepted). A newer major release needs a newer
driver or, on data-centre GPUs, the package `cuda-compat`, whose `libcuda.so.1` then reports the newest CUDA that it
runs (forward compatibility).
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from infercanary.command.settings import UsageError
from infercanary.probe.gpu.cuda_driver import CudaError, Device, NoSuchGpu, load_driver
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml import visible_gpus
from infercanary.probe.targets.failures import NoCuda

# Least driver version by CUDA's major version: table 1 of "Minor Version Compatibility" on that site.
_LEAST_DRIVER = {11: "450.80.02", 12: "525", 13: "580"}
_FIRST_WITH_MINOR_COMPATIBILITY = 11
_DRIVER_MISMATCH = 803  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
_NOT_ON_THIS_DEVICE = 804  # CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")

CHECK_DRIVER = "check the driver, and whether the container was started with the GPU"


def driver_version(file: Path = _KERNEL_MODULE) -> str:
    """Return the version of NVIDIA's driver in the host's kernel, such as ``535.104.05``; empty without a driver."""
    try:
        version = re.search(r"Kernel Module[\w ]*?\s(\d+\.\d[\d.]*)", file.read_text(errors="replace"))
    except OSError:
        return ""
    return version[1] if version else ""


def driver_cuda() -> str:
    """Return the newest CUDA that the container's ``libcuda.so.1`` runs, such as ``12.4``; empty if unknown."""
    with suppress(Unavailable, CudaError):
        if version := load_driver().number("cuDriverGetVersion"):
            return f"{version // 1000}.{version % 1000 // 10}"
    return ""


def unfit_driver(engine: str, built_for: str) -> str:
    """Explain why the driver does not run an engine, and give the fix.

    Args:
        engine: Name and version of the engine, for the message.
        built_for: CUDA for which the engine was built, such as ``13.0``; empty if unknown.

    Returns:
        One line; empty if the driver runs the engine, or if there is no driver.
    """
    runs, kernel = driver_cuda(), driver_version()
    driver = f"the driver {kernel}" if kernel else "the driver here"
    fault = _start_fault()
    if fault == _NOT_ON_THIS_DEVICE:
        return (
            f"{engine}: this GPU does not support forward compatibility (cuda-compat, CUDA {runs}) with {driver}; "
            "remove cuda-compat from the image, and update the driver or install a build for its CUDA"
        )
    if fault == _DRIVER_MISMATCH:
        return (
            f"{engine}: libcuda.so.1, which runs CUDA {runs}, does not fit {driver}; remove it from the image or "
            "from LD_LIBRARY_PATH: the NVIDIA Container Toolkit mounts the host's own"
        )
    need, have = _numbers(built_for), _numbers(runs)
    if not need or not have or have >= need or have[0] == need[0] >= _FIRST_WITH_MINOR_COMPATIBILITY:
        return ""
    least = _LEAST_DRIVER.get(need[0])
    update = f"{least} or newer" if least else f"one for CUDA {built_for}"
    older = have[0] if have[0] >= _FIRST_WITH_MINOR_COMPATIBILITY else runs
    return (
        f"{engine} was built for CUDA {built_for}, and {driver} runs CUDA {runs} at most; update the driver to "
        f"{update}, or install a build for CUDA {older}"
    )


def no_cuda(asked: str, why: str, reason: str) -> NoCuda:
    """Make the error for a target that cannot use CUDA although its settings ask for CUDA.

    Args:
        asked: Option that asks for CUDA, such as ``device: `cuda:1```.
        why: Cause and fix.
        reason: One of ``canary_metrics.CUDA_MISSING_REASONS``.
    """
    gpus = ", ".join(visible_gpus())
    seen = f" and NVML sees {gpus}" if gpus else ""
    return NoCuda(f"{asked} was asked for{seen}, but {why}", reason)


def open_gpu(asked: str, ordinal: int, engine: str, built_for: str) -> Device:
    """Open a GPU for an engine, if the driver runs the engine.

    Raises:
        UsageError: There are GPUs, but none with this number.
        NoCuda: The driver is too old, or there is no GPU. The caller passes both arguments to :func:`no_cuda`.
    """
    if why := unfit_driver(engine, built_for):
        raise NoCuda(why, "version_mismatch")
    try:
        return Device(ordinal)
    except NoSuchGpu as error:
        raise UsageError(f"{asked} was asked for, but {error}; number the container's GPUs from 0") from None
    except Unavailable as error:
        raise NoCuda(f"{error}; {CHECK_DRIVER}", "no_device") from None


def wheel_cuda(name: str, version: str) -> str:
    """Return the CUDA version of an installed wheel from its name: ``tensorrt_cu12`` is for 12.0; empty if unknown."""
    for major in range(11, 20):
        with suppress(metadata.PackageNotFoundError):
            if metadata.version(f"{name}-cu{major}").startswith(version):
                return f"{major}.0"
    return ""


def _start_fault() -> int:
    """Return CUDA's error code if the driver does not start; otherwise 0, also without a driver."""
    try:
        load_driver().call("cuInit", 0)
    except CudaError as error:
        return error.code
    except Unavailable:
        pass
    return 0


def _numbers(version: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else ()
