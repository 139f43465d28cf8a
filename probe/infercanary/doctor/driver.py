"""Checks of NVIDIA's driver: kernel module, NVML, libcuda, and the container's device files."""

from __future__ import annotations

import os
from pathlib import Path

from infercanary.doctor.ability import Ability, Machine, Refusal, check, limited, ok, refused
from infercanary.doctor.nvml_calls import opened
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml.slow import versions
from infercanary.probe.targets.engines.cuda_versions import driver_cuda, driver_version

_TOOLKIT = "start the container with a GPU (--gpus device=0, needs the NVIDIA Container Toolkit)"
_CONTROL_FILES = ("nvidiactl", "nvidia-uvm")


def _nvml_driver() -> str:
    """Return the driver version that NVML reports; empty if NVML does not answer."""
    try:
        nvml, _ = opened()
        return versions(nvml).driver
    except (Unavailable, Refusal):
        return ""


@check("driver", "NVIDIA driver", seconds=30.0)
def _driver(machine: Machine) -> Ability:
    kernel = driver_version(machine.proc / "driver/nvidia/version")
    nvml, cuda = _nvml_driver(), driver_cuda()
    if not (kernel or nvml or cuda):
        raise Unavailable(
            "no NVIDIA driver in this machine or container; canaries are timed by the host's clock"
        )
    found = (
        f"kernel module {kernel or 'not visible'}, NVML {nvml or 'does not answer'}, CUDA {cuda or 'unknown'}"
    )
    if not cuda:
        return limited(found, "libcuda.so.1 is missing or broken: canaries cannot run on `cuda`", _TOOLKIT)
    if not nvml:
        return limited(found, "NVML does not answer: no clocks, heat, power or errors", _TOOLKIT)
    if kernel and kernel != nvml:
        return limited(
            found,
            "library and kernel module have different versions: the driver was upgraded while the container "
            "ran",
            "restart the container",
        )
    return ok(found)


@check("driver", "device files", needs="NVIDIA driver")
def _device_files(machine: Machine) -> Ability:
    gpus = [path.name for path in machine.devices.glob("nvidia[0-9]*")] or ["nvidia0"]
    names = [*sorted(gpus), *_CONTROL_FILES]
    missing = [name for name in names if not (machine.devices / name).exists()]
    closed = [name for name in names if name not in missing and not _may_open(machine.devices / name)]
    if closed:
        return refused(
            f"uid {os.geteuid()} cannot open {', '.join(closed)}: the file's mode forbids access, or the container "
            "lost access, for example after `systemctl daemon-reload` on the host",
            f"recreate the container; {_TOOLKIT}",
        )
    if missing:
        return limited("", f"{machine.devices} lacks {', '.join(missing)}: CUDA may not start", _TOOLKIT)
    return ok(", ".join(names))


def _may_open(path: Path) -> bool:
    """True if this process can open the device file. A check of the file's mode is not enough, because the
    container's cgroup has its own list of allowed devices.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
