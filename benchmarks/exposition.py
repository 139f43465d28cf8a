"""How long does a scrape of 1,000 containers take, and what does it cost the exporter: CPU and memory?

Before each scrape all simulated containers report into a real exporter, through the code that a poll runs after its
download. A second process scrapes it through HTTP, with gzip off and on. Beside it, in turn, that process writes the
same families by ``prometheus_client.generate_latest``, already built. Exits with 1 where gzip takes less than 30 times
less CPU than prometheus_client's plain text, or more than 1.5 times as long as plain. Memory has a goal that is shown.

    python benchmarks/exposition.py [--containers 1000] [--rounds 7]
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import click
import msgspec
import psutil
import structlog
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infercanary.contract.report import (
    LADDER,
    LATENCY,
    PHASE,
    SCHEMA_VERSION,
    Family,
    HistogramValue,
    Report,
    Run,
    encode,
)
from infercanary.contract.report import Metric as Declaration
from infercanary.exporter.__main__ import settle_garbage
from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.probe_state import PolledProbe

_GAUGES = [
    Declaration(f"infercanary_simulated_{n}_ratio", "gauge", f"Simulated {n}.", ("canary",))
    for n in range(40)
]
_COUNTERS = [
    Declaration(f"infercanary_simulated_{n}_seconds_total", "counter", f"Simulated {n}.", ("canary",))
    for n in range(18)
]

CPU_GOAL, GZIP_GOAL, MEMORY_GOAL = 30.0, 1.5, 180 << 20
_CLASSES = {"histogram": HistogramMetricFamily, "counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
_ENCODINGS = ("identity", "gzip")
_buffer = bytearray(1 << 20)


def histogram(seed: random.Random, observations: int) -> HistogramValue:
    """``observations`` around some rung, as a latency spreads."""
    counts = [0] * (len(LADDER) + 1)
    for _ in range(observations):
        counts[max(0, min(len(LADDER), round(seed.gauss(30, 2))))] += 1
    return HistogramValue(tuple(counts), observations * 0.0123)


def report(container: int, tick: int) -> Report:
    """What the simulated probe of ``container`` answers at its ``tick``-th poll."""
    seed = random.Random(container)
    observations = 200 + 20 * tick
    families: list[Family] = [
        LATENCY.family({("resnet18",): histogram(seed, observations)}),
        PHASE.family({("resnet18", phase): histogram(seed, observations) for phase in ("compute", "launch")}),
        *(metric.family({("resnet18",): seed.random() + tick}) for metric in _GAUGES),
        *(metric.family({("resnet18",): seed.random() * 1e4 + tick}) for metric in _COUNTERS),
    ]
    run = Run(tick, "resnet18", 0.0, 0.0, "ok", tuple(seed.gauss(0.0123, 0.0002) for _ in range(20)))
    return Report(SCHEMA_VERSION, f"boot-{container}", 0.0, str(tick), 0, tuple(families), {}, (run,))


def identity(container: int) -> dict[str, str]:
    return {"service": f"service-{container % 20}", "container": f"service-{container % 20}-{container}"}


@cache
def ready_made(containers: int) -> list[Metric]:
    """The families of all containers as prometheus_client wants them."""
    merged: dict[str, Metric] = {}
    for container in range(containers):
        who = identity(container)
        probe = PolledProbe(Container(service=who["service"], name=who["container"], id=f"{container:064x}"))
        for family in (*report(container, 0).families, *probe.families(0.0)):
            names = [*who, *family.labels]
            metric: Metric = _CLASSES[family.kind](family.name, family.help, labels=names)
            metric = merged.setdefault(family.name, metric)
            for point in family.points:
                labels = [*who.values(), *point.labels]
                if isinstance(point.value, HistogramValue):
                    bounds = [*map(floatToGoString, LADDER), "+Inf"]
                    cumulative = zip(bounds, map(float, accumulate(point.value.counts)), strict=True)
                    metric.add_metric(labels, [*cumulative], point.value.sum)  # type: ignore[attr-defined]
                else:
                    metric.add_metric(labels, point.value)  # type: ignore[attr-defined]
    return [*merged.values()]


class Cost(NamedTuple):
    """Of one exposition."""

    seconds: float
    cpu: float
    size: int


def theirs(containers: int) -> Cost:
    """What prometheus_client needs for the plain text of the families of all containers."""

    class Given(Collector):
        def collect(self) -> Iterable[Metric]:
            return ready_made(containers)

    ready_made(containers)
    started, cpu = time.perf_counter(), time.process_time()
    output = generate_latest(Given())
    return Cost(time.perf_counter() - started, time.process_time() - cpu, len(output))


def lines(containers: int) -> int:
    """How many samples all of them have."""
    return sum(len(metric.samples) for metric in ready_made(containers))


def scrape(port: int, encoding: str) -> tuple[float, int]:
    """Seconds from the request to the last byte, and the bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    started = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept-Encoding": encoding})
    response = connection.getresponse()
    size = 0
    while count := response.readinto(_buffer):
        size += count
    seconds = time.perf_counter() - started
    connection.close()
    return seconds, size


@asynccontextmanager
async def exporter(containers: int) -> AsyncIterator[tuple[int, Exporter]]:
    """Its port, and an exporter that knows so many probes."""
    settle_garbage()
    config = msgspec.convert({"discovery": "none"}, ExporterConfig)  # no containers but the simulated
    observed = Exporter(config)
    runner = web.AppRunner(create_app(observed), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for number in range(containers):
        names = identity(number)
        probe = PolledProbe(Container(service=names["service"], name=names["container"], id=f"{number:064x}"))
        observed.collector.probes[probe.key] = probe
        observed.collector.services.setdefault(probe.container.service_key, []).append(probe)
    yield runner.addresses[0][1], observed
    await runner.cleanup()


async def report_all(observed: Exporter, tick: int) -> None:
    """Let all probes answer once."""
    for number, probe in enumerate(observed.collector.probes.values()):
        await observed.collector.absorb(probe, encode(report(number, tick)))
        probe.polled = True
        observed.collector.show(probe)


def medians(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


async def measure(containers: int, rounds: int) -> bool:
    """Print what was measured; whether all goals were met."""
    loop = asyncio.get_running_loop()
    ours: dict[str, list[Cost]] = {encoding: [] for encoding in _ENCODINGS}
    reference: list[Cost] = []
    async with exporter(containers) as (port, observed):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            count = await loop.run_in_executor(other, lines, containers)
            for number in range(rounds):
                reference.append(await loop.run_in_executor(other, theirs, containers))
                for place, encoding in enumerate(_ENCODINGS):
                    await report_all(observed, len(_ENCODINGS) * number + place)
                    cpu = time.process_time()
                    seconds, size = await loop.run_in_executor(other, scrape, port, encoding)
                    ours[encoding].append(Cost(seconds, time.process_time() - cpu, size))
            memory = psutil.Process().memory_info().rss
    them = medians(reference)
    plain, packed = (medians(ours[encoding]) for encoding in _ENCODINGS)
    print(f"{containers} containers, {count:,} lines, medians of {rounds} rounds")
    for name, cost in (("prometheus_client", them), ("exporter", plain), ("exporter, gzip", packed)):
        print(
            f"{name:<17} {cost.seconds * 1e3:7.1f} ms, CPU {cost.cpu * 1e3:7.1f} ms; {cost.size / 1e6:.1f} MB"
        )
    ratio = packed.seconds / plain.seconds
    print(
        f"gzip takes {them.cpu / packed.cpu:.1f} times less CPU than prometheus_client (goal: {CPU_GOAL:g})"
    )
    print(f"gzip takes {ratio:.2f} times as long as plain (goal: {GZIP_GOAL:g} at most)")
    print(f"memory {memory / 2**20:.0f} MiB (goal: {MEMORY_GOAL / 2**20:.0f} at most)")
    return them.cpu / packed.cpu >= CPU_GOAL and ratio <= GZIP_GOAL


@click.command()
@click.option("--containers", default=1000, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(containers: int, rounds: int) -> None:
    """Measure scrapes beside prometheus_client."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(not asyncio.run(measure(containers, rounds)))


if __name__ == "__main__":
    main()
