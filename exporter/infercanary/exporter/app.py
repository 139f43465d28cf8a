"""The exporter as an aiohttp application: its parts, wired together, and its pages."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import ProcessCollector

import infercanary
from infercanary.client.accept import base_name
from infercanary.contract.report import Family, Kind, Metric
from infercanary.exporter import (
    api,
    expose,
    polled,
    runbooks,
    scrape,
    status,
)
from infercanary.exporter import limits as probe_limits
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import NO_OPTIONS, ExporterConfig, check
from infercanary.exporter.discovery import base, kills, kubernetes, static
from infercanary.exporter.discovery.base import Discovery, Source
from infercanary.exporter.discovery.docker import DockerSource
from infercanary.exporter.expose import Exposition, Pieces
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.rollout import ServiceState
from infercanary.exporter.watch import FAILURES, WATCH, in_thread, install_look_ups
from infercanary.exporter.web import METRICS as CONNECTION_METRICS
from infercanary.exporter.web import Connections
from infercanary.judge.model import ServiceKey

log = structlog.get_logger(__name__)

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
RELOAD_OK = Metric(
    "infercanary_config_last_reload_successful",
    "gauge",
    "1 if the last load of the config worked, else 0.",
    reading="0 is an alert: the old config stays, and a restart would fail. The exporter's log names the line.",
)
METRICS = (
    BUILD,
    LINKS,
    LAG,
    RELOAD_OK,
    FAILURES,
    *polled.METRICS,
    *probe_limits.METRICS,
    *CONNECTION_METRICS,
    *base.METRICS,
    *kills.METRICS,
    *store_metrics.METRICS,
)

VERSION = infercanary.__version__
_FIXED = ("listen", "store", "discovery")  # settings that need a restart
_WATCH_SECONDS = 1.0
_SOURCES: Mapping[str, Callable[[], Source]] = {"docker": DockerSource, "kubernetes": kubernetes.source}
_RESERVED = frozenset(base_name(metric.name, metric.kind) for metric in METRICS)
_SELF = ("", "", "")  # key of the exporter's own series, with their labels: a kill in a pod has other ones
_TICK_SECONDS = 0.1
_TICKS = 300
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
        self, config: ExporterConfig, path: Path | None = None, given: Mapping[str, object] = NO_OPTIONS
    ) -> None:
        self.config = config
        """In force: the last one without a mistake."""
        self.path = path
        self.exposition = Exposition()
        self.connections = Connections()
        sources = [make() for name, make in _SOURCES.items() if name == config.discovery]
        self.discoveries = [Discovery(source, self._follow) for source in sources]
        self._given = given
        self._config_ok = True
        self._stamp = self._file_stamp()
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
        self._ready = False
        self._page = b""
        self._page_until = -math.inf
        self._rendering = asyncio.Lock()

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Discover and poll until the application stops."""
        install_look_ups()
        tasks = [WATCH.task("lag", self._measure_lag), WATCH.task("reload", self._watch_config)]
        self.judging.start()
        self._follow()
        for discovery in self.discoveries:
            discovery.start()
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(discovery.stop() for discovery in self.discoveries), return_exceptions=True
        )
        await self.collector.close()
        await in_thread(self.judging.stop)

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """Yield the whole exposition, in OpenMetrics or in the text format."""
        self.collector.refresh_ages()
        for family in self._families():
            self.exposition.put((*_SELF, *family.labels), expose.write(family, {}))
        yield from self.exposition.families(in_openmetrics=in_openmetrics)
        if in_openmetrics:
            yield Pieces([b"# EOF\n"], 6)

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
        )

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """Send the status page; readers within a second of each other get the same one."""
        async with self._rendering:
            begin = time.monotonic()
            if begin >= self._page_until:
                self._page = await status.page(
                    [*self.collector.probes.values()],
                    self.collector.kills.last(),
                    self.config.judge.policy(),
                    version=VERSION,
                    troubles=self._troubles(),
                    left=self.collector.ended_services(),
                )
                now = time.monotonic()
                self._page_until = now + _PAGE_TIMES * (now - begin)
            pieces = Pieces([self._page], len(self._page))
        return await scrape.send(request, [pieces], "text/html; charset=utf-8")

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """Send the exposition, in the format that the headers ask for."""
        content_type = scrape.negotiate(request.headers.get("Accept", ""))
        parts = self.families(in_openmetrics="openmetrics" in content_type)
        return await scrape.send(request, parts, content_type)

    async def show_readiness(self, _request: web.Request) -> web.Response:
        """Answer 200 for ever once a scrape shows every container, else 503."""
        self._ready = self._ready or (
            all(discovery.tried for discovery in self.discoveries)
            and all(probe.polled for probe in self.collector.probes.values())
        )
        if self._ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not every probe was polled yet\n")

    def _families(self) -> list[Family]:
        links = msgspec.structs.astuple(self.config.links)
        return [
            LINKS.family({links: 1.0} if any(links) else {}),
            BUILD.family({(VERSION, platform.python_version()): 1.0}),
            LAG.family(max(self._lags)),
            RELOAD_OK.family(float(self._config_ok)),
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
            yield (f"{refused} containers are not polled: give the exporter more memory. The log names them.")
        if not self._config_ok:
            yield "Changed settings were refused: the old settings still apply, and the log names the line."
        if not self.judging.up:
            yield "The judge's store fails: verdicts are not updated, and the log says why."

    def request_reload(self) -> None:
        """Have the config's file read within a second, even if it is the same."""
        self._stamp = ()

    async def reload(self) -> None:
        """Put the config's file in force, unless it has a mistake."""
        try:
            new = await in_thread(partial(check, self.path, self._given))
            fixed = {key: getattr(self.config, key) for key in _FIXED}
            if changed := [key for key, value in fixed.items() if getattr(new, key) != value]:
                log.warning("restart the exporter to apply these settings", keys=", ".join(changed))
            self.config = self.collector.config = msgspec.structs.replace(new, **fixed)
            self.judging.reconfigure(new.judge.policy())
            self._follow()
        except Exception as error:  # a fault of ours must not end the watch either
            self._config_ok = False
            log.error("config not reloaded, the old one stays", error=str(error))
        else:
            self._config_ok = True
            log.info("config reloaded")

    async def _watch_config(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if (stamp := self._file_stamp()) != self._stamp:
                self._stamp = stamp
                await self.reload()

    def _file_stamp(self) -> tuple[int, ...]:
        """Return a value that changes with the config's file, also where a symlink is swapped (Kubernetes)."""
        try:
            stat = os.stat(self.path or "")
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _follow(self) -> None:
        """Follow the containers found; an entry of the config outweighs a discovery's."""
        found = []
        for discovery in self.discoveries:
            for kill in discovery.source.new_kills():
                self.collector.note_end(kill)
            found += [
                container
                if container.url is None
                else msgspec.structs.replace(container, url=self.config.probe_access.url(container.url))
                for container in discovery.containers
            ]
        self.collector.follow([*found, *static.listed(self.config.probes)])

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
    config: ExporterConfig, path: Path | None = None, given: Mapping[str, object] = NO_OPTIONS
) -> web.Application:
    """Make the application; nothing runs before its start.

    Args:
        config: Read and checked.
        path: Its file; None if there is none to reload.
        given: Options of the command line by key; they override the file.
    """
    app = web.Application(client_max_size=api.MOST_BODY)
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
            *api.routes(exporter.service_state),
        ]
    )
    return app
