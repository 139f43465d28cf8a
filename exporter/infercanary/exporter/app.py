"""The exporter as an aiohttp application: connects its parts and serves its pages."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

import infercanary
from infercanary.client.accept import base_name
from infercanary.contract.report import Family, Metric
from infercanary.exporter import (
    api,
    expose,
    probe_state,
    runbooks,
    scrape,
    status,
)
from infercanary.exporter import limits as probe_limits
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig, check
from infercanary.exporter.connections import METRICS as CONNECTION_METRICS
from infercanary.exporter.connections import Connections
from infercanary.exporter.discovery import base, kills, kubernetes, static
from infercanary.exporter.discovery.base import Discovery, Source
from infercanary.exporter.discovery.docker import DockerSource
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.worker import Judging
from infercanary.exporter.rollout import ServiceState
from infercanary.exporter.watch import FAILURES, WATCH, use_own_threads
from infercanary.judge.model import ServiceKey

log = structlog.get_logger(__name__)

BUILD = Metric(
    "infercanary_build_info",
    "gauge",
    "Always 1, with the version of the exporter.",
    ("version",),
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
    reading="Healthy is below 0.1 s. Above that, the host has too little CPU, or the exporter has too many probes.",
)
RELOAD_OK = Metric(
    "infercanary_config_last_reload_successful",
    "gauge",
    "1 if the last load of the config worked, else 0.",
    reading="0 is an alert: the old config stays in use, and a restart would fail. The exporter's log names the "
    "faulty line.",
)
METRICS = (
    BUILD,
    LINKS,
    LAG,
    RELOAD_OK,
    FAILURES,
    *probe_state.METRICS,
    *probe_limits.METRICS,
    *CONNECTION_METRICS,
    *base.METRICS,
    *kills.METRICS,
    *store_metrics.METRICS,
)

VERSION = infercanary.__version__
_SOURCES: Mapping[str, Callable[[], Source]] = {"docker": DockerSource, "kubernetes": kubernetes.source}
_RESERVED = frozenset(base_name(metric.name, metric.kind) for metric in METRICS)
_SELF = ("", "", "")  # placeholder for the container in the exporter's own series
_TICK_SECONDS = 0.1
# At any request rate, rendering the status page takes at most 1/20 of the event loop's time.
_PAGE_TIMES = 20.0

_SECURITY_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {status.SCRIPT_SOURCE}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Exporter:
    """Creates and connects the exporter's parts: discoveries, collector, judge and pages.

    Args:
        config: A checked config.
        path: File of the config, which is reloaded when it changes; None without a file.
    """

    def __init__(self, config: ExporterConfig, path: Path | None = None) -> None:
        self.config = config
        """Config in use: the last valid config."""
        self.path = path
        self.exposition = Exposition()
        self.connections = Connections()
        sources = [make() for name, make in _SOURCES.items() if name == config.discovery]
        self.discoveries = [Discovery(source, self._follow) for source in sources]
        self._config_ok = True
        self._stamp = self._file_stamp()
        memory = probe_limits.memory_limit()
        most = probe_limits.Totals.within(memory)
        self.judging = Judging(
            config.store,
            config.judge.policy(),
            config.host_name,
            most.waiting_bytes,
            most.read_bytes,
        )
        self.collector = Collector(config, self.exposition, self.judging, _RESERVED, memory)
        self._lags: deque[float] = deque([0.0], maxlen=300)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._page = b""
        self._page_until = 0.0
        self._rendering = asyncio.Lock()

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Discover and poll until the application stops."""
        use_own_threads()
        ticking = WATCH.task("tick", self._tick)
        self.judging.start()
        self._follow()
        for discovery in self.discoveries:
            discovery.start()
        yield
        ticking.cancel()
        await asyncio.gather(*(discovery.stop() for discovery in self.discoveries))
        await self.collector.close()
        await asyncio.to_thread(self.judging.stop)

    def families(self, *, in_openmetrics: bool) -> Iterator[bytes]:
        """Yield the whole exposition, in OpenMetrics or in the text format."""
        self.collector.withdraw_verdicts()
        self.exposition.replace(_SELF, [expose.write(family, {}) for family in self._families()])
        yield from self.exposition.families(in_openmetrics=in_openmetrics)
        write_process = openmetrics.generate_latest if in_openmetrics else generate_latest
        yield write_process(self._process)  # comes last, because it ends with OpenMetrics' end mark

    def service_state(self, service: ServiceKey) -> ServiceState:
        """Return the facts about a service that a rollout needs.

        A few seconds after the first question about the service, starts on other hosts are included.
        """
        probes = self.collector.services.get(service, ())
        ownership = self.judging.ownership
        ownership.ask(service)
        here = {probe.container.replica for probe in probes}
        running = [start for start in ownership.running(service) if start.container not in here]
        running += [probe.start for probe in probes if probe.up and probe.start is not None]
        silent = [probe.container.replica for probe in probes if probe.start is None]
        return ServiceState(self.judging.findings.get(service, NOTHING), running, silent)

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """Send the status page, which is cached for at least a second."""
        async with self._rendering:
            begin = time.monotonic()
            if begin >= self._page_until:
                self._page = await status.page(
                    [*self.collector.probes.values()],
                    self.collector.kills.last(),
                    version=VERSION,
                    troubles=self._troubles(),
                    left=self.collector.ended,
                )
                now = time.monotonic()
                self._page_until = now + max(1.0, _PAGE_TIMES * (now - begin))
            page = self._page
        return await scrape.send(request, [page], "text/html; charset=utf-8")

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """Send the exposition in the format that the request's Accept header selects."""
        content_type = scrape.negotiate(request.headers.get("Accept", ""))
        parts = self.families(in_openmetrics="openmetrics" in content_type)
        return await scrape.send(request, parts, content_type)

    def _families(self) -> Iterator[Family]:
        links = msgspec.structs.astuple(self.config.links)
        yield LINKS.family({links: 1.0} if any(links) else {})
        yield BUILD.family({(VERSION,): 1.0})
        yield LAG.family(max(self._lags))
        yield RELOAD_OK.family(float(self._config_ok))
        yield from self.connections.families()
        yield from WATCH.families()
        yield from self.judging.families()
        yield from self.collector.shares.families()
        yield from self.collector.kills.families()
        for discovery in self.discoveries:
            yield from discovery.families()

    def _troubles(self) -> Iterator[str]:
        """Yield a sentence for each problem of the exporter itself."""
        for discovery in self.discoveries:
            if not discovery.up:
                yield f"{discovery.source.name} does not answer, so this list may be old. The log has the reason."
        if refused := len(self.collector.shares.refused):
            yield (f"{refused} containers are not polled: give the exporter more memory. The log names them.")
        if not self._config_ok:
            yield "Changed settings were refused: the old settings still apply, and the log names the faulty line."
        if not self.judging.up:
            yield "Store unavailable: verdicts are not updated. The log has the reason."
        if self.judging.set_aside_at is not None:
            yield "The judge's store was corrupt and was set aside: earlier verdicts are lost."

    def request_reload(self) -> None:
        """Request a reload of the config's file, changed or not."""
        self._stamp = ()

    async def reload(self) -> None:
        """Load the config's file. If the file has a mistake, the old config stays in use."""
        try:
            self.config = self.collector.config = await asyncio.to_thread(check, self.path)
            self._follow()
        except Exception as error:  # a bug must not end this task
            self._config_ok = False
            log.error("config not reloaded; the old config stays in use", error=str(error))
        else:
            self._config_ok = True
            log.info("config reloaded; changes of listen, store, discovery and judge apply after a restart")

    async def _tick(self) -> None:
        """Measure the lag of the event loop, and reload the config when its file changes."""
        while True:
            expected = time.monotonic() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._lags.append(max(0.0, time.monotonic() - expected))
            if (stamp := self._file_stamp()) != self._stamp:
                self._stamp = stamp
                await self.reload()

    def _file_stamp(self) -> tuple[int, ...]:
        """Return a value that changes with the config's file. In Kubernetes, only a symlink may change."""
        try:
            stat = os.stat(self.path or "")
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_ino

    def _follow(self) -> None:
        """Follow all containers found. An entry of the config replaces a discovered container with the same key."""
        found, url = [], self.config.probe_access.url
        for discovery in self.discoveries:
            while discovery.source.kills:
                self.collector.note_end(discovery.source.kills.pop(0))
            found += [msgspec.structs.replace(each, url=url(each.url)) for each in discovery.containers]
        self.collector.follow([*found, *static.listed(self.config.probes)])


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response(text="healthy\n")  # any answer proves that the event loop runs


async def _show_runbooks(_request: web.Request) -> web.Response:
    return web.Response(text=runbooks.PAGE, content_type="text/html")


async def _add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SECURITY_HEADERS)


def create_app(exporter: Exporter) -> web.Application:
    """Make the application; polling begins when the application starts."""
    app = web.Application(client_max_size=api.MOST_BODY)
    app.cleanup_ctx.append(exporter.run)
    app.on_response_prepare.append(_add_security_headers)
    app.add_routes(
        [
            web.get("/", exporter.show_page),
            web.get("/metrics", exporter.show_metrics),
            web.get(runbooks.PATH, _show_runbooks),
            web.get("/-/healthy", _healthy),
            *api.routes(exporter.service_state),
        ]
    )
    return app
