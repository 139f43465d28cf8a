"""The environment fingerprint: everything below the model that an image or a host may change.

Targets report the components of their engine (torch's build, its threads); this module reports the rest. Components
are small facts that can be compared one by one: if latency changed, the components that differ are possible causes.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from infercanary.contract.report import Metric
from infercanary.contract.text import printable
from infercanary.probe.samplers.cgroup import limits
from infercanary.probe.targets.engines.cuda_versions import driver_version

ENVIRONMENT = Metric(
    "infercanary_environment_info",
    "gauge",
    "One component of the environment (a library's version, a setting); always 1.",
    ("component", "version"),
    reading="`count by (service, component, version) (infercanary_environment_info)` shows which replicas differ.",
)

_LIBRARIES = (
    "accelerate",
    "deepspeed",
    "flash-attn",
    "infercanary",
    "jax",
    "numpy",
    # From CUDA 13 on, NVIDIA's own wheels have no suffix.
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "torchvision",
    "transformers",
    "triton",
    "tritonclient",
    "vllm",
    "xformers",
)

# Only variables that are known to affect speed, because environment variables may contain secrets.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_MAX_CPU_ISA",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NCCL_P2P_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OMP_SCHEDULE",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PYTHONMALLOC",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDNN_V8_API_DISABLED",
)

_CPUS = Path("/proc/cpuinfo")
_PLACED = {
    "cpu_governor": (Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"), ""),
    "numa_nodes": (Path("/proc/self/status"), "Mems_allowed_list:"),
}
"""File and beginning of the line by component; a virtual machine has no governor."""
_MAX_BYTES = 200  # bytes of a component's value, because the exporter accepts labels of up to 256 bytes


def fingerprint(engines: Mapping[str, str]) -> dict[str, str]:
    """Return the components of the environment, sorted by name.

    Args:
        engines: Component → value from the targets. Such a value replaces the value of the same component found here.

    Returns:
        Component → version or setting: printable, and cut to a maximum length.
    """
    found = {
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu_model": _cpu_model(),
        "gil": "off" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "on",
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if driver := driver_version():
        found["nvidia_driver"] = driver
    found |= {f"env_{name}": os.environ[name] for name in _VARIABLES if name in os.environ}
    for name, (path, head) in _PLACED.items():
        with suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith(head):
                    found[name] = line.removeprefix(head).strip()
    found |= limits()
    found |= engines
    # Variables and versions may contain any text. A single invalid character would invalidate the whole family of
    # metrics.
    return {name: _label(str(value)) for name, value in sorted(found.items())}


def _label(value: str) -> str:
    shown = printable(value, _MAX_BYTES)  # also removes lone surrogates, which UTF-8 cannot encode
    return shown.encode()[:_MAX_BYTES].decode(errors="ignore")


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _cpu_model() -> str:
    """Return the CPU model's name. On AArch64, where the kernel gives only numbers, return the numbers of each kind
    of core.
    """
    try:
        lines = [line.partition(":") for line in _CPUS.read_text(errors="replace").splitlines()]
    except OSError:
        return "unknown"
    values: dict[str, list[str]] = {}
    for key, _, value in lines:
        values.setdefault(key.strip(), []).append(value.strip())
    cores = zip(values.get("CPU implementer", []), values.get("CPU part", []), strict=False)
    kinds = ", ".join(dict.fromkeys(f"implementer {maker}, part {part}" for maker, part in cores))
    return next(filter(None, values.get("model name", [])), kinds or "unknown")
