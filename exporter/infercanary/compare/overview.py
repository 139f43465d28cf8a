"""One model across images, engines, devices and hosts: what the judge's stores hold of it, side by side.

It makes no statistical test, since hosts and engines differ in more than one thing. It shows the latency of each, and
how much starts of one kind differ, which is what a difference must be compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from infercanary.compare import stores
from infercanary.compare.efficiency import Efficiency, efficiency
from infercanary.compare.recording import shown
from infercanary.contract.profile import shares
from infercanary.judge.identity import identified, image_name, redrawn
from infercanary.judge.model import Generation, Start
from infercanary.judge.policy import FILES
from infercanary.judge.profiles import unpacked

_OPERATORS = 5
_SHOWN = 24  # characters of a digest that tell two apart


class _Engine(NamedTuple):
    """How the engine of a canary is recognised."""

    component: str
    """Only a canary of this engine reports it; that a version is reported may mean just that it is installed."""
    name: str
    version: str
    gpu: str = ""
    is_here: bool = True
    """False of a server: a client does not know on which device it computes."""


_ENGINES = (
    _Engine("torch", "torch", "torch", "torch_cuda_device"),
    _Engine("onnx_provider", "ONNX Runtime", "onnxruntime", "onnx_cuda_device"),
    _Engine("tensorrt_engine", "TensorRT", "tensorrt", "tensorrt_cuda_device"),
    _Engine("kserve_server", "", "kserve_server", is_here=False),
)


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
    operators: dict[str, float] = {}
    """Operator → its share of the wall time in profiled repeats, the largest first, `outside` among them; the first
    few. Empty where nothing was profiled."""


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
        for each, generation, samples in stores.starts(path, canary, service):
            history = histories.setdefault((each, host, str(generation.key)), [])
            history.append(Start.of(generation, samples))
    groups: dict[tuple[str, ...], list[Start]] = {}
    for of, history in histories.items():
        starts = identified(sorted(history, key=lambda start: start.generation.started_at))
        without_seed = redrawn(starts)
        for start in starts:
            what = "" if without_seed else start.model, start.settings
            groups.setdefault((*of, *_kind(start.generation), *what), []).append(start)
    kinds = [
        found
        for key, starts in groups.items()
        if (found := _summed(key, starts, prices.get(key[1]))) is not None
    ]
    fastest: dict[str, float] = {}
    for kind in kinds:
        fastest[kind.canary] = min(kind.median, fastest.get(kind.canary, kind.median))
    compared = [msgspec.structs.replace(k, slower=k.median / fastest[k.canary] - 1) for k in kinds]
    return sorted(compared, key=lambda k: (k.canary, k.median, k.host, k.service))


def apart(rows: Sequence[OverviewRow]) -> list[str]:
    """Return what tells rows of one image from each other, in the order of the rows.

    Args:
        rows: Of one or more canaries.

    Returns:
        Such as ``model file-sha256:3f2a…, settings 9c1b…``; empty where there is no other row of the image.
    """
    seen: dict[tuple[str, ...], list[OverviewRow]] = {}
    for row in rows:
        seen.setdefault((row.canary, row.host, row.service, row.image), []).append(row)

    def words(row: OverviewRow) -> str:
        beside = seen[row.canary, row.host, row.service, row.image]
        models, settings = {other.model for other in beside}, {other.settings for other in beside}
        each = (("model", row.model, models), ("settings", row.settings, settings))
        return ", ".join(
            f"{name} {shown(own, _SHOWN) or 'unknown'}" for name, own, several in each if len(several) > 1
        )

    return [words(row) for row in rows]


def _kind(generation: Generation) -> tuple[str, str, str]:
    """Return image, engine and device."""
    environment = generation.environment
    there = [engine for engine in _ENGINES if environment.get(engine.component)]
    engines = [f"{engine.name} {environment.get(engine.version, '')}".strip() for engine in there]
    cpu = environment.get("cpu_model", "")
    devices = [environment.get(engine.gpu) or cpu if engine.is_here else "" for engine in there]
    # A probe reports one environment for all its canaries: of several engines, one has run this canary.
    return image_name(generation), _either(engines), _either(devices or [cpu])


def _either(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(filter(None, names)))


def _summed(key: tuple[str, ...], starts: Sequence[Start], price: float | None) -> OverviewRow | None:
    kept = [start for start in starts if len(start.samples) >= FILES.pool.fewest_runs]
    counted = [[s.median for s in start.samples if s.median] for start in kept]
    if not kept:
        return None
    canary, host, service, image, engine, device, model, settings = key
    levels = [median(medians) for medians in counted]
    every = [value for medians in counted for value in medians]
    return OverviewRow(
        canary=canary,
        host=host,
        service=service,
        image=image,
        origin=next((start.generation.origin.words for start in reversed(starts)), ""),
        engine=engine,
        device=device,
        starts=len(levels),
        runs=sum(s.runs for start in kept for s in start.samples),
        median=median(levels),
        deviation=stdev(levels) / mean(levels) if len(levels) > 1 else None,
        p90=quantiles(every, n=10, method="inclusive")[8],
        load=_cold(starts, canary, "load"),
        first_run=_cold(starts, canary, "first_run"),
        slower=0.0,
        medians=tuple(levels),
        efficiency=efficiency((s for start in kept for s in start.samples), price),
        model=model,
        settings=settings,
        operators=_operators(starts, canary),
    )


def _operators(starts: Sequence[Start], canary: str) -> dict[str, float]:
    """The shares of the last profile that there is."""
    every = [p for start in starts for p in unpacked(start.generation.profiles.get(canary, ()))]
    return shares(every[-1], _OPERATORS) if every else {}


def _cold(starts: Iterable[Start], canary: str, step: str) -> float | None:
    steps = (start.generation.cold_start.get(canary, {}).get(step) for start in starts)
    seconds = [each for each in steps if each is not None]
    return median(seconds) if seconds else None
