"""Measures the load of a fleet on its database. Simulated exporters write to a real PostgreSQL.

A fleet of 1,000 hosts, each with 8 containers of 3 canaries and a run every 10 s, stores 2,400 runs a second, too many
for a machine with two cores. So the cost of a run is measured with 10, 40 and 160 hosts in the database, and
extrapolated to the fleet. In the same run, plain INSERTs of the same bytes into a table with the same key are measured
for comparison. The benchmark also measures the stored size of one container, and the delay of verdicts with five
exporters in parallel.

Exits with 1 if the fleet's database takes more than 0.4 cores, if the 99th percentile of the delays exceeds 6 s, or if
a verdict is missing.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import psycopg
import structlog

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/tools"))
from postgres import Postgres, running

from infercanary.contract.report import Run
from infercanary.exporter.judging.worker import Judging
from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store.records import encode
from infercanary.store.store import Store, open_store

_CONTAINERS, _CANARIES = 8, 3
# runs in a batch: an exporter stores every 5 s, a canary runs every 10 s
_RUNS = _CONTAINERS * _CANARIES // 2
_FLEET_HOSTS, _FLEET_RUNS = 1000, 2400.0  # runs a second
CORES_GOAL, SECONDS_GOAL = 0.4, 6.0
_T = 1_790_000_000.0
_SERVED = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "128MB",
    "autovacuum": "on",
}
_PAGE = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """The cost of one run, in seconds of CPU and of time."""

    database: float
    exporter: float
    passed: float


def sample(canary: str, sequence: int, rng: np.random.Generator) -> Sample:
    """Return a run like those of a probe with a small torch model."""
    seconds = float(0.02 * np.exp(rng.normal(0, 0.01)))
    return Sample(
        sequence=sequence, canary=canary, started_at=_T + 10 * sequence, outcome="ok", median=seconds, repeats=12,
        phases={"compute": 0.9 * seconds, "launch": 0.1 * seconds},
        controls={"cpu_spin": 0.001 * seconds, "memory_copy": 0.002, "matmul": 0.003}, waited=1e-5, crowded=0.0,
        inside=0.0, off_cpu={"queued": 1e-5, "disk": 0.0}, measures={"host_memory": 5e8},
    )  # fmt: skip


def start(host: int, container: int) -> Generation:
    """Return the start of a container; each service has one replica on each host."""
    return Generation(
        service=f"service-{container}", container=f"pod-{host}-{container}", boot_id="1", started_at=_T,
        host=f"h-{host}", image="registry.example.com/search:1.4", image_id="sha256:" + "1" * 64,
        environment={f"component-{n}": "1.2.3" for n in range(40)},
    )  # fmt: skip


def batch(host: int, turn: int, rng: np.random.Generator) -> Iterator[tuple[Generation, list[Sample]]]:
    """Return the runs that a host's exporter stores at once: one run of each canary in half of its containers."""
    for container in range(turn % 2, _CONTAINERS, 2):
        runs = [sample(f"canary-{canary}", turn // 2, rng) for canary in range(_CANARIES)]
        yield start(host, container), runs


def cpu_of(server: int) -> float:
    """Return the CPU seconds of a server's running and ended processes."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if server in (int(folder.name), int(fields[1])):
            own = int(folder.name) == server
            total += sum(map(int, fields[11:15] if own else fields[11:13])) / _PAGE
    return total


def written(server: int, url: str, hosts: int, turns: int) -> Cost:
    """Store the runs of ``hosts`` hosts, one transaction for each host and turn; return the cost of one run."""
    rng = np.random.default_rng(1)
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(url))) for _ in range(min(hosts, 10))]
        ready = [(host, [*batch(host, turn, rng)]) for turn in range(turns) for host in range(hosts)]
        new = 2 * hosts  # the first two turns create the starts
        for host, parts in ready[:new]:
            take(stores[host % len(stores)], parts)
        before, own, began = cpu_of(server), time.process_time(), time.perf_counter()
        for host, parts in ready[new:]:
            take(stores[host % len(stores)], parts)
        runs = hosts * (turns - 2) * _RUNS
        passed, spent = time.perf_counter() - began, time.process_time() - own
        return Cost((cpu_of(server) - before) / runs, spent / runs, passed / runs)


def take(store: Store, parts: list[tuple[Generation, list[Sample]]]) -> None:
    """Store runs like the exporter's thread."""
    with store.session.transaction():
        for generation, samples in parts:
            store.take(generation, samples)


def inserted(server: int, url: str, hosts: int, turns: int) -> Cost:
    """Store the same bytes with a plain INSERT for each run, one transaction for each host and turn."""
    rng = np.random.default_rng(1)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE plain (service uuid, series uuid, sequence bigint, tier smallint, body bytea, "
            "PRIMARY KEY (service, series, sequence))"
        )
        ready = [
            [
                (f"{2 * c + turn % 2:032x}", f"{host:016x}{c:08x}{number:08x}", s.sequence, 1, encode(s))
                for c, (_, samples) in enumerate(batch(host, turn, rng))
                for number, s in enumerate(samples)
            ]
            for turn in range(turns)
            for host in range(hosts)
        ]
        before, own, began = cpu_of(server), time.process_time(), time.perf_counter()
        for rows in ready:
            with db.transaction():
                for row in rows:
                    db.execute("INSERT INTO plain VALUES (%s, %s, %s, %s, %s)", row)
        runs = hosts * turns * _RUNS
        passed, spent = time.perf_counter() - began, time.process_time() - own
        return Cost((cpu_of(server) - before) / runs, spent / runs, passed / runs)


def kept(server: Postgres, days: int) -> tuple[int, int]:
    """Return the number of rows of one container's canary, and their bytes, after ``days`` days of thinning."""
    url = server.database()
    rng = np.random.default_rng(1)
    with closing(open_store(url)) as store:
        assert store.fleet is not None
        store.fleet.hold({ServiceKey("", "service-0")})
        for quarter in range(days * 96):
            store.take(start(0, 0), [sample("canary", 90 * quarter + n, rng) for n in range(90)])
            store.thin(0.0)
    server.sql("VACUUM FULL", url)
    rows = server.sql("SELECT count(*) FROM sample", url)
    return int(rows), int(server.sql("SELECT pg_total_relation_size('sample')", url))


def delays(url: str, exporters: int, services: int) -> list[float]:
    """Return the seconds from the poll of the 24th run of a new image to the published verdict, for each service."""
    keys = [ServiceKey("", f"s-{n}") for n in range(services)]
    judges = [Judging(url, host=f"h-{n}") for n in range(exporters)]
    for judge in judges:
        judge.watched = frozenset(keys)
        judge.start()
    found: list[float] = []

    def one(number: int) -> None:
        rng = np.random.default_rng(number)
        own = judges[number % exporters]
        time.sleep(0.37 * number)
        for image, boot, count in (("a", "1", 60), ("b", "2", 24)):
            at = _T if image == "a" else _T + 600
            generation = Generation(
                service=keys[number].name,
                container=f"c-{number}",
                boot_id=boot,
                started_at=at,
                image_id=image,
            )
            level = 0.02 if image == "a" else 0.03
            runs = [
                Run(sequence=i, canary="c", scheduled_at=0.0, started_at=at + 10 * i, outcome="ok",
                    latencies=(float(level * np.exp(rng.normal(0, 0.003))),) * 5)
                for i in range(count)
            ]  # fmt: skip
            own.submit(generation, runs)
            if image == "a":
                time.sleep(12)
        submitted = time.monotonic()
        while time.monotonic() - submitted < 120:
            for judge in judges:
                judged = judge.findings.get(keys[number])
                if (
                    judged and "c" in judged and judged["c"].result.looks.last == 24
                    and judge.ownership.publishes(keys[number])
                ):  # fmt: skip
                    found.append(time.monotonic() - submitted)
                    return
            time.sleep(0.05)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(services)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for judge in judges:
        judge.stop()
    return sorted(found)


@click.command()
@click.option(
    "--turns",
    default=24,
    show_default=True,
    help="Number of turns; in a turn, each host stores the runs of 5 s.",
)
@click.option("--days", default=10, show_default=True, help="Number of days of one container's runs.")
@click.option("--services", default=40, show_default=True, help="Number of services to upgrade.")
def main(turns: int, days: int, services: int) -> None:
    """Measure PostgreSQL as the shared store of a fleet."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with running(**_SERVED) as server:
        print(f"{server.sql('SHOW server_version')}; fsync on; one connection writes at a time")
        costs = {hosts: written(server.pid, server.database(), hosts, turns) for hosts in (10, 40, 160)}
        peer = inserted(server.pid, server.database(), 40, turns)
        named = {**{f"{hosts} hosts": cost for hosts, cost in costs.items()}, "plain INSERTs, 40 hosts": peer}
        for name, cost in named.items():
            print(
                f"{name:24} µs of CPU: database {cost.database * 1e6:8.1f} ({cost.database / peer.database:.1f} times "
                f"the INSERTs'), exporter {cost.exporter * 1e6:8.1f}; {1 / cost.passed:8.1f} a second"
            )
        slope = (costs[160].database - costs[10].database) / np.log2(16)
        fleet = costs[160].database + slope * np.log2(_FLEET_HOSTS / 160)
        cores = _FLEET_RUNS * fleet
        print(
            f"slope: {slope * 1e6:+.1f} µs of the database's CPU each time the hosts double; at {_FLEET_HOSTS} hosts "
            f"{fleet * 1e6:.0f} µs, so {_FLEET_RUNS:.0f} runs a second take {cores:.2f} cores "
            f"(goal: {CORES_GOAL} at most)"
        )
        rows, size = kept(server, days)
        most = rows + max(0, 2160 - max(0, (days - 8) * 24))
        print(
            f"one canary of a container after {days} days: {rows} rows, {size / rows:.0f} bytes a row with the key; "
            f"a year of one image: at most {most} rows, {most * size / rows / 1e6:.1f} MB"
        )
        found = delays(server.database(), 5, services)
        late = found[int(0.99 * (len(found) - 1))]
        print(
            f"24th run to published verdict, {len(found)} of {services} services, 5 exporters: median "
            f"{statistics.median(found):.1f} s, p99 {late:.1f} s (goal: {SECONDS_GOAL:g} s at most)"
        )
    sys.exit(cores > CORES_GOAL or late > SECONDS_GOAL or len(found) < services)


if __name__ == "__main__":
    main()
