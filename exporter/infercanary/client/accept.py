"""What is taken from a report. A probe is untrusted input: what is wrong is left out and counted."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from infercanary.client.limits import Limits
from infercanary.contract import bounds
from infercanary.contract.kinds import KINDS
from infercanary.contract.profile import is_sound
from infercanary.contract.report import (
    LADDER,
    LATENCY,
    PHASE,
    Family,
    HistogramValue,
    Kind,
    Report,
    Run,
)

Reason = Literal[
    "name",
    "reserved",
    "conflict",
    "help",
    "labels",
    "label_value",
    "duplicate",
    "value",
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
_MAX_HELP = 1024
_MAX_ENVIRONMENT = 200
_MAX_SETTING = 4096
_MAX_OUTPUT = 64  # places of one output
_MAX_BOOT_ID = 64  # bytes; ours have 32
_MAX_OUTPUTS = 1_024  # places of all outputs
_MAX_NAMES = 100  # phases, controls or measures of one run
_MAX_TAGS = 32  # of one run; ours are fewer
_MAX_DETAIL = 500  # letters of why a run failed: what is longer is cut


class Accepted(msgspec.Struct, frozen=True):
    """The part of a report that is sound, and how often something else was left out, by reason."""

    families: list[Family]
    runs: list[Run]
    environment: dict[str, str]
    outputs: dict[str, tuple[float, ...]]
    rejected: Counter[Reason]


def accept(report: Report, limits: Limits, reserved: Collection[str]) -> Accepted:
    """Take the sound part of a report.

    Args:
        report: As it was decoded: of the right types, with any numbers and texts.
        limits: How much of it is taken; of too many runs, the first ones.
        reserved: Base names (:func:`base_name`) of the exporter's own metrics, which no probe may use.

    Returns:
        What is sound, and how many parts are not, by reason; reasons that did not occur are not in it.
    """
    rejected: Counter[Reason] = Counter()
    families: dict[str, Family] = {}
    budget = limits.samples
    for family in report.families:
        base = base_name(family.name, family.kind)
        reason = _fault(family, limits)
        if reason is None and base in reserved:
            reason = "reserved"
        elif reason is None and base in families:
            reason = "duplicate"
        elif reason is None and (len(families) == limits.families or (size := samples(family)) > budget):
            reason = "too_many"
        if reason is None:
            families[base] = family
            budget -= size
        else:
            rejected[reason] += 1
    runs = [_cut(run) for run in report.runs[: limits.runs] if _sound_run(run, limits)]
    environment = bounded(
        {
            component: setting
            for component, setting in list(report.environment.items())[:_MAX_ENVIRONMENT]
            if len(component) <= _MAX_SETTING and len(setting) <= _MAX_SETTING
        },
        limits.environment_bytes,
    )
    outputs: dict[str, tuple[float, ...]] = {}
    places = _MAX_OUTPUTS
    for canary, values in report.outputs.items():
        if len(values) <= min(_MAX_OUTPUT, places) and _sound_output(canary, values, limits):
            outputs[canary] = values
            places -= len(values)
    rejected["run"] += len(report.runs) - len(runs)
    unsound = {i for i, run in enumerate(runs) if run.profile is not None and not is_sound(run.profile)}
    rejected["profile"] += len(unsound)
    if unsound:
        runs = [
            msgspec.structs.replace(run, profile=None) if i in unsound else run for i, run in enumerate(runs)
        ]
    rejected["environment"] += len(report.environment) - len(environment)
    rejected["output"] += len(report.outputs) - len(outputs)
    return Accepted([*families.values()], runs, environment, outputs, +rejected)


def bounded(environment: Mapping[str, str], most: int) -> dict[str, str]:
    """The components that fit, the shortest first: what identifies a model is short, what is invented need not be.

    Args:
        environment: Component → its value.
        most: Bytes of all names and values, as they are in memory: 49 more than its letters for each text.

    Returns:
        Those, in the order in which they came.
    """
    sizes = {name: sys.getsizeof(name) + sys.getsizeof(value) for name, value in environment.items()}
    if sum(sizes.values()) <= most:
        return dict(environment)
    fitting: set[str] = set()
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        most -= sizes[name]
        if most < 0:
            break
        fitting.add(name)
    return {name: value for name, value in environment.items() if name in fitting}


def _fault(family: Family, limits: Limits) -> Reason | None:
    """Why ``family``, looked at alone, cannot be shown; None where it can."""
    if len(family.name) > limits.label_bytes or not _NAME.fullmatch(family.name):
        return "name"
    stem = base_name(family.name, family.kind)
    if stem.endswith(_SUFFIXES) or (family.kind == "counter" and stem == family.name):
        return "name"
    pinned = _PINNED.get(family.name)
    if pinned is not None and pinned != (family.kind, family.labels):
        return "conflict"
    if KINDS.get(stem, family.kind) != family.kind:
        return "conflict"
    if not family.help or not _printable(family.help, _MAX_HELP):
        return "help"
    if len(family.labels) > limits.labels or len(set(family.labels)) < len(family.labels):
        return "labels"
    for name in family.labels:
        if not _sound_label(name):
            return "labels"
    for point in family.points:
        if len(point.labels) != len(family.labels):
            return "labels"
        for text in point.labels:
            if not _printable(text, limits.label_bytes):
                return "label_value"
        if not _sound_value(point.value, family.kind):
            return "value"
    if len({point.labels for point in family.points}) < len(family.points):
        return "duplicate"
    return None


def _sound_label(name: str) -> bool:
    return (
        _LABEL.fullmatch(name) is not None
        and len(name) <= 64
        and not name.startswith("__")
        and name not in _TAKEN_LABELS
    )


def _sound_value(value: float | HistogramValue, kind: Kind) -> bool:
    if isinstance(value, HistogramValue):
        return (
            kind == "histogram"
            and len(value.counts) == len(LADDER) + 1
            and min(value.counts) >= 0
            and sum(value.counts) <= bounds.MOST_COUNT
            and math.isfinite(value.sum)
            and value.sum >= 0
        )
    return kind != "histogram" and math.isfinite(value) and (kind == "gauge" or value >= 0)


def _sound_output(canary: str, values: tuple[float, ...], limits: Limits) -> bool:
    return _printable(canary, limits.label_bytes) and all(
        abs(value) <= bounds.MOST_AMOUNT for value in values
    )


def _sound_run(run: Run, limits: Limits) -> bool:
    return (
        _printable(run.canary, limits.label_bytes)
        and not bounds.fault(run)
        and all(_sound_names(each, limits) for each in (run.phases, run.controls, run.off_cpu, run.measures))
        and len(run.tags) <= _MAX_TAGS
        and all(_printable(word, limits.label_bytes) for word in (*run.tags, run.clock_reason))
        and is_boot_id(run.boot_id)
    )


def _cut(run: Run) -> Run:
    if len(run.detail) <= _MAX_DETAIL:
        return run
    return msgspec.structs.replace(run, detail=run.detail[:_MAX_DETAIL])


def is_boot_id(text: str) -> bool:
    """Whether a probe's process can have this name: a thousand of them are remembered.

    Args:
        text: Of a report or a run; empty in a run of the process that reports.
    """
    return _printable(text, _MAX_BOOT_ID)


def _sound_names(names: Collection[str], limits: Limits) -> bool:
    return len(names) <= _MAX_NAMES and all(_printable(name, limits.label_bytes) for name in names)


def _printable(text: str, most_bytes: int) -> bool:
    """Printable text has no line ends, control characters or lone surrogates, and so reads the same everywhere."""
    return len(text) <= most_bytes and text.isprintable() and len(text.encode()) <= most_bytes


def samples(family: Family) -> int:
    """How many lines of an exposition the points of ``family`` take: of a histogram also +Inf, sum and count.

    Args:
        family: Any, also an unsound one.
    """
    return sum(len(LADDER) + 3 if isinstance(point.value, HistogramValue) else 1 for point in family.points)


def base_name(name: str, kind: Kind) -> str:
    """The name under which OpenMetrics groups a family: a counter's goes without ``_total``.

    Args:
        name: The family's full name.
        kind: The family's kind.
    """
    return name.removesuffix("_total") if kind == "counter" else name
