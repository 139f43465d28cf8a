"""What a fleet costs its database: real PostgreSQL, and the writes of simulated exporters.

A fleet of 1,000 hosts with 8 containers of 3 canaries, a run each 10 s, is 2,400 runs a second: no machine of two cores
is one. So the cost of a run is measured with 10, 40 and 160 hosts in the database, which shows how it grows, and the
fleet is extrapolated from that. Beside it, in the same run: plain INSERTs of the same bytes, a row each, into a table
with the same key; and SQLite, as one host writes it.

Then what a judgement costs with its reads, what one container keeps, and how long a verdict takes: exporters with their
own threads and their own pace.

``--other TREE/probe:TREE/exporter`` measures another checkout too, in turn with this one. Each measurement is a process
of its own, which imports ``open_store`` from ``infercanary.store.store``.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import numpy as np
import psycopg
import structlog

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/tools"))
from postgres import Postgres, running

from infercanary.contract.report import Run
from infercanary.exporter.judging import ownership
from infercanary.exporter.judging.worker import Judging
from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store.records import encode
from infercanary.store.store import Store, open_store

_CONTAINERS, _CANARIES = 8, 3
_RUNS = _CONTAINERS * _CANARIES // 2  # in a batch: an exporter stores each 5 s, a canary runs each 10 s
_FLEET_HOSTS, _FLEET_RUNS = 1000, 2400.0  # a second
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
    """The cost of one run or judgement, in seconds of CPU and of time."""

    database: float
    exporter: float
    passed: float


def sample(canary: str, sequence: int, rng: np.random.Generator) -> Sample:
    """A run as a probe of a small torch model reports it."""
    seconds = float(0.02 * np.exp(rng.normal(0, 0.01)))
    return Sample(
        sequence=sequence, canary=canary, started_at=_T + 10 * sequence, outcome="ok", median=seconds, repeats=12,
        phases={"compute": 0.9 * seconds, "launch": 0.1 * seconds},
        controls={"cpu_spin": 0.001 * seconds, "memory_copy": 0.002, "matmul": 0.003}, waited=1e-5, crowded=0.0,
        inside=0.0, off_cpu={"queued": 1e-5, "disk": 0.0}, measures={"host_memory": 5e8},
    )  # fmt: skip


def start(host: int, container: int) -> Generation:
    """The start of a container; each service has a replica on each host."""
    return Generation(
        service=f"service-{container}", container=f"pod-{host}-{container}", boot_id="1", started_at=_T,
        host=f"h-{host}", image="registry.example.com/search:1.4", image_id="sha256:" + "1" * 64,
        environment={f"component-{n}": "1.2.3" for n in range(40)},
    )  # fmt: skip


def batch(host: int, turn: int, rng: np.random.Generator) -> Iterator[tuple[Generation, list[Sample]]]:
    """What a host's exporter stores at once: a run of each canary of half of its containers."""
    for container in range(turn % 2, _CONTAINERS, 2):
        runs = [sample(f"canary-{canary}", turn // 2, rng) for canary in range(_CANARIES)]
        yield start(host, container), runs


def cpu_of(server: int) -> float:
    """CPU seconds of the processes of a server that live, and of those that ended; of none for 0."""
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
    """So many hosts store what they have, in turn, one transaction a host."""
    rng = np.random.default_rng(1)
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_store(url))) for _ in range(min(hosts, 10))]
        ready = [(host, [*batch(host, turn, rng)]) for turn in range(turns) for host in range(hosts)]
        new = 2 * hosts  # the first two turns make the starts
        for host, parts in ready[:new]:
            take(stores[host % len(stores)], parts)
        before, own, began = cpu_of(server), time.process_time(), time.perf_counter()
        for host, parts in ready[new:]:
            take(stores[host % len(stores)], parts)
        runs = hosts * (turns - 2) * _RUNS
        passed, spent = time.perf_counter() - began, time.process_time() - own
        return Cost((cpu_of(server) - before) / runs, spent / runs, passed / runs)


def take(store: Store, parts: list[tuple[Generation, list[Sample]]]) -> None:
    """As the exporter's thread does it."""
    with store.session.transaction():
        for generation, samples in parts:
            store.take(generation, samples)


def inserted(server: int, url: str, hosts: int, turns: int) -> Cost:
    """The same bytes by a plain INSERT for each run, one transaction a host."""
    rng = np.random.default_rng(1)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE plain (service uuid, series uuid, sequence bigint, tier smallint, body bytea, "
            "PRIMARY KEY (service, series, sequence))"
        )
        before, own, began, runs = cpu_of(server), 0.0, 0.0, 0
        for turn in range(turns):
            for host in range(hosts):
                rows = [
                    (f"{2 * c + turn % 2:032x}", f"{host:016x}{c:08x}{number:08x}", s.sequence, 1, encode(s))
                    for c, (_, samples) in enumerate(batch(host, turn, rng))
                    for number, s in enumerate(samples)
                ]
                at, spent = time.perf_counter(), time.process_time()
                with db.transaction():
                    for row in rows:
                        db.execute("INSERT INTO plain VALUES (%s, %s, %s, %s, %s)", row)
                began, own, runs = (
                    began + time.perf_counter() - at,
                    own + time.process_time() - spent,
                    runs + len(rows),
                )
        return Cost((cpu_of(server) - before) / runs, own / runs, began / runs)


def in_a_file(server: int, url: str, turns: int) -> Cost:
    """One host, as it writes its own file."""
    rng = np.random.default_rng(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(open_store(Path(folder) / "store.db")) as store,
    ):
        ready = [[*batch(0, turn, rng)] for turn in range(turns)]
        own, began = time.process_time(), time.perf_counter()
        for parts in ready:
            take(store, parts)
        runs = turns * _RUNS
        return Cost(0.0, (time.process_time() - own) / runs, (time.perf_counter() - began) / runs)


def judged(server: int, location: str, services: int, rounds: int) -> Cost:
    """Judge services of 4 replicas with an upgrade and 600 runs of each image, again and again as runs come."""
    keys = [ServiceKey("", f"s-{number}") for number in range(services)]
    rng = np.random.default_rng(1)
    starts = [
        Generation(
            service=key.name, container=f"{key.name}-{replica}", boot_id=image, started_at=_T + 6000 * number,
            host=f"h-{replica}", image_id=image,
        )
        for key in keys for replica in range(4) for number, image in enumerate(("old", "new"))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = location or str(Path(folder) / "store.db")
        with closing(open_store(place)) as store:
            for start in starts:
                runs = [sample("c", number, rng) for number in range(600)]
                later = [
                    msgspec.structs.replace(run, started_at=run.started_at + start.started_at - _T)
                    for run in runs
                ]
                take(store, [(start, later)])
        ownership._SHARE_SECONDS = 0.0
        judging = Judging(place, host="h-0")
        judging.watched = frozenset(keys)
        own = before = began = 0.0
        for number in range(rounds + 1):
            if number == 1:  # all was read and judged once
                own, before, began = time.process_time(), cpu_of(server), time.perf_counter()
            for start in starts[1::2]:
                at = start.started_at + 10 * (600 + number)
                run = Run(
                    sequence=600 + number,
                    canary="c",
                    scheduled_at=at,
                    started_at=at,
                    outcome="ok",
                    latencies=(0.02,) * 5,
                )
                judging.submit(start, [run])
            for state in judging._services.values():
                state.seen.clear()
            judging.turn()
            while judging._due:
                judging.turn()
        assert len(judging.findings) == services
        count = services * rounds
        return Cost(
            (cpu_of(server) - before) / count,
            (time.process_time() - own) / count,
            (time.perf_counter() - began) / count,
        )


def kept(server: Postgres, days: int) -> tuple[int, int]:
    """Rows and bytes that one canary of one container has after so many days; thinned as an exporter does it."""
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
    """Seconds from a service's 24th run of a new image, as its exporter polled it, to the published verdict on it."""
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


COSTS: dict[str, Callable[..., object]] = {
    cost.__name__: cost for cost in (written, inserted, in_a_file, judged, delays)
}


def measured(cost: Callable[..., object], path: str | None, *arguments: object) -> list[float]:
    """Return what a function of :data:`COSTS` returns in a process of its own, with this PYTHONPATH if one is given."""
    command = [sys.executable, __file__, cost.__name__, *map(json.dumps, arguments)]
    environment = os.environ if path is None else {**os.environ, "PYTHONPATH": path}
    values: list[float] = json.loads(subprocess.check_output(command, env=environment))
    return values


@click.command()
@click.option("--turns", default=24, show_default=True, help="Of 5 s, that each host stores.")
@click.option("--days", default=10, show_default=True, help="Of one container's runs.")
@click.option("--services", default=40, show_default=True, help="That are upgraded.")
@click.option("--other", help="PYTHONPATH of another checkout, which is measured in turn with this one.")
@click.option("--rounds", default=1, show_default=True, help="Of each measurement; their median is shown.")
def main(turns: int, days: int, services: int, other: str | None, rounds: int) -> None:
    """Measure PostgreSQL as the store of a fleet."""
    with running(**_SERVED) as server:
        print(f"{server.sql('SHOW server_version')}; fsync on; one connection writes at a time")

        def compare(cost: Callable[..., object], *arguments: object, database: bool = True) -> Cost:
            """Measure this checkout and the other one in turn; print the medians, and return this one's."""
            sides: dict[str | None, list[list[float]]] = {None: []} | ({other: []} if other else {})
            for _ in range(rounds):
                for path, values in sides.items():
                    place = (server.pid, server.database()) if database else (0, "")
                    values.append(measured(cost, path, *place, *arguments))
            costs = {
                path: Cost(*map(statistics.median, zip(*values, strict=True)))
                for path, values in sides.items()
            }
            for path, found in costs.items():
                print(
                    f"{cost.__name__} {' '.join(map(str, arguments)):8} {'' if database else 'SQLite ':7}"
                    f"{'other' if path else 'this':6}µs of CPU: database {found.database * 1e6:8.1f}, "
                    f"exporter {found.exporter * 1e6:8.1f}; {1 / found.passed:8.1f} a second",
                    flush=True,
                )
            return costs[None]

        costs = [(hosts, compare(written, hosts, turns)) for hosts in (10, 40, 160)]
        compare(inserted, 40, turns)
        compare(in_a_file, 200, database=False)
        compare(judged, 10, 5)
        compare(judged, 10, 5, database=False)
        (few, first), (many, last) = costs[0], costs[-1]
        slope = (last.database - first.database) / np.log2(many / few)
        fleet = last.database + slope * np.log2(_FLEET_HOSTS / many)
        print(
            f"slope: {slope * 1e6:+.1f} µs of the database's CPU each time the hosts double; at {_FLEET_HOSTS} hosts "
            f"{fleet * 1e6:.0f} µs, so {_FLEET_RUNS:.0f} runs a second take {_FLEET_RUNS * fleet:.2f} cores, "
            f"and a core takes {1 / fleet:.0f} rows a second; an exporter's share is "
            f"{_FLEET_RUNS / _FLEET_HOSTS * last.exporter:.2%} of a core"
        )
        rows, size = kept(server, days)
        print(
            f"one canary of a container after {days} days: {rows} rows, {size / 1e6:.2f} MB with the key, "
            f"{size / rows:.0f} bytes a row; raw it would be {days * 8640 * size / rows / 1e6:.1f} MB"
        )
        most = rows + max(0, 2160 - max(0, (days - 8) * 24))
        print(
            f"a container-year of one image: at most {most} rows, {most * size / rows / 1e6:.1f} MB a canary"
        )
        for path in (None, other) if other else (None,):
            found = measured(delays, path, server.database(), 5, services)
            late = found[int(0.99 * (len(found) - 1))]
            print(
                f"{'other' if path else 'this'}: 24th run to published verdict, {len(found)} of {services} services, "
                f"5 exporters: median {statistics.median(found):.1f} s, p99 {late:.1f} s, most {found[-1]:.1f} s"
            )


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in COSTS:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        print(json.dumps(COSTS[sys.argv[1]](*map(json.loads, sys.argv[2:]))))
    else:
        main()
