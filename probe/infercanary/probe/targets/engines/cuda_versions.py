"""Whether the driver runs what an engine was built for, by NVIDIA's published rules.

https://docs.nvidia.com/deploy/cuda-compatibility/: a newer driver runs what was built for an older CUDA. From CUDA 11
on, a driver also runs what was built for a newer minor release of its own major one (minor-version compatibility; what
must be compiled from PTX is excepted). A newer major release needs a newer driver, or on data-centre GPUs the package
`cuda-compat`, whose `libcuda.so.1` then says which CUDA it runs (forward compatibility).
"""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from infercanary.probe.gpu.cuda_driver import CudaError, Driver, cuda_library
from infercanary.probe.samplers import Unavailable

# Table 1 of "Minor Version Compatibility", on that site.
_LEAST_DRIVER = {11: "450.80.02", 12: "525", 13: "580"}
_FIRST_WITH_MINOR_COMPATIBILITY = 11
_DRIVER_MISMATCH, _NOT_ON_THIS_DEVICE = (
    803,
    804,
)  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, _COMPAT_NOT_SUPPORTED_ON_DEVICE
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def driver_version(file: Path = _KERNEL_MODULE) -> str:
    """Return the version of NVIDIA's driver in the host's kernel, such as ``535.104.05``; empty where there is none.

    Args:
        file: Where the driver reports it, in containers too.
    """
    try:
        found = re.search(r"Kernel Module[\w ]*?\s(\d+\.\d[\d.]*)", file.read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def driver_cuda() -> str:
    """Return the newest CUDA that the container's ``libcuda.so.1`` runs, such as ``12.4``; empty where unknown."""
    version = ctypes.c_int()
    with suppress(Unavailable, CudaError):
        if (library := cuda_library()) is not None:
            Driver(library).call("cuDriverGetVersion", ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""


def unfit_driver(engine: str, built_for: str) -> str:
    """Explain why the driver does not run an engine, and how to fix that.

    Args:
        engine: Its name and version, for the message.
        built_for: The CUDA that it was built for, such as ``13.0``; empty where that is not known.

    Returns:
        One line, for people; empty where the driver runs it, or there is no driver.
    """
    runs, kernel = driver_cuda(), driver_version()
    driver = f"the driver {kernel}" if kernel else "the driver here"
    if fault := _start_fault():
        if fault == _NOT_ON_THIS_DEVICE:
            return (
                f"{engine}: this GPU does not take the forward compatibility (cuda-compat, CUDA {runs}) with {driver}; "
                "take cuda-compat out of the image, and update the driver or install a build for its CUDA"
            )
        return (
            f"{engine}: libcuda.so.1, which runs CUDA {runs}, does not go with {driver}; take it out of the image or "
            "of LD_LIBRARY_PATH: the NVIDIA Container Toolkit mounts the host's own"
        )
    need, have = _numbers(built_for), _numbers(runs)
    if not need or not have or have >= need:
        return ""
    if have[0] == need[0] >= _FIRST_WITH_MINOR_COMPATIBILITY:
        return ""
    least = _LEAST_DRIVER.get(need[0])
    update = (
        f"update the driver to {least} or newer"
        if least
        else f"update the driver to one for CUDA {built_for}"
    )
    older = have[0] if have[0] >= _FIRST_WITH_MINOR_COMPATIBILITY else runs
    return (
        f"{engine} was built for CUDA {built_for}, and {driver} runs CUDA {runs} at most; {update}, or install a build "
        f"for CUDA {older}"
    )


def wheel_cuda(name: str, version: str) -> str:
    """Return the CUDA that an installed wheel is for, by its name: ``tensorrt_cu12`` is for 12.0; empty where unknown.

    Args:
        name: Of the module, such as ``tensorrt``.
        version: Of the module that was imported.
    """
    for major in range(11, 20):
        with suppress(metadata.PackageNotFoundError):
            if metadata.version(f"{name}-cu{major}").startswith(version):
                return f"{major}.0"
    return ""


def _start_fault() -> int:
    """The code of a driver whose parts do not go together; 0 where it starts, or fails for another reason."""
    try:
        if (library := cuda_library()) is not None:
            Driver(library).call("cuInit", 0)
    except CudaError as error:
        return error.code if error.code in (_DRIVER_MISMATCH, _NOT_ON_THIS_DEVICE) else 0
    except Unavailable:
        pass
    return 0


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()
