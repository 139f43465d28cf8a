"""Targets: models, servers and functions that the probe runs and times.

A target is one file in this package, which registers its class by name::

    @register("mine")
    class MyTarget(Target):
        def open(self) -> None: ...

``target: mine`` in probe.yaml then selects the target, and the keys under ``options`` are its arguments. A target in
any other package is named ``package.module:attribute`` and needs no registration.
"""

from infercanary.probe.targets.failures import (
    REASONS,
    Failure,
    NoCuda,
    Reason,
    Unprofiled,
    Unsized,
    is_reason,
)
from infercanary.probe.targets.registry import (
    adapt,
    attribute,
    make,
    names,
    parameters,
    register,
    registered,
)
from infercanary.probe.targets.target import BatchedTarget, DeviceMemory, Need, Reading, Target

__all__ = [
    "REASONS",
    "BatchedTarget",
    "DeviceMemory",
    "Failure",
    "Need",
    "NoCuda",
    "Reading",
    "Reason",
    "Target",
    "Unprofiled",
    "Unsized",
    "adapt",
    "attribute",
    "is_reason",
    "make",
    "names",
    "parameters",
    "register",
    "registered",
]
