"""Samplers: what the container, its threads and its GPUs were doing around a run.

A sampler is one module of this package, which registers it by name::

    @register()
    class LoadSampler:
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
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from infercanary.command.settings import UsageError
from infercanary.contract.report import Family

if TYPE_CHECKING:
    from infercanary.probe.samplers.threads import Place


class Sampler(Protocol):
    """Takes one sample of something, in a thread of its own."""

    name: str

    def sample(self) -> Iterable[Family]:
        """The families now. Counters are cumulative; what cannot be known is left out. May raise, may hang.

        Returns:
            Families; they may be yielded one by one.
        """
        ...


@runtime_checkable
class HasHangingFamilies(Protocol):
    """A sampler that has something to show while it hangs."""

    hanging: tuple[Family, ...]


@runtime_checkable
class Closable(Protocol):
    """A sampler that holds something."""

    def close(self) -> None:
        """Let go of it. Called once, in the sampler's own thread, in the end."""
        ...


@runtime_checkable
class KnowsLocalCpus(Protocol):
    """A sampler that knows which CPUs are near each GPU."""

    local_cpus: dict[str, frozenset[int]]
    """GPU → the host's CPUs on its NUMA node, as last known; replaced as a whole, never changed."""


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


class Registered(NamedTuple):
    """A built-in sampler."""

    name: str
    kind: Callable[..., Sampler]
    asks_probe: bool
    """It is made with ``compute_threads``, ``places`` and ``local_cpus``, callable at any time, from any thread."""
    is_slow: bool
    """It may take long, and is sampled after the others: they share what a run waits for."""


K = TypeVar("K", bound="type[Sampler]")

_registered: dict[str, Registered] = {}


def register(*, asks_probe: bool = False, is_slow: bool = False) -> Callable[[K], K]:
    """Make a class of samplers known by its ``name``.

    Args:
        asks_probe: Whether it is made with what it may ask of its probe (:class:`Registered`), else without arguments.
        is_slow: Whether it is sampled after the others.

    Returns:
        A decorator that gives back what it gets.

    Raises:
        ValueError: Another module has registered that name (from the decorator).
    """

    def registering(kind: K) -> K:
        ours = Registered(kind.name, kind, asks_probe, is_slow)
        if _registered.setdefault(kind.name, ours) != ours:
            raise ValueError(f"two samplers are named `{kind.name}`")
        return kind

    return registering


def registered() -> Mapping[str, Registered]:
    """Every built-in sampler by name, in the order in which they are sampled.

    Returns:
        Name → sampler; the slow ones come last.
    """
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    ordered = sorted(_registered.values(), key=lambda each: (each.is_slow, each.name))
    return MappingProxyType({each.name: each for each in ordered})


def make_samplers(
    switches: Mapping[str, bool] = MappingProxyType({}),
    *,
    compute_threads: Callable[[], int | None] = lambda: None,
    places: Callable[[], Mapping[str, Place]] = dict,
) -> list[Sampler]:
    """Make the samplers of a probe.

    Args:
        switches: Name of a built-in sampler → whether it is on, which is the default; or
            ``package.module:attribute`` of a class or function of your own, that makes one without arguments.
        compute_threads: How many threads the canaries' engines compute with; None while that is not known.
        places: Canary → where the thread of its last run was; without those that are not known.

    Returns:
        Those that are on, in the order in which they are to be sampled.

    Raises:
        UsageError: A name that no sampler has, or one of your own that is none.
    """
    built_in = registered()
    for name in switches:
        if name not in built_in and ":" not in name:
            known = ", ".join(sorted(built_in))
            raise UsageError(f"samplers: no sampler `{name}`; there are {known}; or package.module:attribute")
    made: list[Sampler] = []

    def local_cpus() -> Mapping[str, frozenset[int]]:
        return next((each.local_cpus for each in made if isinstance(each, KnowsLocalCpus)), {})

    asked = {"compute_threads": compute_threads, "places": places, "local_cpus": local_cpus}
    are_on = [each for each in built_in.values() if switches.get(each.name, True)]
    made += [each.kind(**asked) if each.asks_probe else each.kind() for each in are_on]
    made += [_own(name) for name, is_on in switches.items() if is_on and name not in built_in]
    names = [each.name for each in made]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"samplers: two are named `{name}`; give yours another name")
    return made


def _own(reference: str) -> Sampler:
    """The user's own sampler that ``reference`` names. Raises :class:`UsageError`."""
    from infercanary.probe.deadline import one_line
    from infercanary.probe.targets import attribute

    try:
        factory = attribute(reference)
        if not callable(factory):
            raise UsageError(
                f"`{reference}` is not callable; name a class or a function that makes a sampler"
            )
        made: Sampler = factory()
    except UsageError as error:
        raise UsageError(f"samplers: {error}") from None
    except Exception as error:
        raise UsageError(f"samplers: `{reference}` cannot be made: {one_line(error)}") from None
    if not isinstance(getattr(made, "name", None), str) or not callable(getattr(made, "sample", None)):
        raise UsageError(
            f"samplers: `{reference}` gave a {type(made).__name__}, which is no sampler: it needs `name` and `sample()`"
        )
    return made
