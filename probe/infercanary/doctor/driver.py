"""NVIDIA's driver: the kernel's module, the device files that a container is given, and the two libraries."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml

from infercanary.doctor.ability import Ability, Machine, absent, check, limited, ok, refused
from infercanary.probe.gpu.cuda_driver import Driver, cuda_library
from infercanary.probe.samplers.nvml.calls import text
from infercanary.probe.targets.engines.cuda_versions import driver_cuda, driver_version

_TOOLKIT = "start the container with its GPU named (--gpus device=0), by the NVIDIA Container Toolkit"
_CONTROL_FILES = ("nvidiactl", "nvidia-uvm")


def _nvml_driver() -> str:
    """The version that NVML gives; empty where it does not start."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        return text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


@check("driver", "NVIDIA driver", seconds=30.0)
def _driver(machine: Machine) -> Ability:
    kernel = driver_version(machine.proc / "driver/nvidia/version")
    by_nvml, cuda = _nvml_driver(), driver_cuda()
    if not (kernel or by_nvml or cuda):
        return absent(
            "none here: this machine or container has no GPU, and canaries are timed by the host's clock"
        )
    parts = {
        "kernel module": kernel or "not visible",
        "NVML": by_nvml or "does not start",
        "CUDA": cuda or "unknown",
    }
    found = ", ".join(f"{name} {version}" for name, version in parts.items())
    if kernel and not by_nvml:
        return limited(found, "NVML does not answer: no clocks, heat, power or errors", _TOOLKIT)
    if kernel and by_nvml and kernel != by_nvml:
        return limited(
            found,
            "the library is not the running driver's: it was upgraded under the container",
            "restart the container",
        )
    return ok(found)


@check("driver", "device files", needs="NVIDIA driver")
def _device_files(machine: Machine) -> Ability:
    gpus = sorted(path.name for path in machine.devices.glob("nvidia[0-9]*"))
    missing = [name for name in _CONTROL_FILES if not (machine.devices / name).exists()]
    closed = [
        name
        for name in [*gpus, *_CONTROL_FILES]
        if name not in missing and not _may_open(machine.devices / name)
    ]
    found = ", ".join(gpus) or "no GPU's"
    if closed:
        return refused(
            f"{', '.join(closed)} may not be opened by uid {os.geteuid()}: by its mode, or since the container "
            "lost it, as after `systemctl daemon-reload` on the host",
            f"recreate the container; {_TOOLKIT}",
            found,
        )
    if missing or not gpus:
        lacking = ", ".join([*missing, *([] if gpus else ["nvidia0"])])
        return limited(found, f"without {lacking} in {machine.devices}: CUDA may not start", _TOOLKIT)
    return ok(f"{found}, with {', '.join(_CONTROL_FILES)}")


def _may_open(path: Path) -> bool:
    """By opening it, as NVML and CUDA do: its mode says nothing of the cgroup's list of devices."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@check("driver", "CUDA library", needs="NVIDIA driver")
def _library(machine: Machine) -> Ability:
    if (library := cuda_library()) is None:
        return refused("no libcuda.so.1: NVML may work, and no canary on `cuda` does", _TOOLKIT)
    Driver(library).call("cuInit", 0)
    return ok(f"libcuda.so.1 runs CUDA {driver_cuda()}")


@check("driver", "counters of kernels", needs="NVIDIA driver")
def _counters(machine: Machine) -> Ability:
    """Not what :mod:`.cupti` tries: times of kernels need no permission in drivers of today, their counters do."""
    parameters = machine.proc / "driver/nvidia/params"
    try:
        lines = parameters.read_text(errors="replace").splitlines()
    except OSError:
        return limited(
            "", f"{parameters} cannot be read, so whether counters need CAP_SYS_ADMIN is not known"
        )
    value = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("RmProfilingAdminOnly:")), ""
    )
    if value == "1" and os.geteuid():
        return limited(
            "RmProfilingAdminOnly is 1",
            "only CAP_SYS_ADMIN may read them; the probe needs none, Nsight Compute does",
            "on the host: options nvidia NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)",
        )
    return ok(f"RmProfilingAdminOnly is {value or 'not set'}; the probe needs no counters")
