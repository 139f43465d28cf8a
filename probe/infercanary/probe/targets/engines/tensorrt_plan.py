"""Engine files of TensorRT: which version built one, and why one does not load."""

from __future__ import annotations

import functools
import logging
import re
from collections import deque
from typing import Any

from infercanary.contract.text import printable

log = logging.getLogger("infercanary.probe")

# The head of an engine file, as trtexec --getPlanVersionOnly reads it:
# https://github.com/NVIDIA/TensorRT/blob/main/samples/common/sampleEngines.cpp
_TAG, _LAYOUT, _VERSION = b"ftrt", slice(4, 8), slice(24, 28)
_COMPLAINTS = 8


def built_by(plan: bytes) -> str | None:
    """Return the version of TensorRT in an engine's head, such as ``10.3.0.26``; None where there is none.

    Args:
        plan: The content of the engine file, or its beginning.
    """
    if plan[:4] != _TAG or len(plan) < _VERSION.stop or any(plan[_LAYOUT]):
        return None
    return ".".join(map(str, plan[_VERSION]))


@functools.cache
def complaints_log(trt: Any) -> Any:
    """Make a logger for TensorRT that keeps the last errors in ``complaints``, and logs warnings.

    There is one for the life of the process: TensorRT goes on writing to the first that it was given, even after
    everything that was made with it is gone (https://github.com/NVIDIA/TensorRT/issues/1475).

    Args:
        trt: The module ``tensorrt``.

    Returns:
        A ``trt.ILogger`` with the attribute ``complaints``, a deque of printable lines.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # as its documentation asks
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
    """Explain why an engine does not load, and how to fix that: it is for one version of TensorRT and one kind of GPU.

    Args:
        said: What TensorRT logged; in its words `expecting` is what is here.
        built: The version that built the engine, where the file says it.
        runtime: The version that is here.

    Returns:
        One line, and whether another version of TensorRT built it: the image or the engine was exchanged alone.
    """
    fix = "rebuild it with trtexec of this version, on this GPU"
    if gpus := re.search(r"expecting compute (\d+\.\d+) got compute (\d+\.\d+)", said):
        return f"was built for another GPU (compute {gpus[2]}; this is {gpus[1]}); {fix}", False
    if "incompatible device" in said:
        return f"was built for another GPU than this; {fix}", False
    # One of them may be shorter: older messages leave the build out.
    is_other = built is not None and any(map(str.__ne__, built.split("."), runtime.split(".")))
    if is_other:
        return f"was built by TensorRT {built}; this is {runtime}; {fix}", True
    if "Version tag does not match" in said or "expecting library version" in said:
        return f"was built by another TensorRT than this, which is {runtime}; {fix}", True
    kind = "cannot be loaded" if built is not None else "is no engine that can be read"
    return f"{kind} by TensorRT {runtime} ({said[:200] or 'it logs no reason'}); {fix}", False
