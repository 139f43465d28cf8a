"""A target that is any function: what a cell of a notebook does, timed as a canary is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infercanary.command.extras import advice
from infercanary.command.settings import UsageError
from infercanary.probe.targets.engines import outputs
from infercanary.probe.timing import CudaClock, HostClock, Phase


class FunctionTarget:
    """Calls a function with these arguments; on CUDA between two events of the stream that it runs on.

    Args:
        function: What is timed.
        arguments: Its arguments.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        UsageError: The device is none of these.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], device: str) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise UsageError(f"device: `{device}` is none of cpu, cuda, cuda:N")
        self._function, self._arguments = function, tuple(arguments)
        self.device = device
        self.clock: HostClock | CudaClock = HostClock()

    def open(self) -> None:
        """Make the clock of the device.

        Raises:
            UsageError: CUDA is asked for, and there is no torch with it.
        """
        if self.device == "cpu":
            return
        try:
            import torch
        except ModuleNotFoundError:
            raise UsageError(f"device: `{self.device}` needs torch; {advice('torch')}") from None
        if not torch.cuda.is_available():
            raise UsageError(f"device: `{self.device}`, but torch {torch.__version__} sees no CUDA device")
        self.clock = CudaClock(torch.cuda, torch.device(self.device))

    def run(self, phase: Phase) -> Any:
        """Call it once."""
        with phase("compute"):
            return self._function(*self._arguments)

    def values(self, result: Any) -> Sequence[float]:
        """Return evenly spread places of all numbers in the result, and NaN if any of them is not finite."""
        return outputs.values(result)

    def environment(self) -> Mapping[str, str]:
        """The versions of what was imported, as far as they change latency."""
        modules = ("torch", "numpy", "onnxruntime", "tensorflow", "jax")
        found = {name: getattr(sys.modules.get(name), "__version__", None) for name in modules}
        return {name: str(version) for name, version in found.items() if version is not None}

    def close(self) -> None:
        """Nothing was taken."""
