"""Controls: small work that is the same in every image, done after each run of a canary.

If a canary and its control slow down together, the cause is the host (clock, heat, other processes); if only the
canary slows down, the cause is in the image. A control is one function in ``cpu.py`` or ``cuda.py``, its line in the
table there, and its entry in :mod:`infercanary.contract.vocabulary`.
"""

from __future__ import annotations

import logging
import platform

from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.controls.control import Control, Seconds
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code

__all__ = ["Control", "Seconds", "available_controls", "python_and_libc"]

log = logging.getLogger("infercanary.probe")


def available_controls(device: str) -> tuple[dict[str, Control], str]:
    """Make the controls of a device; a control takes no resources until it is opened.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        Controls by name, empty for CUDA without a driver; and the versions of Python and libc, empty for machine
        code.
    """
    code = None
    made_of = ""
    try:
        code = mapped_code()
    except Refused as refused:
        made_of = python_and_libc()
        log.info("controls: no machine code (%s); %s does the work instead", refused, made_of)
    kind, _, ordinal = device.partition(":")
    if kind != "cuda":
        return cpu_controls(code), made_of
    return cuda_controls(int(ordinal or 0), code) if cuda_library() is not None else {}, made_of


def python_and_libc() -> str:
    """Return the versions of Python and libc. The controls depend on these versions if Python does their work."""
    libc = "-".join(platform.libc_ver()).strip("-") or "unknown libc"
    return f"{platform.python_implementation()} {platform.python_version()}, {libc}"
