"""Measures the cost of the shipped rules for a Prometheus with 100, 200 or 400 hosts, each with 8 containers.

One host is a real exporter with its judge and simulated probes (grafana/situations). The others are copies with other
names; five hosts form a service. A real Prometheus scrapes all of them over HTTP with the job of
prometheus/prometheus.yml, and evaluates the rules. For rules that read more than five minutes back, half an hour of
data is loaded before, so that every window is full. After a warm-up, Prometheus' own metrics give the evaluation time
of each group and the resources of the process.

Exits with 1 if all groups together take more than a quarter of their intervals.

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
"""Largest accepted sum, over all groups, of evaluation time divided by interval."""
SCRAPE = 15.0
"""Seconds between two scrapes and two evaluations, as in charts/infercanary."""
PAST = 1800.0
"""Seconds of past data; the longest window of a rule over runs."""
CONTAINERS, TOGETHER = 8, 5
"""Containers of each host, and number of hosts with the same services."""
PREPARE, WARM, MEASURE = 180.0, 330.0, 180.0
"""Seconds for loading past data, for warm-up, and for the measurement."""
HOST, SERVICE = "host-000:9797", "service-000"
RULES = backfill.RULES
ROOT = Path(__file__).parents[1]
_WINDOW = re.compile(r"\b(infercanary_\w+|up)(\{[^}]*\})?\[(\d+)([mh])\]")
_WHOSE = f'{{job="infercanary",instance="{HOST}",'.encode()
_NOBODYS = f'{{job="infercanary",instance="{HOST}"}} '.encode()


class Cost(NamedTuple):
    """Resources that Prometheus used at one size of the fleet."""

    hosts: int
    window: float
    """Samples within five minutes; 20 if no scrape is late."""
    series: float
    samples: float
    """Samples per second."""
    memory: float
    """Resident bytes."""
    cores: float
    """CPU seconds per second."""
    groups: Mapping[str, tuple[float, float]]
    """Group → evaluation time and interval, seconds."""
    late: float
    """Number of missed evaluations."""

    @property
    def share(self) -> float:
        """Evaluation time of all groups, as a fraction of their intervals."""
        return sum(took / interval for took, interval in self.groups.values())


class Simulated(NamedTuple):
    """Scrapes of one host's exporter, one every 15 s."""

    past: list[bytes]
    """Scrapes with timestamps, only of families that rules read more than five minutes back."""
    live: list[bytes]
    """Scrapes as Prometheus receives them."""


def one_host(seconds: float) -> Situation:
    """Return a host whose services were upgraded in the second half of the time."""
    server = SITUATIONS["upgraded"].servers[0]
    starts = [(ago * seconds / 3600, image) for ago, image in server.starts]
    servers = [
        server._replace(service=name, name=f"{name}-{HOST[:8]}", host=HOST, starts=starts, words="brief")
        for name in (f"{SERVICE}-{i}" for i in range(CONTAINERS))
    ]
    return Situation("host", servers, seconds=seconds, step=SCRAPE)


def simulated() -> Simulated:
    """Simulate one host: half an hour that fills the windows of the rules, then the scrapes that are served."""
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
    own = re.compile(rb"^(?:up|scrape_\w+)[ {].*\n", re.MULTILINE)  # Prometheus adds these series itself
    stamped = re.compile(rb" [\d.e+]+$", re.MULTILINE)
    live = [
        stamped.sub(b"", own.sub(b"", text)).replace(_WHOSE, b"{").replace(_NOBODYS, b" ")
        for text in texts[count:]
    ]
    return Simulated(past, live)


def renamed(text: bytes, number: int) -> bytes:
    """Return the scrape with the names of host ``number`` and of its services."""
    service = f"service-{number // TOGETHER:03}".encode()
    return text.replace(HOST[:8].encode(), f"host-{number:03}".encode()).replace(SERVICE.encode(), service)


def add_past(past: Sequence[bytes], hosts: int, folder: Path, until: float) -> None:
    """Load the scrapes before a Unix time into Prometheus' database."""
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
    """Serve the exporters of all hosts on one port, each under its own path: ``/7`` is the eighth exporter."""
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
    """Return Prometheus' configuration: the shipped job with ``hosts`` hosts."""
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
    """Prometheus' own metrics at one moment."""

    def __init__(self, url: str) -> None:
        self.at = time.monotonic()
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            text = response.read().decode()
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self._samples if sample.name == name)

    def rate(self, name: str, before: Metrics) -> float:
        """Return the rate of a counter per second."""
        return (self.total(name) - before.total(name)) / (self.at - before.at)

    def groups(self, name: str) -> dict[str, float]:
        """Return a metric's value of each group of rules."""
        return {
            sample.labels["rule_group"].rpartition(";")[2]: sample.value
            for sample in self._samples
            if sample.name == name
        }


def measure(text: Simulated, hosts: int) -> Cost:
    """Run a Prometheus, and measure the resources that it uses."""
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
    """Run a Prometheus with the configuration on a free loopback port."""
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
