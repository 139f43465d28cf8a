"""The contract between a probe and the exporter: what ``GET /report?since=<cursor>`` answers.

A report is self-describing: a new metric is one :class:`Metric` beside the code that fills it, and the exporter does
not change. Everything in a report is cumulative since the probe started (``boot_id``), except ``runs``: the raw runs
after the caller's cursor. Who stores them takes each exactly once by (``boot_id``, ``Run.sequence``).
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
    """Observations so far: ``counts`` per rung of :data:`LADDER` plus one beyond it (not cumulative), ``sum`` in s."""

    counts: tuple[int, ...]
    sum: float


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One labelled value of a family; ``labels`` are the values of ``Family.labels``, in their order."""

    labels: tuple[str, ...]
    value: float | HistogramValue


class Family(msgspec.Struct, frozen=True, gc=False):
    """A metric and its points. Counters' names end in ``_total``; units are base units."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    points: tuple[Point, ...]


class Metric(msgspec.Struct, frozen=True):
    """The declaration of one metric: kept beside the code that fills it, and read by the documentation.

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
        """Make the family of these points.

        Args:
            points: Label values → value; the value alone where there are no labels. Values that are not finite are left
                out: what is not known is a missing point, never a NaN or a zero.

        Returns:
            The family, without those points.
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
    """Make one family of those that are alike: a metric may have points from several places.

    Args:
        families: In any order.

    Returns:
        Each name, kind and labels once, in the order in which they came.
    """
    found: dict[tuple[str, Kind, tuple[str, ...]], Family] = {}
    for family in families:
        key = family.name, family.kind, family.labels
        known = found.get(key)
        points = family.points if known is None else known.points + family.points
        found[key] = msgspec.structs.replace(family, points=points)
    return tuple(found.values())


class Run(msgspec.Struct, frozen=True, gc=False):
    """One scheduled round of one canary.

    ``latencies`` are the wall seconds of each repeat, ``phases`` the median seconds of each phase over them, and
    ``controls`` those of each control that ran after it. Times are Unix seconds; ``scheduled_at`` is the intended
    start, ``started_at`` the actual one. ``output_error`` is the relative error of the output against the first
    steady one. ``sm_clock`` (Hz) is the SM clock of its GPU right after. ``waited`` is how much of
    the median latency was waiting for CPUs that others had, outside the container as far as ``crowded`` is known: that
    is how much of it was waiting for CPUs that others inside the container had (other threads of the process, other
    processes). ``inside`` is how many cores those took meanwhile, and ``received`` how many TCP segments the container
    received a second since the run before. ``off_cpu`` is why the thread did not compute in the median latency: reason
    (of :data:`~infercanary.contract.bottleneck.OFF_CPU`) → seconds. ``measures`` are what it is judged by beside the
    latency: name (:mod:`infercanary.contract.measures`) → value, those of sweeps since the run before among them.
    ``profile`` is what repeats showed that were profiled since the run before. ``clock_reason`` is what held down the
    GPU's clock, where the run is tagged ``gpu_clock_limited``.
    ``boot_id`` is empty, or that of an earlier probe of this container whose journal was found.
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
    """The run with today's tags (:func:`~infercanary.contract.vocabulary.current_tags`).

    Args:
        run: As it was written, by 0.1.0 or later.
    """
    tags, reason = current_tags(run.tags, run.clock_reason)
    return run if tags is run.tags else msgspec.structs.replace(run, tags=tags, clock_reason=reason)


class Report(msgspec.Struct, frozen=True):
    """A probe's whole answer.

    ``cursor`` is opaque: pass it as ``since`` next time. A cursor of another boot, or none, begins with
    the oldest run that is still in the ring; an answer holds 512 at most, and the next cursor goes on from there.
    ``lost_runs`` counts those after the cursor that fell out of the ring meanwhile.
    ``environment`` is the fingerprint: component → version or setting. ``outputs`` has for each canary some fixed
    places of its first steady output: where an upgrade changes them, it changed the answers.
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
"""Relative error from which on an output counts as another one: far above what another library's rounding does to
float32 (about 1e-6) or bfloat16 (about 4e-3) results, far below what other weights or inputs do."""


def relative_error(values: Sequence[float], reference: Sequence[float]) -> float:
    """How far an output is from another: ‖values - reference‖₂ / ‖reference‖₂.

    Args:
        values: The output.
        reference: What it is compared with.

    Returns:
        From 0 to 1; 1 also where they differ in length, or are not finite.
    """
    if len(values) != len(reference):
        return 1.0
    # hypot and dist do not overflow, as squares of a target's numbers may.
    scale = math.hypot(*reference) if all(map(math.isfinite, reference)) else math.nan
    apart = math.dist(values, reference)
    if apart == 0.0:
        return 0.0
    error = apart / scale if scale > 0 else math.inf
    return min(1.0, error) if math.isfinite(error) else 1.0


_decoder = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder()


def encode(report: Report) -> bytes:
    """The report as JSON.

    Args:
        report: Numbers in it that are not finite become ``null``.
    """
    return _encoder.encode(report)


def decode(body: bytes) -> Report:
    """Read a report. A probe is untrusted: sizes, names and label values are checked by the caller.

    Args:
        body: JSON.

    Returns:
        The report, of the types that it declares and otherwise unchecked.

    Raises:
        msgspec.DecodeError: It is no report (``ValidationError`` is one of these).
    """
    try:
        report = _decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    except UnicodeDecodeError:  # msgspec checks texts only as it makes them
        raise msgspec.DecodeError("a text that is not UTF-8") from None
    return msgspec.structs.replace(report, runs=tuple(map(with_current_tags, report.runs)))
