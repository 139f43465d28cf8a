"""Report: the contract between probe and exporter, the answer to ``GET /report?since=<cursor>``.

A report is self-describing: a new metric is one :class:`Metric` beside the code that fills it, and the exporter does
not change. Everything in a report is cumulative since the probe started (``boot_id``), except ``runs``: the raw runs
after the caller's cursor. A store takes each once, by (``boot_id``, ``Run.sequence``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from infercanary.contract.profile import Profile
from infercanary.contract.vocabulary import Outcome, current_tags

SCHEMA_VERSION = 1
PATH = "/report"
DEFAULT_PORT = 9798

Kind = Literal["counter", "gauge", "histogram"]

# One geometric ladder for the whole fleet, so that `sum by (le)` is always right: 50 µs × 2^(k/4), 82 bounds
# up to 62 s, exact at each doubling. A rung is 19 % wide: where all latencies lie in one, the interpolated median
# is off by 9.5 % at the very worst, under 5 % for a spread of 3 % or more (docs/adr/0003-bucket-ladder.md).
LADDER: tuple[float, ...] = tuple(float(f"{50e-6 * 2 ** (k / 4):.6g}") for k in range(82))


class HistogramValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Observations so far: ``counts`` for each rung of :data:`LADDER` and one beyond it (not cumulative), ``sum`` in
    s.
    """

    counts: tuple[int, ...]
    sum: float


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One labelled value of a family; ``labels`` are the values of ``Family.labels``, in their order."""

    labels: tuple[str, ...]
    value: float | HistogramValue


class Family(msgspec.Struct, frozen=True, gc=False):
    """A metric with its points. Names of counters end in ``_total``; units are base units."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    points: tuple[Point, ...]


class Metric(msgspec.Struct, frozen=True):
    """Declaration of one metric, beside the code that fills it; the documentation reads it.

    ``reading`` is for docs/metrics.md only: what is healthy, what a change means, where to look next.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    reading: str = ""

    def family(
        self, points: Mapping[tuple[str, ...], float | HistogramValue] | float | HistogramValue
    ) -> Family:
        """Make a family of points.

        Args:
            points: Label values → value, or a single value without labels. Values that are not finite are left out:
                an unknown value is a missing point, never NaN or zero.
        """
        if not isinstance(points, Mapping):
            points = {(): points}
        return Family(
            self.name,
            self.kind,
            self.help,
            self.labels,
            tuple(
                Point(labels, value if isinstance(value, HistogramValue) else float(value))
                for labels, value in points.items()
                if isinstance(value, HistogramValue) or math.isfinite(value)
            ),
        )


LATENCY = Metric(
    "infercanary_latency_seconds",
    "histogram",
    "Wall time of one inference (a repeat) of a canary, by the host's monotonic clock; without warm-up.",
    ("canary",),
    reading="Each repeat does the same work: a change comes from the image, the host or the load. See "
    "`infercanary_phase_seconds`.",
)
PHASE = Metric(
    "infercanary_phase_seconds",
    "histogram",
    "Time of one phase of a repeat: by the device's clock (h2d, compute, d2h), else by the host's.",
    ("canary", "phase"),
    reading="`compute`: device or kernels. `launch`: the host's side. `queue`: the device was busy. `wait`, "
    "`first_token`: the server's work.",
)


def joined(families: Iterable[Family]) -> tuple[Family, ...]:
    """Merge families with the same name, kind and labels, because a metric may have points from several places; order
    is kept.
    """
    found: dict[tuple[str, Kind, tuple[str, ...]], Family] = {}
    for family in families:
        key = family.name, family.kind, family.labels
        known = found.get(key)
        points = family.points if known is None else known.points + family.points
        found[key] = msgspec.structs.replace(family, points=points)
    return tuple(found.values())


class Run(msgspec.Struct, frozen=True, gc=False):
    """One scheduled round of one canary. Times are Unix seconds, durations are seconds.

    - ``scheduled_at``, ``started_at``: intended and actual start.
    - ``latencies``: wall time of each repeat; ``phases``: median of each phase over the repeats.
    - ``controls``: median of each control that ran after it.
    - ``output_error``: relative error of the output from the first steady one.
    - ``boot_id``: empty, or that of an earlier probe of this container whose journal was found.
    - ``sm_clock``: SM clock of its GPU right after the run, in Hz; ``clock_reason``: cause of a low clock, with the
      tag ``gpu_clock_limited``.
    - ``waited``: CPU wait in the median latency caused outside the container (by anybody if ``crowded`` is None);
      ``crowded``: CPU wait caused inside it, by other threads and processes; ``inside``: cores that these used
      meanwhile.
    - ``received``: TCP segments a second that the container received since the previous run.
    - ``off_cpu``: reason (:data:`~infercanary.contract.bottleneck.OFF_CPU`) → part of the median latency without
      compute.
    - ``measures``: name (:mod:`infercanary.contract.measures`) → value, with those of sweeps since the previous run.
    - ``profile``: profiled repeats since the previous run.
    """

    sequence: int
    canary: str
    scheduled_at: float
    started_at: float
    outcome: Outcome
    latencies: tuple[float, ...] = ()
    phases: dict[str, float] = {}
    tags: tuple[str, ...] = ()
    detail: str = ""
    controls: dict[str, float] = {}
    output_error: float | None = None
    boot_id: str = ""
    sm_clock: float | None = None
    waited: float | None = None
    crowded: float | None = None
    inside: float | None = None
    received: float | None = None
    off_cpu: dict[str, float] = {}
    measures: dict[str, float] = {}
    profile: Profile | None = None
    clock_reason: str = ""


def with_current_tags(run: Run) -> Run:
    """Return the run with current tags (:func:`~infercanary.contract.vocabulary.current_tags`)."""
    tags, reason = current_tags(run.tags, run.clock_reason)
    return run if tags is run.tags else msgspec.structs.replace(run, tags=tags, clock_reason=reason)


class Report(msgspec.Struct, frozen=True):
    """A probe's whole answer.

    - ``cursor``: opaque; pass it as ``since`` next time. Without one, or with one of another boot, the answer begins
      with the oldest kept run. An answer holds 512 runs at most.
    - ``lost_runs``: runs after the cursor that were dropped meanwhile.
    - ``environment``: component → version or setting.
    - ``outputs``: some fixed places of each canary's first steady output; an upgrade that changes them changed the
      answers.
    """

    schema_version: int
    boot_id: str
    started_at: float
    cursor: str
    lost_runs: int
    families: tuple[Family, ...]
    environment: dict[str, str]
    runs: tuple[Run, ...]
    outputs: dict[str, tuple[float, ...]] = {}


OUTPUT_TOLERANCE = 0.01
"""Relative error from which an output counts as changed: far above the rounding of another library in float32 (about
1e-6) or bfloat16 (about 4e-3), far below the effect of other weights or inputs.
"""


def relative_error(values: Sequence[float], reference: Sequence[float]) -> float:
    """Return the relative error of an output: ‖values - reference‖₂ / ‖reference‖₂.

    Returns:
        From 0 to 1; 1 also for different lengths or values that are not finite.
    """
    if len(values) != len(reference):
        return 1.0
    # hypot and dist do not overflow, unlike squares of a target's numbers.
    scale = math.hypot(*reference) if all(map(math.isfinite, reference)) else math.nan
    apart = math.dist(values, reference)
    if apart == 0.0:
        return 0.0
    error = apart / scale if scale > 0 else math.inf
    return min(1.0, error) if math.isfinite(error) else 1.0


_decoder = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder()


def encode(report: Report) -> bytes:
    """Encode a report as JSON; numbers that are not finite become ``null``."""
    return _encoder.encode(report)


def decode(body: bytes) -> Report:
    """Decode a report. A probe is untrusted: the caller checks sizes, names and label values.

    Raises:
        msgspec.DecodeError: It is no report (``ValidationError`` is one of these).
    """
    try:
        report = _decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec checks UTF-8 only when it makes the text
        raise msgspec.DecodeError("a text that is not UTF-8") from None
    return msgspec.structs.replace(report, runs=tuple(map(with_current_tags, report.runs)))
