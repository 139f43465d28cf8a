"""Measures a scrape of 1,000 containers: duration, CPU, memory, and lag of the exporter's event loop.

Simulated containers report at the default cadence into a real exporter, through the code that runs after a download.
The reports are in a file, because a real exporter does not keep them in memory either. A second process scrapes the
exporter over HTTP, with and without gzip. In the same run, the second process writes the same families with
``prometheus_client.generate_latest`` and packs them like prometheus_client's HTTP server, for comparison. The families
of prometheus_client are built before the measurement. Both are measured while reports arrive, as in production, and
while no reports arrive.

    python benchmarks/exposition.py [--containers 1000] [--rounds 7]
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import logging
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import cache, partial
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
from infercanary.exporter import collect
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

_SCRAPES = 4  # scrapes of each encoding in a round
_ENCODINGS = ("identity", "gzip")
_REPORTS = ("beside reports", "alone")
_buffer = bytearray(1 << 20)


def histogram(seed: random.Random, observations: int) -> HistogramValue:
    """Return a histogram with this number of observations, spread around one bucket like real latencies."""
    counts = [0] * (len(LADDER) + 1)
    for _ in range(observations):
        counts[max(0, min(len(LADDER), round(seed.gauss(30, 2))))] += 1
    return HistogramValue(tuple(counts), observations * 0.0123)


def report(container: int, tick: int) -> Report:
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
    """Return the families of all containers in prometheus_client's form."""
    merged: dict[str, Metric] = {}
    for container in range(containers):
        who = identity(container)
        probe = PolledProbe(Container(service=who["service"], name=who["container"], id=f"{container:064x}"))
        for family in (*report(container, 0).families, *probe.families(0.0)):
            names = [*who, *family.labels]
            if family.kind == "histogram":
                metric: Metric = HistogramMetricFamily(family.name, family.help, labels=names)
            elif family.kind == "counter":
                metric = CounterMetricFamily(family.name, family.help, labels=names)
            else:
                metric = GaugeMetricFamily(family.name, family.help, labels=names)
            metric = merged.setdefault(family.name, metric)
            for point in family.points:
                labels = [*who.values(), *point.labels]
                value: object = point.value
                if isinstance(point.value, HistogramValue):
                    bounds = [*map(floatToGoString, LADDER), "+Inf"]
                    total, cumulative = 0, []
                    for bound, count in zip(bounds, point.value.counts, strict=True):
                        total += count
                        cumulative.append((bound, float(total)))
                    metric.add_metric(labels, cumulative, point.value.sum)  # type: ignore[attr-defined]
                else:
                    metric.add_metric(labels, value)  # type: ignore[attr-defined]
    return [*merged.values()]


class Cost(NamedTuple):
    seconds: float
    cpu: float
    size: int


def theirs(containers: int, encoding: str) -> Cost:
    """Return prometheus_client's cost for the families of all containers."""

    class Given(Collector):
        def collect(self) -> Iterable[Metric]:
            return ready_made(containers)

    ready_made(containers)
    started, cpu = time.perf_counter(), time.process_time()
    output = generate_latest(Given())
    if encoding == "gzip":
        output = gzip.compress(output)
    return Cost(time.perf_counter() - started, time.process_time() - cpu, len(output))


def memory() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def lines(containers: int) -> int:
    """Return the number of samples of all containers."""
    return sum(len(metric.samples) for metric in ready_made(containers))


def scrape(port: int, encoding: str) -> tuple[float, int]:
    """Scrape once; return the seconds from the request to the last byte, and the number of bytes."""
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


class Stalls:
    """Measures the longest lag of the event loop, sampled each millisecond, and the longest CPU time between two
    samples.

    The lag includes the time in which other processes had the CPU; the CPU time does not.
    """

    def __init__(self) -> None:
        self.late = 0.0
        self.busy = 0.0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, worked = loop.time() + 0.001, time.thread_time()
            await asyncio.sleep(0.001)
            self.late = max(self.late, loop.time() - due)
            self.busy = max(self.busy, time.thread_time() - worked)

    def __str__(self) -> str:
        return f"event loop late by at most {self.late * 1e3:.1f} ms, busy at most {self.busy * 1e3:.1f} ms"


async def report_for_ever(
    collector: collect.Collector,
    probe: PolledProbe,
    file: int,
    bodies: list[tuple[int, int]],
    seconds: float,
    coming: asyncio.Event,
) -> None:
    """Let one probe report every ``seconds``, while ``coming`` is set.

    Args:
        bodies: Size and offset of each report in ``file``.
    """
    await asyncio.sleep(random.uniform(0, seconds))
    while True:
        for place in bodies:
            if not coming.is_set():
                await coming.wait()
                # spread the probes, so that they never answer at the same time
                await asyncio.sleep(random.uniform(0, seconds))
            await collector.absorb(probe, os.pread(file, *place))
            collector.show(probe)
            await asyncio.sleep(seconds)


async def report_at_once(collector: collect.Collector, bodies: Iterable[bytes]) -> Stalls:
    """Make all probes answer at the same time."""
    stalls = Stalls()

    async def take(probe: PolledProbe, body: bytes) -> None:
        await collector.absorb(probe, body)
        collector.show(probe)

    watch = asyncio.create_task(stalls.watch())
    await asyncio.gather(*map(take, collector.probes.values(), bodies))
    watch.cancel()
    return stalls


@asynccontextmanager
async def exporter(
    containers: int,
) -> AsyncIterator[tuple[int, asyncio.Event, Callable[[], Awaitable[Stalls]]]]:
    """Run an exporter whose probes report at the default cadence.

    Yields the exporter's port, an event that stops the reports while it is cleared, and a function that makes
    all probes report at once.
    """
    settle_garbage()
    config = msgspec.convert({"discovery": "none"}, ExporterConfig)  # only simulated containers
    observed = Exporter(config)
    collector = observed.collector
    runner = web.AppRunner(create_app(observed), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    tasks, coming = [], asyncio.Event()
    coming.set()
    with tempfile.TemporaryFile() as file:
        for number in range(containers):
            names = identity(number)
            probe = PolledProbe(
                Container(service=names["service"], name=names["container"], id=f"{number:064x}")
            )
            collector.probes[probe.key] = probe
            collector.services.setdefault(probe.container.service_key, []).append(probe)
            bodies = []
            for tick in range(3):
                body = encode(report(number, tick))
                bodies.append((len(body), file.tell()))
                file.write(body)
            file.flush()
            await collector.absorb(probe, os.pread(file.fileno(), *bodies[0]))
            probe.polled = True
            collector.show(probe)
            answers = report_for_ever(collector, probe, file.fileno(), bodies, config.poll_seconds, coming)
            tasks.append(asyncio.create_task(answers))
        bodies_of_all = (encode(report(number, 3)) for number in range(containers))
        yield runner.addresses[0][1], coming, partial(report_at_once, collector, bodies_of_all)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await runner.cleanup()


def medians(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


async def measure(containers: int, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    each = [(encoding, reports) for reports in _REPORTS for encoding in _ENCODINGS]
    ours: dict[tuple[str, str], list[Cost]] = {key: [] for key in each}
    reference: dict[tuple[str, str], list[Cost]] = {key: [] for key in each}
    stalls = {phase: Stalls() for phase in ("idle", *each)}
    idle: dict[str, list[float]] = {reports: [] for reports in _REPORTS}
    async with exporter(containers) as (port, coming, burst):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            count = await loop.run_in_executor(other, lines, containers)
            for reports in [*_REPORTS] * rounds:  # in turn, so that a noisy neighbour affects all of them
                (coming.set if reports == "beside reports" else coming.clear)()
                await asyncio.sleep(0.1)
                watch = asyncio.create_task(stalls["idle"].watch())
                started, cpu = time.perf_counter(), time.process_time()
                for encoding in _ENCODINGS:
                    found = await loop.run_in_executor(other, theirs, containers, encoding)
                    reference[encoding, reports].append(found)
                # CPU seconds per second of the exporter, without scrapes
                idle[reports].append((time.process_time() - cpu) / (time.perf_counter() - started))
                watch.cancel()
                for encoding in _ENCODINGS:
                    watch = asyncio.create_task(stalls[encoding, reports].watch())
                    for _ in range(_SCRAPES):
                        started, cpu = time.perf_counter(), time.process_time()
                        seconds, size = await loop.run_in_executor(other, scrape, port, encoding)
                        passed, spent = time.perf_counter() - started, time.process_time() - cpu
                        ours[encoding, reports].append(
                            Cost(seconds, spent - idle[reports][-1] * passed, size)
                        )
                        await asyncio.sleep(0.1)
                    watch.cancel()
            coming.clear()
            await asyncio.sleep(0.1)
            held, theirs_held = memory(), await loop.run_in_executor(other, memory)
            at_once = await burst()
            after = Stalls()
            watch = asyncio.create_task(after.watch())
            await loop.run_in_executor(other, scrape, port, "gzip")
            watch.cancel()
            held_after = memory()

    print(f"{containers} containers, {count:,} lines, medians of {rounds} rounds")
    print(f"all reports at once: {at_once}; the first scrape after them: {after}")
    for reports in _REPORTS:
        print(f"{reports}:")
        their_plain = medians(reference["identity", reports])
        for encoding in _ENCODINGS:
            them = medians(reference[encoding, reports])
            print(
                f"  prometheus_client, {encoding:<8} {them.seconds * 1e3:7.1f} ms, CPU {them.cpu * 1e3:7.1f} ms; "
                f"{them.size / 1e6:.1f} MB; families built beforehand, without HTTP"
            )
        for encoding in _ENCODINGS:
            costs = ours[encoding, reports]
            us = medians(costs)
            print(
                f"  exporter, {encoding:<8}          {us.seconds * 1e3:7.1f} ms, CPU {us.cpu * 1e3:7.1f} ms; "
                f"{us.size / 1e6:.1f} MB; over HTTP; {their_plain.seconds / us.seconds:.1f} times faster than "
                f"prometheus_client's plain text, with {their_plain.cpu / us.cpu:.1f} times less CPU; "
                f"slowest {max(cost.seconds for cost in costs) * 1e3:.1f} ms; {stalls[encoding, reports]}"
            )
        gzip_, plain = (medians(ours[encoding, reports]).seconds for encoding in ("gzip", "identity"))
        print(f"  gzip takes {gzip_ / plain:.2f} times as long as plain")
    between = statistics.median(idle["beside reports"])
    print(f"between scrapes  {stalls['idle']}; CPU {between:.1%} for all reports")
    print(
        f"memory  exporter {held / 2**20:.0f} MiB, {held_after / 2**20:.0f} MiB after all reports at once (including "
        f"the benchmark's {containers} reports); prometheus_client with all families "
        f"{theirs_held / 2**20:.0f} MiB: {theirs_held / held:.1f} times as much"
    )


@click.command()
@click.option("--containers", default=1000, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(containers: int, rounds: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(measure(containers, rounds))


if __name__ == "__main__":
    main()
