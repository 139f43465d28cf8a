"""What Prometheus scrapes in a situation: of the real exporter and its judge, which read simulated reports."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO
from unittest.mock import patch

from grafana.situations.moments import moment
from grafana.situations.reports import report
from grafana.situations.worlds import END, Server, Situation
from infercanary.contract.report import encode
from infercanary.exporter.app import Exporter
from infercanary.exporter.config import ExporterConfig, Links
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.docker import DockerDiscovery
from infercanary.exporter.polled import PolledProbe

_COMMENTS = re.compile(rb"^#.*\n", re.MULTILINE)
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
_LINKS = Links(grafana="http://127.0.0.1:3000", runbooks="http://127.0.0.1:9797/runbooks")


def times(situation: Situation) -> Iterator[float]:
    """When it is scraped.

    Args:
        situation: Which.

    Yields:
        Unix seconds, the last one is the end.
    """
    count = int(situation.seconds / situation.step)
    yield from (END - left * situation.step for left in range(count, -1, -1))


def write(situation: Situation, file: BinaryIO) -> None:
    """Write all that is scraped, as OpenMetrics with times.

    Args:
        situation: Which.
        file: Opened for writing.
    """
    asyncio.run(exporters(situation, file.write))
    file.write(b"# EOF\n")


async def exporters(situation: Situation, take: Callable[[bytes], object]) -> list[Exporter]:
    """Let a situation pass.

    Args:
        situation: Which.
        take: Is given what is scraped, lines of OpenMetrics with times.

    Returns:
        The exporters, one a host, as they are at its end.
    """
    names = sorted({server.host for server in situation.servers} or {"exporter:9797"})
    hosts = [_Host(name, [s for s in situation.servers if s.host == name], situation) for name in names]
    since = END - situation.seconds - situation.step
    for at in times(situation):
        # The exporter and its judge ask for the time: how old a report is, when neighbours are compared.
        with patch("time.time", lambda at=at: at), patch("time.monotonic", lambda at=at: at):
            for host in hosts:
                await host.poll(at, since)
                take(host.scraped(at))
        since = at
    for host in hosts:
        await host.exporter.collector.close()
    return [host.exporter for host in hosts]


class _Host:
    """A host: its exporter, which polls its servers.

    Args:
        name: The label ``instance``.
        servers: Those on it.
        situation: Which.
    """

    def __init__(self, name: str, servers: list[Server], situation: Situation) -> None:
        self.exporter = Exporter(ExporterConfig(links=_LINKS), None)
        self._name = name
        self._servers = servers
        self._situation = situation
        self._judged = 0

    async def poll(self, at: float, since: float) -> None:
        """Take what each probe answers now, judge it, and show it."""
        collector = self.exporter.collector
        for server in self._servers:
            now = moment(server, at)
            if now is None:
                continue
            container = _container(server, now.image.name, now.image.digits, now.order)
            probe = PolledProbe(container)
            if (known := collector.probes.get(probe.key)) is not None and known.container == container:
                probe = known
            else:
                collector.probes[probe.key] = probe
            if "down" in now.troubles:
                probe.up, probe.trouble = False, "unreachable: Connection refused"
                probe.failures["unreachable"] += 1
            else:
                await collector.absorb(probe, encode(report(now, since)))
                probe.duration = 0.02
            probe.polled = True
        self._find(at)
        # 500 services are judged at the end alone, which is what a board shows: it takes most of the time.
        if len(self._servers) * self._situation.step < 600 or at == END:
            self.exporter.judging.turn()
        for probe in collector.probes.values():
            collector.show(probe)

    def _find(self, at: float) -> None:
        docker = self.exporter.discoveries["docker"]
        assert isinstance(docker, DockerDiscovery)
        bad = self._situation.exporter_troubles and at > END - 300
        docker.up, docker.tried = not bad, True
        docker.containers = tuple(probe.container for probe in self.exporter.collector.probes.values())

    def scraped(self, at: float) -> bytes:
        """The exporter's answer, with the labels that Prometheus adds and the time."""
        *pieces, _of_this_process = self.exporter.families(in_openmetrics=False)
        began = END - self._situation.seconds
        own = _OWN.format(cpu=1 + 0.004 * (at - began), start=began)
        text = _COMMENTS.sub(b"", b"".join(b"".join(piece.texts) for piece in pieces)) + own.encode()
        labels = f'{{job="infercanary",instance="{self._name}"'.encode()
        text = text.replace(b"{", labels + b",").replace(b"\n", f" {at}\n".encode())
        return _BARE.sub(rb"\1" + labels + b"} ", text)


def _container(server: Server, image: str, digits: str, order: int) -> Container:
    return Container(
        service=server.service,
        name="server" if server.namespace else server.name,
        namespace=server.namespace,
        pod=server.name if server.namespace else "",
        id=f"{order}{digits}"[:64],
        image=image,
        image_id=f"sha256:{digits}",
        image_digest=f"{image.partition(':')[0]}@sha256:{digits}",
        url="http://127.0.0.1:9",
    )
