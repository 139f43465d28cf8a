"""Target that times any function, such as a notebook's cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infercanary.command.extras import needed_by
from infercanary.probe.targets import Target
from infercanary.probe.targets.engines import outputs
from infercanary.probe.timing import CudaClock, HostClock, Phase

_COMPONENTS = ("torch", "tensorflow")  # the probe itself reports the versions of other libraries


class FunctionTarget(Target):
    """Times a function with fixed arguments. On CUDA, events before and after the call give the times, on the stream
    that is current during the call.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], device: str) -> None:
        self._function, self._arguments = function, arguments
        self.device = device
        self.clock: HostClock | CudaClock = HostClock()

    def open(self) -> None:
        """Create the clock for the device.

        Raises:
            UsageError: The device is CUDA, but torch is missing.
        """
        if self.device != "cpu":
            with needed_by(f"device `{self.device}`", "torch"):
                import torch
            self.clock = CudaClock(torch.cuda, torch.device(self.device))

    def run(self, phase: Phase) -> Any:
        with phase("compute"):
            return self._function(*self._arguments)

    def values(self, result: Any) -> Sequence[float]:
        """Return numbers at evenly spaced positions of the result. The last number is NaN if the result contains NaN
        or infinity.
        """
        return outputs.values(result)

    def environment(self) -> Mapping[str, str]:
        """Return the versions of imported libraries that may change latency."""
        versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _COMPONENTS}
        return {name: str(version) for name, version in versions.items() if version}
