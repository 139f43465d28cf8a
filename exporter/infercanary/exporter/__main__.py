"""``infercanary exporter``: the command that runs the exporter until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import click
import structlog
from aiohttp import web

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url, listen_address, listening_socket
from infercanary.exporter import logs
from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.config import check
from infercanary.exporter.connections import BACKLOG, SEND_BYTES
from infercanary.exporter.watch import WATCH
from infercanary.exporter.web import Secured

log = structlog.get_logger(__name__)

_FILE = click.Path(readable=False, path_type=Path)
_DRAIN_SECONDS = 2.0
_SWITCH_SECONDS = 0.0005
"""Thread switch interval of Python, in seconds. While the judge's thread computes, each turn of the event loop waits
this long for the GIL. With Python's default of 5 ms, a scrape would take seconds during 200 polls:
https://github.com/python/cpython/issues/52194
"""


@click.command(name="exporter")
@click.option(
    "--config",
    "path",
    type=_FILE,
    help="Config file exporter.yaml.  [default: built-in settings]",
)
@click.option("--listen", help="HOST:PORT to listen on; overrides the config.  [default: [::]:9797]")
@click.option(
    "--store",
    metavar="PATH|URL",
    help="Store of runs: a file, or the postgresql:// URL of a store that several exporters share; overrides the "
    "config.  [default: memory]",
)
@click.option(
    "--web-config",
    "web_path",
    type=_FILE,
    help="File with TLS and basic auth, in the format of Prometheus' exporters.  [default: neither]",
)
def command(path: Path | None, web_path: Path | None, **options: str | None) -> None:
    """Find the probes on this host, poll them, and serve metrics to Prometheus.

    \b
      infercanary exporter --store /var/lib/infercanary/runs.sqlite
      infercanary exporter --config exporter.yaml --listen 127.0.0.1:9797
    """
    config = check(path, **{key: value for key, value in options.items() if value is not None})
    secured = None if web_path is None else Secured(web_path)
    with listen_on(config.listen) as sock:
        logs.configure()
        sys.setswitchinterval(_SWITCH_SECONDS)
        asyncio.run(serve(Exporter(config, path), sock, secured))


def listen_on(address: str) -> socket.socket:
    """Listen on ``HOST:PORT``.

    Raises:
        UsageError: The address is in use, or is not an address of this host.
    """
    try:
        return listening_socket(*listen_address(address), backlog=BACKLOG, send_bytes=SEND_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot listen on {address} ({error}); stop the program that uses it, or choose another address with "
            "--listen"
        ) from None


def settle_garbage() -> None:
    """Keep garbage collections short and rare.

    With 1,000 containers, a full collection stops the event loop for 18 ms.

    Reports have no cycles, so reference counts free them. Objects that exist now are never collected.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 20)


async def serve(exporter: Exporter, sock: socket.socket, secured: Secured | None) -> None:
    """Run the exporter on a listening socket until SIGTERM or SIGINT; SIGHUP reloads the config."""
    settle_garbage()
    app = create_app(exporter)
    app.middlewares.append(exporter.connections.middleware)
    if secured is not None:
        app.middlewares.append(secured.middleware)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # The next process asks the probes again for runs that were not stored, so an immediate exit loses no runs.
    WATCH.gave_up = partial(os._exit, ExitCode.FAULT)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, exporter.request_reload)
    runner = web.AppRunner(app, shutdown_timeout=_DRAIN_SECONDS)
    await runner.setup()
    try:
        assert runner.server is not None
        context = (lambda: None) if secured is None else secured.context
        exporter.connections.start(runner.server, sock, context)
        host, port = sock.getsockname()[:2]
        scheme = "http" if context() is None else "https"
        log.info("listening", url=f"{scheme}://{in_url(host)}:{port}", config=str(exporter.path or ""))
        await ended.wait()
        log.info("stopping")
    finally:
        await exporter.connections.stop()
        await runner.cleanup()


if __name__ == "__main__":
    command()
