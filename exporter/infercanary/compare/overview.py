"""One model across images, engines, devices and hosts: what the judge's stores hold of it, side by side.

It makes no statistical test, since hosts and engines differ in more than one thing. It shows the latency of each, and
how much starts of one kind differ, which is what a difference must be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from types import MappingProxyType

import msgspec

from infercanary.compare import stores
from infercanary.compare.efficiency import Efficiency, efficiency
from infercanary.judge.identity import identified, image_name, redrawn
from infercanary.judge.model import Generation, Start
from infercanary.judge.policy import FILES

_ENGINES = (
    ("torch", "torch", "torch", "torch_cuda_device"),
    ("onnx_provider", "ONNX Runtime", "onnxruntime", "onnx_cuda_device"),
    ("tensorrt_engine", "TensorRT", "tensorrt", "tensorrt_cuda_device"),
    ("kserve_server", "", "kserve_server", None),
)
"""Components of an environment: the one that only a canary of this engine reports (a version may mean just that it is
installed), the engine's name, its version, and its GPU; None for a server, whose device a client does not know."""


_KEY = ("canary", "host", "service", "image", "engine", "device", "model", "settings")
COLUMNS = {
    "canary": ("canary", ""),
    "host": ("host", ""),
    "service": ("service", ""),
    "image": ("image", ""),
    "origin": ("origin", ""),
    "engine": ("engine", ""),
    "device": ("device", ""),
    "latency_median_seconds": ("median", "median"),
    "latency_deviation_ratio": ("deviation", "SD"),
    "latency_above_fastest_ratio": ("slower", "slower"),
    "latency_p90_seconds": ("p90", "p90"),
    "starts": ("starts", "starts"),
    "runs": ("runs", "runs"),
    "load_seconds": ("load", "load"),
    "first_run_seconds": ("first_run", "first run"),
    "throughput_samples_per_second": ("efficiency.throughput", "samples/s"),
    "throughput_from": ("efficiency.throughput_from", "by"),
    "best_load": ("efficiency.best_load", "at"),
    "cost_per_1000": ("efficiency.cost_per_1000", "cost of 1,000"),
    "energy_per_1000_joules": ("efficiency.energy_per_1000", "energy of 1,000"),
    "host_memory_bytes": ("efficiency.host_memory", "host memory"),
    "device_memory_bytes": ("efficiency.device_memory", "device memory"),
    "model": ("model", ""),
    "settings": ("settings", ""),
}
"""Column of the CSV → field of a row, and title in a document's table; names are joined there."""


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
    """What identifies it; empty where that is not known, or each start has weights of its own."""
    settings: str = ""
    """The digest of the canary's settings; empty where it is not known."""


def overview(
    hosts: Mapping[str, Path],
    canary: str = "*",
    service: str = "*",
    prices: Mapping[str, float] = MappingProxyType({}),
) -> list[OverviewRow]:
    """Return the rows of every canary, the fastest first.

    Args:
        hosts: Host → file of the judge's store.
        canary: A pattern (fnmatch) of names of canaries.
        service: A pattern of names of services.
        prices: Host → price of an hour.

    Returns:
        Rows in order of the canary's name, then of the median; without those of which no start has enough runs.

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
    rows = sorted(filter(None, summaries), key=lambda row: (row.canary, row.median, row.host, row.service))
    fastest = {row.canary: row.median for row in reversed(rows)}
    return [msgspec.structs.replace(row, slower=row.median / fastest[row.canary] - 1) for row in rows]


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
    levels = [median(s.median for s in samples if s.median) for samples in kept]
    samples = [s for samples in kept for s in samples]
    return OverviewRow(
        **dict(zip(_KEY, key, strict=True)),
        origin=next((start.generation.origin.words for start in reversed(starts)), ""),
        starts=len(levels),
        runs=sum(s.runs for s in samples),
        median=median(levels),
        deviation=stdev(levels) / mean(levels) if len(levels) > 1 else None,
        p90=quantiles([s.median for s in samples if s.median], n=10, method="inclusive")[8],
        load=_cold(starts, key[0], "load"),
        first_run=_cold(starts, key[0], "first_run"),
        slower=0.0,
        medians=tuple(levels),
        efficiency=efficiency(samples, price),
    )


def _cold(starts: Sequence[Start], canary: str, step: str) -> float | None:
    steps = (start.generation.cold_start.get(canary, {}).get(step) for start in starts)
    seconds = [number for number in steps if number is not None]
    return median(seconds) if seconds else None
