"""Sound part of a report. A probe is untrusted input: what is wrong is left out and counted."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from infercanary.client.fetch import REPORT_BYTES, PollError
from infercanary.contract import bounds
from infercanary.contract.kinds import KINDS
from infercanary.contract.profile import is_sound
from infercanary.contract.report import (
    LADDER,
    LATENCY,
    PHASE,
    SCHEMA_VERSION,
    Family,
    HistogramValue,
    Kind,
    Report,
    Run,
    decode,
)

Reason = Literal[
    "unsound",
    "reserved",
    "conflict",
    "duplicate",
    "too_many",
    "run",
    "environment",
    "output",
    "profile",
]

_NAME = re.compile(r"infercanary_[a-z0-9_]+")
_LABEL = re.compile(r"[a-z_][a-z0-9_]*")
_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created")
_TAKEN_LABELS = frozenset({"namespace", "pod", "service", "container", "le", "quantile", "job", "instance"})
_PINNED = {metric.name: (metric.kind, metric.labels) for metric in (LATENCY, PHASE)}
LABEL_BYTES = 256
"""Longest value of a label."""
_MAX_HELP = 1024
_MAX_FAMILIES = 200
_MAX_SAMPLES = 5_000  # lines of all families; a histogram's point has one per bucket
_MAX_LABELS = 10
_MAX_RUNS = 10_000
_MAX_ENVIRONMENT = 200
_MAX_ENVIRONMENT_BYTES = 64 << 10
_MAX_SETTING = 4096
_MAX_OUTPUT = 64  # places of one output
_MAX_BOOT_ID = 64  # bytes; ours have 32
_MAX_CURSOR = 512
_MAX_OUTPUTS = 1_024  # places of all outputs
_MAX_NAMES = 100  # phases, controls or measures of one run
_MAX_TAGS = 32  # of one run; ours are fewer
_MAX_DETAIL = 500  # letters of why a run failed: what is longer is cut
_MAX_PARTS = (
    REPORT_BYTES // 20
)  # an honest report's parts have 20 bytes or more: most are numbers of 17 digits


class _Schema(msgspec.Struct):
    schema_version: int


def read(body: bytes, reserved: Collection[str] = ()) -> tuple[Report, Counter[Reason]]:
    """Decode a probe's answer and keep its sound part.

    Args:
        body: Answer of the probe, untrusted.
        reserved: Base names (:func:`base_name`) of the exporter's own metrics, which no probe may use.

    Returns:
        The report without unsound parts, and their number by reason.

    Raises:
        PollError: It is no report at all.
    """
    if (parts := body.count(b",")) > _MAX_PARTS:
        # "1," takes 32 bytes once it is decoded: two million of them would take 400 MB.
        raise PollError("too_large", f"the report has {parts} parts, at most {_MAX_PARTS} are read")
    version, fault = 0, ""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        version = msgspec.json.decode(body, type=_Schema).schema_version
    if version > SCHEMA_VERSION:
        raise PollError(
            "schema",
            f"the report has schema {version}, this exporter knows {SCHEMA_VERSION}; upgrade the exporter",
        )
    try:
        report = decode(body)
    except msgspec.DecodeError as error:
        raise PollError("malformed", f"the answer is not a report: {error}") from None
    if not 0 <= report.lost_runs <= 2**53:
        fault = f"lost_runs is {report.lost_runs}"
    elif not 0 <= report.started_at <= bounds.LATEST:
        fault = f"started_at is {report.started_at}"
    elif not (_is_boot_id(report.boot_id) and _printable(report.cursor, _MAX_CURSOR)):
        fault = "boot_id or cursor is too long or not printable"
    if fault:
        raise PollError("malformed", fault)
    return accept(report, reserved)


def accept(report: Report, reserved: Collection[str]) -> tuple[Report, Counter[Reason]]:
    """Keep the sound part of a report.

    Args:
        report: Decoded: of the right types, with any numbers and texts.
        reserved: Base names (:func:`base_name`) of the exporter's own metrics, which no probe may use.

    Returns:
        The report without unsound parts, and their number by reason.
    """
    rejected: Counter[Reason] = Counter()
    families: dict[str, Family] = {}
    room = _MAX_SAMPLES
    for family in report.families:
        base, size = base_name(family.name, family.kind), samples(family)
        shape = family.kind, family.labels
        reason: Reason
        if not _is_sound(family, base):
            reason = "unsound"
        elif base in reserved:
            reason = "reserved"
        elif KINDS.get(base, family.kind) != family.kind or _PINNED.get(family.name, shape) != shape:
            reason = "conflict"
        elif base in families:
            reason = "duplicate"
        elif len(families) == _MAX_FAMILIES or size > room:
            reason = "too_many"
        else:
            families[base] = family
            room -= size
            continue
        rejected[reason] += 1
    sound = [run for run in report.runs[:_MAX_RUNS] if _is_sound_run(run)]
    runs = tuple(map(_trimmed, sound))
    environment = _fitting(report.environment)
    outputs: dict[str, tuple[float, ...]] = {}
    places = _MAX_OUTPUTS
    for canary, values in report.outputs.items():
        if (
            len(values) <= min(_MAX_OUTPUT, places)
            and _printable(canary)
            and all(abs(value) <= bounds.MOST_AMOUNT for value in values)
        ):
            outputs[canary] = values
            places -= len(values)
    rejected["run"] += len(report.runs) - len(runs)
    rejected["profile"] += sum(run.profile is not kept.profile for run, kept in zip(sound, runs, strict=True))
    rejected["environment"] += len(report.environment) - len(environment)
    rejected["output"] += len(report.outputs) - len(outputs)
    return msgspec.structs.replace(
        report, families=(*families.values(),), runs=runs, environment=environment, outputs=outputs
    ), +rejected


def _fitting(environment: Mapping[str, str]) -> dict[str, str]:
    """Keep the shortest components: what identifies a model is short, what is invented need not be."""
    fitting: dict[str, str] = {}
    room = _MAX_ENVIRONMENT_BYTES
    for name, value in sorted(environment.items(), key=lambda item: (len(item[0]) + len(item[1]), item)):
        room -= sys.getsizeof(name) + sys.getsizeof(value)
        if room < 0 or len(fitting) == _MAX_ENVIRONMENT:
            break
        if max(len(name), len(value)) <= _MAX_SETTING:
            fitting[name] = value
    return fitting


def _trimmed(run: Run) -> Run:
    """Cut a long reason of a failure, and drop an unsound profile."""
    if len(run.detail) > _MAX_DETAIL:
        run = msgspec.structs.replace(run, detail=run.detail[:_MAX_DETAIL])
    if run.profile is not None and not is_sound(run.profile):
        run = msgspec.structs.replace(run, profile=None)
    return run


def _is_sound(family: Family, base: str) -> bool:
    """Check a family, looked at alone."""
    return (
        _NAME.fullmatch(family.name) is not None
        and len(family.name) <= LABEL_BYTES
        and not base.endswith(_SUFFIXES)
        and (base != family.name or family.kind != "counter")
        and family.help != ""
        and _printable(family.help, _MAX_HELP)
        and len(family.labels) <= _MAX_LABELS
        and len({*family.labels}) == len(family.labels)
        and all(map(_is_label, family.labels))
        and len({point.labels for point in family.points}) == len(family.points)
        and all(
            len(point.labels) == len(family.labels)
            and all(map(_printable, point.labels))
            and _is_sound_value(point.value, family.kind)
            for point in family.points
        )
    )


def _is_label(name: str) -> bool:
    return (
        _LABEL.fullmatch(name) is not None
        and len(name) <= 64
        and not name.startswith("__")
        and name not in _TAKEN_LABELS
    )


def _is_sound_value(value: float | HistogramValue, kind: Kind) -> bool:
    if isinstance(value, HistogramValue):
        return (
            kind == "histogram"
            and len(value.counts) == len(LADDER) + 1
            and min(value.counts) >= 0
            and sum(value.counts) <= bounds.MOST_COUNT
            and 0 <= value.sum < math.inf
        )
    return kind != "histogram" and math.isfinite(value) and (kind == "gauge" or value >= 0)


def _is_sound_run(run: Run) -> bool:
    names = (run.phases, run.controls, run.off_cpu, run.measures)
    return (
        not bounds.fault(run)
        and all(len(each) <= _MAX_NAMES and all(map(_printable, each)) for each in names)
        and len(run.tags) <= _MAX_TAGS
        and all(map(_printable, (run.canary, run.clock_reason, *run.tags)))
        and _is_boot_id(run.boot_id)
    )


def _is_boot_id(text: str) -> bool:
    """Check the name of a probe's process, of which a thousand are remembered; empty in a run of the process itself."""
    return _printable(text, _MAX_BOOT_ID)


def _printable(text: str, most_bytes: int = LABEL_BYTES) -> bool:
    """Check a text for line ends, control characters and lone surrogates, so that it reads the same everywhere."""
    return len(text) <= most_bytes and text.isprintable() and len(text.encode()) <= most_bytes


def samples(family: Family) -> int:
    """Count the exposition lines of a family's points: of a histogram also +Inf, sum and count.

    Args:
        family: Any, also an unsound one.
    """
    return sum(len(LADDER) + 3 if isinstance(point.value, HistogramValue) else 1 for point in family.points)


def base_name(name: str, kind: Kind) -> str:
    """Name under which OpenMetrics groups a family: a counter's goes without ``_total``.

    Args:
        name: The family's full name.
        kind: The family's kind.
    """
    return name.removesuffix("_total") if kind == "counter" else name
