"""How long do the boards' queries take at 500 services over 6 hours, before a change and after it?

Both sides have the same world: 125 hosts with 4 services, each of which got another image. One host's scrapes are those
of a real exporter and its judge, with simulated probes (grafana/situations), each side by its own code; the other hosts
are the same under other names. Metrics that neither a rule nor a board of the side reads are left out. A real
Prometheus has them and what the side's recording rules make of them. Each query of each open panel is asked three
times, before and after by turns, with the step that Grafana takes for 6 hours.

    PYTHONPATH=. python benchmarks/dashboards.py [--before COMMIT]
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import structlog

from grafana import prometheus as asked_of
from grafana.check import asking
from grafana.prometheus import Prometheus
from grafana.situations import backfill, history
from grafana.situations.worlds import END, SITUATIONS, Situation

ROOT = Path(__file__).parents[1]
HOSTS, CONTAINERS = 125, 4
SECONDS, SCRAPE, STEP = 6 * 3600.0, 120.0, 60.0
"""Seconds: of the world, between two scrapes (so that it fits on a disk), and between two points of a panel."""
ROUNDS = 3
HOST, SERVICE = "host-000:9797", "service-000"
_NAME = re.compile(r"\b(?:infercanary|process|scrape)_\w+|\bup\b")
_PART = re.compile(r"_(bucket|sum|count)$")


class Side(NamedTuple):
    """A Prometheus, and the queries of each board."""

    prometheus: Prometheus
    boards: Mapping[str, list[tuple[str, Mapping[str, object]]]]
    """Board → path and parameters of each query."""


def changed(thing: Any, **fields: object) -> Any:
    """A server or situation with other fields, of this code or of an earlier one."""
    return thing._replace(**fields) if hasattr(thing, "_replace") else dataclasses.replace(thing, **fields)


def one_host(containers: int, seconds: float, scrape: float) -> Situation:
    """A host whose services got another image within the last half of the time."""
    server: Any = SITUATIONS["upgraded"].servers[0]
    brief: dict[str, object] = (
        {"brief": True, "sweeps": False} if hasattr(server, "brief") else {"words": "brief"}
    )
    starts = [(ago * seconds / 3600, image) for ago, image in server.starts]
    names = [f"{SERVICE}-{i}" for i in range(containers)]
    servers = [
        changed(server, service=name, name=f"{name}-{HOST[:8]}", host=HOST, starts=starts, **brief)
        for name in names
    ]
    chosen = {"service": names[0], "instance": HOST, "canary": "resnet18"}
    return Situation("host", servers, seconds=seconds, step=scrape, chosen=chosen)


def boards(tree: Path) -> dict[str, Any]:
    """Name → board of a source tree."""
    files = sorted((tree / "grafana/dashboards/json").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


@contextmanager
def side(tree: Path) -> Iterator[Side]:
    """Set up one side; ``tree`` has its code."""
    situation = one_host(CONTAINERS, SECONDS, SCRAPE)
    with backfill.prometheus(situation, fleet(tree), tree / "prometheus/rules") as prometheus:
        asked: list[tuple[str, Mapping[str, object]]] = []

        class Recording(Prometheus):
            def data(self, path: str, **parameters: object) -> dict[str, Any]:
                asked.append((path, parameters))
                return {"resultType": "matrix", "result": []}

        found: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
        for name, board in boards(tree).items():
            for question in asking.asked(board, changed(situation, step=STEP), Recording(prometheus.url)):
                found.setdefault(name, []).extend(asked if question["panel"] in board["panels"] else ())
                asked.clear()
        yield Side(prometheus, found)


def fleet(tree: Path) -> Callable[[Situation, BinaryIO], None]:
    """Writer of the scrapes of all hosts, by the tree's own code."""

    def write(_: Situation, file: BinaryIO) -> None:
        paths = os.pathsep.join(str(tree / folder) for folder in ("", "probe", "exporter"))
        one = subprocess.run(
            [sys.executable, __file__, "--write"],
            check=True,
            stdout=subprocess.PIPE,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": paths},
        ).stdout
        texts = [path.read_text(encoding="utf-8") for path in (tree / "prometheus/rules").glob("*.yml")]
        read = {*_NAME.findall("\n".join([*texts, json.dumps(boards(tree))]))}
        kept = [
            line
            for line in one.splitlines(keepends=True)
            if {name := line.split(b"{", 1)[0].decode(), _PART.sub("", name)} & read
        ]
        text = b"".join(kept)
        for number in range(HOSTS):
            names = {HOST[:8]: f"host-{number:03}", SERVICE: f"service-{number:03}"}
            changed = text
            for old, new in names.items():
                changed = changed.replace(old.encode(), new.encode())
            file.write(changed)
        file.write(b"# EOF\n")

    return write


def took(sides: Mapping[str, Side]) -> dict[str, dict[str, list[float]]]:
    """Side → board → median seconds of each of its queries."""
    seconds: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for side_name, one in sides.items():
            for board, queries in one.boards.items():
                for i, (path, parameters) in enumerate(queries):
                    started = time.perf_counter()
                    one.prometheus.data(path, **parameters)
                    seconds.setdefault((side_name, board, i), []).append(time.perf_counter() - started)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for (side_name, board, _), times in seconds.items():
        found[side_name].setdefault(board, []).append(statistics.median(times))
    return found


def show(sides: Mapping[str, Side], medians: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Print a line for each board of each side; below it how they compare."""
    print(
        f"{HOSTS * CONTAINERS} services on {HOSTS} hosts, {SECONDS / 3600:g} h, a scrape each {SCRAPE:g} s,"
    )
    print(f"a point each {STEP:g} s; open panels; median of {ROUNDS}; seconds")
    print(
        f"{'':7} {'board':10} {'queries':>8} {'PromQL bytes':>13} {'sum':>8} {'slowest':>8} {'of before':>10}"
    )
    for name, one in sides.items():
        series = one.prometheus.at('count({__name__!=""})', END).results[0].points[0][1]
        for board, times in medians[name].items():
            size = sum(len(str(parameters["query"]).encode()) for _, parameters in one.boards[board])
            earlier = medians["before"].get(board)
            ratio = f"{sum(times) / sum(earlier):10.2f}" if earlier and name == "after" else ""
            figures = f"{len(times):8} {size:13,} {sum(times):8.2f} {max(times):8.2f} {ratio}"
            print(f"{name:7} {board:10} {figures}")
        total = [seconds for times in medians[name].values() for seconds in times]
        print(
            f"{name:7} {'all':10} {len(total):8} {'':13} {sum(total):8.2f} {max(total):8.2f}  {series:,.0f} series"
        )


def main() -> None:
    """Measure both sides, or write one host's scrapes to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="0e3642a6", metavar="COMMIT", help="(default: %(default)s)")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if args.write:
        history.write(one_host(CONTAINERS, SECONDS, SCRAPE), sys.stdout.buffer)
        return
    asked_of.MAX_BYTES = 4 << 30  # buckets of 500 services over 6 hours
    command = ["git", "-C", str(ROOT), "archive", args.before]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(name)
        with side(Path(name)) as before, side(ROOT) as after:
            sides = {"before": before, "after": after}
            show(sides, took(sides))


if __name__ == "__main__":
    main()
