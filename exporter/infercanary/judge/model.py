"""The values that the judge takes and gives: frozen, and without any I/O."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median, median_low
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from infercanary.contract.bottleneck import Limit
from infercanary.contract.bounds import Amount, Count, Finite, Moment, Seconds
from infercanary.contract.report import OUTPUT_TOLERANCE, Run
from infercanary.contract.vocabulary import (
    MODEL,
    NOT_JUDGED,
    SETTINGS,
    Cause,
    Outcome,
    is_given,
    is_of_canary,
    is_setting,
    labelled_tags,
    of_canary,
)
from infercanary.judge.operators import Operators
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.profiles import Packed
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import Shift
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
    started_at: float
    namespace: str = ""
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    image_form: ImageForm = ""
    environment: dict[str, str] = {}
    outputs: dict[str, tuple[float, ...]] = {}
    cold_start: dict[str, dict[str, float]] = {}
    origin: Origin = NOWHERE
    """Words of the image's own labels: they decide nothing."""
    profiles: Packed = {}
    """Of each canary, the first and last profiles, as :func:`~infercanary.judge.profiles.pack` makes them."""
    memory_kills: tuple[float, ...] = ()
    """When the kernel ended its server for memory, as the exporter learned."""
    ended_at: float = 0.0
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
        own = [item for item in self.environment.items() if not (is_given(item[0]) or is_setting(item[0]))]
        return f"{ENVIRONMENT}:{_digest(own)}"

    @property
    def work_key(self) -> str:
        """Its image, and what its canaries measure: runs of two starts that differ in it are kept apart."""
        work = [item for item in self.environment.items() if is_of_canary(item[0])]
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
    """``run`` as it is kept: its point is the median of its latencies.

    Args:
        run: As the probe reported it.

    Returns:
        A sample whose ``median`` is None if the run has no latency.
    """
    return Sample(
        median=median(run.latencies) if run.latencies else None,
        repeats=len(run.latencies),
        **{name: getattr(run, name) for name in _OF_RUN},
    )


def merge(samples: Sequence[Sample]) -> Sample:
    """One sample for ``samples`` of one canary, in order, none of which failed.

    It is made of those that the judge counts, where there are any: it must be able to stand for them. A tag stays if at
    least half of them have it. The clock's reason is the last one. The error of the output is the largest one:
    it is rare, and what a median would hide. ``runs`` counts all.

    Args:
        samples: At least one.

    Returns:
        A number that no sample has is None; phases and controls are medians of the samples that have them.
    """
    judged = [s for s in samples if NOT_JUDGED.isdisjoint(s.tags)] or samples
    tags = {tag for s in judged for tag in s.tags}
    medians: dict[str, Any] = {name: _medians([getattr(s, name) for s in judged]) for name in _BY_NAME}
    medians |= _medians([{n: x for n in _NUMBERS if (x := getattr(s, n)) is not None} for s in judged])
    return Sample(
        sequence=samples[-1].sequence,
        canary=samples[-1].canary,
        started_at=samples[0].started_at,
        outcome="ok",
        repeats=median_low(s.repeats for s in judged),
        tags=tuple(sorted(tag for tag in tags if 2 * sum(tag in s.tags for s in judged) >= len(judged))),
        output_error=max((s.output_error for s in judged if s.output_error is not None), default=None),
        runs=sum(s.runs for s in samples),
        clock_reason=next((s.clock_reason for s in reversed(judged) if s.clock_reason), ""),
        **medians,
    )


def _medians(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for values in each for name in values)
    return {name: median(values[name] for values in each if name in values) for name in names}


def _digest(components: Iterable[tuple[str, str]]) -> str:
    """The same for the same components."""
    return hashlib.sha256(msgspec.msgpack.encode(dict(sorted(components)))).hexdigest()[:16]


@dataclass(frozen=True)
class Start:
    """One start of one container, with the runs of one canary that count: steady ones that ended well, in order."""

    generation: Generation
    samples: Sequence[Sample]
    last_at: float | None = None
    """When its last run began (Unix seconds), whatever came of it; None where only those that count are known."""
    canary: str = ""
    """Its name; empty where the runs say it."""
    _parts: dict[tuple[tuple[int, int], ...], Start] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, generation: Generation, samples: Sequence[Sample]) -> Start:
        """Leave out the runs that do not count.

        Args:
            generation: Which start it is.
            samples: All its runs, in order of time.

        Returns:
            The start with its settled runs; ``last_at`` is of the last run, settled or not, and None without any.
        """
        if not samples:
            return cls(generation, samples)
        settled = [sample for sample in samples if sample.is_settled]
        return cls(generation, settled, samples[-1].started_at, samples[-1].canary)

    @property
    def boot(self) -> tuple[str, str]:
        """The container and the boot id: which start it is."""
        return self.generation.container, self.generation.boot_id

    @property
    def canary_name(self) -> str:
        """The name of the canary; empty where there is no run."""
        return self.canary or (self.samples[0].canary if self.samples else "")

    def reported(self, component: str) -> str:
        """A digest of the canary's.

        Args:
            component: ``MODEL`` or ``SETTINGS``.

        Returns:
            Empty where that is not known.
        """
        return self.generation.environment.get(of_canary(component, self.canary_name), "")

    @cached_property
    def model(self) -> str:
        """What identifies the model of the canary; empty where that is not known."""
        return self.reported(MODEL)

    @cached_property
    def settings(self) -> str:
        """The digest of the canary's settings; empty where that is not known."""
        return self.reported(SETTINGS)

    @cached_property
    def identity(self) -> str:
        """Image and model: a start with another one is an upgrade."""
        return f"{self.generation.image_key} {self.model}".rstrip()

    @cached_property
    def hardware(self) -> tuple[str, str]:
        """The models of the CPU and of the GPU of a host of a fleet; empty where they are not known, or it is one host.

        What the canary ran on is no part of it: an image that fell back to the CPU is compared with what ran on a GPU.
        """
        if not self.generation.host:
            return "", ""
        known = self.generation.environment
        gpu = min((name for name in known if name.endswith("_cuda_device")), default="")
        return known.get("cpu_model", ""), known.get(gpu, "")

    def is_comparable(self, hardware: tuple[str, str]) -> bool:
        """Whether it ran on such hardware, as far as both are known.

        Args:
            hardware: Of another start.
        """
        return all(not a or not b or a == b for a, b in zip(self.hardware, hardware, strict=True))

    @cached_property
    def work(self) -> tuple[str, ...]:
        """Identity, settings of the canary, hardware: starts that have the same differ in nothing that is known."""
        return self.identity, self.settings, *self.hardware

    @cached_property
    def series(self) -> Series:
        """Logarithms of the medians of its runs (seconds), one point a run, in order of time."""
        return Series.of([s.median for s in self.samples if s.median])

    @cached_property
    def times(self) -> Floats:
        """When each run began, in Unix seconds."""
        return np.array([s.started_at for s in self.samples])

    @cached_property
    def logs(self) -> Floats:
        """Of each run's median in seconds."""
        return np.log([s.median or math.nan for s in self.samples])

    def latest(self, runs: int) -> Start:
        """With its last ``runs`` only: what it is a baseline by.

        Args:
            runs: 1 or more.

        Returns:
            As :meth:`part` does.
        """
        return self.part((max(0, len(self.samples) - runs), len(self.samples)))

    def first(self, runs: int) -> Start:
        """With its first ``runs`` only: how it began.

        Args:
            runs: 1 or more.

        Returns:
            As :meth:`part` does.
        """
        return self.part((0, min(runs, len(self.samples))))

    def part(self, *places: tuple[int, int]) -> Start:
        """With the runs at these places only.

        Args:
            places: The first one, and the one after the last, of each stretch.

        Returns:
            A start whose ``last_at`` is None, the same at each call; this one where it has all of the runs.
        """
        if sum(last - first for first, last in places) == len(self.samples):
            return self
        if places not in self._parts:
            samples = [sample for first, last in places for sample in self.samples[first:last]]
            self._parts[places] = Start(self.generation, samples)
        return self._parts[places]


class Concurrent(NamedTuple):
    """A start of the old image that ran on: its runs before a start of the new image, and while that ran."""

    before: Start
    during: Start


class Pair(NamedTuple):
    """The starts of one replica before and after."""

    before: Sequence[Start]
    after: Sequence[Start]
    concurrent: Sequence[Concurrent] = ()
    """Replicas that stayed on the old image."""
    stayed: Mapping[tuple[int, int], Start] = MappingProxyType({})
    """By the place of a start before and of one after: the former's runs in the minutes of the latter. Where there are
    any, these are compared, and ``concurrent`` are those before; else what ``concurrent`` moved by is taken off."""
    meanwhile: Pair | None = None
    """The same by runs of the same minutes alone, where some starts before ran on: it has fewer starts, and nothing of
    what the host did before."""

    @property
    def old(self) -> Sequence[Start]:
        """The runs of the old image that those after are compared with."""
        return [each.during for each in self.concurrent] if self.stayed else self.before


Changed = Literal["image", "model", "both"]
EXCHANGED: tuple[Changed, ...] = get_args(Changed)
"""What an upgrade exchanged."""


class Upgrade(NamedTuple):
    """The last change of image or model. ``own`` are starts of the new one before it: it is then a rollback."""

    at: float
    before: Sequence[Start]
    after: Sequence[Start]
    own: Sequence[Start]

    @property
    def changed(self) -> Changed:
        """What was exchanged, by the last start before and after."""
        if not self.before or not self.after:
            return "image"
        old, new = self.before[-1], self.after[-1]
        if old.generation.image_key == new.generation.image_key:
            return "model" if old.model != new.model else "image"
        return "both" if old.model and new.model and old.model != new.model else "image"


State = Literal[
    "settling", "no_baseline", "inconclusive", "equivalent", "unconfirmed", "regressed", "improved"
]
STATES: tuple[State, ...] = get_args(State)


class Part(msgspec.Struct, frozen=True):
    """A part of a shift and its confidence interval, as ratios."""

    shift: float
    low: float
    high: float

    @classmethod
    def of(cls, shift: Shift, level: float) -> Part:
        """Turn logarithms into ratios.

        Args:
            shift: The part, and its error.
            level: Two-sided confidence of the interval, between 0 and 1.

        Returns:
            Ratios; the bounds of an infinite error are -1 and e^700 - 1.
        """
        low, high = shift.interval(level)
        return cls(*(math.expm1(min(x, 700.0)) for x in (shift.log, low, high)))


class Change(msgspec.Struct, frozen=True):
    """A component of the environment that differs; None where there is none."""

    component: str
    before: str | None
    after: str | None


class Causes(msgspec.Struct, frozen=True):
    """What is known of why a canary's latency moved."""

    host: Part | None = None
    """None where nothing can tell: no control ran and no sibling was there."""
    image: Part | None = None
    load: Part | None = None
    """What more (or fewer) requests than before took of the CPU that the canary waited for; None where that is nothing,
    or not known."""
    cause: Cause = "unknown"
    phases: dict[str, float] = {}
    """Phase → its share of the change; those that made a quarter of it or more, the largest first."""
    bottlenecks: dict[Limit, float] = {}
    """Resource → its share of the change, the largest first; they sum to about 1. Empty where nothing changed."""
    controls: dict[str, float] = {}
    """Control → its shift; empty where all were flat, or none ran."""
    has_controls: bool = False
    """Whether some control ran before and after."""
    siblings: Part | None = None
    """How far the containers moved whose image did not change."""
    clock: Part | None = None
    """What the SM clock explains of the shift."""
    changes: tuple[Change, ...] = ()
    tags: dict[str, tuple[float, float]] = {}
    """Tag → the share of runs that had it before and after; those that rose."""
    cold_start: dict[str, tuple[float, float]] = {}
    """Step → seconds before and after; those that became slower."""
    output_error: float | None = None
    """Relative error of the first steady output against the old image's; None where one of them is not known."""
    output_tokens: tuple[float, float] | None = None
    """Tokens of a completion before and after, where they differ: fewer take less time."""
    cpu_fallback: bool = False
    """It ran on a GPU before, and on the CPU now."""
    memory_kills: tuple[int, int] = (0, 0)
    """How often the kernel ended servers for memory, before and after."""
    inside: tuple[float, float] | None = None
    """Cores that others in the container took beside the canary, before and after, where that made it wait."""
    operators: Operators | None = None
    """What profiled repeats say of it; None where a side has none."""
    unknown_siblings: bool = False
    """Siblings or replicas on the old image are there, and have too few runs yet to be compared."""
    unknown_waiting: bool = False
    """It waited for CPUs, and whether others in its container or others on the host had them is not known."""
    unknown_load: bool = False
    """Others in the container took more CPU, and whether for requests is not known."""

    @property
    def output_changed(self) -> bool:
        """Whether the same input gives another output now."""
        return (self.output_error or 0.0) > OUTPUT_TOLERANCE


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with what it rests on. Shifts are ratios (0.05 is 5 % slower), times Unix seconds."""

    state: State
    upgraded_at: float | None = None
    newest_at: float | None = None
    """When the last start of the new image began: a rollout that was stopped may be started again."""
    until: float | None = None
    """Without an upgrade: when the last of ``runs`` began."""
    rolled_back_image: str = ""
    """The last new image, if it was rolled back: its containers are all gone, and others of the service go on."""
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    baseline_seconds: float | None = None
    current_seconds: float | None = None
    """Without an upgrade, of the only image."""
    control_seconds: dict[str, float] = {}
    """Control → its median time with the old image or, without an upgrade, with the only one."""
    baseline_image: str = ""
    candidate_image: str = ""
    changed: Changed = "image"
    """What the upgrade exchanged: new weights in the same image are one, too."""
    by_reference: bool = False
    """Whether only the references of the images differ: their digests are of different content."""
    redrawn: int = 0
    """So many starts, each with weights of its own: restarts look like upgrades; 0 where two had the same."""
    settings_changed_at: float | None = None
    """Without a baseline: when the canary's settings were edited, so that runs before are not comparable."""
    baseline_origin: Origin = NOWHERE
    candidate_origin: Origin = NOWHERE
    causes: Causes = Causes()
    rollback: bool = False
    siblings: int = 0
    """So many siblings adjusted the shift for what they felt of the host at the same moments; 0 where none did."""
    is_unwaited: bool = False
    """Whether the shift is without what each run waited for CPUs that others on the host had."""
    own: Part | None = None
    """After a rollback: the shift against what the same image did before."""
    restart_sd: float = LIVE.pool.restart_sd
    prior: int = 0
    """The number of the prior that it was learned with; 0 for the policy's own, which is assumed."""
    is_assumed: bool = False
    """Whether no restart of the service showed anything of it."""
    runs: int = 0
    """Of the new image, that counted at the last look; before the first one, those of the start that has most."""
    starts: int = 0
    """Starts of both images that counted."""
    hosts: int = 0
    """That the compared starts ran on; 0 where the store is of one host."""
    hardware: tuple[str, ...] = ()
    """The classes of these hosts, by GPU or, without one, CPU; starts are compared within a class."""
    contended: int = 0
    """Starts that are left out because they were contended."""
    concurrent: int = 0
    """Of these, replicas that stayed on the old image: the shift is beyond what they moved by in the same minutes."""
    concurrent_shift: float | None = None
    """What that was; None without such replicas."""
    next_look: int | None = None
    """At how many runs of a start the judge looks again; None after the last look."""
    look: int = 0
    """At how many runs of a start it looked last; 0 before the first look."""
    confirmed_at: int | None = None
    """Runs of a start at which an unconfirmed change is called if it stays as it is; None if it needs more restarts or
    replicas."""
    starts_needed: int | None = None
    """How many more starts will, then; None where that is not known, or more than anybody would wait for."""
    only: float | None = None
    """Seconds that all runs of both sides took, as a coarse clock shows them; None where they differ."""
    medians: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Seconds, before and after, in order of time: what a picture shows."""
