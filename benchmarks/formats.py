"""Which format of a scrape costs Prometheus and the exporter least, and what do native histograms change?

A real Prometheus scrapes the simulated containers of ``exposition.py`` in each format, with classic histograms, with
``convert_classic_histograms_to_nhcb`` (native ones of our own buckets), and with native exponential ones, which only
protobuf can send. What is served was written before, so that the CPU seconds are Prometheus' own.

    python benchmarks/formats.py [--containers 300] [--seconds 40]
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from isal import isal_zlib

from exposition import identity, report
from infercanary.contract.report import LADDER, Family, HistogramValue
from infercanary.exporter import scrape
from infercanary.exporter.expose import Exposition, write

PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
TICKS = 3
_INTERVAL_SECONDS = 2
_SCHEMA = 2  # of exponential buckets: each 2^(1/4) wide, as ours are
_SHIFT = -57  # index of the bucket that begins near our first one, 50 µs = 2^(-57.2/4) s

_FIELDS: dict[str, list[tuple[str, int, str]]] = {  # of io.prometheus.client: name, number, type; * for repeated
    "LabelPair": [("name", 1, "string"), ("value", 2, "string")],
    "Gauge": [("value", 1, "double")],
    "Counter": [("value", 1, "double")],
    "Bucket": [("cumulative_count", 1, "uint64"), ("upper_bound", 2, "double")],
    "BucketSpan": [("offset", 1, "sint32"), ("length", 2, "uint32")],
    "Histogram": [
        ("sample_count", 1, "uint64"),
        ("sample_sum", 2, "double"),
        ("bucket", 3, "*Bucket"),
        ("schema", 5, "sint32"),
        ("zero_threshold", 6, "double"),
        ("zero_count", 7, "uint64"),
        ("positive_span", 12, "*BucketSpan"),
        ("positive_delta", 13, "*sint64"),
    ],
    "Metric": [
        ("label", 1, "*LabelPair"),
        ("gauge", 2, "Gauge"),
        ("counter", 3, "Counter"),
        ("histogram", 7, "Histogram"),
    ],
    "MetricFamily": [("name", 1, "string"), ("help", 2, "string"), ("type", 3, "int32"), ("metric", 4, "*Metric")],
}  # fmt: skip
_KINDS = {"counter": 0, "gauge": 1, "histogram": 4}


def _messages() -> Callable[[str], Any]:
    """The classes of Prometheus' messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="io.prometheus.client")
    types = descriptor_pb2.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        added = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = added.field.add(name=name, number=number)
            field.label = types.LABEL_REPEATED if kind.startswith("*") else types.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in _FIELDS:
                field.type, field.type_name = types.TYPE_MESSAGE, f".io.prometheus.client.{kind}"
            else:
                field.type = getattr(types, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"io.prometheus.client.{name}")
    )


_message = _messages()


def _fill(histogram: Any, value: HistogramValue, *, native: bool) -> None:
    histogram.sample_count, histogram.sample_sum = sum(value.counts), value.sum
    if not native:
        for bound, count in zip((*LADDER, float("inf")), accumulate(value.counts), strict=True):
            histogram.bucket.add(cumulative_count=count, upper_bound=bound)
        return
    histogram.schema, histogram.zero_threshold = _SCHEMA, 1e-9
    filled = [place for place, count in enumerate(value.counts) if count]
    histogram.positive_span.add(offset=_SHIFT + filled[0], length=filled[-1] - filled[0] + 1)
    before = 0
    for count in value.counts[filled[0] : filled[-1] + 1]:
        histogram.positive_delta.append(count - before)
        before = count


def as_metrics(family: Family, names: dict[str, str], *, native: bool) -> bytes:
    """One container's part of a ``MetricFamily``: such parts may be joined, as lines may."""
    made = _message("MetricFamily")()
    for point in family.points:
        metric = made.metric.add()
        for name, value in sorted([*names.items(), *zip(family.labels, point.labels, strict=True)]):
            metric.label.add(name=name, value=value)
        if isinstance(point.value, HistogramValue):
            _fill(metric.histogram, point.value, native=native)
        else:
            getattr(metric, family.kind).value = point.value
    return bytes(made.SerializeToString())


def protobuf(containers: int, tick: int, *, native: bool) -> bytes:
    families: dict[str, list[Any]] = {}
    for number in range(containers):
        for family in report(number, tick).families:
            if family.name not in families:
                header = _message("MetricFamily")(
                    name=family.name, help=family.help, type=_KINDS[family.kind]
                )
                families[family.name] = [header.SerializeToString()]
            families[family.name].append(as_metrics(family, identity(number), native=native))
    return b"".join(_varint(sum(map(len, parts))) + b"".join(parts) for parts in families.values())


def _varint(number: int) -> bytes:
    digits = []
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def lines(containers: int, tick: int, *, in_openmetrics: bool) -> bytes:
    exposition = Exposition()
    for number in range(containers):
        key = (identity(number)["service"], identity(number)["container"])
        exposition.replace(key, [write(family, identity(number)) for family in report(number, tick).families])
    body = b"".join(exposition.families(in_openmetrics=in_openmetrics))
    return body + (b"# EOF\n" if in_openmetrics else b"")


class Case(NamedTuple):
    """One format, and what Prometheus does with it."""

    name: str
    protocol: str
    content_type: str
    body: Callable[[int, int], bytes]
    converted: bool = False


TEXT, OPENMETRICS = scrape.negotiate(""), scrape.negotiate("application/openmetrics-text")
CASES = [
    Case("text", "PrometheusText0.0.4", TEXT, lambda n, t: lines(n, t, in_openmetrics=False)),
    Case(
        "OpenMetrics", "OpenMetricsText1.0.0", OPENMETRICS, lambda n, t: lines(n, t, in_openmetrics=True)
    ),
    Case("protobuf", "PrometheusProto", PROTOBUF, lambda n, t: protobuf(n, t, native=False)),
    Case(
        "text, converted", "PrometheusText0.0.4", TEXT, lambda n, t: lines(n, t, in_openmetrics=False), True
    ),
    Case(
        "protobuf, converted", "PrometheusProto", PROTOBUF, lambda n, t: protobuf(n, t, native=False), True
    ),
    Case("protobuf, exponential", "PrometheusProto", PROTOBUF, lambda n, t: protobuf(n, t, native=True)),
]  # fmt: skip


def packed(body: bytes) -> bytes:
    packing = isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)  # as the exporter packs
    return bytes(packing.compress(body) + packing.flush())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _ask(port: int, query: str) -> float:
    url = f"http://127.0.0.1:{port}/api/v1/query?query={query}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


class _Answers(BaseHTTPRequestHandler):
    """Gives each body in turn."""

    content_type = ""
    bodies: Sequence[bytes] = ()
    given = 0
    enough = threading.Event()

    def do_GET(self) -> None:
        kind = type(self)
        body = self.bodies[kind.given % len(self.bodies)]
        self.send_response(200)
        self.send_header("Content-Type", self.content_type)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        kind.given += 1
        if kind.given == 3:  # every series and its first chunk are there
            kind.enough.set()

    def log_message(self, *_args: object) -> None:
        """Nothing: it is asked all the time."""


def measure(case: Case, containers: int, seconds: int) -> str:
    bodies = [case.body(containers, tick) for tick in range(TICKS)]
    sent = [packed(body) for body in bodies]
    state = {"content_type": case.content_type, "bodies": sent, "given": 0, "enough": threading.Event()}
    answers: Any = type("Answers", (_Answers,), state)
    port = _free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadingHTTPServer(("127.0.0.1", 0), answers) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = Path(folder, "prometheus.yml")
        job = {
            "job_name": "exporter",
            "scrape_interval": f"{_INTERVAL_SECONDS}s",
            "scrape_timeout": f"{_INTERVAL_SECONDS}s",
            "scrape_protocols": [case.protocol],
            "convert_classic_histograms_to_nhcb": case.converted,
            "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}],
        }
        config.write_text(json.dumps({"scrape_configs": [job]}))
        with subprocess.Popen(
            [
                *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=native-histograms"),
                "--log.level=error",
            ]
        ) as prometheus:
            try:
                if not answers.enough.wait(60):
                    raise click.ClickException(f"{case.name}: Prometheus did not scrape")
                process = psutil.Process(prometheus.pid)
                given, cpu = answers.given, sum(process.cpu_times()[:2])
                time.sleep(seconds)
                cpu, counted = sum(process.cpu_times()[:2]) - cpu, answers.given - given
                samples, up = _ask(port, "scrape_samples_scraped"), _ask(port, "up")
                resident = process.memory_info().rss
                wal = sum(path.stat().st_size for path in Path(folder, "data", "wal").glob("*"))
            finally:
                prometheus.terminate()
        server.shutdown()
    if not up or counted < seconds / _INTERVAL_SECONDS / 2:
        raise click.ClickException(f"{case.name}: up is {up:g}, with {counted} scrapes in {seconds} s")
    return (
        f"| {case.name} | {len(bodies[0]) / 1e6:.1f} | {len(sent[0]) / 1e6:.2f} | {samples:,.0f} | "
        f"{cpu / counted * 1e3:.0f} | {resident / 2**20:.0f} | {wal / answers.given / 1e6:.2f} |"
    )


def cost_of_writing(containers: int) -> str:
    """CPU of the exporter to write one report in each form."""
    reports = [report(number, 1) for number in range(containers)]
    ways: dict[str, Callable[[Family, dict[str, str]], object]] = {
        "lines": write,
        "protobuf": lambda family, names: as_metrics(family, names, native=False),
        "protobuf with exponential histograms": lambda family, names: as_metrics(family, names, native=True),
    }
    spent = []
    for name, way in ways.items():
        kept = []
        for _ in range(2):  # the first round has what is written once
            started = time.process_time()
            kept = [
                way(family, identity(number))
                for number, each in enumerate(reports)
                for family in each.families
            ]
            passed = time.process_time() - started
        spent.append(f"{name} {passed / containers * 1e3:.2f} ms")
        del kept
    return "CPU of the exporter to write a report: " + ", ".join(spent)


@click.command()
@click.option("--containers", default=300, show_default=True)
@click.option("--seconds", default=40, show_default=True)
def main(containers: int, seconds: int) -> None:
    """Let Prometheus scrape each format."""
    print(cost_of_writing(containers))
    print(f"{containers} containers; per scrape, by Prometheus; all with gzip")
    print(
        "| format | MB | MB packed | samples | CPU ms | memory MiB | WAL MB |\n|---|---|---|---|---|---|---|"
    )
    for case in CASES:
        print(measure(case, containers, seconds), flush=True)


if __name__ == "__main__":
    main()
