"""Checks of the GPUs: modes, memory, NUMA nodes, and other users."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml

from infercanary.doctor.ability import Ability, Machine, check, limited, ok, refused
from infercanary.doctor.nvml_calls import opened
from infercanary.probe.memory import readable
from infercanary.probe.samplers.nvml.calls import text
from infercanary.probe.samplers.nvml.gpus import gpus, local_cpus, numa_node


@check("GPU", "GPUs", seconds=20.0)
def _gpus(machine: Machine) -> Ability:
    nvml, found = opened()
    parts = []
    for gpu in found:
        name = text(nvml.nvmlDeviceGetName(gpu.handle))
        parts.append(f"{gpu.label}: {name}, {readable(nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total)}")
    return ok("; ".join(parts))


@check("GPU", "persistence mode", needs="GPUs")
def _persistence(machine: Machine) -> Ability:
    nvml, found = opened()
    off = [gpu.label for gpu in found if not nvml.nvmlDeviceGetPersistenceMode(gpu.handle)]
    if off:
        return limited(
            f"off on GPU {', '.join(off)}",
            "the driver shuts the GPU down when no process uses it: the next start takes seconds "
            "longer, and the GPU's counters begin at zero",
            "on the host: start nvidia-persistenced, or nvidia-smi -pm 1",
        )
    return ok("on")


@check("GPU", "MIG", needs="GPUs")
def _mig(machine: Machine) -> Ability:
    nvml, found = opened()
    split = [gpu.label for gpu in found if gpu.is_split]
    if not split:
        return ok("off: no GPU is split")
    devices = [part.label for label in split for part in gpus(nvml, int(label)) if part.is_mig]
    if not devices:
        return refused(
            f"GPU {', '.join(split)} is split, and none of its MIG devices is visible here",
            "name a MIG device when the container is started (--gpus device=0:0)",
        )
    return limited(
        f"MIG devices {', '.join(devices)}",
        "for a MIG device, NVML reports only memory; clocks, power and throttling are values of the whole GPU",
    )


@check("GPU", "MPS and compute mode", needs="GPUs")
def _mps(machine: Machine) -> Ability:
    nvml, found = opened()
    modes = {nvml.nvmlDeviceGetComputeMode(gpu.handle) for gpu in found}
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 - default folder of MPS
    if pynvml.NVML_COMPUTEMODE_PROHIBITED in modes:
        return refused("compute mode prohibited", "on the host: nvidia-smi -c DEFAULT")
    if (pipes / "control").exists():
        return limited(
            f"an MPS daemon answers in {pipes}",
            "all MPS clients share one context: a GPU fault of one client ends every client",
            "to run the probe without MPS, unset CUDA_MPS_PIPE_DIRECTORY for the probe",
        )
    if pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS in modes:
        return limited(
            "compute mode exclusive, without MPS",
            "only one process can open the GPU: a probe must run in the server's process, not beside it",
            "put the probe into the server's process, or on the host: nvidia-smi -c DEFAULT",
        )
    return ok("default compute mode, no MPS daemon")


@check("GPU", "NUMA node", needs="GPUs")
def _numa(machine: Machine) -> Ability:
    nvml, found = opened()
    nodes, far = [], []
    for gpu in found:
        node = numa_node(text(nvml.nvmlDeviceGetPciInfo(gpu.handle).busId), machine.sysfs)
        nodes.append(f"GPU {gpu.label}: node {'unknown' if node is None else node}")
        near = local_cpus(nvml, gpu.handle)
        if near and not near & os.sched_getaffinity(0):
            far.append(gpu.label)
    if far:
        return limited(
            "; ".join(nodes),
            f"no CPU of this process is near GPU {', '.join(far)}: launches and copies cross nodes",
            "set --cpuset-cpus to the CPUs near the GPU (nvidia-smi topo -m)",
        )
    return ok("; ".join(nodes))


@check("GPU", "tenants now", seconds=10.0, needs="GPUs")
def _tenants(machine: Machine) -> Ability:
    """List the processes on the GPUs once. The probe never lists processes around a run, because listing takes
    milliseconds under the driver's lock.
    """
    nvml, found = opened()
    tenants = [
        f"GPU {gpu.label}: PID {process.pid}"
        for gpu in found
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
        if process.pid != os.getpid()
    ]
    if not tenants:
        return ok("no process found; the driver may hide processes of other containers")
    return limited(
        f"{len(tenants)}: {'; '.join(tenants)}",
        "these processes slow the canary; affected runs get the tag `gpu_busy`",
    )
