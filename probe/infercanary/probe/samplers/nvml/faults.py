"""Meaning of NVML's errors, and how to fix their causes."""

from __future__ import annotations

import pynvml

from infercanary.contract.report import Family, Metric

STATE = Metric(
    "infercanary_nvml_state",
    "gauge",
    "1 for the current state of NVML, else 0; with several GPUs, the state of the first faulty GPU.",
    ("state",),
    reading="`no_permission`: recreate the container. `version_mismatch`: restart the container. `lost`: reset the "
    "GPU. `hanging`: see the kernel's log.",
)
STATES = ("ok", "no_driver", "no_permission", "version_mismatch", "lost", "failing", "hanging")

_STATES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version_mismatch",
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "lost",
}

_ADVICE = {
    "no_driver": "no NVIDIA driver here ({})",
    "no_permission": (
        "NVML is not allowed to open the GPU ({}): the container lost its device files, as after `systemctl "
        "daemon-reload` on the host, or never had them; recreate the container "
        "(https://github.com/NVIDIA/nvidia-container-toolkit/issues/48)"
    ),
    "version_mismatch": (
        "the NVML library has another version than the running driver ({}): the driver was upgraded while the "
        "container ran; restart the container; if the error remains, restart the host"
    ),
    "lost": "{}: the GPU fell off the bus or needs a reset; the kernel's log has the reason (NVRM: Xid)",
    "failing": "NVML fails ({})",
}


def state_of(error: pynvml.NVMLError, opening: bool = False) -> str:
    """Return NVML's state after an error.

    Args:
        opening: True if ``nvmlInit`` raised the error.
    """
    if opening and error.value == pynvml.NVML_ERROR_UNKNOWN:
        # If systemd took the devices away, a container sees "Failed to initialize NVML: Unknown Error".
        return "no_permission"
    return _STATES.get(error.value, "failing")


def advice(error: pynvml.NVMLError, opening: bool = False) -> str:
    """Return a log line with the fault and its fix.

    Args:
        opening: True if ``nvmlInit`` raised the error.
    """
    line = _ADVICE[state_of(error, opening)].format(error)
    if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
        line += ": the driver was reloaded; NVML is initialised again at the next sample"
    elif error.value == pynvml.NVML_ERROR_UNKNOWN and not opening:
        line += ": the GPU may have fallen off the bus (NVRM: Xid 79 in the kernel's log)"
    return line


def state(now: str) -> Family:
    """Return the family of ``STATE``: 1 for the current state, 0 for all other states."""
    return STATE.family({(each,): float(each == now) for each in STATES})
