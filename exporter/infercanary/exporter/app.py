"""The exporter as an aiohttp application: its parts, wired together, and its pages."""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from aiohttp import web
from prometheus_client import ProcessCollector

import infercanary
from infercanary.client.accept import base_name
from infercanary.command.settings import UsageError
from infercanary.contract.report import Family, Kind, Metric
from infercanary.contract.text import masked
from infercanary.exporter import (
    api,
    expose,
    lookups,
    polled,
    reload,
    runbooks,
    scrape,
    status,
    watch,
)
from infercanary.exporter import limits as probe_limits
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.discovery import base, docker, kills, kubernetes, static
from infercanary.exporter.discovery.base import Discovery
from infercanary.exporter.expose import Exposition, Pieces
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.reload import LiveConfig
from infercanary.exporter.rollout import ServiceState
from infercanary.exporter.watch import WATCH, in_thread
from infercanary.exporter.web import METRICS as CONNECTION_METRICS
from infercanary.exporter.web import Connections
from infercanary.judge.model import ServiceKey

BUILD = Metric(
    "infercanary_build_info",
    "gauge",
    "Always 1, with the version of the exporter.",
    ("version", "python"),
    reading="`count by (version) (infercanary_build_info)` shows which exporters are old.",
)
LINKS = Metric(
    "infercanary_links_info",
    "gauge",
    "Always 1, with the addresses from `links:` in exporter.yaml.",
    ("grafana", "runbooks"),
    reading="Links in alerts begin with these addresses.",
)
LAG = Metric(
    "infercanary_event_loop_lag_seconds",
    "gauge",
    "Longest delay of the exporter's event loop over the last 30 s.",
    reading="Healthy is below 0.1 s. More: the host has too little CPU, or the exporter too many probes.",
)
METRICS = (
    *(
        BUILD,
        LINKS,
        LAG,
        *polled.METRICS,
        *probe_limits.METRICS,
        *reload.METRICS,
        *CONNECTION_METRICS,
        *watch.METRICS,
        *base.METRICS,
        *kills.METRICS,
        *store_metrics.METRICS,
    ),
)

VERSION = infercanary.__version__
_RESERVED = frozenset(base_name(metric.name, metric.kind) for metric in METRICS)
_SELF = ("", "", "")  # key of the exporter's own series, with their labels: a kill in a pod has other ones
_TICK_SECONDS = 0.1
_TICKS = 300
_END = b"# EOF\n"  # of OpenMetrics
_REFRESH_SECONDS = 0.02  # scrapes of one moment share the exporter's own series
_PAGE_TIMES = 20.0  # the status page takes a twentieth of the event loop at most, however often somebody asks

_SECURITY_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {status.SCRIPT_SOURCE}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Exporter:
    """Everything that lives as long as the exporter, wired together.

    Args:
        config: Read and checked.
        path: Its file; None if there is none to reload.
        given: Options of the command line by key; they override the file.
    """

    def __init__(
        self, config: ExporterConfig, path: Path | None, given: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self.exposition = Exposition()
        self.connections = Connections()
        sources = docker.source(config.docker), kubernetes.source(config.kubernetes)
        self.discoveries = [Discovery(source, self._follow) for source in sources if source is not None]
        self.live = LiveConfig(config, path, self._reconfigure, given)
        memory = probe_limits.memory_limit()
        most = probe_limits.Totals.within(config.limits, memory)
        self.judging = Judging(
            config.store,
            config.judge.policy(),
            config.host_name,
            most.queue_bytes,
            most.read_bytes,
        )
        self.collector = Collector(config, self.exposition, self.judging, _RESERVED, memory)
        self._lags: deque[float] = deque([0.0], maxlen=_TICKS)
        self._process = ProcessCollector(registry=None)
        self._refreshed_at = -math.inf
        self._ready = False
        self._page = b""
        self._page_until = -math.inf
        self._rendering = asyncio.Lock()

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Discover and poll until the application stops."""
        lookups.install()
        tasks = [WATCH.task("lag", self._measure_lag), WATCH.task("reload", self.live.watch)]
        self.judging.start()
        self._follow()
        for discovery in self.discoveries:
            discovery.start()
        yield
        await asyncio.gather(*(discovery.stop() for discovery in self.discoveries))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.collector.close()
        await in_thread(self.judging.stop)

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """Yield the whole exposition, in OpenMetrics or in the text format."""
        now = time.monotonic()
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            self.collector.refresh_ages()
            for family in self._families():
                self.exposition.put((*_SELF, *family.labels), expose.write(family, {}))
        yield from self.exposition.families(in_openmetrics=in_openmetrics)
        if in_openmetrics:
            yield Pieces([_END], len(_END))

    def service_state(self, service: ServiceKey) -> ServiceState:
        """Return what a rollout of a service needs; of other hosts from a few seconds after the first question on."""
        probes = self.collector.services.get(service, ())
        ownership = self.judging.ownership
        ownership.ask(service)
        here = {probe.container.replica for probe in probes}
        elsewhere = [start for start in ownership.running(service) if start.container not in here]
        return ServiceState(
            self.judging.findings.get(service, NOTHING),
            [*(probe.start for probe in probes if probe.up and probe.start is not None), *elsewhere],
            [probe.container.replica for probe in probes if probe.start is None],
            {
                key.namespace
                for key in (*self.judging.findings, *self.collector.services)
                if key.name == service.name
            },
        )

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """Send the status page; readers within a second of each other get the same one."""
        async with self._rendering:
            begin = time.monotonic()
            if begin >= self._page_until:
                self._page = await status.page(
                    [*self.collector.probes.values()],
                    self.collector.kills.last(),
                    self.live.current.judge.policy(),
                    version=VERSION,
                    troubles=self._troubles(),
                    left=self.collector.ended_services(),
                )
                now = time.monotonic()
                self._page_until = now + max(1.0, _PAGE_TIMES * (now - begin))
            pieces = Pieces([self._page], len(self._page))
        return await scrape.send(request, [pieces], "text/html; charset=utf-8")

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """Send the exposition, in the format that the headers ask for."""
        content_type = scrape.negotiate(request.headers.get("Accept", ""))
        parts = self.families(in_openmetrics="openmetrics" in content_type)
        return await scrape.send(request, parts, content_type)

    @property
    def ready(self) -> bool:
        """True for ever once each discovery was tried and each probe was polled."""
        self._ready = self._ready or (
            all(discovery.tried for discovery in self.discoveries)
            and all(probe.polled for probe in self.collector.probes.values())
        )
        return self._ready

    async def show_readiness(self, _request: web.Request) -> web.Response:
        """Answer 200 once a scrape shows every probe, else 503."""
        if self.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not every probe was polled yet\n")

    async def reload(self, _request: web.Request) -> web.Response:
        """Put a changed config file in force: 200, or 400 with its mistake."""
        try:
            await self.live.reload()
        except UsageError as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.Response(text="reloaded\n")

    def _families(self) -> list[Family]:
        links = self.live.current.links
        grafana, runbooks = masked(links.grafana), masked(links.runbooks)
        return [
            LINKS.family({(grafana, runbooks): 1.0} if grafana or runbooks else {}),
            BUILD.family({(VERSION, platform.python_version()): 1.0}),
            LAG.family(max(self._lags)),
            reload.RELOAD_OK.family(float(self.live.ok)),
            *self.connections.families(),
            *WATCH.families(),
            *self.judging.families(),
            *self.collector.shares.families(),
            *self.collector.kills.families(),
            *(family for discovery in self.discoveries for family in discovery.families()),
            *_process_families(self._process),
        ]

    def _troubles(self) -> Iterator[str]:
        """Yield a sentence for each trouble of the exporter itself."""
        for discovery in self.discoveries:
            if not discovery.up:
                yield f"{discovery.source.name} does not answer. What is below was found before; the log says why."
        if refused := len(self.collector.shares.refused):
            yield (
                f"{refused} containers are not polled: give the exporter more memory, or raise limits.probes. "
                "The log names them."
            )
        if not self.live.ok:
            yield "Changed settings were refused: the old settings still apply, and the log names the line."
        if not self.judging.up:
            yield "The judge's store fails: verdicts are not updated, and the log says why."

    def _reconfigure(self, config: ExporterConfig) -> None:
        self.judging.reconfigure(config.judge.policy())
        self.collector.config = config
        self._follow()

    def _follow(self) -> None:
        """Follow the containers found; an entry of the config outweighs a discovery's."""
        config = self.live.current
        found = []
        for discovery in self.discoveries:
            while discovery.source.kills:
                self.collector.note_end(discovery.source.kills.pop(0))
            found += [
                container
                if container.url is None
                else msgspec.structs.replace(container, url=config.probe_access.url(container.url))
                for container in discovery.containers
            ]
        self.collector.follow([*found, *static.listed(config.probes)])

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._lags.append(max(0.0, loop.time() - expected))


def _process_families(process: ProcessCollector) -> Iterator[Family]:
    for metric in process.collect():
        kind: Kind = "counter" if metric.type == "counter" else "gauge"
        for sample in metric.samples:
            yield Metric(sample.name, kind, metric.documentation).family(sample.value)


EXPORTER = web.AppKey("exporter", Exporter)


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="healthy\n")  # the event loop turns


async def _show_runbooks(_request: web.Request) -> web.Response:
    return web.Response(text=runbooks.page(), content_type="text/html")


async def _add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SECURITY_HEADERS)


def create_app(
    config: ExporterConfig, path: Path | None = None, given: Mapping[str, object] = MappingProxyType({})
) -> web.Application:
    """Make the application; nothing runs before its start.

    Args:
        config: Read and checked.
        path: Its file; None if there is none to reload.
        given: Options of the command line by key; they override the file.
    """
    app = web.Application()
    exporter = app[EXPORTER] = Exporter(config, path, given)
    app.middlewares.append(exporter.connections.middleware)
    app.cleanup_ctx.append(exporter.run)
    app.on_response_prepare.append(_add_security_headers)
    app.add_routes(
        [
            web.get("/", exporter.show_page),
            web.get("/metrics", exporter.show_metrics),
            web.get(runbooks.PATH, _show_runbooks),
            web.get("/-/healthy", _healthy),
            web.get("/-/ready", exporter.show_readiness),
            web.post("/-/reload", exporter.reload),
            *api.routes(exporter.service_state),
        ]
    )
    return app
