"""Negative controls: tiny targets that are the same in every image, run beside the canaries.

When a canary and its control slow down together, the cause is the host (its clock, its heat, a neighbour); when only
the canary does, the cause is in the image. A new control is one function in ``cpu.py`` or ``cuda.py``, its line in the
table there, and its entry in :mod:`infercanary.contract.vocabulary`.
"""

from __future__ import annotations

import logging

from infercanary.contract.vocabulary import CONTROLS
from infercanary.probe.gpu.cuda_driver import cuda_library
from infercanary.probe.targets.controls.control import Control, Work, working_seconds
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.cuda import cuda_controls
from infercanary.probe.targets.controls.machine_code import Refused, mapped_code

__all__ = ["Control", "Work", "available_controls", "working_seconds"]

log = logging.getLogger("infercanary.probe")


def available_controls(device: str) -> dict[str, Control]:
    """Make the controls of a device; they take no resources before they are opened.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Returns:
        Name → control; empty for CUDA without a driver.
    """
    try:
        code = mapped_code()
    except Refused as refused:
        log.info("controls: no machine code of their own: %s; Python's instead", refused)
        code = None
    kind, _, ordinal = device.partition(":")
    found: dict[str, Control]
    if kind == "cuda":
        found = {**cuda_controls(int(ordinal or 0), code)} if cuda_library() is not None else {}
    else:
        found = {**cpu_controls(code)}
    assert found.keys() <= CONTROLS.keys(), "the judge knows every control by the vocabulary"
    return found
