"""What do the shipped rules cost a Prometheus with 100, 200 or 400 hosts of 8 containers?

One host is a real exporter and its judge, with simulated probes (grafana/situations); the others are the same under
other names, five hosts a service. A real Prometheus scrapes all of them over HTTP, as prometheus/prometheus.yml says,
and evaluates the rules. What they read further back than five minutes is backfilled for half an hour, so that each
window is full. After a warm-up its own metrics say how long each group of rules takes and what the process needs;
then the same without rules, so that the difference is theirs. Goal: all groups
together take a quarter of their intervals at most.

    PYTHONPATH=. python benchmarks/rules.py [--hosts 100 200 400] [--containers 8] [--native] [--rules DIRECTORY]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from dashboards import HOST, SERVICE, one_host
from grafana.prometheus import Prometheus
from grafana.situations import history

GOAL = 0.25
"""Of the groups' intervals, all together."""
SCRAPE = 15.0
"""Seconds between two scrapes and two evaluations, as in charts/infercanary."""
PAST = 1800.0
"""The longest window of what there is much of: runs, half an hour."""
SHARE_OF_CORES = 0.5
"""What scrapes and rules may take of a Prometheus' cores: the rest is for queries and for compacting."""
CORES = 8
TOGETHER = 5  # hosts that run the same services
COUNTED = (
    'sum(up{job="infercanary"})',
    "avg(count_over_time(infercanary_up[5m]))",
    'count({__name__=~".+:.+"})',
)
ROOT = Path(__file__).parents[1]
_WINDOW = re.compile(r"\b(infercanary_\w+|up)(\{[^}]*\})?\[(\d+)([mh])\]")
_WHOSE = f'{{job="infercanary",instance="{HOST}",'.encode()
_NOBODYS = f'{{job="infercanary",instance="{HOST}"}} '.encode()


class Cost(NamedTuple):
    """What Prometheus took at one size of the fleet."""

    hosts: int
    scraped: float
    """Targets that were up."""
    window: float
    """Samples within five minutes, of the 20 that there are where no scrape is late."""
    series: float
    recorded: float
    samples: float
    """A second."""
    memory: float
    """Bytes, resident."""
    cores: float
    """CPU seconds a second, with rules."""
    bare: float
    """Without."""
    groups: Mapping[str, tuple[float, float]]
    """Name → seconds that it takes, and its interval."""
    failed: float
    """Evaluations since the start."""
    late: float
    """Evaluations that were missed."""

    @property
    def share(self) -> float:
        """Of their intervals, that all groups take."""
        return sum(took / interval for took, interval in self.groups.values())


class Simulated(NamedTuple):
    """What one host's exporter shows, a text each 15 s."""

    past: list[bytes]
    """With times; only the families that rules read further back than five minutes."""
    live: list[bytes]
    """As they are scraped."""


def simulated(containers: int, seconds: float, rules: Sequence[Path]) -> Simulated:
    """Let one host's half an hour pass, and what is scraped after it.

    Args:
        containers: Of the host.
        seconds: How long it is scraped.
        rules: Whose windows are to be full.

    Returns:
        Its texts.
    """
    texts: list[bytes] = []
    situation = one_host(containers, PAST + seconds, SCRAPE)
    asyncio.run(history.exporters(situation, texts.append))
    read = _WINDOW.findall("\n".join(path.read_text(encoding="utf-8") for path in rules))
    far = {
        name + r"\{" + "".join(f"(?=.*{equal})" for equal in re.findall(r'\w+="\w+"', matchers))
        for name, matchers, length, unit in read
        if unit == "h" or int(length) > 5
    }
    lines = re.compile(rf"^(?:{'|'.join(sorted(far))}).*\n".encode(), re.MULTILINE)
    count = int(PAST / SCRAPE)
    past = [b"".join(lines.findall(text)) for text in texts[:count]]
    own = re.compile(rb"^(?:up|scrape_\w+)[ {].*\n", re.MULTILINE)  # these are Prometheus' own
    stamped = re.compile(rb" [\d.e+]+$", re.MULTILINE)
    live = [
        typed(stamped.sub(b"", own.sub(b"", text)).replace(_WHOSE, b"{").replace(_NOBODYS, b" "))
        for text in texts[count:]
    ]
    return Simulated(past, live)


def typed(text: bytes) -> bytes:
    """With the types of histograms: without them Prometheus knows none to convert."""
    for name in sorted(set(re.findall(rb"^(\w+)_bucket\{", text, re.MULTILINE))):
        text = text.replace(name + b"_bucket{", b"# TYPE " + name + b" histogram\n" + name + b"_bucket{", 1)
    return text


def renamed(text: bytes, number: int) -> bytes:
    """A host's text as that of another one."""
    service = f"service-{number // TOGETHER:03}".encode()
    return text.replace(HOST[:8].encode(), f"host-{number:03}".encode()).replace(SERVICE.encode(), service)


def backfill(past: Sequence[bytes], hosts: int, folder: Path, until: float) -> None:
    """Blocks of the time before a Unix time."""
    file = folder / "past.om"
    began = until - len(past) * SCRAPE
    with file.open("wb") as written:
        for i, text in enumerate(past):
            at = f" {began + i * SCRAPE:.3f}\n".encode()
            stamped = re.sub(rb" [\d.e+]+\n", at, text)
            for number in range(hosts):
                written.write(renamed(stamped, number))
        written.write(b"# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    file.unlink()


@contextmanager
def served(live: Sequence[bytes]) -> Iterator[int]:
    """All hosts' exporters on one port, each at a path of its own: ``/7`` is the eighth."""
    began = time.monotonic()
    loop = asyncio.new_event_loop()

    async def scrape(request: web.Request) -> web.Response:
        text = live[min(int((time.monotonic() - began) / SCRAPE), len(live) - 1)]
        headers = {"Content-Type": "text/plain; version=0.0.4"}
        return web.Response(body=renamed(text, int(request.match_info["number"])), headers=headers)

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{number}", scrape)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield runner.addresses[0][1]
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def configured(port: int, hosts: int, rules: Sequence[Path], native: bool) -> str:
    """Prometheus' configuration: the shipped job, with these hosts."""
    shipped = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    [job] = [job for job in shipped["scrape_configs"] if job["job_name"] == "infercanary"]
    job["static_configs"] = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"__metrics_path__": f"/{number}", "instance": f"host-{number:03}:9797"},
        }
        for number in range(hosts)
    ]
    if native:
        job["convert_classic_histograms_to_nhcb"] = True
    every = {
        "scrape_interval": f"{SCRAPE:g}s",
        "scrape_timeout": f"{SCRAPE:g}s",
        "evaluation_interval": f"{SCRAPE:g}s",
    }
    text: str = yaml.safe_dump(
        {"global": every, "rule_files": [str(path) for path in rules], "scrape_configs": [job]}
    )
    return text


class Metrics:
    """Prometheus' own, at one moment."""

    def __init__(self, url: str) -> None:
        self.at = time.monotonic()
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            text = response.read().decode()
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str) -> float:
        """The sum of a name's samples."""
        return sum(sample.value for sample in self._samples if sample.name == name)

    def rate(self, name: str, before: Metrics) -> float:
        """Of a counter, a second."""
        return (self.total(name) - before.total(name)) / (self.at - before.at)

    def groups(self, name: str) -> dict[str, float]:
        """Group of rules → value."""
        return {
            sample.labels["rule_group"].rpartition(";")[2]: sample.value
            for sample in self._samples
            if sample.name == name
        }


def measure(text: Simulated, hosts: int, args: argparse.Namespace) -> Cost:
    """Run one Prometheus, and ask it what it takes."""
    rules = sorted(args.rules.glob("*.yml"))
    with tempfile.TemporaryDirectory() as name, served(text.live) as port:
        folder = Path(name)
        until = time.time() + args.prepare
        backfill(text.past, hosts, folder, until)
        time.sleep(max(0.0, until - time.time()))
        with running(folder, configured(port, hosts, rules, args.native)) as url:
            while args.gate and not args.gate.exists():
                time.sleep(1)
            time.sleep(args.warm)
            took = [Metrics(url)]
            while took[-1].at - took[0].at < args.measure:
                time.sleep(SCRAPE)
                took.append(Metrics(url))
            before, now = took[0], took[-1]
            asked, at = Prometheus(url), time.time()
            counts = (asked.at(query, at).results[0].points[0][1] for query in COUNTED)
            scraped, window, recorded = counts
            (folder / "prometheus.yml").write_text(configured(port, hosts, [], args.native))
            urllib.request.urlopen(f"{url}/-/reload", b"", timeout=60).close()
            time.sleep(2 * SCRAPE)
            then = Metrics(url)
            time.sleep(args.measure)
            intervals = now.groups("prometheus_rule_group_interval_seconds")
            durations = [each.groups("prometheus_rule_group_last_duration_seconds") for each in took[1:]]
            return Cost(
                hosts=hosts,
                scraped=scraped,
                window=window,
                series=now.total("prometheus_tsdb_head_series"),
                recorded=recorded,
                samples=now.rate("prometheus_tsdb_head_samples_appended_total", before),
                memory=max(each.total("process_resident_memory_bytes") for each in took),
                cores=now.rate("process_cpu_seconds_total", before),
                bare=Metrics(url).rate("process_cpu_seconds_total", then),
                groups={
                    group: (statistics.mean(each[group] for each in durations), interval)
                    for group, interval in intervals.items()
                },
                failed=now.total("prometheus_rule_evaluation_failures_total"),
                late=now.total("prometheus_rule_group_iterations_missed_total")
                - before.total("prometheus_rule_group_iterations_missed_total"),
            )


@contextmanager
def running(folder: Path, config: str) -> Iterator[str]:
    """A Prometheus with the configuration, on a free port of loopback."""
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", "--web.enable-lifecycle", "--enable-feature=native-histograms",
    ]  # fmt: skip
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _ready(process, log)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(120)


def _ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while "ready to receive" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Prometheus does not start: {log.read_text()}")
        time.sleep(0.1)


def show(cost: Cost) -> None:
    """Print what one size costs."""
    print(
        f"\n{cost.hosts} hosts ({cost.scraped:g} up, {cost.window:.1f} samples in 5 min): {cost.series:,.0f} series, "
        f"{cost.recorded:,.0f} of them recorded; {cost.samples:,.0f} samples/s; {cost.memory / 2**30:.1f} GiB; "
        f"CPU {cost.cores:.2f} cores, {cost.bare:.2f} without rules: {cost.cores - cost.bare:.2f} are theirs"
    )
    for group, (seconds, interval) in cost.groups.items():
        if seconds / interval >= 0.001:
            print(f"  {group:24} {seconds:7.3f} s of {interval:3g} s  {seconds / interval:6.1%}")
    print(
        f"  {'all groups':24} {'':16} {cost.share:6.1%}  ({cost.late:g} evaluations missed, {cost.failed:g} failed)"
    )


def slope(costs: Sequence[Cost]) -> None:
    """Print what a host more costs, and how many one Prometheus carries."""

    def line(of: Mapping[int, float]) -> tuple[float, float]:
        return statistics.linear_regression([*of], [*of.values()])

    def busy(cost: Cost, group: str) -> float:
        seconds, interval = cost.groups[group]
        return seconds / interval

    share, start = line({cost.hosts: cost.share for cost in costs})
    cores, idle = line({cost.hosts: cost.cores for cost in costs})
    memory, empty = line({cost.hosts: cost.memory for cost in costs})
    longest = max(costs[-1].groups, key=lambda group: busy(costs[-1], group))
    one, base = line({cost.hosts: busy(cost, longest) for cost in costs})
    by_cpu = (SHARE_OF_CORES * CORES - idle) / cores
    by_group = (SHARE_OF_CORES - base) / one
    print(
        f"\na hundred hosts more: {100 * share:.1%} of the intervals, {100 * cores:.2f} cores, "
        f"{100 * memory / 2**30:.2f} GiB\n"
        f"a quarter of the intervals at {(GOAL - start) / share:,.0f} hosts\n"
        f"one Prometheus of {CORES} cores, {SHARE_OF_CORES:.0%} of them for scrapes and rules: {by_cpu:,.0f} hosts "
        f"by its CPU, {by_group:,.0f} by its longest group ({longest} in half of its interval); "
        f"{(empty + memory * min(by_cpu, by_group)) / 2**30:.0f} GiB then"
    )


def main() -> None:
    """Print the costs of each size, and the slope."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--containers", type=int, default=8, help="of each host (default: %(default)s)")
    parser.add_argument("--rules", type=Path, default=ROOT / "prometheus/rules", help="where they are")
    parser.add_argument("--native", action="store_true", help="histograms as native ones of custom buckets")
    parser.add_argument("--warm", type=float, default=330.0, help="seconds (default: %(default)s)")
    parser.add_argument("--measure", type=float, default=180.0, help="seconds (default: %(default)s)")
    parser.add_argument(
        "--prepare",
        type=float,
        default=180.0,
        help="seconds for the blocks of the past (default: %(default)s)",
    )
    parser.add_argument("--gate", type=Path, help="a file to wait for before the warm-up")
    args = parser.parse_args()
    missing: list[Any] = [each for each in ("prometheus", "promtool") if shutil.which(each) is None]
    if missing:
        parser.error(f"not on PATH: {', '.join(missing)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rules = sorted(args.rules.glob("*.yml"))
    text = simulated(args.containers, args.warm + 2 * args.measure + 300, rules)
    form = "native histograms of custom buckets" if args.native else "buckets"
    print(f"{args.containers} containers a host, a scrape each {SCRAPE:g} s, {form}")
    costs = []
    for hosts in args.hosts:
        costs.append(measure(text, hosts, args))
        show(costs[-1])
        sys.stdout.flush()
    if len(costs) > 1:
        slope(costs)


if __name__ == "__main__":
    main()
