"""Report: the contract between probe and exporter, the answer to ``GET /report?since=<cursor>``.

A report is self-describing. A new metric is one :class:`Metric` beside the code that fills it; the exporter needs no
change. All values in a report are cumulative since the probe's start (``boot_id``), except ``runs``, the raw runs
after the caller's cursor. A store saves each run once, identified by (``boot_id``, ``Run.sequence``).
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

# All probes have the same geometric bucket bounds (the ladder), so that `sum by (le)` is always correct. The bounds are
# 50 µs × 2^(k/4): 82 bounds up to 62 s. A bucket (rung) is 19 % wide. If all latencies are in one bucket, the error of
# the interpolated median is at most 9.5 %, and below 5 % for a spread of 3 % or more (docs/adr/0003-bucket-ladder.md).
LADDER: tuple[float, ...] = tuple(float(f"{50e-6 * 2 ** (k / 4):.6g}") for k in range(82))


class HistogramValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Histogram of all observations so far.

    ``counts``: number of observations in each bucket of :data:`LADDER`, then in an overflow bucket; not cumulative.
    ``sum``: seconds.
    """

    counts: tuple[int, ...]
    sum: float


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One labelled value of a family; ``labels`` are the values of ``Family.labels``, in their order."""

    labels: tuple[str, ...]
    value: float | HistogramValue


class Family(msgspec.Struct, frozen=True, gc=False):
    """A metric with its points, in base units. The name of a counter ends in ``_total``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    points: tuple[Point, ...]


class Metric(msgspec.Struct, frozen=True):
    """Declaration of one metric, beside the code that fills it. docs/metrics.md is generated from the declarations.

    ``reading`` is only for docs/metrics.md: the healthy value, the meaning of a change, and the next place to look.
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
            points: Values by label values, or a single value without labels. NaN and infinity are left out, because an
                unknown value is a missing point.
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
    reading="Longer `compute`: look at the device or the kernels. `launch`: at the host. `queue`: at other work on the "
    "device. `wait`, `first_token`: at the server.",
)


def joined(families: Iterable[Family]) -> tuple[Family, ...]:
    """Merge families of one metric, because several modules may add points to a metric. Keep the order."""
    found: dict[tuple[str, Kind, tuple[str, ...]], Family] = {}
    for family in families:
        key = family.name, family.kind, family.labels
        known = found.get(key)
        points = family.points if known is None else known.points + family.points
        found[key] = msgspec.structs.replace(family, points=points)
    return tuple(found.values())


class Run(msgspec.Struct, frozen=True, gc=False):
    """One scheduled run of one canary. Times are Unix seconds, durations are seconds.

    - ``scheduled_at``, ``started_at``: intended and actual start.
    - ``latencies``: wall time of each repeat; ``phases``: median of each phase over the repeats.
    - ``controls``: median time of each control that ran after the repeats.
    - ``output_error``: relative error of the output, compared with the first steady output.
    - ``boot_id``: empty; for a run from the journal of an earlier probe of this container, the id of that probe.
    - ``sm_clock``: SM clock of the GPU right after the run, in Hz; ``clock_reason``: cause of a low clock, with the
      tag ``gpu_clock_limited``.
    - ``waited``: CPU wait in the median latency caused outside the container (if ``crowded`` is None, all CPU wait);
      ``crowded``: CPU wait caused inside the container by other threads and processes; ``inside``: cores that these
      threads and processes used during the run.
    - ``received``: TCP segments per second that the container received since the previous run.
    - ``off_cpu``: part of the median latency without compute, by reason
      (:data:`~infercanary.contract.bottleneck.OFF_CPU`).
    - ``measures``: values by name (:mod:`infercanary.contract.measures`), including sweeps since the previous run.
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
    """Return the run with the current names of its tags."""
    tags, reason = current_tags(run.tags, run.clock_reason)
    return run if tags is run.tags else msgspec.structs.replace(run, tags=tags, clock_reason=reason)


class Report(msgspec.Struct, frozen=True):
    """A probe's answer to one request.

    - ``cursor``: opaque text; pass it as ``since`` in the next request. Without a cursor, or with an unknown cursor,
      the answer begins with the oldest kept run. An answer has at most 512 runs.
    - ``lost_runs``: number of runs after the cursor that the probe has dropped.
    - ``environment``: version or setting by component.
    - ``outputs``: values of each canary's first steady output at fixed positions. If these values change with an
      upgrade, the upgrade changed the output.
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
"""Relative error above which an output counts as changed: above the rounding differences between libraries in
float32 (about 1e-6) and bfloat16 (about 4e-3), and far below the effect of other weights or inputs.
"""


def relative_error(values: Sequence[float], reference: Sequence[float]) -> float:
    """Return the relative error of an output: ‖values - reference‖₂ / ‖reference‖₂.

    Returns:
        Error from 0 to 1; also 1 for different lengths or for values that are not finite.
    """
    if len(values) != len(reference):
        return 1.0
    # hypot and dist do not overflow, but squares of large output values may
    scale = math.hypot(*reference) if all(map(math.isfinite, reference)) else math.nan
    apart = math.dist(values, reference)
    if apart == 0.0:
        return 0.0
    error = apart / scale if scale > 0 else math.inf
    return min(1.0, error) if math.isfinite(error) else 1.0


_decoder = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder()


def encode(report: Report) -> bytes:
    """Encode a report as JSON. A number that is not finite becomes ``null``."""
    return _encoder.encode(report)


def decode(body: bytes) -> Report:
    """Decode a report. The caller must check sizes, names and label values, because a probe is untrusted.

    Raises:
        msgspec.DecodeError: ``body`` is not a report (``ValidationError`` is a subclass).
    """
    try:
        report = _decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec raises UnicodeDecodeError here instead of DecodeError
        raise msgspec.DecodeError("a text is not UTF-8") from None
    return msgspec.structs.replace(report, runs=tuple(map(with_current_tags, report.runs)))
