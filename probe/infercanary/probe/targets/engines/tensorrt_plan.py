"""Engine files of TensorRT: the version that built a file, and the reasons why a file does not load."""

from __future__ import annotations

import functools
import logging
import re
from collections import deque
from typing import Any

from infercanary.contract.text import printable

log = logging.getLogger("infercanary.probe")

# Header of an engine file, as trtexec --getPlanVersionOnly reads it:
# https://github.com/NVIDIA/TensorRT/blob/main/samples/common/sampleEngines.cpp
_TAG, _LAYOUT, _VERSION = b"ftrt", slice(4, 8), slice(24, 28)
_COMPLAINTS = 8


def built_by(plan: bytes) -> str | None:
    """Return the version of TensorRT in an engine's header, such as ``10.3.0.26``; None without a known header.

    Args:
        plan: Content of the engine file, or its beginning.
    """
    if plan[:4] != _TAG or len(plan) < _VERSION.stop or any(plan[_LAYOUT]):
        return None
    return ".".join(map(str, plan[_VERSION]))


@functools.cache
def complaints_log(trt: Any) -> Any:
    """Make a logger for TensorRT that keeps the last errors in ``complaints`` and logs warnings.

    The whole process uses one logger: TensorRT keeps writing to its first logger, even after all objects that were
    made with that logger are gone (https://github.com/NVIDIA/TensorRT/issues/1475).

    Args:
        trt: The module ``tensorrt``.

    Returns:
        A ``trt.ILogger`` with the attribute ``complaints``, a deque of printable lines.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # TensorRT's documentation requires this call
            self.complaints: deque[str] = deque(maxlen=_COMPLAINTS)

        def log(self, severity: Any, msg: str) -> None:
            text = printable(msg, 300, " ")
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.complaints.append(text)
                log.info("TensorRT: %s", text)
            elif severity == trt.ILogger.WARNING:
                log.warning("TensorRT: %s", text)

    return Log()


def why_not(said: str, built: str | None, runtime: str) -> tuple[str, bool]:
    """Explain why an engine does not load, and give the fix.

    An engine fits one version of TensorRT and one type of GPU.

    Args:
        said: Messages that TensorRT logged. The word `expecting` precedes the value of this machine.
        built: Version that built the engine; None if the file does not contain it.
        runtime: Version that is installed.

    Returns:
        One line; and True if another TensorRT version built the engine: only the image, or only the engine, was
        replaced.
    """
    fix = "rebuild the engine with trtexec of this version, on this GPU"
    if gpus := re.search(r"expecting compute (\d+\.\d+) got compute (\d+\.\d+)", said):
        return f"was built for another GPU (compute {gpus[2]}; this GPU has {gpus[1]}); {fix}", False
    if "incompatible device" in said:
        return f"was built for another GPU; {fix}", False
    # Compare only the common parts, because older versions leave out the build number.
    is_other = built is not None and any(map(str.__ne__, built.split("."), runtime.split(".")))
    if is_other:
        return f"was built by TensorRT {built}, but {runtime} is installed; {fix}", True
    if "Version tag does not match" in said or "expecting library version" in said:
        return f"was built by another version than TensorRT {runtime}, which is installed; {fix}", True
    kind = "cannot be loaded" if built is not None else "is not readable"
    return f"{kind} by TensorRT {runtime} ({said[:200] or 'TensorRT logs no reason'}); {fix}", False
