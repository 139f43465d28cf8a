"""Days of an exporter with a simulated clock: its event loop, polls, store, judge and scrapes, and probes on
sockets.

This is a separate process. The clock stands still during work, so a busy machine only makes it slower. Four
containers of two services run a canary every 10 s and restart every 6 hours; at noon, one service gets an
image that is a fifth slower. The process prints a line of JSON for each hour.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
import stores
import structlog
from aiohttp import web

from infercanary.contract.report import LADDER, LATENCY, SCHEMA_VERSION, HistogramValue, Report, Run, encode
from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery.static import StaticProbe
from infercanary.exporter.judging.worker import Judging
from infercanary.probe.measures import resident

STEP = 5  # seconds of a clock step
RUN_SECONDS, SCRAPE_SECONDS, HOUR = 10, 15, 3600
RESTART_SECONDS = 6 * HOUR
NAMES = tuple((service, f"{service}-{number}") for service in ("steady", "upgraded") for number in (1, 2))
UPGRADE_SECONDS = 12 * HOUR
CANARY = "c"


class Clock:
    passed = 0.0

    def set(self):
        time.time = lambda: 1_790_000_000.0 + self.passed
        time.monotonic = lambda: 1_000.0 + self.passed


CLOCK = Clock()


class Hour(msgspec.Struct):
    hour: int
    resident: int
    """Resident memory of the process in bytes, including the simulated probes."""
    store: int
    """Size of the store's file in bytes."""
    log: int
    """Size of the store's log in bytes."""
    rows: int
    tasks: int
    objects: int
    """Number of objects that Python's garbage collector tracks."""
    stored: float
    verdicts: dict[str, str]


class Container:
    """A simulated probe. It computes its runs from the time, so it stores none of them."""

    def __init__(self, number):
        self.service, self.name = NAMES[number]
        self._late = 600 * number

    async def answer(self, request):
        start = int((CLOCK.passed + RESTART_SECONDS - self._late) // RESTART_SECONDS)
        began = max(0, start * RESTART_SECONDS - RESTART_SECONDS + self._late)
        is_new = self.service == "upgraded" and began >= UPGRADE_SECONDS
        boot = f"{self.name}-{start}"
        known, _, sequence = request.query.get("since", "").rpartition(".")
        first = int(sequence) + 1 if known == boot else 0
        end = int(CLOCK.passed - began) // RUN_SECONDS
        runs = tuple(
            self._run(boot, began, number, 0.012 if is_new else 0.01) for number in range(first, end)
        )
        counts = [0] * (len(LADDER) + 1)
        counts[len(LADDER) // 2] = end
        report = Report(
            SCHEMA_VERSION, boot, 1_790_000_000.0 + began, f"{boot}.{max(end, 1) - 1}" if end else "", 0,
            (LATENCY.family({(CANARY,): HistogramValue(tuple(counts[: len(LADDER)]), 0.01 * end)}),),
            {"torch": "2.13.0" if is_new else "2.7.0"}, runs,
        )  # fmt: skip
        return web.Response(body=encode(report), content_type="application/json")

    def _run(self, boot, began, number, seconds):
        rng = random.Random(f"{boot} {number}")
        level = seconds * random.Random(boot).lognormvariate(0, 0.004)  # restart variance
        at = 1_790_000_000.0 + began + RUN_SECONDS * number
        return Run(
            sequence=number, canary=CANARY, scheduled_at=at, started_at=at, outcome="ok",
            latencies=tuple(level * rng.lognormvariate(0, 0.005) for _ in range(5)),
        )  # fmt: skip


class Polls:
    """Counts running polls, so that the clock can wait for them."""

    def __init__(self):
        self._under_way = 0
        poll = Collector._poll

        async def counted(*given):
            self._under_way += 1
            try:
                await poll(*given)
            finally:
                self._under_way -= 1

        Collector._poll = counted  # type: ignore[method-assign]

    async def done(self):
        """Wait until all due polls have ended. The clock moves a little, because the exporter reads an answer
        every 10 ms.
        """
        for _ in range(5):  # first the due timers, then the tasks that they start
            await asyncio.sleep(0)
        last = CLOCK.passed + STEP - 1
        while self._under_way:
            CLOCK.passed = min(CLOCK.passed + 0.001, last)
            await asyncio.sleep(0)


async def _serve(app, stack):
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    stack.append(runner)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


def hour(number, path, judging):
    gc.collect()
    values = {family.name: family.points[0].value for family in judging.families() if family.points}
    stored = values["infercanary_stored_runs_total"]
    assert isinstance(stored, float)
    return Hour(
        hour=number,
        resident=resident(),
        store=path.stat().st_size,
        log=path.with_name(path.name + "-wal").stat().st_size,
        rows=stores.count(judging._store),
        tasks=len(asyncio.all_tasks()),
        objects=len(gc.get_objects()),
        stored=stored,
        verdicts={service.name: found[CANARY].result.state for service, found in judging.findings.items()},
    )


async def soak(store, seconds):
    polls = Polls()
    Judging.start = lambda self: None  # type: ignore[method-assign]  # its turns come with the clock
    runners = []
    probes = []
    for number, (service, name) in enumerate(NAMES):
        app = web.Application()
        app.router.add_get("/report", Container(number).answer)
        probes.append(StaticProbe(url=await _serve(app, runners), service=service, container=name))
    exporter = Exporter(ExporterConfig(store=str(store), discovery="none", probes=tuple(probes)))
    url = await _serve(create_app(exporter), runners)
    judging = exporter.judging
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        for second in range(STEP, seconds + 1, STEP):
            CLOCK.passed = float(second)
            await polls.done()
            await loop.run_in_executor(None, judging.turn)
            if second % SCRAPE_SECONDS == 0:
                async with session.get(f"{url}/metrics") as response:
                    await response.read()
            if second % HOUR == 0:
                print(json.dumps(msgspec.to_builtins(hour(second // HOUR, store, judging))), flush=True)
    for runner in reversed(runners):
        await runner.cleanup()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    CLOCK.set()
    asyncio.run(soak(Path(sys.argv[1]), int(sys.argv[2])))
