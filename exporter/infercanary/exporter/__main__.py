"""``infercanary exporter``: the command that runs the exporter until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import structlog
from aiohttp import web

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url, listening_socket
from infercanary.exporter import logs
from infercanary.exporter.app import EXPORTER, create_app
from infercanary.exporter.config import ExporterConfig, check, listen_address, place_of, remarks
from infercanary.exporter.connections import BACKLOG, SEND_BYTES
from infercanary.exporter.watch import WATCH
from infercanary.exporter.web import Secured

log = structlog.get_logger(__name__)

_DRAIN_SECONDS = 2.0
_SWITCH_SECONDS = 0.0005
"""What the event loop waits for its turn each time it has something to do, while the judge's thread computes. Python's
5 ms make seconds of a scrape beside 200 polls: https://github.com/python/cpython/issues/52194"""


@click.command(name="exporter")
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False, path_type=Path),
    help="exporter.yaml; without it, the defaults.",
)
@click.option("--listen", help="HOST:PORT to answer on, instead of the config's.  [default: [::]:9797]")
@click.option(
    "--store",
    metavar="PATH|URL",
    help="File of the runs that verdicts rest on, or the postgresql:// URL of a fleet's, instead of the config's.  "
    "[default: memory]",
)
@click.option(
    "--web-config",
    "web_path",
    type=click.Path(readable=False, path_type=Path),
    help="File with TLS and users, as Prometheus' exporters have it.  [default: neither]",
)
@click.option(
    "--log-format",
    type=click.Choice(["logfmt", "json"]),
    default="logfmt",
    show_default=True,
    help="Format of the log, on standard error.",
)
def command(
    path: Path | None,
    listen: str | None,
    store: str | None,
    web_path: Path | None,
    log_format: str,
) -> None:
    """Find the probes on this host, poll them, and serve what Prometheus scrapes.

    \b
      infercanary exporter --store /var/lib/infercanary/runs.sqlite
      infercanary exporter --config exporter.yaml --listen 127.0.0.1:9797
    """
    given = {key: value for key, value in (("listen", listen), ("store", store)) if value is not None}
    config = check(path, given)
    secured = None if web_path is None else Secured(web_path)
    with listen_on(config.listen, place_of("listen", path, given)) as sock:
        logs.configure(log_format)
        sys.setswitchinterval(_SWITCH_SECONDS)
        code = asyncio.run(serve(config, path, sock, secured, given))
    sys.exit(code)


def listen_on(address: str, place: str) -> socket.socket:
    """Listen on ``HOST:PORT``; :class:`UsageError` with the place if nothing can listen there."""
    host, port = listen_address(address, place)
    try:
        return listening_socket(host, port, backlog=BACKLOG, send_bytes=SEND_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{place}: cannot listen on {in_url(host)}:{port} ({reason}); stop what uses it, "
            "or choose another address with --listen"
        ) from None


def settle_garbage() -> None:
    """Keep collections short and rare: a full one stops the event loop, for 18 ms with 1,000 containers.

    Reports are acyclic, so that reference counts free them; what is loaded by now stays for ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1000)


async def serve(
    config: ExporterConfig,
    path: Path | None,
    sock: socket.socket,
    secured: Secured | None,
    given: Mapping[str, object],
) -> ExitCode:
    """Run the exporter on a listening socket until SIGTERM, SIGINT or a fault of its own; SIGHUP reloads the config."""
    settle_garbage()
    app = create_app(config, path, given)
    connections = app[EXPORTER].connections
    app.middlewares.append(connections.middleware)
    if secured is not None:
        app.middlewares.append(secured.middleware)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[ExitCode] = loop.create_future()

    def end(code: ExitCode) -> None:
        if not ended.done():
            ended.set_result(code)

    WATCH.gave_up = lambda: loop.call_soon_threadsafe(end, ExitCode.FAULT)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, ExitCode.FINE)
    loop.add_signal_handler(signal.SIGHUP, app[EXPORTER].live.request)
    runner = web.AppRunner(app, shutdown_timeout=_DRAIN_SECONDS)
    await runner.setup()
    try:
        assert runner.server is not None  # it is set up
        context = (lambda: None) if secured is None else secured.context
        connections.start(runner.server, sock, context)
        host, port = sock.getsockname()[:2]
        log.info(
            "listening",
            url=f"{'http' if context() is None else 'https'}://{in_url(host)}:{port}",
            config=str(path) if path else "",
        )
        for remark in remarks(config):
            log.warning(remark)
        return await ended
    finally:
        await connections.stop()
        await runner.cleanup()


if __name__ == "__main__":
    command()
