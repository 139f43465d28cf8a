"""Samplers: what the container, its threads and its GPUs were doing around a run.

A sampler is one module of this package, which registers it by name::

    @register
    class LoadSampler(Sampler):
        name = "load"

        def sample(self) -> Iterable[Family]:
            yield LOAD.family(os.getloadavg()[0])

It then has its switch in ``probe.yaml`` (``samplers: {load: false}``), its metric of success and a deadline,
and its failures touch no other sampler (:mod:`infercanary.probe.sampling`).
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
    """Takes one sample of something, in a thread of its own."""

    name: str
    is_slow = False
    """It may take long, and is sampled after the others: they share what a run waits for."""
    hanging: tuple[Family, ...] = ()
    """Shown while it hangs."""

    def sample(self) -> Iterable[Family]:
        """The families now. Counters are cumulative; what cannot be known is left out. May raise, may hang.

        Returns:
            Families; they may be yielded one by one.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release what it holds. Called once, in the sampler's own thread, in the end."""


class Unavailable(Exception):
    """What the sampler watches is not here (no GPU, no driver): expected on some hosts, so it is only logged once."""


class SampleFailed(Exception):
    """The sample failed, and the sampler knows why: ``families`` say so in metrics, and are not stale.

    Args:
        why: One line, for the log.
        families: What is shown in place of the sample.
    """

    def __init__(self, why: str, families: Iterable[Family]) -> None:
        super().__init__(why)
        self.families = tuple(families)


K = TypeVar("K", bound=type[Sampler])

_registered: dict[str, type[Sampler]] = {}


def register(kind: K) -> K:
    """Make a class of samplers known by its ``name``."""
    _registered[kind.name] = kind
    return kind


def registered() -> dict[str, type[Sampler]]:
    """Every built-in sampler by name, in the order in which they are sampled: the slow ones come last."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_registered.items(), key=lambda pair: (pair[1].is_slow, pair[0])))


def make_samplers(
    switches: Mapping[str, bool] = MappingProxyType({}),
    *,
    compute_threads: Callable[[], int | None] = lambda: None,
    places: Callable[[], Mapping[str, Place]] = dict,
) -> list[Sampler]:
    """Make the samplers of a probe.

    Args:
        switches: Name → whether it is on, which is the default.
        compute_threads: How many threads the canaries' engines compute with; None while that is not known.
        places: Canary → where the thread of its last run was; without those that are not known.

    Returns:
        Those that are on, in the order in which they are to be sampled.

    Raises:
        UsageError: A name that no sampler has.
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
