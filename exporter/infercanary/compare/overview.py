"""One model across images, engines, devices and hosts: rows of the judge's stores side by side.

There is no statistical test, since hosts and engines differ in more than one thing. A difference must be compared with
the SD of starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any, NamedTuple

import msgspec

from infercanary.compare import stores
from infercanary.compare.efficiency import Efficiency, efficiency
from infercanary.compare.recording import shown
from infercanary.judge.identity import identified, image_name, redrawn
from infercanary.judge.model import Generation, Start
from infercanary.judge.policy import FILES
from infercanary.render.document import Document, Fact, Table

_ENGINES = (
    ("torch", "torch", "torch", "torch_cuda_device"),
    ("onnx_provider", "ONNX Runtime", "onnxruntime", "onnx_cuda_device"),
    ("tensorrt_engine", "TensorRT", "tensorrt", "tensorrt_cuda_device"),
    ("kserve_server", "", "kserve_server", None),
)
"""Components of an environment: the one that only a canary of this engine reports (a version may mean just that it is
installed), the engine's name, its version, and its GPU; None for a server, whose device a client does not know."""


_KEY = ("canary", "host", "service", "image", "engine", "device", "model", "settings")


class Column(NamedTuple):
    """A column of the CSV; with a title, it is in a table of the document, too."""

    name: str
    field: str = ""
    """Field of a row; "" where it has the column's name."""
    title: str = ""
    """A column of text has none: its text is in the last column, or beside the tables if all rows share it."""
    unit: str = ""
    """Of a :class:`~infercanary.render.document.Fact`."""

    def of(self, row: OverviewRow) -> Any:
        """Return the cell of a row."""
        return attrgetter(self.field or self.name)(row)

    def text(self, row: OverviewRow) -> str:
        """Return the cell as people read it: a count in all its digits, other numbers rounded."""
        cell = self.of(row)
        return f"{cell:,}" if isinstance(cell, int) else Fact("", cell, self.unit).text


_NAMES = [Column(name) for name in ("host", "service", "image", "origin", "engine", "device")]
_TABLES = {
    "latency": [
        Column("latency_median_seconds", "median", "median", "s"),
        Column("latency_deviation_ratio", "deviation", "SD", "ratio"),
        Column("latency_above_fastest_ratio", "slower", "slower", "ratio"),
        Column("latency_p90_seconds", "p90", "p90", "s"),
        Column("starts", "", "starts"),
        Column("runs", "", "runs"),
    ],
    "cold start": [
        Column("load_seconds", "load", "load", "s"),
        Column("first_run_seconds", "first_run", "first run", "s"),
    ],
    "throughput and cost": [
        Column("throughput_samples_per_second", "efficiency.throughput", "samples/s"),
        Column("throughput_from", "efficiency.throughput_from"),
        Column("best_load", "efficiency.best_load"),
        Column("cost_per_1000", "efficiency.cost_per_1000", "cost of 1,000"),
        Column("energy_per_1000_joules", "efficiency.energy_per_1000", "energy of 1,000", "joules"),
    ],
    "memory": [
        Column("host_memory_bytes", "efficiency.host_memory", "host memory", "bytes"),
        Column("device_memory_bytes", "efficiency.device_memory", "device memory", "bytes"),
    ],
}
_MODELS = [Column("model"), Column("settings")]
COLUMNS = [Column("canary"), *_NAMES, *chain.from_iterable(_TABLES.values()), *_MODELS]


class OverviewRow(msgspec.Struct, frozen=True, kw_only=True):
    """The starts of one canary with the same host, service, image, engine, device, model and settings; in seconds."""

    canary: str
    host: str
    service: str
    image: str
    origin: str
    """Version and revision of the image, by its own labels; empty where they name none."""
    engine: str
    device: str
    starts: int
    runs: int
    median: float
    """Of the medians of the starts."""
    deviation: float | None
    """SD of the medians of the starts over their mean; None of one start."""
    p90: float
    """Of the medians of all runs."""
    load: float | None
    first_run: float | None
    slower: float
    """Than the fastest row of this canary, as a ratio: 0.5 takes 1.5 times as long."""
    medians: tuple[float, ...]
    """Of each start, in order of time."""
    efficiency: Efficiency
    model: str = ""
    """Identity of the model; empty where it is not known, or with random initialization."""
    settings: str = ""
    """The digest of the canary's settings; empty where it is not known."""


def overview(
    hosts: Mapping[str, Path], canary: str, service: str, prices: Mapping[str, float]
) -> list[OverviewRow]:
    """Return the rows of every canary, the fastest first, without those of which no start has enough runs.

    Args:
        hosts: Host → file of the judge's store.
        canary: A pattern (fnmatch) of names of canaries.
        service: A pattern of names of services.
        prices: Host → price of an hour.

    Raises:
        UsageError: A file cannot be read as a store.
    """
    histories: dict[tuple[str, str, str], list[Start]] = {}
    for host, path in hosts.items():
        for name, generation, samples in stores.starts(path, canary, service):
            key = name, host, str(generation.key)
            histories.setdefault(key, []).append(Start.of(generation, samples))
    groups: dict[tuple[str, ...], list[Start]] = {}
    for key, history in histories.items():
        starts = identified(sorted(history, key=lambda start: start.generation.started_at))
        is_redrawn = redrawn(starts)
        for start in starts:
            model = "" if is_redrawn else start.model
            groups.setdefault((*key, *_kind(start.generation), model, start.settings), []).append(start)
    summaries = (_summary(key, starts, prices.get(key[1])) for key, starts in groups.items())
    rows = sorted(filter(None, summaries), key=attrgetter("canary", "median", "host", "service"))
    fastest = {row.canary: row.median for row in reversed(rows)}
    return [msgspec.structs.replace(row, slower=row.median / fastest[row.canary] - 1) for row in rows]


def overview_document(rows: Sequence[OverviewRow]) -> Document:
    """Return tables for each canary, each narrow enough for a terminal. A text that all rows share is a fact.

    Args:
        rows: One or more; those of a canary one after the other.
    """
    texts = [*_NAMES, *_MODELS]
    shared = [column for column in texts if len({column.of(row) for row in rows}) == 1]
    tables = []
    for canary, group in groupby(rows, key=attrgetter("canary")):
        rows_of_canary = [*group]
        for title, columns in _TABLES.items():
            numbers = [
                column
                for column in columns
                if column.title and any(column.of(row) is not None for row in rows_of_canary)
            ]
            words = [column for column in [*texts, *columns] if not column.title and column not in shared]
            cells = [
                (
                    *(column.text(row) for column in numbers),
                    " · ".join(shown(column.of(row), 80) for column in words if column.of(row)),
                )
                for row in rows_of_canary
            ]
            if numbers:
                names = [*(column.title for column in numbers), "of"]
                tables.append(Table(f"{canary}: {title}", names, cells))
    return Document(facts=[Fact(column.name, column.of(rows[0])) for column in shared], tables=tables)


def _kind(generation: Generation) -> tuple[str, str, str]:
    """Return image, engine and device."""
    environment = generation.environment
    engines, devices = [], []
    for component, name, version, gpu in _ENGINES:
        if environment.get(component):
            engines.append(f"{name} {environment.get(version, '')}".strip())
            devices.append("" if gpu is None else environment.get(gpu) or environment.get("cpu_model", ""))
    # A probe reports one environment for all its canaries: of several engines, one has run this canary.
    engine, device = (
        " or ".join(dict.fromkeys(filter(None, names)))
        for names in (engines, devices or [environment.get("cpu_model", "")])
    )
    return image_name(generation), engine, device


def _summary(key: tuple[str, ...], starts: Sequence[Start], price: float | None) -> OverviewRow | None:
    """Return a row; None if no start has enough runs."""
    kept = [start.samples for start in starts if len(start.samples) >= FILES.pool.fewest_runs]
    if not kept:
        return None
    levels = [median(s.median or 0.0 for s in samples) for samples in kept]  # a run that counts has a median
    samples = [*chain.from_iterable(kept)]
    return OverviewRow(
        **dict(zip(_KEY, key, strict=True)),
        origin=next((start.generation.origin.words for start in reversed(starts)), ""),
        starts=len(levels),
        runs=sum(s.runs for s in samples),
        median=median(levels),
        deviation=stdev(levels) / mean(levels) if len(levels) > 1 else None,
        p90=quantiles([s.median or 0.0 for s in samples], n=10, method="inclusive")[8],
        load=_cold(starts, key[0], "load"),
        first_run=_cold(starts, key[0], "first_run"),
        slower=0.0,
        medians=tuple(levels),
        efficiency=efficiency(samples, median(levels), price),
    )


def _cold(starts: Sequence[Start], canary: str, step: str) -> float | None:
    steps = (start.generation.cold_start.get(canary, {}).get(step) for start in starts)
    seconds = [number for number in steps if number is not None]
    return median(seconds) if seconds else None
