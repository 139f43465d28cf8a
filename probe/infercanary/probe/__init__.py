"""The probe: runs canary inferences inside an inference container, and reports their latency.

In a server's own process::

    from infercanary.probe import Probe, TorchTarget

    probe = Probe({"resnet18": TorchTarget(model, example_input)})
    probe.start()  # a daemon thread; never raises into the server
"""

from infercanary.probe.loop import Probe
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import Target
from infercanary.probe.targets.torch import TorchTarget
from infercanary.probe.timing import CudaClock, HostClock, Phase

__all__ = ["CudaClock", "HostClock", "Phase", "Probe", "Sweep", "Target", "TorchTarget"]
