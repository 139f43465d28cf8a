"""Runs of journals and stores as rows of a table, one each, with every number that is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from infercanary.command.settings import UsageError
from infercanary.compare.journal import sample_of
from infercanary.compare.recording import shown
from infercanary.contract.journal import JournalEntry, environment_id
from infercanary.contract.measures import MEASURES, measure_of
from infercanary.judge.model import Generation, Sample
from infercanary.pages.table_csv import Cell, moment

_MOST_COLUMNS = 1000
_UNITS = {"samples/s": "samples_per_second", "": "ratio"}


class RunRow(NamedTuple):
    """One run, or the median of several that a store merged. What is not known is empty or None."""

    host: str
    generation: Generation
    environment_id: str
    sample: Sample
    detail: str = ""
    fastest: float | None = None
    """Seconds of its fastest repeat."""


_FIXED = {
    "host": "host", "service": "generation.key", "container": "generation.container", "image": "generation.image",
    "image_id": "generation.image_id", "boot_id": "generation.boot_id", "environment_id": "environment_id",
    "canary": "sample.canary", "sequence": "sample.sequence", "started_at": "sample.started_at",
    "started_at_unix_seconds": "sample.started_at", "outcome": "sample.outcome", "detail": "detail",
    "latency_median_seconds": "sample.median", "latency_min_seconds": "fastest", "repeats": "sample.repeats",
    "merged_runs": "sample.runs", "tags": "sample.tags", "sm_clock_hertz": "sample.sm_clock",
    "output_error_ratio": "sample.output_error", "waited_seconds": "sample.waited",
    "crowded_seconds": "sample.crowded", "inside_cores": "sample.inside",
    "received_segments_per_second": "sample.received",
}  # fmt: skip
"""Column → field of a row."""
_FIELDS = attrgetter(*_FIXED.values())


def of_journal(host: str, entries: Iterable[tuple[str, JournalEntry]]) -> list[RunRow]:
    """Read the runs of a journal, each once, also those that do not count.

    Args:
        host: Its name; empty where it is not known.
        entries: Of the journal, each with its place.

    Returns:
        Rows in the order of the file.

    Raises:
        UsageError: A latency cannot be one.
    """
    found: dict[tuple[str, str, int], RunRow] = {}
    for place, entry in entries:
        if (run := entry.run) is None:
            continue
        boot_id = run.boot_id or entry.boot_id
        found[boot_id, run.canary, run.sequence] = RunRow(
            host,
            Generation(service="", container="", boot_id=boot_id, started_at=0.0),
            entry.environment,
            sample_of(place, run),
            run.detail,
            min(run.latencies, default=None),
        )
    return [*found.values()]


def of_start(host: str, generation: Generation, samples: Iterable[Sample]) -> Iterator[RunRow]:
    """Yield the runs of a start in a store.

    Args:
        host: Its name.
        generation: The start.
        samples: Its runs; older ones are merged.

    Yields:
        Rows in the order of the samples.
    """
    environment = environment_id(generation.environment) if generation.environment else ""
    for sample in samples:
        yield RunRow(host, generation, environment, sample)


def header(rows: Iterable[RunRow]) -> list[str]:
    """Return the columns for these runs: the fixed ones, then those of the phases, controls and loads that occur.

    Args:
        rows: All of the table.

    Returns:
        Names with their units.

    Raises:
        UsageError: There are more than a spreadsheet can show.
    """
    known = {_measured(name) for name in MEASURES}
    more: dict[str, None] = {}
    for row in rows:
        more.update(dict.fromkeys(_numbers(row.sample)))
        if len(more) > _MOST_COLUMNS:
            raise UsageError(
                f"{shown(row.sample.canary)}: more than {_MOST_COLUMNS:,} phases, controls and measures; pick fewer "
                "canaries with --canary"
            )
    return [*_FIXED, *map(_measured, MEASURES), *sorted(more.keys() - known)]


def cells(row: RunRow, columns: Sequence[str]) -> list[Cell]:
    """Return the cells of a run.

    Args:
        row: The run.
        columns: As :func:`header` gives them.

    Returns:
        A cell for each column; None where nothing is known.
    """
    fixed = dict(zip(_FIXED, _FIELDS(row), strict=True)) | {
        "service": str(row.generation.key),
        "started_at": moment(row.sample.started_at),
        "tags": ";".join(row.sample.labelled_tags),
    }
    return [*map({**_numbers(row.sample), **fixed}.get, columns)]


def _numbers(sample: Sample) -> Mapping[str, float]:
    """Column → number, of those that not every run has."""
    kinds = {"phase": sample.phases, "control": sample.controls, "off_cpu": sample.off_cpu}
    found = {f"{kind}_{name}_seconds": x for kind, several in kinds.items() for name, x in several.items()}
    return found | {_measured(name): x for name, x in sample.measures.items()}


def _measured(name: str) -> str:
    """The column of a measure; one that only a newer probe knows has no unit."""
    if (measure := measure_of(name)) is None:
        return f"measure_{name}"
    return f"{name}_{_UNITS.get(measure.unit, measure.unit)}"
