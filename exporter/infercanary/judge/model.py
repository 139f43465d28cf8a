"""Values that the judge takes and returns: frozen, without I/O."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
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
    """Key of a service. Two namespaces may have services of the same name, so the key includes the namespace."""

    namespace: str
    """Namespace in Kubernetes; empty for Docker and for probes listed in the config."""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


ImageForm = Literal["", "registry", "docker", "config"]
"""Origin of the image digest that a Kubernetes node reports: the registry, the registry through Docker, or the
image's config (for an image loaded from a file). Empty if Docker reports both id and digest.
"""


ENVIRONMENT: Final = "environment"
"""Prefix of a digest of the environment. This digest identifies the image if Docker does not know the container."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one container. Times are Unix seconds of the probe's clock.

    ``outputs`` maps a canary to its first steady output. ``cold_start`` maps a canary to the seconds of each step
    (load, first_run, time_to_steady).
    """

    service: str
    container: str
    """Name of the container within its service, stable across restarts; in Kubernetes the pod and its container."""
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
    """Origin from the image's labels, only for display: labels influence no verdict."""
    profiles: Packed = {}
    """First and last profiles by canary, packed by :func:`~infercanary.judge.profiles.pack`."""
    memory_kills: tuple[Moment, ...] = ()
    """Known times at which the kernel killed the container's server for lack of memory."""
    ended_at: Moment = 0.0
    """Time at which the container disappeared from Docker or Kubernetes; 0 if the container may still run."""
    host: str = ""
    """Host of the container; empty if the store is for one host only."""

    @property
    def is_known(self) -> bool:
        """True if Docker or Kubernetes found the container."""
        return bool(self.image_id or self.image_digest)

    @property
    def key(self) -> ServiceKey:
        return ServiceKey(self.namespace, self.service)

    @property
    def image_key(self) -> str:
        """Identity of the image, or a digest of the container's environment if Docker does not know the container."""
        if self.is_known:
            return self.image_id or self.image_digest
        own = {n: x for n, x in self.environment.items() if not (is_given(n) or is_setting(n))}
        return f"{ENVIRONMENT}:{_digest(own)}"

    @property
    def work_key(self) -> str:
        """Identity of the image and of the canaries' models and settings. The store limits each key separately."""
        work = {name: value for name, value in self.environment.items() if is_of_canary(name)}
        return f"{self.image_key} {_digest(work)}" if work else self.image_key


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run, or the medians of several merged runs.

    A merged sample has the sequence number of the last run and the time of the first. All values are in base units.
    Decoding fails if a value is out of bounds. The order of the fields is the file format: add new fields at the end,
    with a default.
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
        """Tags as displayed, with the reason for a low clock."""
        return labelled_tags(self.tags, self.clock_reason)

    @property
    def is_settled(self) -> bool:
        """True if the run counts for verdicts: the run succeeded and its canary was steady. Tags of disturbances do
        not exclude a run.
        """
        return self.outcome == "ok" and bool(self.median) and NOT_JUDGED.isdisjoint(self.tags)

    @property
    def failed(self) -> bool:
        """True if the run has no latency."""
        return self.outcome != "ok" or self.median is None


_OF_RUN = [name for name in Sample.__struct_fields__ if name in Run.__struct_fields__]
_of_run = attrgetter(*_OF_RUN)
_NUMBERS = ("median", "sm_clock", "waited", "crowded", "inside", "received")  # fields that may be None
_BY_NAME = ("phases", "controls", "off_cpu", "measures")


def kept(run: Run) -> Sample:
    """Convert a run to the sample that is stored. The sample's median is None if the run has no latencies."""
    return Sample(
        median=median(run.latencies) if run.latencies else None,
        repeats=len(run.latencies),
        **dict(zip(_OF_RUN, _of_run(run), strict=True)),
    )


def merge(samples: Sequence[Sample]) -> Sample:
    """Merge successful samples of one canary into one sample.

    If some samples count for verdicts, only these samples are merged, and the result also counts. The result has each
    tag that at least half of these samples have. Its output error is the largest, because such errors are rare and a
    median would hide them. ``runs`` is the sum. Other fields without a median come from the last sample.

    Args:
        samples: At least one sample, in order of time.

    Returns:
        The merged sample. A number is None if no sample has it. Phases and controls are medians of the samples that
        have them.
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
    """Return the median value by name, over the mappings that have the name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for mapping in each:
        for name, value in mapping.items():
            values[name].append(value)
    return {name: median(several) for name, several in values.items()}


def have_alike_controls(starts: Iterable[Start]) -> bool:
    """Return True if all starts ran the same controls (the same machine code, or the same Python and libc)."""
    return len({start.generation.environment.get(CONTROLS_MADE_OF) for start in starts}) == 1


def _digest(components: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(components, order="sorted")).hexdigest()[:16]


@dataclass(frozen=True)
class Start:
    """One start of one container, with the runs of one canary that count for verdicts, in order of time."""

    generation: Generation
    samples: Sequence[Sample]
    last: Sample | None = None
    """Last run, whether it counts or not; None if only counted runs are known."""

    @classmethod
    def of(cls, generation: Generation, samples: Sequence[Sample]) -> Start:
        """Make a start from all runs, in order of time. Only settled runs are kept."""
        settled = [sample for sample in samples if sample.is_settled]
        return cls(generation, settled, samples[-1] if samples else None)

    @cached_property
    def _parts(self) -> dict[tuple[int, int], Start]:
        """Cache of :meth:`part`."""
        return {}

    @property
    def boot(self) -> tuple[str, str]:
        """Container and boot id, which identify the start."""
        return self.generation.container, self.generation.boot_id

    @property
    def last_run(self) -> Sample | None:
        return self.last or (self.samples[-1] if self.samples else None)

    @property
    def canary_name(self) -> str:
        """Name of the canary; empty without a run."""
        return self.last_run.canary if self.last_run else ""

    @cached_property
    def model(self) -> str:
        """Identity of the canary's model; empty if unknown."""
        return self.generation.environment.get(of_canary(MODEL, self.canary_name), "")

    @cached_property
    def settings(self) -> str:
        """Digest of the canary's settings; empty if unknown."""
        return self.generation.environment.get(of_canary(SETTINGS, self.canary_name), "")

    @cached_property
    def identity(self) -> str:
        """Identity of image and model. A start with another identity is an upgrade."""
        return f"{self.generation.image_key} {self.model}".rstrip()

    @cached_property
    def hardware(self) -> tuple[str, str]:
        """Model names of the host's CPU and GPU; empty if unknown, or if the store is for one host only.

        The device that the canary used is not considered. So an image that fell back to the CPU is compared with
        earlier runs on a GPU.
        """
        known = self.generation.environment if self.generation.host else {}
        gpus = (known[name] for name in sorted(known) if name.endswith("_cuda_device"))
        return known.get("cpu_model", ""), next(gpus, "")

    def is_comparable(self, hardware: tuple[str, str]) -> bool:
        """Return True if the start ran on the given hardware. An unknown CPU or GPU matches any other."""
        return all(not a or not b or a == b for a, b in zip(self.hardware, hardware, strict=True))

    @cached_property
    def work(self) -> tuple[str, ...]:
        """Identity, settings and hardware. Starts with the same work have no known difference."""
        return self.identity, self.settings, *self.hardware

    @property
    def replica(self) -> tuple[str, ...]:
        """Container and work, which identify a replica."""
        return self.generation.container, *self.work

    @cached_property
    def series(self) -> Series:
        """Logarithms of the runs' median latencies in seconds, in order of time."""
        return Series.of([s.median for s in self.samples if s.median])

    @cached_property
    def times(self) -> Floats:
        """Start time of each run, in Unix seconds."""
        return np.array([s.started_at for s in self.samples])

    @cached_property
    def pace(self) -> float:
        """Mean seconds between the last 12 runs. Earlier runs do not count: after a start, runs are more frequent."""
        last = self.samples[-12:]
        return (last[-1].started_at - last[0].started_at) / (len(last) - 1) if len(last) > 1 else 0.0

    def reporting(self, **facts: Any) -> Start:
        """Return a copy of the start whose generation has changed fields."""
        return replace(self, generation=msgspec.structs.replace(self.generation, **facts))

    def latest(self, runs: int) -> Start:
        return self.part(len(self.samples) - runs, len(self.samples))

    def first(self, runs: int) -> Start:
        return self.part(0, runs)

    def until(self, at: float) -> Start:
        """Return the start with the runs that began before ``at`` (Unix seconds)."""
        return self.first(int(self.times.searchsorted(at)))

    def part(self, first: int, last: int) -> Start:
        """Return the start with a range of its runs, from a cache. The part with all runs is the start itself."""
        if first <= 0 and last >= len(self.samples):
            return self
        if (first, last) not in self._parts:
            self._parts[first, last] = Start(self.generation, self.samples[max(first, 0) : last])
        return self._parts[first, last]


class Concurrent(NamedTuple):
    """A start of the old image that continued to run beside the new image: a concurrent baseline."""

    before: Start
    """Runs of the start before the first new start."""
    during: Start
    """Runs of the start during the new starts."""
    ends: float
    """Unix time until which the start counts as running."""


class Pair(NamedTuple):
    """Starts of one replica before and after an upgrade."""

    before: Sequence[Start]
    after: Sequence[Start]
    concurrent: Sequence[Concurrent] = ()
    """Replicas that stayed on the old image."""
    meanwhile: Pair | None = None
    """Alternative pair with runs of both images from the same period; None if too few such runs exist. This pair has
    fewer starts, but excludes earlier changes of the host.
    """
    is_same_period: bool = False
    """True if ``before`` and ``after`` have runs of the same period. Otherwise the shift of ``concurrent`` is
    subtracted.
    """


Changed = Literal["image", "model", "both"]
"""Part that an upgrade replaced."""


class Upgrade(NamedTuple):
    """Last change of image or model."""

    at: float
    """Unix time of the first start of the new image."""
    before: Sequence[Start]
    """Starts of the old image."""
    after: Sequence[Start]
    """Starts of the new image since the upgrade."""
    own: Sequence[Start]
    """Starts of the new image before the upgrade: if there are any, the upgrade is a rollback."""

    @property
    def stays(self) -> list[Start]:
        """Newest start of each container that stays on the old image and has not ended."""
        newest = {start.generation.container: start for start in self.before}
        for start in self.after:
            newest.pop(start.generation.container, None)
        return [start for start in newest.values() if not start.generation.ended_at]

    @property
    def changed(self) -> Changed:
        """Replaced part: the difference between the last start before and the last start after the upgrade."""
        old, new = self.before[-1], self.after[-1]
        if not old.model or not new.model or old.model == new.model:
            return "image"
        return "model" if old.generation.image_key == new.generation.image_key else "both"
