"""``infercanary probe``: the probe as a separate process, alone in a container or beside the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from infercanary.command.interpreter import libraries_first
from infercanary.command.paths import unwritable
from infercanary.command.settings import UsageError
from infercanary.probe.config import read
from infercanary.probe.loop import Probe
from infercanary.probe.memory import be_ended_first, take_ended
from infercanary.probe.once import once

log = logging.getLogger("infercanary.probe")


@click.command(name="probe")
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False),  # `read` reports an unreadable file in one line
    default="probe.yaml",
    show_default=True,
    help="The settings file.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of messages on standard error.",
)
@click.option(
    "--once",
    "only_once",
    is_flag=True,
    help="Run every canary once, print a readable report, and exit.",
)
@click.option(
    "--profile",
    "profiles",
    is_flag=True,
    help="Profile every canary, print the time of each operator, and exit.",
)
@click.option(
    "--trace",
    type=click.Path(readable=False, path_type=Path),
    help="Profile every canary, and write the engine's trace to this file, for https://ui.perfetto.dev.",
)
def command(path: str, log_level: str, only_once: bool, profiles: bool, trace: Path | None) -> int:
    """Run canary inferences in this container, and answer the exporter with their latencies.

    \b
      infercanary probe --config probe.yaml --once
      infercanary probe --trace trace.json

    Modules named in the settings are searched first among the libraries, then in the working directory. The command
    ends on SIGTERM or Ctrl-C.

    With --once or --profile, the command neither listens nor writes a journal, so it may run beside another probe
    (although the two disturb each other). Exit codes: 0 every canary ran well, 2 usage or input error, 3 a canary
    failed or could not be opened or profiled, and 128 + N if signal N ended the command.
    """
    if trace is not None and (why := unwritable(trace)):
        raise UsageError(f"--trace: {why}")
    profiles |= trace is not None
    for_a_person = only_once or profiles
    line = "%(message)s" if for_a_person else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=log_level.upper(), format=line)
    be_ended_first()
    ended = take_ended()
    libraries_first()
    probe: Probe | None = None
    code = 0

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal code
        # A signal is the normal end of a probe that runs permanently. With --once or --profile, a signal means that
        # the report is missing.
        code = 128 + number if for_a_person else 0
        if probe is None:
            sys.exit(code)
        # Stop in a thread: the handler interrupts the loop, and the loop may hold the lock of the event that stop()
        # sets.
        threading.Thread(target=probe.stop, args=(0,), name="infercanary-stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    probe = read(path)
    probe.own_process(ended)
    try:
        if for_a_person:
            code = once(probe, profiles, trace) or code
        else:
            probe.serve()
            probe.open()
            probe.run()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    finally:
        closed = probe.close()
    if not closed:
        # At its exit, the interpreter would stop the hanging thread inside a library's C++ code, which can abort the
        # process.
        logging.shutdown()
        os._exit(code)
    return code
