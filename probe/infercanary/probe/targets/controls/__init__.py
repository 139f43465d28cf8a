"""Negative controls: small work that is the same in every image, run beside the canaries.

If a canary and its control slow down together, the cause is the host (clock, heat, other processes); if only the
canary slows down, the cause is in the image. A control is one function in ``cpu.py`` or ``cuda.py``, its line in the
table there, and its entry in :mod:`infercanary.contract.vocabulary`.
"""

from __future__ import annotations

import logging

from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.controls.control import Control, Seconds
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.controls.machine_code import Code, Refused, mapped_code

__all__ = ["Control", "Seconds", "available_controls"]

log = logging.getLogger("infercanary.probe")


def available_controls(device: str) -> dict[str, Control]:
    """Make the controls of a device; a control takes no resources until it is opened.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        Name → control; none for CUDA without a driver, and none of those of machine code if the container refuses it.
    """
    code: Code = None
    try:
        code = mapped_code()
    except Refused as refused:
        log.info("controls: no machine code: %s", refused)
    if device == "cpu":
        return cpu_controls(code) if code is not None else {}
    return cuda_controls(int(device.partition(":")[2] or 0), code) if cuda_library() is not None else {}
