"""``infercanary probe``: the probe as a process of its own, alone in a container or beside the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

import click

from infercanary.probe.config import read
from infercanary.probe.probe import Probe
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
    probe: Probe | None = None

    def stop(*_: int | FrameType | None) -> None:
        if probe is None:
            sys.exit(0)
        # In a thread: the handler interrupts the loop, which may hold the lock of the event that stop() sets.
        threading.Thread(target=probe.stop, args=(0,), name="infercanary-stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    probe = read(path)
    try:
        probe.serve()
        probe.open()
        probe.run()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    finally:
        ended = probe.close()
    if not ended:
        # The interpreter would cut the hanging thread off inside a library's C++ code, which can abort the process.
        logging.shutdown()
        os._exit(0)
