"""The values that the judge takes and gives: frozen, and without any I/O."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from infercanary.contract.bounds import Amount, Count, Finite, Moment, Seconds
from infercanary.contract.report import Run
from infercanary.contract.vocabulary import (
    CONTROLS_MADE_OF,
    MODEL,
    NOT_JUDGED,
    SETTINGS,
    Outcome,
    is_given,
    is_of_canary,
    is_setting,
    labelled_tags,
    of_canary,
)
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.profiles import Packed
from infercanary.judge.resolution import Floats
from infercanary.judge.statistics import Series


class ServiceKey(NamedTuple):
    """What tells a service from all others: a name alone may be in two namespaces."""

    namespace: str
    """Of Kubernetes; empty for Docker, and for what the config lists."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


ImageForm = Literal["", "registry", "docker", "config"]
"""Of what a Kubernetes node's image identity is the digest: of what a registry serves, of that as Docker says it, or of
the image's own config, where it was loaded. Empty where both id and digest are known, as Docker itself says them."""


ENVIRONMENT: Final = "environment"
"""Stands before the digest that tells images apart where Docker does not know the container."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one container. Times are Unix seconds, by the probe's clock; cold starts are in seconds.

    ``outputs`` and ``cold_start`` (load, first_run, time_to_steady) are by canary.
    """

    service: str
    container: str
    """What tells it from others of its service and stays the same where it is started again: in Kubernetes the pod and
    its container."""
    boot_id: str
    started_at: Moment
    namespace: str = ""
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    image_form: ImageForm = ""
    environment: dict[str, str] = {}
    outputs: dict[str, tuple[Finite, ...]] = {}
    cold_start: dict[str, dict[str, Seconds]] = {}
    origin: Origin = NOWHERE
    """Words of the image's own labels: they decide nothing."""
    profiles: Packed = {}
    """Of each canary, the first and last profiles, as :func:`~infercanary.judge.profiles.pack` makes them."""
    memory_kills: tuple[Moment, ...] = ()
    """When the kernel ended its server for memory, as the exporter learned."""
    ended_at: Moment = 0.0
    """When Docker or Kubernetes had its container no more, a Unix time; 0 where it may still run."""
    host: str = ""
    """That it ran on; empty where a store is of one host alone."""

    @property
    def is_known(self) -> bool:
        """Whether Docker or Kubernetes found its container: then it is on the exporter's host."""
        return bool(self.image_id or self.image_digest)

    @property
    def key(self) -> ServiceKey:
        """Its service."""
        return ServiceKey(self.namespace, self.service)

    @property
    def image_key(self) -> str:
        """What tells its image from others; of a container that Docker does not know, that is its environment."""
        if self.is_known:
            return self.image_id or self.image_digest
        own = {n: x for n, x in self.environment.items() if not (is_given(n) or is_setting(n))}
        return f"{ENVIRONMENT}:{_digest(own)}"

    @property
    def work_key(self) -> str:
        """Its image, and what its canaries measure: runs of two starts that differ in it are kept apart."""
        work = {name: value for name, value in self.environment.items() if is_of_canary(name)}
        return f"{self.image_key} {_digest(work)}" if work else self.image_key


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run, or the median of ``runs`` of them: its sequence is then the last one's, its start the first one's.

    Base units; what is read beyond its bounds is no sample. The order of the fields is the format of the file: new ones
    go to the end, with a default.
    """

    sequence: Count
    canary: str
    started_at: Moment
    outcome: Outcome
    median: Seconds | None
    repeats: Count = 0
    phases: dict[str, Seconds] = {}
    controls: dict[str, Seconds] = {}
    sm_clock: Amount | None = None
    tags: tuple[str, ...] = ()
    output_error: Finite | None = None
    runs: Count = 1
    waited: Seconds | None = None
    crowded: Seconds | None = None
    inside: Amount | None = None
    received: Amount | None = None
    off_cpu: dict[str, Seconds] = {}
    measures: dict[str, float] = {}
    clock_reason: str = ""

    @property
    def labelled_tags(self) -> tuple[str, ...]:
        """Its tags as people read them."""
        return labelled_tags(self.tags, self.clock_reason)

    @property
    def is_settled(self) -> bool:
        """Whether it counts: it ended well, and its canary was steady. Tags of trouble do not keep a run out."""
        return not self.failed and bool(self.median) and NOT_JUDGED.isdisjoint(self.tags)

    @property
    def failed(self) -> bool:
        """Whether it has no latency to judge by."""
        return self.outcome != "ok" or self.median is None


_OF_RUN = [name for name in Sample.__struct_fields__ if name in Run.__struct_fields__]
_NUMBERS = ("median", "sm_clock", "waited", "crowded", "inside", "received")  # each may be None
_BY_NAME = ("phases", "controls", "off_cpu", "measures")


def kept(run: Run) -> Sample:
    """``run`` as it is kept: its point is the median of its latencies, None if it has none."""
    return Sample(
        median=median(run.latencies) if run.latencies else None,
        repeats=len(run.latencies),
        **{name: getattr(run, name) for name in _OF_RUN},
    )


def merge(samples: Sequence[Sample]) -> Sample:
    """One sample for ``samples`` of one canary, in order, none of which failed.

    It is made of those that the judge counts, where there are any: it must be able to stand for them. A tag stays if at
    least half of them have it. The error of the output is the largest one: it is rare, and what a median would hide.
    ``runs`` counts all. What no median is of is as in the last one.

    Args:
        samples: At least one.

    Returns:
        A number that no sample has is None; phases and controls are medians of the samples that have them.
    """
    judged = [s for s in samples if NOT_JUDGED.isdisjoint(s.tags)] or samples
    tags = Counter(tag for s in judged for tag in s.tags)
    found: dict[str, Any] = {name: medians([getattr(s, name) for s in judged]) for name in _BY_NAME}
    found |= medians([{n: x for n in _NUMBERS if (x := getattr(s, n)) is not None} for s in judged])
    return msgspec.structs.replace(
        judged[-1],
        sequence=samples[-1].sequence,
        started_at=samples[0].started_at,
        tags=tuple(sorted(tag for tag, count in tags.items() if 2 * count >= len(judged))),
        output_error=max((s.output_error for s in judged if s.output_error is not None), default=None),
        runs=sum(s.runs for s in samples),
        **found,
    )


def medians(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median of each name's values, over the mappings that have the name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for mapping in each:
        for name, value in mapping.items():
            values[name].append(value)
    return {name: median(several) for name, several in values.items()}


def have_alike_controls(starts: Iterable[Start]) -> bool:
    """Whether the controls of all starts are made of the same: machine code, or one version of Python and libc."""
    return len({start.generation.environment.get(CONTROLS_MADE_OF) for start in starts}) == 1


def _digest(components: dict[str, str]) -> str:
    """The same for the same components."""
    return hashlib.sha256(msgspec.msgpack.encode(components, order="sorted")).hexdigest()[:16]


@dataclass(frozen=True)
class Start:
    """One start of one container, with the runs of one canary that count: steady ones that ended well, in order."""

    generation: Generation
    samples: Sequence[Sample]
    last: Sample | None = None
    """Its last run, whether it counts or not; None where only those that count are known."""

    @classmethod
    def of(cls, generation: Generation, samples: Sequence[Sample]) -> Start:
        """Leave out the runs that do not count.

        Args:
            generation: Which start it is.
            samples: All its runs, in order of time.

        Returns:
            The start with its settled runs, and its last run, settled or not.
        """
        settled = [sample for sample in samples if sample.is_settled]
        return cls(generation, settled, samples[-1] if samples else None)

    @cached_property
    def _parts(self) -> dict[tuple[int, int], Start]:
        """Cache of :meth:`part`."""
        return {}

    @property
    def boot(self) -> tuple[str, str]:
        """The container and the boot id: which start it is."""
        return self.generation.container, self.generation.boot_id

    @property
    def last_run(self) -> Sample | None:
        """Its last run, as far as that is known; None where there is no run."""
        return self.last or (self.samples[-1] if self.samples else None)

    @property
    def canary_name(self) -> str:
        """The name of the canary; empty where there is no run."""
        return self.last_run.canary if self.last_run else ""

    @cached_property
    def model(self) -> str:
        """What identifies the model of the canary; empty where that is not known."""
        return self.generation.environment.get(of_canary(MODEL, self.canary_name), "")

    @cached_property
    def settings(self) -> str:
        """The digest of the canary's settings; empty where that is not known."""
        return self.generation.environment.get(of_canary(SETTINGS, self.canary_name), "")

    @cached_property
    def identity(self) -> str:
        """Image and model: a start with another one is an upgrade."""
        return f"{self.generation.image_key} {self.model}".rstrip()

    @cached_property
    def hardware(self) -> tuple[str, str]:
        """The models of the CPU and of the GPU of a host of a fleet; empty where they are not known, or it is one host.

        What the canary ran on is no part of it: an image that fell back to the CPU is compared with what ran on a GPU.
        """
        known = self.generation.environment if self.generation.host else {}
        gpus = (known[name] for name in sorted(known) if name.endswith("_cuda_device"))
        return known.get("cpu_model", ""), next(gpus, "")

    def is_comparable(self, hardware: tuple[str, str]) -> bool:
        """Whether it ran on the ``hardware`` of another start, as far as both are known."""
        return all(not a or not b or a == b for a, b in zip(self.hardware, hardware, strict=True))

    @cached_property
    def work(self) -> tuple[str, ...]:
        """Identity, settings of the canary, hardware: starts that have the same differ in nothing that is known."""
        return self.identity, self.settings, *self.hardware

    @property
    def replica(self) -> tuple[str, ...]:
        """Its container and work."""
        return self.generation.container, *self.work

    @cached_property
    def series(self) -> Series:
        """Logarithms of the medians of its runs (seconds), one point a run, in order of time."""
        return Series.of([s.median for s in self.samples if s.median])

    @cached_property
    def times(self) -> Floats:
        """When each run began, in Unix seconds."""
        return np.array([s.started_at for s in self.samples])

    @cached_property
    def pace(self) -> float:
        """Seconds between its last 12 runs, on average: after the burst of a start, runs are further apart."""
        last = self.samples[-12:]
        return (last[-1].started_at - last[0].started_at) / (len(last) - 1) if len(last) > 1 else 0.0

    def reporting(self, **facts: Any) -> Start:
        """Return the start with other facts in its generation."""
        return replace(self, generation=msgspec.structs.replace(self.generation, **facts))

    def latest(self, runs: int) -> Start:
        """Return the start with its last ``runs`` only: its baseline."""
        return self.part(len(self.samples) - runs, len(self.samples))

    def first(self, runs: int) -> Start:
        """Return the start with its first ``runs`` only."""
        return self.part(0, runs)

    def until(self, at: float) -> Start:
        """Return the start with its runs that began before ``at`` (Unix seconds) only."""
        return self.first(int(np.searchsorted(self.times, at)))

    def part(self, first: int, last: int) -> Start:
        """With the runs from ``first`` to before ``last`` only; the same object at each call, this one for all runs."""
        samples = self.samples[max(first, 0) : last]
        if len(samples) == len(self.samples):
            return self
        return self._parts.setdefault((first, last), Start(self.generation, samples))


class Concurrent(NamedTuple):
    """A start of the old image that ran on: its runs before a start of the new image, and while that ran."""

    before: Start
    during: Start
    ends: float
    """Until when it is known to go on (Unix seconds)."""


class Pair(NamedTuple):
    """The starts of one replica before and after."""

    before: Sequence[Start]
    after: Sequence[Start]
    concurrent: Sequence[Concurrent] = ()
    """Replicas that stayed on the old image."""
    meanwhile: Pair | None = None
    """The same over the same period, where starts before ran on: it has fewer starts, and nothing of what the host did
    before."""
    is_same_period: bool = False
    """Whether ``before`` are the runs of ``concurrent`` meanwhile; else what these moved by is taken off."""


Changed = Literal["image", "model", "both"]
"""What an upgrade exchanged."""


class Upgrade(NamedTuple):
    """The last change of image or model. ``own`` are starts of the new one before it: it is then a rollback."""

    at: float
    before: Sequence[Start]
    after: Sequence[Start]
    own: Sequence[Start]

    @property
    def stays(self) -> list[Start]:
        """The newest start of each container that stays on the old image, as far as it has not ended."""
        newest = {start.generation.container: start for start in self.before}
        for start in self.after:
            newest.pop(start.generation.container, None)
        return [start for start in newest.values() if not start.generation.ended_at]

    @property
    def changed(self) -> Changed:
        """What was exchanged, by the last start before and after."""
        old, new = self.before[-1], self.after[-1]
        if not old.model or not new.model or old.model == new.model:
            return "image"
        return "model" if old.generation.image_key == new.generation.image_key else "both"
