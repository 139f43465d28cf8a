"""The modes of the GPUs, whether their clocks may be locked (which is never tried), and who else computes there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pynvml

from infercanary.contract.text import printable
from infercanary.doctor.ability import Ability, Machine, check, limited, ok, refused
from infercanary.doctor.host import listed
from infercanary.doctor.nvml_calls import opened
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml.calls import Nvml, text
from infercanary.probe.samplers.nvml.gpus import gpus, local_cpus, numa_node
from infercanary.probe.shortage import readable

_API_SET_CLOCKS = 0  # NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS
_MOST_TENANTS = 16  # that are listed by name


@check("GPU", "GPUs", seconds=20.0)
def _gpus(machine: Machine) -> Ability:
    try:
        nvml, found = opened()
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML does not start ({error}), so modes and tenants are not known") from None
    if not found:
        raise Unavailable("NVML shows no GPU")
    sizes = (readable(nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total) for gpu in found)
    return ok(", ".join(f"{gpu.label}: {size}" for gpu, size in zip(found, sizes, strict=True)))


@check("GPU", "locking clocks", needs="GPUs")
def _clocks(machine: Machine) -> Ability:
    """By what the driver says; nothing is locked."""
    nvml, found = opened()
    supported = "; ".join(f"GPU {gpu.label}: {_supported(nvml, gpu.handle)}" for gpu in found)
    try:
        is_restricted = any(
            nvml.nvmlDeviceGetAPIRestriction(gpu.handle, _API_SET_CLOCKS) == pynvml.NVML_FEATURE_ENABLED
            for gpu in found
        )
        api = "restricted to root" if is_restricted else "open to every user"
    except pynvml.NVMLError as error:
        is_restricted, api = True, f"of unknown restriction ({error})"
    found_words = f"supported: {supported}; application clocks are {api}"
    if os.geteuid():
        return limited(
            found_words,
            f"uid {os.geteuid()} may not lock the SM clock (nvidia-smi -lgc), which only root may; a probe never does",
            "" if is_restricted else "application clocks (nvidia-smi -ac) may be set by this user",
        )
    return ok(
        f"{found_words}; root may lock them, where the container's driver lets it (not tried; a probe never does)"
    )


def _supported(nvml: Nvml, handle: Any) -> str:
    try:
        memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
        clocks = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory)
        return f"{min(clocks)} to {max(clocks)} MHz in {len(clocks)} steps at a memory clock of {memory} MHz"
    except pynvml.NVMLError as error:
        return f"not listed ({error})"


@check("GPU", "persistence mode", needs="GPUs")
def _persistence(machine: Machine) -> Ability:
    nvml, found = opened()
    off = [gpu.label for gpu in found if not nvml.nvmlDeviceGetPersistenceMode(gpu.handle)]
    if off:
        return limited(
            f"off on GPU {', '.join(off)}",
            "when its last process ends the driver unloads the GPU: the next start takes seconds, totals begin anew",
            "on the host: start nvidia-persistenced, or nvidia-smi -pm 1",
        )
    return ok("on")


@check("GPU", "MIG", needs="GPUs")
def _mig(machine: Machine) -> Ability:
    nvml, found = opened()
    parts = {
        gpu.label: [part.label for part in gpus(nvml, int(gpu.label))][1:] for gpu in found if gpu.is_split
    }
    if not parts:
        return ok("off: GPUs are whole")
    empty = [label for label, devices in parts.items() if not devices]
    named = "; ".join(
        f"GPU {label}: {', '.join(devices) or 'none visible'}" for label, devices in parts.items()
    )
    if empty:
        return refused(
            f"GPU {', '.join(empty)} is split, and none of its devices is visible here",
            "name a MIG device when the container is started (--gpus device=0:0)",
            named,
        )
    return limited(
        named,
        "of MIG devices NVML offers memory alone; clocks, power and throttling are the whole GPU's",
    )


@check("GPU", "MPS and compute mode", needs="GPUs")
def _mps(machine: Machine) -> Ability:
    nvml, found = opened()
    modes = {gpu.label: nvml.nvmlDeviceGetComputeMode(gpu.handle) for gpu in found}
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", machine.temporary / "nvidia-mps"))
    has_mps = (pipes / "control").exists()
    if prohibited := [label for label, mode in modes.items() if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED]:
        return refused(
            f"GPU {', '.join(prohibited)}: compute mode prohibited", "on the host: nvidia-smi -c DEFAULT"
        )
    exclusive = [label for label, mode in modes.items() if mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS]
    if exclusive and not has_mps:
        return limited(
            f"GPU {', '.join(exclusive)}: compute mode exclusive, without MPS",
            "one process at a time: a probe beside a server cannot open the GPU, one in the server's process can",
            "put the probe into the server's process, or on the host: nvidia-smi -c DEFAULT",
        )
    if has_mps:
        return limited(
            f"an MPS daemon answers in {pipes}",
            "clients share one context: a fault of one ends all of them",
            "give the probe no CUDA_MPS_PIPE_DIRECTORY, where it is to be apart",
        )
    return ok("default compute mode, no MPS daemon")


@check("GPU", "NUMA node", needs="GPUs")
def _numa(machine: Machine) -> Ability:
    nvml, found = opened()
    allowed = os.sched_getaffinity(0)
    words, far = [], []
    for gpu in found:
        node = numa_node(text(nvml.nvmlDeviceGetPciInfo(gpu.handle).busId), machine.sysfs)
        near = local_cpus(nvml, gpu.handle)
        words.append(
            f"GPU {gpu.label}: node {'unknown' if node is None else node}, CPUs {listed(near) or 'unknown'}"
        )
        if near and not near & allowed:
            far.append(gpu.label)
    if far:
        return limited(
            "; ".join(words),
            f"this process may run on none of the CPUs near GPU {', '.join(far)}: launches and copies cross nodes",
            "--cpuset-cpus with the CPUs near the GPU",
        )
    return ok("; ".join(words))


@check("GPU", "tenants now", seconds=10.0, needs="GPUs")
def _tenants(machine: Machine) -> Ability:
    """Listed once; it takes milliseconds under a lock of the driver, so the probe never does it around a run."""
    nvml, found = opened()
    words: list[str] = []
    count = 0
    for gpu in found:
        listing = {"compute": nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)}
        for kind, function in {"MPS": nvml.nvmlDeviceGetMPSComputeRunningProcesses}.items():
            try:
                listing[kind] = function(gpu.handle)
            except pynvml.NVMLError:  # an older driver has none
                continue
        for kind, processes in listing.items():
            others = [each for each in processes if each.pid != os.getpid()]
            count += len(others)
            words += [
                f"GPU {gpu.label}: {kind} PID {each.pid}{_named(each.pid)}"
                + (f" {readable(each.usedGpuMemory)}" if each.usedGpuMemory else "")
                for each in others[: _MOST_TENANTS - len(words)]
            ]
    if not count:
        return ok("none: the GPUs are free now, as far as the driver shows other containers' processes")
    more = f", and {count - len(words)} more" if count > len(words) else ""
    return limited(
        f"{'; '.join(words)}{more}",
        "what they do is part of what a canary measures; its runs are tagged `gpu_busy` where it shows",
    )


def _named(pid: int) -> str:
    """The name of a process here; NVML may give the host's PID or the container's, so it is a hint."""
    try:
        return f" ({printable(psutil.Process(pid).name(), 40)})"
    except psutil.Error:
        return ""
