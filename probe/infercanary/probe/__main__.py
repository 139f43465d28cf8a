"""``infercanary probe``: the probe as a process of its own, alone in a container or beside the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

import click

from infercanary.probe.config import read
from infercanary.settings import UsageError


@click.command(name="probe")
@click.option(
    "--config", "path", type=click.Path(), default="probe.yaml", show_default=True, help="The settings file."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log to standard error.",
)
def command(path: str, log_level: str) -> None:
    """Run canary inferences in this container, and answer the exporter with what they took.

    Modules named in the settings are searched in the working directory too. Ends on SIGTERM or Ctrl-C.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path.insert(0, os.getcwd())
    probe = read(path)

    def stop(*_: int | FrameType | None) -> None:
        probe.stop(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        probe.serve()
        probe.open()
        probe.run()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    finally:
        probe.close()
