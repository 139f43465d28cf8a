"""The exporter as an aiohttp application: what lives as long as it does, and what it answers."""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import ProcessCollector
from yarl import URL

import infercanary
from infercanary.client import lookups
from infercanary.client.accept import base_name
from infercanary.command.settings import UsageError
from infercanary.contract.report import Family, Metric
from infercanary.contract.text import masked
from infercanary.exporter import (
    api,
    connections,
    expose,
    polled,
    reload,
    runbooks,
    scrape,
    status,
    totals,
    watch,
)
from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.connections import Connections
from infercanary.exporter.discovery import base, kills
from infercanary.exporter.discovery.base import Discovery, Reloadable, registered
from infercanary.exporter.discovery.kills import KillSource
from infercanary.exporter.discovery.static import STATIC
from infercanary.exporter.expose import Exposition, Pieces
from infercanary.exporter.judging import store_metrics
from infercanary.exporter.judging.findings import NOTHING
from infercanary.exporter.judging.thread import Judging
from infercanary.exporter.reload import LiveConfig
from infercanary.exporter.rollout import ServiceState
from infercanary.exporter.shared_answer import SharedAnswer
from infercanary.exporter.watch import WATCH
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
METRICS = (
    *(
        BUILD,
        LINKS,
        LAG,
        *polled.METRICS,
        *totals.METRICS,
        *reload.METRICS,
        *connections.METRICS,
        *watch.METRICS,
        *base.METRICS,
        *kills.METRICS,
        *store_metrics.METRICS,
    ),
)

VERSION = infercanary.__version__
_RESERVED = frozenset(base_name(metric.name, metric.kind) for metric in METRICS)
_SELF = ("", "", "")  # the keys of the exporter's own series begin so: they have no service and no container
_TICK_SECONDS = 0.1
_PROCESS_SECONDS = 0.2  # files of /proc are not read for each of many who ask
_REFRESH_SECONDS = 0.02  # many scrapes at a time, as of an attack, share what is the same for all
_TICKS = 300

_SECURITY_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {status.SCRIPT_SOURCE}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Exporter:
    """Everything that runs while the exporter does, wired together.

    Args:
        config: Read and checked.
        path: The file that it was read from; None where there is none to reload.
        given: Keys that the command line set, whatever the file says.
    """

    def __init__(self, config: ExporterConfig, path: Path | None, given: Collection[str] = ()) -> None:
        self.exposition = Exposition()
        self.connections = Connections()
        self.discoveries: dict[str, Discovery] = {
            kind.key: discovery
            for kind in registered()
            if (discovery := kind.create(config.section(kind), self._follow)) is not None
        }
        """By their key in the config, the lowest precedence first."""
        reloadable = {key for key, found in self.discoveries.items() if isinstance(found, Reloadable)}
        fixed = [
            "listen",
            "store",
            "host",
            *(kind.key for kind in registered() if kind.key not in reloadable),
        ]
        self.live = LiveConfig(config, path, self._reconfigure, fixed, given)
        memory = totals.memory_limit()
        most = totals.Ceilings.within(config.limits, memory)
        self.judging = Judging(
            config.store,
            config.judge.policy(),
            config.host_name,
            most.queue_bytes,
            most.read_bytes,
            most.known_bytes,
        )
        self.collector = Collector(config, self.exposition, self.judging, _RESERVED, memory)
        self._lags: deque[float] = deque([0.0], maxlen=_TICKS)
        self._process = ProcessCollector(registry=None)
        self._refreshed_at = -math.inf
        self._process_read_at = -math.inf
        self._of_process: dict[bool, bytes] = {}  # its text, by whether it is OpenMetrics
        self._ready = False
        self.page = SharedAnswer(self._page)
        """What people read: HTML."""

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Discover and poll until the application stops.

        Yields:
            Once, when everything has been started.
        """
        lookups.install()
        tasks = [WATCH.task("lag", self._measure_lag), WATCH.task("reload", self.live.watch)]
        self.judging.start()
        self._follow()
        for discovery in self.discoveries.values():
            discovery.start()
        yield
        await asyncio.gather(*(discovery.stop() for discovery in self.discoveries.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.collector.close()
        await asyncio.to_thread(self.judging.stop)

    @property
    def ready(self) -> bool:
        """Whether each discovery was tried once and each probe found was polled once; then true for ever."""
        tried = all(discovery.tried for discovery in self.discoveries.values())
        self._ready = self._ready or (tried and all(probe.polled for probe in self.collector.probes.values()))
        return self._ready

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """The whole exposition, family by family.

        Args:
            in_openmetrics: Whether it is for OpenMetrics, else for the text format.

        Yields:
            Parts of the exposition; the last one is of the exporter's own process.
        """
        now = time.monotonic()
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            self.collector.refresh_ages()
            for family in self._families():
                self.exposition.put((*_SELF, *family.labels), expose.write(family, {}))
        if now - self._process_read_at >= _PROCESS_SECONDS:
            self._process_read_at = now
            self._of_process.clear()
        if in_openmetrics not in self._of_process:
            text = expose.text(self._process.collect(), in_openmetrics=in_openmetrics)
            self._of_process[in_openmetrics] = (text + "# EOF\n" * in_openmetrics).encode()
        last = self._of_process[in_openmetrics]
        yield from self.exposition.families(in_openmetrics=in_openmetrics)
        yield Pieces([last], len(last))

    def known(self, service: ServiceKey) -> ServiceState:
        """What a rollout of a service may learn (:class:`~.rollout.Verdicts`).

        Args:
            service: Any key.

        Returns:
            What was judged, and what runs; of a service of other hosts alone, from a few seconds after the first
            question on.
        """
        probes = self.collector.services.get(service, ())
        ownership = self.judging.ownership
        ownership.ask(service)
        here = {probe.container.replica for probe in probes}
        elsewhere = [g for g in ownership.running(service) if g.container not in here]
        return ServiceState(
            self.judging.findings.get(service, NOTHING),
            [*(probe.start for probe in probes if probe.up and probe.start is not None), *elsewhere],
            [probe.container.replica for probe in probes if probe.start is None],
        )

    def services(self) -> set[ServiceKey]:
        """All services that were judged here, or have a container here.

        Returns:
            Their keys.
        """
        return {*self.judging.findings, *self.collector.services}

    def _families(self) -> list[Family]:
        links = self.live.current.links
        grafana, runbooks = masked(links.grafana), masked(links.runbooks)
        return [
            LINKS.family({(grafana, runbooks): 1.0} if grafana or runbooks else {}),
            BUILD.family({(VERSION, platform.python_version()): 1.0}),
            LAG.family(max(self._lags)),
            *self.live.families(),
            *self.connections.families(),
            *WATCH.families(),
            *self.judging.families(),
            *self.collector.shares.families(),
            *self.collector.kills.families(),
            *(family for discovery in self.discoveries.values() for family in discovery.families()),
        ]

    async def _page(self) -> bytes:
        config = self.live.current
        return await status.page(
            [*self.collector.probes.values()],
            version=VERSION,
            troubles=self._troubles(),
            ended=self.collector.kills.last(),
            left=self.collector.ended_services(),
            alertmanager=config.links.alertmanager,
            policy=config.judge.policy(),
        )

    def _troubles(self) -> Iterator[str]:
        """Troubles of the exporter itself, a sentence for each."""
        for discovery in self.discoveries.values():
            if not discovery.up:
                yield f"{discovery.source} does not answer. What is below was found before; the log says why."
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
        for kind in registered():
            discovery = self.discoveries.get(kind.key)
            if isinstance(discovery, Reloadable):
                discovery.reconfigure(config.section(kind))
        self.judging.reconfigure(config.judge.policy())
        self.collector.config = config
        self._follow()

    def _follow(self) -> None:
        """Follow what was found; where two discoveries name one container, the later of them counts."""
        config = self.live.current
        for discovery in self.discoveries.values():
            if isinstance(discovery, KillSource):
                for kill in discovery.new_kills():
                    self.collector.note_end(kill)
        found = (
            container
            if container.url is None or key == STATIC
            else msgspec.structs.replace(container, url=config.probe_access.url(container.url))
            for key, discovery in self.discoveries.items()
            for container in discovery.containers
        )
        wanted = {container.key: container for container in found}
        self.collector.follow(wanted.values())

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            self._lags.append(max(0.0, loop.time() - expected))


EXPORTER = web.AppKey("exporter", Exporter)

routes = web.RouteTableDef()


@routes.get("/metrics")
async def metrics(request: web.Request) -> web.StreamResponse:
    """What Prometheus scrapes.

    Args:
        request: Its headers ask for a format, and for gzip.

    Returns:
        The exposition, already sent.
    """
    content_type = scrape.negotiate(request.headers.get("Accept", ""))
    parts = request.app[EXPORTER].families(in_openmetrics=content_type == scrape.OPENMETRICS)
    return await scrape.send(request, parts, content_type)


@routes.get("/")
async def page(request: web.Request) -> web.StreamResponse:
    """What people read.

    Args:
        request: Its application is read, and whether it asks for gzip.

    Returns:
        HTML, already sent.

    Raises:
        ConnectionError: It was not taken in time; the connection is closed.
    """
    text = await request.app[EXPORTER].page.get()
    sending = scrape.send(request, [expose.Pieces([text], len(text))], "text/html; charset=utf-8")
    try:
        return await asyncio.wait_for(sending, connections.ANSWER_SECONDS)
    except asyncio.TimeoutError:
        # Who names a longer time, as for a scrape, would keep a page that others do not see any more.
        raise ConnectionError("the page was not taken in time") from None


@routes.get(runbooks.PATH)
async def runbook(_request: web.Request) -> web.Response:
    """What each alert means, and what to do.

    Returns:
        HTML.
    """
    return web.Response(text=runbooks.page(), content_type="text/html")


@routes.get("/-/healthy")
async def healthy(_request: web.Request) -> web.Response:
    """The process is alive and its event loop turns.

    Returns:
        Status 200.
    """
    return web.Response(text="healthy\n")


@routes.get("/-/ready")
async def ready(request: web.Request) -> web.Response:
    """A scrape would show every probe.

    Args:
        request: Only its application is read.

    Returns:
        Status 200, or 503 before every probe was polled.
    """
    if request.app[EXPORTER].ready:
        return web.Response(text="ready\n")
    return web.Response(status=503, text="not every probe was polled yet\n")


@routes.post("/-/reload")
@routes.put("/-/reload")
async def reload_config(request: web.Request) -> web.Response:
    """Load the config file again.

    Args:
        request: Only its application is read.

    Returns:
        Status 200; or 400 with the mistake, and the config of before stays; 403 for another site's page in a browser.
    """
    if _is_cross_site(request):
        return web.Response(status=403, text="another site's page may not ask for this\n")
    try:
        await request.app[EXPORTER].live.reload()
    except UsageError as error:
        return web.Response(status=400, text=f"{error}\n")
    return web.Response(text="reloaded\n")


def _is_cross_site(request: web.Request) -> bool:
    """Whether a browser asks for the page of another site: a form there needs no permission to be sent here."""
    origin = request.headers.get("Origin")
    same = origin is None or URL(origin).authority == request.host
    return not same or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


async def _add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SECURITY_HEADERS)


@web.middleware
async def _say_which_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound as error:
        if request.match_info.http_exception is error:
            pages = sorted({resource.canonical for resource in request.app.router.resources()})
            error.text = f"no such page; there are {', '.join(pages)}\n"
        raise


def create_app(
    config: ExporterConfig, config_path: Path | None = None, given: Collection[str] = ()
) -> web.Application:
    """The exporter for ``config``, which was read from ``config_path`` if it can be reloaded.

    Args:
        config: Read and checked.
        config_path: The file that it was read from; None where there is none to reload.
        given: Keys that the command line set, whatever the file says.

    Returns:
        The application; nothing runs before its start.
    """
    app = web.Application(client_max_size=64 << 10)
    app[EXPORTER] = app[api.VERDICTS] = Exporter(config, config_path, given)
    app.middlewares.extend((app[EXPORTER].connections.middleware, _say_which_pages))
    app.cleanup_ctx.append(app[EXPORTER].run)
    app.on_response_prepare.append(_add_security_headers)
    app.add_routes([*routes, *api.routes])
    return app
