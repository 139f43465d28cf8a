"""``infercanary check-config``: reads settings files in the same way as probe and exporter, but starts nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.extras import needed_by
from infercanary.command.interpreter import libraries_first
from infercanary.command.settings import UsageError

# `read` checks the file instead of Click, and reports an unreadable file in one line.
_FILE = click.Path(readable=False)


@click.command(name="check-config", epilog=exit_codes.epilog({ExitCode.FINE: "all files are good"}))
@click.option(
    "--probe", "probes", multiple=True, type=_FILE, help="A probe's settings file; may be repeated."
)
@click.option("--exporter", "exporters", multiple=True, type=_FILE, help="An exporter's settings file.")
@click.option(
    "--web-config", "webs", multiple=True, type=_FILE, help="An exporter's file with TLS and basic auth."
)
@click.argument("unnamed", nargs=-1, metavar="")
def command(
    probes: tuple[str, ...], exporters: tuple[str, ...], webs: tuple[str, ...], unnamed: tuple[str, ...]
) -> None:
    """Check settings files. Stop at the first mistake, and start nothing.

    \b
      infercanary check-config --probe probe.yaml
      infercanary check-config --exporter exporter.yaml --web-config web.yaml
    """
    if unnamed:
        raise UsageError(f"check-config: put --probe, --exporter or --web-config before `{unnamed[0]}`")
    if not (probes or exporters or webs):
        raise UsageError("check-config: name a file with --probe, --exporter or --web-config")
    libraries_first()
    if probes:
        from infercanary.probe import config

        for path in probes:
            config.read(path)
            _good(path, config.remarks(path))
    if exporters:
        with needed_by("check-config --exporter", "exporter"):
            from infercanary.exporter.config import check as check_exporter

        for path in exporters:
            check_exporter(path)
            _good(path)
    if webs:
        with needed_by("check-config --web-config", "exporter"):
            from infercanary.exporter.web import Secured

        for path in webs:
            Secured(Path(path))
            _good(path)


def _good(path: str, remarks: Iterable[str] = ()) -> None:
    click.echo(f"{path}: good")
    for remark in remarks:
        click.echo(f"{path}: note: {remark}")
