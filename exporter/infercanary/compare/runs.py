"""Runs of journals and stores as rows of a table, one each, with every number that is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infercanary.command.settings import UsageError
from infercanary.compare.journal import sample_of
from infercanary.compare.recording import shown
from infercanary.contract.journal import JournalEntry, environment_id
from infercanary.contract.measures import MEASURES, measure_of
from infercanary.judge.model import Generation, Sample
from infercanary.pages.table_csv import Cell, moment

_MOST_COLUMNS = 1000
_UNITS = {"samples/s": "samples_per_second", "": "ratio"}


def runs_of_journal(host: str, entries: Iterable[tuple[str, JournalEntry]]) -> list[dict[str, Cell]]:
    """Read the runs of a journal, each once, also those that do not count.

    Args:
        host: Its name.
        entries: Of the journal, each with its place.

    Returns:
        A row for each run, in the order of the file.

    Raises:
        UsageError: A latency cannot be one.
    """
    rows: dict[tuple[str, str, int], dict[str, Cell]] = {}
    for place, entry in entries:
        if (run := entry.run) is not None:
            boot_id = run.boot_id or entry.boot_id
            start = Generation(service="", container="", boot_id=boot_id, started_at=0.0)
            known = {"detail": run.detail, "latency_min_seconds": min(run.latencies, default=None)}
            row = run_row(host, start, entry.environment, sample_of(place, run), known)
            rows[boot_id, run.canary, run.sequence] = row
    return [*rows.values()]


def runs_of_start(host: str, start: Generation, samples: Iterable[Sample]) -> list[dict[str, Cell]]:
    """Return a row for each run of a start in a store, where older runs are merged."""
    environment = environment_id(start.environment) if start.environment else ""
    return [run_row(host, start, environment, sample) for sample in samples]


def run_row(
    host: str, start: Generation, environment: str, sample: Sample, known: Mapping[str, Cell] | None = None
) -> dict[str, Cell]:
    """Return one run, or the median of several that a store merged: column → cell.

    Args:
        host: Its name.
        start: Its start.
        environment: The id of its environment.
        sample: Its numbers.
        known: Cells that only a journal has.
    """
    row: dict[str, Cell] = {
        "host": host,
        "service": str(start.key),
        "container": start.container,
        "image": start.image,
        "image_id": start.image_id,
        "boot_id": start.boot_id,
        "environment_id": environment,
        "canary": sample.canary,
        "sequence": sample.sequence,
        "started_at": moment(sample.started_at),
        "started_at_unix_seconds": sample.started_at,
        "outcome": sample.outcome,
        "detail": "",
        "latency_median_seconds": sample.median,
        "latency_min_seconds": None,
        "repeats": sample.repeats,
        "merged_runs": sample.runs,
        "tags": ";".join(sample.labelled_tags),
        "sm_clock_hertz": sample.sm_clock,
        "output_error_ratio": sample.output_error,
        "waited_seconds": sample.waited,
        "crowded_seconds": sample.crowded,
        "inside_cores": sample.inside,
        "received_segments_per_second": sample.received,
        **dict.fromkeys(map(_measure_column, MEASURES)),
        **(known or {}),
    }
    for kind, numbers in (
        ("phase", sample.phases),
        ("control", sample.controls),
        ("off_cpu", sample.off_cpu),
    ):
        row.update({f"{kind}_{name}_seconds": number for name, number in numbers.items()})
    return row | {_measure_column(name): number for name, number in sample.measures.items()}


def columns_of(rows: Iterable[Mapping[str, Cell]]) -> list[str]:
    """Return the columns of these runs: the fixed ones, then those of the phases, controls and loads that occur.

    Raises:
        UsageError: There are more than a spreadsheet can show.
    """
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
        if len(names) > _MOST_COLUMNS:
            raise UsageError(
                f"{shown(str(row['canary']))}: more than {_MOST_COLUMNS:,} columns of phases, controls and measures; "
                "pick fewer canaries with --canary"
            )
    number = [*names].index("received_segments_per_second") + 1 + len(MEASURES)
    return [*[*names][:number], *sorted([*names][number:])]


def _measure_column(name: str) -> str:
    """The column of a measure; one that only a newer probe knows has no unit."""
    if (measure := measure_of(name)) is None:
        return f"measure_{name}"
    return f"{name}_{_UNITS.get(measure.unit, measure.unit)}"
