"""How long do the boards' queries take, on a Prometheus with 100 hosts of 8 containers?

One host's hour is that of a real exporter and its judge, with simulated probes (grafana/situations); the others are the
same under other names, five hosts a service. A real Prometheus has all of it, and what its recording rules make of it.
Every query of every board is asked three times, with the step and the variables that Grafana takes. Goal: none over a
second.

    python -m benchmarks.dashboards [--hosts 100] [--containers 8]
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import structlog

from grafana.check import asking
from grafana.prometheus import Prometheus
from grafana.queries import dashboards
from grafana.situations import backfill, history
from grafana.situations.worlds import END, SITUATIONS, Situation

GOAL = 1.0
ROUNDS = 3
SCRAPE, STEP = 60.0, 15.0
"""Seconds between two scrapes, so that the hour fits on a disk; and between two points of a panel, as Grafana asks."""
TOGETHER = 5  # hosts that run the same services
HOST, SERVICE = "host-000:9797", "service-000"


class Took(NamedTuple):
    """A query, and how long it takes."""

    seconds: float
    place: str
    series: int


def one_host(containers: int) -> Situation:
    """A host whose services got another image 25 minutes ago."""
    upgraded = SITUATIONS["upgraded"].servers[0]
    servers = [
        dataclasses.replace(
            upgraded, service=f"{SERVICE}-{i}", name=f"{SERVICE}-{i}-{HOST[:8]}", host=HOST, gpu=i % 2 == 0
        )
        for i in range(containers)
    ]
    chosen = {"service": servers[0].service, "instance": HOST, "canary": "resnet18"}
    return Situation("host", servers, step=SCRAPE, chosen=chosen)


def fleet(hosts: int) -> Callable[[Situation, BinaryIO], None]:
    """What writes the hour of all hosts."""

    def write(situation: Situation, file: BinaryIO) -> None:
        one = io.BytesIO()
        history.write(situation, one)
        text = one.getvalue().removesuffix(b"# EOF\n")
        for number in range(hosts):
            names = {HOST[:8]: f"host-{number:03}", SERVICE: f"service-{number // TOGETHER:03}"}
            changed = text
            for old, new in names.items():
                changed = changed.replace(old.encode(), new.encode())
            file.write(changed)
        file.write(b"# EOF\n")

    return write


def measured(prometheus: Prometheus, situation: Situation) -> dict[str, list[Took]]:
    """Board → its queries."""
    found: dict[str, list[Took]] = {}

    class Timed(Prometheus):
        def data(self, path: str, **asked: object) -> dict[str, object]:
            seconds = []
            for _ in range(ROUNDS):
                started = time.perf_counter()
                answer = super().data(path, **asked)
                seconds.append(time.perf_counter() - started)
            place.append(Took(statistics.median(seconds), "", len(answer["result"])))
            return answer

    timed = Timed(prometheus.url)
    for name, board in dashboards().items():
        place: list[Took] = []
        for question in asking.asked(board, situation, timed):
            title = question["panel"]["title"]
            found.setdefault(name, []).extend(took._replace(place=title) for took in place)
            place.clear()
    return found


def main() -> None:
    """Print the slowest query of each board."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--containers", type=int, default=8, help="of each host (default: %(default)s)")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    situation = one_host(args.containers)
    with backfill.prometheus(situation, fleet(args.hosts)) as prometheus:
        count = prometheus.at('count({__name__!=""})', END).results[0].points[0][1]
        found = measured(prometheus, dataclasses.replace(situation, step=STEP))
    fleet_size = f"{args.hosts} hosts × {args.containers} containers, {count:,.0f} series"
    print(f"{fleet_size}; an hour, a point each {STEP:g} s; median of {ROUNDS}")
    print(f"{'board':10} {'slowest':>9} {'all':>9} {'queries':>8}  of the panel")
    for name, queries in found.items():
        slowest, total = max(queries), sum(took.seconds for took in queries)
        figures = f"{slowest.seconds:7.2f} s {total:7.2f} s {len(queries):8}"
        print(f"{name:10} {figures}  {slowest.place} ({slowest.series} series)")
    everything = [(name, took) for name, queries in found.items() for took in queries]
    over = [f"{name}: {t.place}: {t.seconds:.2f} s" for name, t in everything if t.seconds > GOAL]
    print("\n".join(over) or f"none over {GOAL:g} s")
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
