"""The values that the judge takes and gives: frozen, and without any I/O."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, median_low

import msgspec

from infercanary.contract.report import Run
from infercanary.contract.vocabulary import NOT_JUDGED, Outcome


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one container. Times are Unix seconds, by the probe's clock; cold starts are in seconds.

    ``outputs`` and ``cold_start`` (load, first_run, time_to_steady) are by canary.
    """

    service: str
    container: str
    boot_id: str
    started_at: float
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    environment: dict[str, str] = {}
    outputs: dict[str, tuple[float, ...]] = {}
    cold_start: dict[str, dict[str, float]] = {}

    @property
    def image_key(self) -> str:
        """What tells its image from others; of a container that Docker does not know, that is its environment."""
        if self.image_id or self.image_digest:
            return self.image_id or self.image_digest
        return f"environment:{hashlib.sha256(_canonical(self.environment)).hexdigest()[:16]}"


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run, or the median of ``runs`` of them: its sequence is then the last one's, its start the first one's.

    Seconds and hertz. The order of the fields is the format of the file: new ones go to the end, with a default.
    """

    sequence: int
    canary: str
    started_at: float
    outcome: Outcome
    median: float | None
    repeats: int = 0
    phases: dict[str, float] = {}
    controls: dict[str, float] = {}
    sm_clock: float | None = None
    tags: tuple[str, ...] = ()
    output_error: float | None = None
    runs: int = 1
    waited: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it counts: it ended well, and its canary was steady. Tags of trouble do not keep a run out."""
        return self.outcome == "ok" and bool(self.median) and NOT_JUDGED.isdisjoint(self.tags)

    @property
    def failed(self) -> bool:
        """Whether it has no latency to judge by."""
        return self.outcome != "ok" or self.median is None


def kept(run: Run) -> Sample:
    """``run`` as it is kept: its point is the median of its latencies."""
    return Sample(
        sequence=run.sequence,
        canary=run.canary,
        started_at=run.started_at,
        outcome=run.outcome,
        median=median(run.latencies) if run.latencies else None,
        repeats=len(run.latencies),
        phases=run.phases,
        controls=run.controls,
        sm_clock=run.sm_clock,
        tags=run.tags,
        output_error=run.output_error,
        waited=run.waited,
    )


def merge(samples: Sequence[Sample]) -> Sample:
    """One sample for ``samples`` of one canary, in order, none of which failed.

    It is made of those that the judge counts, where there are any: it must be able to stand for them. A tag stays if at
    least half of them have it. The error of the output is the largest one: it is rare, and what a median would hide.
    ``runs`` counts all.
    """
    runs, started_at, sequence = sum(s.runs for s in samples), samples[0].started_at, samples[-1].sequence
    samples = [s for s in samples if NOT_JUDGED.isdisjoint(s.tags)] or samples
    tags: Counter[str] = Counter()
    for sample in samples:
        tags.update(dict.fromkeys(sample.tags, sample.runs))
    counted = sum(sample.runs for sample in samples)
    clocks = [sample.sm_clock for sample in samples if sample.sm_clock is not None]
    waits = [sample.waited for sample in samples if sample.waited is not None]
    return Sample(
        sequence=sequence,
        canary=samples[-1].canary,
        started_at=started_at,
        outcome="ok",
        median=median(sample.median for sample in samples if sample.median is not None),
        repeats=median_low(sample.repeats for sample in samples),
        phases=_medians(sample.phases for sample in samples),
        controls=_medians(sample.controls for sample in samples),
        sm_clock=median(clocks) if clocks else None,
        tags=tuple(sorted(tag for tag, count in tags.items() if 2 * count >= counted)),
        output_error=max((s.output_error for s in samples if s.output_error is not None), default=None),
        runs=runs,
        waited=median(waits) if waits else None,
    )


def _medians(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for times in several:
        for name, seconds in times.items():
            values.setdefault(name, []).append(seconds)
    return {name: median(of_name) for name, of_name in values.items()}


def _canonical(environment: Mapping[str, str]) -> bytes:
    """The same bytes for the same components."""
    return msgspec.msgpack.encode(dict(sorted(environment.items())))
