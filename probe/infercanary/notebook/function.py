"""A target that is any function: what a cell of a notebook does, timed as a canary is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infercanary.command.extras import needed_by
from infercanary.probe.targets import Target
from infercanary.probe.targets.engines import outputs
from infercanary.probe.timing import CudaClock, HostClock, Phase

_COMPONENTS = ("torch", "tensorflow")  # the probe itself reports the other libraries


class FunctionTarget(Target):
    """Calls a function with these arguments; on CUDA between two events of the stream that it runs on.

    Args:
        function: What is timed.
        arguments: Its arguments.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], device: str) -> None:
        self._function, self._arguments = function, arguments
        self.device = device
        self.clock: HostClock | CudaClock = HostClock()

    def open(self) -> None:
        """Make the clock of the device.

        Raises:
            UsageError: CUDA is asked for, and there is no torch.
        """
        if self.device != "cpu":
            with needed_by(f"device `{self.device}`", "torch"):
                import torch
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
        versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in _COMPONENTS}
        return {name: str(version) for name, version in versions.items() if version}
