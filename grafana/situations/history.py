"""Scrapes of a situation, made by the real exporter and its judge from simulated reports."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import BinaryIO
from unittest.mock import patch

from grafana.situations.moments import Moment, moment
from grafana.situations.reports import report
from grafana.situations.worlds import END, Server, Situation
from infercanary.contract.report import encode
from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig, Links
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.probe_state import PolledProbe

_COMMENTS = re.compile(rb"^#.*\n", re.MULTILINE)
_OF_THIS_PROCESS = re.compile(rb"(?m)^process_.*\n")
_BARE = re.compile(rb"^(\w+) ", re.MULTILINE)
_OWN = """\
up 1
scrape_duration_seconds 0.012
scrape_samples_scraped 1843
process_cpu_seconds_total {cpu}
process_resident_memory_bytes 9.1e+07
process_start_time_seconds {start}
process_open_fds 31
process_max_fds 1048576
"""
_DOWN = b"up 0\nscrape_duration_seconds 10\n"
_LINKS = Links(grafana="http://127.0.0.1:3000", runbooks="http://127.0.0.1:9797/runbooks")


def write(situation: Situation, file: BinaryIO) -> None:
    """Write all scrapes to a file, as OpenMetrics with timestamps."""
    asyncio.run(exporters(situation, file.write))
    file.write(b"# EOF\n")


async def exporters(situation: Situation, take: Callable[[bytes], object]) -> list[Exporter]:
    """Run the exporters through a situation.

    Args:
        situation: The situation.
        take: Called with each scrape: lines of OpenMetrics with timestamps.

    Returns:
        The exporters in their final state, one for each host.
    """
    hosts: dict[str, list[Server]] = {server.host: [] for server in situation.servers} or {
        "exporter:9797": []
    }
    for server in situation.servers:
        hosts[server.host].append(server)
    exporters = {name: Exporter(ExporterConfig(links=_LINKS), None) for name in sorted(hosts)}
    since = END - situation.seconds - situation.step
    for left in range(int(situation.seconds / situation.step), -1, -1):
        at = END - left * situation.step
        # Simulated time, because the exporter and its judge read the clock (age of a report, comparison of
        # neighbours).
        with patch("time.time", lambda at=at: at), patch("time.monotonic", lambda at=at: at):
            for name, exporter in exporters.items():
                text = _DOWN
                if name != situation.down or at <= END - 600:
                    await _poll(exporter, situation, hosts[name], at, since)
                    text = _scraped(exporter, at, END - situation.seconds)
                labels = f'{{job="infercanary",instance="{name}"'.encode()
                text = text.replace(b"{", labels + b",").replace(b"\n", f" {at}\n".encode())
                take(_BARE.sub(rb"\1" + labels + b"} ", text))
        since = at
    for exporter in exporters.values():
        await exporter.collector.close()
    return [*exporters.values()]


def _scraped(exporter: Exporter, at: float, began: float) -> bytes:
    own = _OWN.format(cpu=1 + 0.004 * (at - began), start=began).encode()
    text = _COMMENTS.sub(b"", b"".join(exporter.families(in_openmetrics=False)))
    return _OF_THIS_PROCESS.sub(b"", text) + own


async def _poll(
    exporter: Exporter, situation: Situation, servers: Sequence[Server], at: float, since: float
) -> None:
    """Process the current answer of each probe, judge the runs, and publish the results."""
    probes = exporter.collector.probes
    for now in filter(None, (moment(server, at) for server in servers)):
        container = _container(now)
        probe = PolledProbe(container)
        if probe.key in probes and probes[probe.key].container == container:
            probe = probes[probe.key]
        probes[probe.key] = probe
        if "down" in now.words:
            probe.up, probe.trouble = False, "unreachable: Connection refused"
            probe.failures["unreachable"] += 1
        else:
            await exporter.collector.absorb(probe, encode(report(now, since)))
            probe.duration = 0.02
        probe.polled = True
    [docker] = exporter.discoveries
    docker.up, docker.tried = not (situation.docker_silent and at > END - 300), True
    docker.containers = tuple(probe.container for probe in probes.values())
    # With 500 services, judging takes most of the time. Such a situation is judged only at its end, which
    # dashboards show.
    if len(servers) * situation.step < 600 or at == END:
        exporter.judging.turn()
    for probe in probes.values():
        exporter.collector.show(probe)


def _container(now: Moment) -> Container:
    server, image, digits = now.server, now.image.name, now.image.digits
    return Container(
        service=server.service,
        name="server" if server.namespace else server.name,
        namespace=server.namespace,
        pod=server.name if server.namespace else "",
        id=f"{now.order}{digits}"[:64],
        image=image,
        image_id=f"sha256:{digits}",
        image_digest=f"{image.partition(':')[0]}@sha256:{digits}",
        url="http://127.0.0.1:9",
    )
