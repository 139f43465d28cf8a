"""Targets: what the probe executes and times. A new one is one file here, which registers itself by name::

    @register("mine")
    class MyTarget:
        def open(self) -> None: ...

``target: mine`` in probe.yaml then names it, and the keys under ``options`` are its arguments. A target in any other
package is named ``package.module:attribute``, and needs no registration.
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
    TakesOptions,
    attribute,
    make,
    names,
    parameters,
    register,
    registered,
)
from infercanary.probe.targets.target import (
    AsksForMemory,
    BoundsDeviceMemory,
    Calibrates,
    CallsServer,
    ChecksResults,
    CountsMemory,
    CountsOutput,
    CountsSamples,
    GivesReadings,
    IdentifiesModel,
    ListsSettings,
    MayLackCuda,
    NamesReasons,
    Need,
    PreparesRuns,
    Profilable,
    Reading,
    ReportsBusy,
    Resizable,
    RunsOnDevice,
    Target,
    TracksPeakMemory,
)

__all__ = [
    "REASONS",
    "AsksForMemory",
    "BoundsDeviceMemory",
    "Calibrates",
    "CallsServer",
    "ChecksResults",
    "CountsMemory",
    "CountsOutput",
    "CountsSamples",
    "Failure",
    "GivesReadings",
    "IdentifiesModel",
    "ListsSettings",
    "MayLackCuda",
    "NamesReasons",
    "Need",
    "NoCuda",
    "PreparesRuns",
    "Profilable",
    "Reading",
    "Reason",
    "ReportsBusy",
    "Resizable",
    "RunsOnDevice",
    "TakesOptions",
    "Target",
    "TracksPeakMemory",
    "Unprofiled",
    "Unsized",
    "attribute",
    "is_reason",
    "make",
    "names",
    "parameters",
    "register",
    "registered",
]
