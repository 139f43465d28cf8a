"""What do the shipped rules cost a Prometheus with 100, 200 or 400 hosts of 8 containers?

One host is a real exporter and its judge, with simulated probes (grafana/situations); the others are the same under
other names, five hosts a service. A real Prometheus scrapes all of them over HTTP, as prometheus/prometheus.yml says,
and evaluates the rules. What they read further back than five minutes is backfilled for half an hour, so that each
window is full. After a warm-up its own metrics say how long each group of rules takes and what the process needs.
Exits with 1 where all groups together take more than a quarter of their intervals.

    PYTHONPATH=. python benchmarks/rules.py [--hosts 100 200 400]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import structlog
import yaml
from prometheus_client.parser import text_string_to_metric_families

from grafana.prometheus import Prometheus
from grafana.situations import backfill, history
from grafana.situations.worlds import SITUATIONS, Situation

GOAL = 0.25
"""Of the groups' intervals, all together."""
SCRAPE = 15.0
"""Seconds between two scrapes and two evaluations, as in charts/infercanary."""
PAST = 1800.0
"""The longest window of what there is much of: runs, half an hour."""
CONTAINERS, TOGETHER = 8, 5
"""Of each host, and hosts that run the same services."""
PREPARE, WARM, MEASURE = 180.0, 330.0, 180.0
"""Seconds: for the blocks of the past, of a warm-up, and of what counts."""
HOST, SERVICE = "host-000:9797", "service-000"
RULES = backfill.RULES
ROOT = Path(__file__).parents[1]
_WINDOW = re.compile(r"\b(infercanary_\w+|up)(\{[^}]*\})?\[(\d+)([mh])\]")
_WHOSE = f'{{job="infercanary",instance="{HOST}",'.encode()
_NOBODYS = f'{{job="infercanary",instance="{HOST}"}} '.encode()


class Cost(NamedTuple):
    """What Prometheus took at one size of the fleet."""

    hosts: int
    window: float
    """Samples within five minutes, of the 20 that there are where no scrape is late."""
    series: float
    samples: float
    """A second."""
    memory: float
    """Bytes, resident."""
    cores: float
    """CPU seconds a second."""
    groups: Mapping[str, tuple[float, float]]
    """Name → seconds that it takes, and its interval."""
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


def one_host(seconds: float) -> Situation:
    """A host whose services got another image within the last half of the time."""
    server = SITUATIONS["upgraded"].servers[0]
    starts = [(ago * seconds / 3600, image) for ago, image in server.starts]
    servers = [
        server._replace(service=name, name=f"{name}-{HOST[:8]}", host=HOST, starts=starts, words="brief")
        for name in (f"{SERVICE}-{i}" for i in range(CONTAINERS))
    ]
    return Situation("host", servers, seconds=seconds, step=SCRAPE)


def simulated() -> Simulated:
    """Let one host's half an hour pass, which fills the windows of the rules, and what is scraped after it."""
    texts: list[bytes] = []
    situation = one_host(PAST + WARM + MEASURE + 300)
    asyncio.run(history.exporters(situation, texts.append))
    read = _WINDOW.findall("\n".join(path.read_text(encoding="utf-8") for path in RULES.glob("*.yml")))
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
        stamped.sub(b"", own.sub(b"", text)).replace(_WHOSE, b"{").replace(_NOBODYS, b" ")
        for text in texts[count:]
    ]
    return Simulated(past, live)


def renamed(text: bytes, number: int) -> bytes:
    """A host's text as that of another one."""
    service = f"service-{number // TOGETHER:03}".encode()
    return text.replace(HOST[:8].encode(), f"host-{number:03}".encode()).replace(SERVICE.encode(), service)


def add_past(past: Sequence[bytes], hosts: int, folder: Path, until: float) -> None:
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

    class Exporters(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            text = live[min(int((time.monotonic() - began) / SCRAPE), len(live) - 1)]
            body = renamed(text, int(self.path[1:]))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Exporters) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def configured(port: int, hosts: int) -> str:
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
    seconds = f"{SCRAPE:g}s"
    every = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), seconds)
    text: str = yaml.safe_dump(
        {"global": every, "rule_files": [str(RULES / "*.yml")], "scrape_configs": [job]}
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


def measure(text: Simulated, hosts: int) -> Cost:
    """Run one Prometheus, and ask it what it takes."""
    with tempfile.TemporaryDirectory() as name, served(text.live) as port:
        folder = Path(name)
        until = time.time() + PREPARE
        add_past(text.past, hosts, folder, until)
        time.sleep(max(0.0, until - time.time()))
        with running(folder, configured(port, hosts)) as url:
            time.sleep(WARM)
            took = [Metrics(url)]
            while took[-1].at - took[0].at < MEASURE:
                time.sleep(SCRAPE)
                took.append(Metrics(url))
            before, now = took[0], took[-1]
            asked = "avg(count_over_time(infercanary_up[5m]))"
            window = Prometheus(url).at(asked, time.time()).results[0].points[0][1]
        durations = [each.groups("prometheus_rule_group_last_duration_seconds") for each in took[1:]]
        return Cost(
            hosts=hosts,
            window=window,
            series=now.total("prometheus_tsdb_head_series"),
            samples=now.rate("prometheus_tsdb_head_samples_appended_total", before),
            memory=max(each.total("process_resident_memory_bytes") for each in took),
            cores=now.rate("process_cpu_seconds_total", before),
            groups={
                group: (statistics.mean(each[group] for each in durations), interval)
                for group, interval in now.groups("prometheus_rule_group_interval_seconds").items()
            },
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
        f"--web.listen-address={address}",
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
        f"\n{cost.hosts} hosts ({cost.window:.1f} samples in 5 min): {cost.series:,.0f} series; "
        f"{cost.samples:,.0f} samples/s; {cost.memory / 2**30:.1f} GiB; "
        f"CPU {cost.cores:.2f} cores"
    )
    for group, (seconds, interval) in cost.groups.items():
        if seconds / interval >= 0.001:
            print(f"  {group:24} {seconds:7.3f} s of {interval:3g} s  {seconds / interval:6.1%}")
    print(
        f"  {'all groups':24} {'':16} {cost.share:6.1%}  (goal: {GOAL:.0%} at most; "
        f"{cost.late:g} evaluations missed)",
        flush=True,
    )


def main() -> None:
    """Print the costs of each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 200, 400])
    args = parser.parse_args()
    if missing := backfill.missing():
        parser.error(missing)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    text = simulated()
    print(f"{CONTAINERS} containers a host, a scrape each {SCRAPE:g} s", flush=True)
    costs = []
    for hosts in args.hosts:
        costs.append(measure(text, hosts))
        show(costs[-1])
    sys.exit(any(cost.share > GOAL for cost in costs))


if __name__ == "__main__":
    main()
