"""Checks a report and keeps its valid part. A probe is untrusted, so invalid parts are left out and counted."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Collection
from itertools import chain, islice
from typing import Annotated, Literal

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

_NAME = re.compile(r"infercanary_[a-z0-9_]{1,244}")
_LABEL = re.compile(r"(?!__)[a-z_][a-z0-9_]{0,63}")
_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created")
_TAKEN_LABELS = frozenset({"namespace", "pod", "service", "container", "le", "quantile", "job", "instance"})
_PINNED = {metric.name: metric.labels for metric in (LATENCY, PHASE)}
LABEL_BYTES = 256
"""Maximum size of a label value, in bytes of UTF-8."""
_MAX_HELP = 1024
_MAX_FAMILIES = 200
_MAX_SAMPLES = 5_000  # lines of all families; a histogram point has one line for each bucket
_MAX_LABELS = 10
_MAX_RUNS = 10_000
_MAX_ENVIRONMENT = 200
_MAX_ENVIRONMENT_BYTES = 64 << 10
_MAX_SETTING = 4096
# number of outputs, and of values in each output; equal to the probe's own limits
_MAX_OUTPUTS = _MAX_PLACES = 32
_VISIBLE = r"\A[ -~]*\Z"  # printable ASCII characters only
_MAX_NAMES = 100  # limit for each of phases, controls and measures in one run
_MAX_TAGS = 32  # limit for one run; an honest probe has fewer tags
_MAX_DETAIL = 500  # characters of a failure's reason; a longer reason is cut
# An honest report has at least 20 bytes for each part on average, because most parts are numbers of 17 digits.
_MAX_PARTS = REPORT_BYTES // 20


class _Frame(msgspec.Struct):
    """Scalar fields of a report, with their limits. These fields are decoded first: others may differ in a newer
    schema.
    """

    schema_version: int
    boot_id: Annotated[str, msgspec.Meta(max_length=64, pattern=_VISIBLE)] = ""
    cursor: Annotated[str, msgspec.Meta(max_length=512, pattern=_VISIBLE)] = ""
    started_at: Annotated[float, msgspec.Meta(ge=0, le=bounds.LATEST)] = 0.0
    lost_runs: bounds.Count = 0


def read(body: bytes, reserved: Collection[str] = ()) -> tuple[Report, Counter[Reason]]:
    """Decode a probe's answer and keep its valid part.

    Args:
        body: Body of the answer, untrusted.
        reserved: Base names (:func:`base_name`) of the exporter's own metrics, which a probe may not use.

    Returns:
        The report without invalid parts, and the number of invalid parts by reason.

    Raises:
        PollError: The body is not a report.
    """
    if (parts := body.count(b",")) > _MAX_PARTS:
        # A body could contain two million parts such as "1,". Each part takes 32 bytes or more once decoded.
        raise PollError("too_large", f"the report has {parts} commas; at most {_MAX_PARTS} are allowed")
    try:
        version = msgspec.json.decode(body, type=_Frame).schema_version
        if version > SCHEMA_VERSION:
            known = f"this exporter reads schema {SCHEMA_VERSION}; upgrade the exporter"
            raise PollError("schema", f"the report has schema {version}, but {known}")
        report = decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PollError("malformed", f"the answer is not a report: {error}") from None
    return accept(report, reserved)


def accept(report: Report, reserved: Collection[str]) -> tuple[Report, Counter[Reason]]:
    """Keep the valid part of a report.

    Args:
        report: A decoded report: its types are correct, but its numbers and texts are untrusted.
        reserved: Base names (:func:`base_name`) of the exporter's own metrics, which a probe may not use.

    Returns:
        The report without invalid parts, and the number of invalid parts by reason.
    """
    rejected: Counter[Reason] = Counter()
    families: dict[str, Family] = {}
    room = _MAX_SAMPLES
    for family in report.families:
        base = base_name(family.name, family.kind)
        size = len(family.points) * (len(LADDER) + 3 if family.kind == "histogram" else 1)
        reason: Reason
        if not _is_sound(family, base):
            reason = "unsound"
        elif base in reserved:
            reason = "reserved"
        elif KINDS.get(base, family.kind) != family.kind or _PINNED.get(base, family.labels) != family.labels:
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
    runs = []
    for run in report.runs[:_MAX_RUNS]:
        if not _is_sound_run(run):
            continue
        if run.profile is not None and not is_sound(run.profile):
            rejected["profile"] += 1
            run = msgspec.structs.replace(run, profile=None)
        runs.append(msgspec.structs.replace(run, detail=run.detail[:_MAX_DETAIL]))
    environment = {
        name: setting
        for name, setting in islice(report.environment.items(), _MAX_ENVIRONMENT)
        if max(len(name), len(setting)) <= _MAX_SETTING
    }
    if sum(map(sys.getsizeof, chain(environment, environment.values()))) > _MAX_ENVIRONMENT_BYTES:
        environment = {}
    outputs = {
        canary: values
        for canary, values in islice(report.outputs.items(), _MAX_OUTPUTS)
        if len(values) <= _MAX_PLACES
        and _printable(canary)
        and all(abs(value) <= bounds.MOST_AMOUNT for value in values)
    }
    rejected["run"] += len(report.runs) - len(runs)
    rejected["environment"] += len(report.environment) - len(environment)
    rejected["output"] += len(report.outputs) - len(outputs)
    return msgspec.structs.replace(
        report, families=(*families.values(),), runs=(*runs,), environment=environment, outputs=outputs
    ), +rejected


def _is_sound(family: Family, base: str) -> bool:
    """Return True if a family is valid, regardless of other families."""
    return (
        _NAME.fullmatch(family.name) is not None
        and not base.endswith(_SUFFIXES)
        and (base != family.name or family.kind != "counter")
        and family.help != ""
        and _printable(family.help, _MAX_HELP)
        and len(family.labels) <= _MAX_LABELS
        and len({*family.labels}) == len(family.labels)
        and all(_LABEL.fullmatch(label) and label not in _TAKEN_LABELS for label in family.labels)
        and len({point.labels for point in family.points}) == len(family.points)
        and all(
            len(point.labels) == len(family.labels)
            and all(map(_printable, point.labels))
            and _is_sound_value(point.value, family.kind)
            for point in family.points
        )
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
        and _printable(run.boot_id, 64)
    )


def _printable(text: str, most_bytes: int = LABEL_BYTES) -> bool:
    """Return True if a text is short enough and has no line ends, control characters or lone surrogates."""
    return text.isprintable() and len(text.encode()) <= most_bytes


def base_name(name: str, kind: Kind) -> str:
    """Return OpenMetrics' name of a family: for a counter, the name without ``_total``.

    Args:
        name: Full name of the family.
        kind: Kind of the family.
    """
    return name.removesuffix("_total") if kind == "counter" else name
