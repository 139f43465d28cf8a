"""The probe: runs canary inferences inside an inference container, and reports their latency.

In a server's own process::

    from infercanary.probe import Probe, TorchTarget

    probe = Probe({"resnet18": TorchTarget(model, example_input)})
    probe.start()  # a daemon thread; never raises into the server
"""

from typing import TYPE_CHECKING

from infercanary.probe.loop import Probe
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import Target
from infercanary.probe.targets.torch import TorchTarget
from infercanary.probe.timing import CudaClock, HostClock, Phase

if TYPE_CHECKING:
    from infercanary.probe.targets.onnx import OnnxTarget

__all__ = ["CudaClock", "HostClock", "OnnxTarget", "Phase", "Probe", "Sweep", "Target", "TorchTarget"]


def __getattr__(name: str) -> object:
    if name == "OnnxTarget":  # imported at first use, because most probes run no ONNX model
        from infercanary.probe.targets.onnx import OnnxTarget

        return OnnxTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
