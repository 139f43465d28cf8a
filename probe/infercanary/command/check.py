"""``infercanary check-config``: reads settings files as probe and exporter do, and starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError

# A file that is not readable is for `read` to report, in one line.
_FILE = click.Path(readable=False)


@click.command(name="check-config", epilog=exit_codes.epilog({ExitCode.FINE: "all files are good"}))
@click.option(
    "--probe", "probes", multiple=True, type=_FILE, help="A probe's settings file; may be repeated."
)
@click.option("--exporter", "exporters", multiple=True, type=_FILE, help="An exporter's settings file.")
@click.option(
    "--web-config", "webs", multiple=True, type=_FILE, help="An exporter's file with TLS and users."
)
def command(probes: tuple[str, ...], exporters: tuple[str, ...], webs: tuple[str, ...]) -> None:
    """Check settings files without starting anything, up to the first mistake."""
    if not (probes or exporters or webs):
        raise UsageError("check-config: name a file with --probe, --exporter or --web-config")
    sys.path.insert(0, os.getcwd())
    if probes:
        from infercanary.probe.config import read

        _all_good(probes, read)
    if exporters:
        from infercanary.exporter.config import check

        _all_good(exporters, check)
    if webs:
        from infercanary.exporter.guard import Secured

        _all_good(webs, lambda path: Secured.read(Path(path)))


def _all_good(paths: Iterable[str], read: Callable[[str], object]) -> None:
    for path in paths:
        read(path)
        click.echo(f"{path}: good")
