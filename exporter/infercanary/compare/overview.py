"""One model across images, engines, devices and hosts: rows from the judge's stores, side by side.

Rows differ in more than one way, such as host and engine, so there is no statistical test. Readers compare a difference
with the SD of the starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from statistics import mean, median, quantiles, stdev
from typing import Any

import msgspec

from infercanary.compare import stores
from infercanary.compare.efficiency import Efficiency, efficiency, prices
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
"""For each engine: a component of the environment that identifies the engine, the engine's name, and the components
with its version and its GPU. A version alone does not identify an engine: the library may be installed but unused. The
GPU is None for a server: a client does not know the server's device.
"""

_KEY = ("canary", "host", "service", "image", "engine", "device", "model", "settings")
_TEXTS = (*_KEY[1:], "origin")
_TABLES: Mapping[str, Mapping[str, str]] = {
    "latency": {
        "latency_median_seconds": "median",
        "latency_deviation_ratio": "SD",
        "latency_above_fastest_ratio": "slower",
        "latency_p90_seconds": "p90",
        "starts": "starts",
        "runs": "runs",
    },
    "cold start": {"load_seconds": "load", "first_run_seconds": "first run"},
    "throughput and cost": {
        "throughput_samples_per_second": "samples/s",
        "cost_per_1000": "cost of 1,000",
        "energy_per_1000_joules": "energy of 1,000",
        "throughput_from": "",
    },
    "memory": {"host_memory_bytes": "host memory", "device_memory_bytes": "device memory"},
}
"""Column title for each field, by table title. Text fields without a column title are joined in the last column."""
_UNITS = {"seconds": "s", "ratio": "ratio", "joules": "joules", "bytes": "bytes"}


class OverviewRow(Efficiency, frozen=True, kw_only=True):
    """Summary of the starts of one canary with the same host, service, image, engine, device, model and settings.

    The fields have the names of the CSV's columns.
    """

    canary: str
    host: str
    service: str
    image: str
    origin: str
    """Version and revision of the image, from its labels; empty if the labels lack them."""
    engine: str
    device: str
    model: str = ""
    """Identity of the model; empty if unknown, or with random initialization."""
    settings: str = ""
    """Digest of the canary's settings; empty if unknown."""
    starts: int
    runs: int
    latency_median_seconds: float
    """Median of the starts' medians."""
    latency_deviation_ratio: float | None
    """SD of the starts' medians, divided by their mean; None for one start."""
    latency_p90_seconds: float
    """90th percentile of the medians of all runs."""
    latency_above_fastest_ratio: float = 0.0
    """Difference from the fastest row of this canary: 0.5 means 1.5 times the latency."""
    load_seconds: float | None
    first_run_seconds: float | None


def overview(
    hosts: Mapping[str, str], canary: str, service: str, given_prices: Sequence[str]
) -> list[OverviewRow]:
    """Return the rows of every canary, the fastest row first. A row needs at least one start with enough runs.

    Args:
        hosts: Locations of stores, by host.
        canary: Pattern (fnmatch) of canary names.
        service: Pattern of service names.
        given_prices: Prices of an hour, as in ``--price``. Hosts of recorded benchmarks are also known.

    Raises:
        UsageError: A store cannot be read, or a price is wrong.
    """
    groups: dict[tuple[str, ...], list[Start]] = {}
    of_canaries = groupby(
        stores.starts(hosts, canary, service), key=lambda each: (each[1], each[0], str(each[2].key))
    )
    for group, history in of_canaries:
        known = (Start.of(generation, samples) for *_, generation, samples in history)
        starts = identified(sorted(known, key=lambda start: start.generation.started_at))
        is_redrawn = redrawn(starts)
        for start in starts:
            model = "" if is_redrawn else start.model
            work = (*kind(start.generation), model, start.settings)
            groups.setdefault((*group, *work), []).append(start)
    price_of = prices(given_prices, dict.fromkeys([*hosts, *(key[1] for key in groups)]))
    return ranked(summary(key, starts, price_of.get(key[1])) for key, starts in groups.items())


def ranked(summaries: Iterable[OverviewRow | None]) -> list[OverviewRow]:
    """Sort the rows of each canary by latency, and add the difference from the fastest row."""
    order = attrgetter("canary", "latency_median_seconds", "host", "service")
    rows = sorted(filter(None, summaries), key=order)
    fastest = {row.canary: row.latency_median_seconds for row in reversed(rows)}
    return [
        msgspec.structs.replace(
            row, latency_above_fastest_ratio=row.latency_median_seconds / fastest[row.canary] - 1
        )
        for row in rows
    ]


def overview_document(rows: Sequence[OverviewRow]) -> Document:
    """Return a document with tables for each canary, narrow enough for a terminal. A field with the same value in all
    rows becomes a fact.

    Args:
        rows: One or more rows; rows of one canary are consecutive.
    """
    shared = [name for name in _TEXTS if len({getattr(row, name) for row in rows}) == 1]
    texts = [name for name in _TEXTS if name not in shared]
    tables = []
    for canary, group in groupby(rows, key=attrgetter("canary")):
        of_canary = [*group]
        for title, columns in _TABLES.items():
            numbers = [
                name for name in columns if columns[name] and any(getattr(row, name) for row in of_canary)
            ]
            others = [*texts, *(name for name in columns if not columns[name])]
            cells = [
                (
                    *(
                        Fact("", getattr(row, name), _UNITS.get(name.rpartition("_")[2], "")).text
                        for name in numbers
                    ),
                    " · ".join(filter(None, (shown(getattr(row, name), 80) for name in others))),
                )
                for row in of_canary
            ]
            width = len(numbers) + any(cell[-1] for cell in cells)
            if numbers:
                names = [*(columns[name] for name in numbers), "of"]
                tables.append(Table(f"{canary}: {title}", names[:width], [cell[:width] for cell in cells]))
    return Document(facts=[Fact(name, getattr(rows[0], name)) for name in shared], tables=tables)


def kind(generation: Generation) -> tuple[str, str, str]:
    """Return image, engine and device."""
    environment = generation.environment
    engines, devices = [], []
    for component, name, version, gpu in _ENGINES:
        if environment.get(component):
            engines.append(f"{name} {environment.get(version, '')}".strip())
            devices.append("" if gpu is None else environment.get(gpu) or environment.get("cpu_model", ""))
    # A probe reports one environment for all its canaries. If the environment names several engines, one of them ran
    # this canary.
    engine, device = (
        " or ".join(dict.fromkeys(filter(None, names)))
        for names in (engines, devices or [environment.get("cpu_model", "")])
    )
    return image_name(generation), engine, device


def summary(key: tuple[str, ...], starts: Sequence[Start], price: float | None) -> OverviewRow | None:
    """Return a row; None if no start has enough runs."""
    kept = [start.samples for start in starts if len(start.samples) >= FILES.pool.fewest_runs]
    if not kept:
        return None
    # Settled runs always have a median.
    levels = [median(s.median or 0.0 for s in samples) for samples in kept]
    samples = [*chain.from_iterable(kept)]
    latencies = [s.median or 0.0 for s in samples]
    names: dict[str, Any] = dict(zip(_KEY, key, strict=True))
    return OverviewRow(
        **names,
        **msgspec.structs.asdict(efficiency(samples, median(levels), price)),
        origin=next((start.generation.origin.words for start in reversed(starts)), ""),
        starts=len(levels),
        runs=sum(s.runs for s in samples),
        latency_median_seconds=median(levels),
        latency_deviation_ratio=stdev(levels) / mean(levels) if len(levels) > 1 else None,
        latency_p90_seconds=quantiles(latencies, n=10, method="inclusive")[8],
        load_seconds=_cold(starts, key[0], "load"),
        first_run_seconds=_cold(starts, key[0], "first_run"),
    )


def _cold(starts: Sequence[Start], canary: str, step: str) -> float | None:
    steps = (start.generation.cold_start.get(canary, {}).get(step) for start in starts)
    seconds = [number for number in steps if number is not None]
    return median(seconds) if seconds else None
