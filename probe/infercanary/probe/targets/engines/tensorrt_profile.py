"""Profiles repeats with TensorRT's own profiler, which reports layers by name with their device time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infercanary.contract.profile import Profile
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes
from infercanary.probe.timing import Clock, Phase, inferences

_WARM_UPS = 3  # number of warm-up repeats, which a new context needs


def profile_repeats(
    trt: Any, context: Any, clock: Clock, run: Callable[[Phase], Any], repeats: int, device: str
) -> Profile:
    """Profile repeats, after uncounted warm-up repeats.

    Args:
        trt: The module ``tensorrt``.
        context: Separate execution context: with a profiler, each enqueue waits for its layers.
        clock: Times a repeat.
        run: Makes the inferences of one repeat in that context.
        repeats: At least 1.
        device: Such as ``cuda:0``.

    Returns:
        The profile. Copies to the device and back are not part of any layer.
    """
    layers = context.profiler = _layers(trt)
    taken_at = time.time()
    batch = inferences(clock)
    times = OperatorTimes(repeats, batch)
    walls = []
    for repeat in range(-_WARM_UPS, repeats):
        layers.spent = []
        walls.append(clock.measure(run)[0].wall * batch)
        for name, seconds in layers.spent if repeat >= 0 else ():
            times.add(repeat, Operator(name, device), name, seconds)
    return times.profile(walls[_WARM_UPS:], "tensorrt", taken_at)


def _layers(trt: Any) -> Any:
    """Make an ``IProfiler``. TensorRT calls it for each layer of each inference."""

    class Layers(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.spent: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.spent.append((layer_name, ms / 1e3))

    return Layers()
