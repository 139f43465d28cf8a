"""Runs of journals and stores as rows of a table, with all numbers of a run."""

from __future__ import annotations

from collections.abc import Iterable

from infercanary.compare.journal import is_possible, summarized
from infercanary.contract.journal import JournalEntry, environment_id
from infercanary.contract.measures import MEASURES, measure_of
from infercanary.judge.model import Generation, Sample, kept
from infercanary.pages.table_csv import Cell, moment

_OF_START = ("container", "image", "image_id", "boot_id")
_OF_RUN = {
    "canary": "canary",
    "sequence": "sequence",
    "started_at": "",
    "started_at_unix_seconds": "started_at",
    "outcome": "outcome",
    "detail": "",
    "latency_median_seconds": "median",
    "latency_min_seconds": "",
    "repeats": "repeats",
    "merged_runs": "runs",
    "tags": "",
    "sm_clock_hertz": "sm_clock",
    "output_error_ratio": "output_error",
    "waited_seconds": "waited",
    "waited_inside_seconds": "crowded",
    "inside_cores": "inside",
    "received_segments_per_second": "received",
}
"""Attribute of a run, by column; "" for a cell that is computed."""
_BY_NAME = {"phases": "phase", "controls": "control", "off_cpu": "off_cpu"}
_UNITS = {"samples/s": "samples_per_second", "": "ratio"}


def runs_of_journal(
    host: str, entries: Iterable[tuple[str, JournalEntry]], notes: list[str]
) -> list[dict[str, Cell]]:
    """Return a row for each run of a journal, whether it counts for verdicts or not, in the order of the file.

    Args:
        host: Name of the journal's host.
        entries: Entries with their places; a run that was written twice becomes one row.
        notes: List that gets a remark on impossible runs, which are left out.
    """
    rows = {}
    unsound: list[str] = []
    for where, entry in entries:
        if (run := entry.run) is not None and is_possible(where, run, unsound):
            boot_id = run.boot_id or entry.boot_id
            start = Generation(service="", container="", boot_id=boot_id, started_at=0.0)
            rows[boot_id, run.canary, run.sequence] = {
                **_row(host, start, entry.environment, kept(run)),
                "detail": run.detail,
                "latency_min_seconds": min(run.latencies, default=None),
            }
    notes += summarized(unsound)
    return [*rows.values()]


def runs_of_start(host: str, start: Generation, samples: Iterable[Sample]) -> list[dict[str, Cell]]:
    """Return a row for each run of a start in a store. The store merges older runs: such a row has medians."""
    environment = environment_id(start.environment) if start.environment else ""
    return [_row(host, start, environment, sample) for sample in samples]


def _row(host: str, start: Generation, environment: str, sample: Sample) -> dict[str, Cell]:
    """Return the cells of one run, or of the median of merged runs; fixed columns come first."""
    return {
        "host": host,
        "service": str(start.key),
        **{name: getattr(start, name) for name in _OF_START},
        "environment_id": environment,
        **{column: getattr(sample, name) if name else None for column, name in _OF_RUN.items()},
        "started_at": moment(sample.started_at),
        "detail": "",
        "tags": ";".join(sample.labelled_tags),
        **dict.fromkeys(map(_measure_column, MEASURES)),
        **{
            f"{kind}_{name}_seconds": number
            for field, kind in _BY_NAME.items()
            for name, number in getattr(sample, field).items()
        },
        **{_measure_column(name): number for name, number in sample.measures.items()},
    }


def _measure_column(name: str) -> str:
    """Return the column name of a measure, with the unit if this version knows the measure."""
    if (measure := measure_of(name)) is None:
        return f"measure_{name}"
    return f"{name}_{_UNITS.get(measure.unit, measure.unit)}"
