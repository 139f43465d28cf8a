"""Samplers of the container, its threads and its GPUs, around each run.

A sampler is one module of this package, which registers its class by name::

    @register
    class LoadSampler(Sampler):
        name = "load"

        def sample(self) -> Iterable[Family]:
            yield LOAD.family(os.getloadavg()[0])

The sampler then has a switch in ``probe.yaml`` (``samplers: {load: false}``), a success metric and a deadline, and its
failures affect no other sampler (:mod:`infercanary.probe.sampling`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from infercanary.command.settings import UsageError
from infercanary.contract.report import Family

if TYPE_CHECKING:
    from infercanary.probe.samplers.threads import Place


class Sampler:
    """Takes samples of one subject, in a separate thread."""

    name: str
    is_slow = False
    """True for a slow sampler, which takes its sample after all other samplers."""
    hanging: tuple[Family, ...] = ()
    """Families that the report contains while the sampler hangs."""

    def sample(self) -> Iterable[Family]:
        """Return or yield the current families. Counters are cumulative; unknown values are left out. This method
        may raise or hang.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release resources. Called once at the end, in the sampler's own thread."""


class Unavailable(Exception):
    """The subject does not exist here (no GPU, no driver). This is normal on some hosts, so the log level is INFO."""


class SampleFailed(Exception):
    """The sample failed for a known reason, which ``families`` report.

    Args:
        why: One line for the log.
        families: Families in place of the sample.
    """

    def __init__(self, why: str, families: Iterable[Family]) -> None:
        super().__init__(why)
        self.families = tuple(families)


K = TypeVar("K", bound=type[Sampler])

_registered: dict[str, type[Sampler]] = {}


def register(kind: K) -> K:
    """Register a sampler class under its ``name``."""
    _registered[kind.name] = kind
    return kind


def registered() -> dict[str, type[Sampler]]:
    """Return the built-in samplers by name, in order of sampling: slow samplers last."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_registered.items(), key=lambda pair: (pair[1].is_slow, pair[0])))


def make_samplers(
    switches: Mapping[str, bool] = MappingProxyType({}),
    *,
    compute_threads: Callable[[], int | None] = lambda: None,
    places: Callable[[], Mapping[str, Place]] = dict,
) -> list[Sampler]:
    """Make the samplers of a probe, in order of sampling.

    Args:
        switches: Name → False to switch the sampler off.
        compute_threads: Function that returns the largest number of an engine's compute threads; None while unknown.
        places: Function that returns the known place of each canary's thread in its last run.

    Raises:
        UsageError: A name in ``switches`` is unknown.
    """
    from infercanary.probe.samplers.nvml import NvmlSampler
    from infercanary.probe.samplers.threads import ThreadSampler

    made = {name: kind() for name, kind in registered().items()}
    made["nvml"] = nvml = NvmlSampler()
    made["threads"] = ThreadSampler(
        local_cpus=lambda: nvml.local_cpus, compute_threads=compute_threads, places=places
    )
    for name in switches:
        if name not in made:
            raise UsageError(f"samplers: no sampler `{name}`; there are {', '.join(sorted(made))}")
    return [sampler for name, sampler in made.items() if switches.get(name, True)]
