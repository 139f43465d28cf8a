"""Do 1,000 questions a second to the verdict API make a scrape late?

The exporter of exposition.py, with 1,000 simulated containers, is scraped with gzip, in turn with and without a second
process that asks for verdicts at a steady rate, as controllers of rollouts do. A scrape without questions is the peer.

    python benchmarks/verdict_api.py [--containers 1000] [--rate 1000] [--rounds 9]
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import aiohttp
import click
import structlog

from exposition import Stalls, exporter, scrape

_CONNECTIONS = 20
_SCRAPES = 6  # in a round, of each kind
_SERVICES = 20  # of the simulated containers


class Asked(NamedTuple):
    """What the questions got."""

    answers: int
    seconds: float
    slowest: float
    """The 99th percentile, in seconds from when a question was due."""


def ask(port: int, rate: float, seconds: float) -> Asked:
    """Ask ``rate`` questions a second, each when it is due, whatever became of the others."""

    async def one(session: aiohttp.ClientSession, first: int, begin: float, took: list[float]) -> None:
        for number in range(first, int(rate * seconds), _CONNECTIONS):
            due = begin + number / rate
            await asyncio.sleep(due - time.perf_counter())
            url = (
                f"http://127.0.0.1:{port}/api/v1/verdict?service=service-{number % _SERVICES}&image=search:v2"
            )
            async with session.get(url) as response:
                await response.read()
                assert response.status == 200
            took.append(time.perf_counter() - due)

    async def all_of_them() -> Asked:
        took: list[float] = []
        async with aiohttp.ClientSession() as session:
            begin = time.perf_counter() + 0.1
            await asyncio.gather(*(one(session, first, begin, took) for first in range(_CONNECTIONS)))
            return Asked(len(took), time.perf_counter() - begin, statistics.quantiles(took, n=100)[98])

    return asyncio.run(all_of_them())


async def scrapes(port: int, pool: ProcessPoolExecutor) -> list[float]:
    """Seconds of each."""
    loop, found = asyncio.get_running_loop(), []
    for _ in range(_SCRAPES):
        found.append((await loop.run_in_executor(pool, scrape, port, "gzip"))[0])
        await asyncio.sleep(0.3)
    return found


async def measure(containers: int, rate: float, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    context = multiprocessing.get_context("spawn")
    alone: list[float] = []
    beside: list[float] = []
    asked: list[Asked] = []
    cpu: list[float] = []  # of the exporter for one verdict, in seconds: waiting for a CPU is not in it
    stalls = Stalls()
    async with exporter(containers) as (port, _, _):
        with ProcessPoolExecutor(1, context) as prometheus, ProcessPoolExecutor(1, context) as controllers:
            await scrapes(port, prometheus)  # both processes are there before anything counts
            await loop.run_in_executor(controllers, ask, port, 100.0, 0.5)
            for _ in range(rounds):
                begin, spent = time.perf_counter(), time.process_time()
                alone += await scrapes(port, prometheus)
                idle = (time.process_time() - spent) / (time.perf_counter() - begin)
                begin, spent = time.perf_counter(), time.process_time()
                questions = loop.run_in_executor(controllers, ask, port, rate, _SCRAPES * 0.5)
                await asyncio.sleep(0.3)
                watch = asyncio.create_task(stalls.watch())
                beside += await scrapes(port, prometheus)
                watch.cancel()
                asked.append(await questions)
                passed = time.perf_counter() - begin
                cpu.append((time.process_time() - spent - idle * passed) / asked[-1].answers)
    answers = statistics.median(each.answers / each.seconds for each in asked)
    print(f"{containers} containers; {answers:.0f} verdicts a second; medians of {rounds} rounds")
    for name, found in (("without questions", alone), ("with questions", beside)):
        print(
            f"a scrape {name:<18} {statistics.median(found) * 1e3:6.1f} ms, slowest {max(found) * 1e3:.1f} ms"
        )
    print(
        f"with questions a scrape takes {statistics.median(beside) / statistics.median(alone):.2f} times as long"
    )
    print(f"CPU of the exporter for a verdict: {statistics.median(cpu) * 1e3:.2f} ms")
    print(
        f"99 of 100 verdicts within {statistics.median(each.slowest for each in asked) * 1e3:.1f} ms; {stalls}"
    )


@click.command()
@click.option("--containers", default=1000, show_default=True)
@click.option("--rate", default=1000.0, show_default=True)
@click.option("--rounds", default=9, show_default=True)
def main(containers: int, rate: float, rounds: int) -> None:
    """Measure scrapes beside questions."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(measure(containers, rate, rounds))


if __name__ == "__main__":
    main()
