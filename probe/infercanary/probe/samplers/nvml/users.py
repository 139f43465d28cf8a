"""Users of a GPU: the number of processes on the GPU, and how many of them belong to the container.

The sampler only counts processes, because NVML's PIDs are the host's or the container's, depending on the driver. The
container's own processes are found by their open CUDA device files. Listing takes milliseconds under a lock of the
driver, so NVML is asked once a minute.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found, Gpu, Nvml

PROCESSES = Metric(
    "infercanary_gpu_processes",
    "gauge",
    "Processes with a CUDA context on the GPU that NVML lists in the container; read once a minute.",
    ("gpu",),
    reading="Too low if the driver hides other containers' processes. See "
    "`infercanary_gpu_unknown_processes`.",
)
OWN = Metric(
    "infercanary_gpu_own_processes",
    "gauge",
    "Processes of the container that have the device files of the GPU and of CUDA open.",
    ("gpu",),
    reading="Missing if the probe is not allowed to list the open files of another user's process.",
)

# maximum time for all processes together, because the search holds the GIL for milliseconds
_MOST_FILES = 4096
_OF_CUDA = "/dev/nvidia-uvm"


def sample(nvml: Nvml, gpu: Gpu, proc: Path) -> Found:
    """Return the number of all processes and of the container's own processes, as far as known.

    Raises:
        pynvml.NVMLError: NVML does not list processes, or the GPU is gone.
    """
    listed = len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle))
    found: Found = {PROCESSES: {(gpu.label,): listed}}
    with suppress(pynvml.NVMLError):
        device = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu.handle) if gpu.is_mig else gpu.handle
        minor = nvml.nvmlDeviceGetMinorNumber(device)
        if (own := own_processes(f"/dev/nvidia{minor}", proc)) is not None:
            found[OWN] = {(gpu.label,): own}
    return found


def own_processes(device: str, proc: Path = Path("/proc")) -> int | None:
    """Count the container's processes that have opened a GPU for CUDA; None if not all can be inspected.

    Args:
        device: The GPU's device file.
        proc: Usually ``/proc``.
    """
    count = files = 0
    try:
        container = (proc / "self/cgroup").read_bytes()
        pids = [entry for entry in os.listdir(proc) if entry.isdecimal()]
    except OSError:
        return None
    for pid in pids:
        try:
            # In the host's PID namespace, other containers' processes are also visible.
            if (proc / pid / "cgroup").read_bytes() != container:
                continue
            opened = os.listdir(proc / pid / "fd")
            if (files := files + len(opened)) > _MOST_FILES:
                return None
            held = {_target(proc / pid / "fd" / each) for each in opened}
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        except OSError:
            return None
        count += {device, _OF_CUDA} <= held
    return count


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except (FileNotFoundError, ProcessLookupError):  # the file was closed
        return ""
