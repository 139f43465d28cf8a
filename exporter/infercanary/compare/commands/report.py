"""``infercanary report``: the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click
import msgspec

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.compare import options, page
from infercanary.compare.overview import OverviewRow, overview
from infercanary.compare.recording import shown
from infercanary.compare.terminal import say, width
from infercanary.compare.units import count, value

_BAR = 24  # columns


@click.command(name="report", epilog=exit_codes.epilog({ExitCode.FINE: "fine"}))
@click.argument("stores", metavar="[HOST=]STORE...", nargs=-1, required=True)
@click.option(
    "--canary", default="*", metavar="PATTERN", help="Only canaries whose names match, such as 'resnet18*'."
)
@click.option("--service", default="*", metavar="PATTERN", help="Only services whose names match.")
@options.as_json
@options.report
def command(stores: tuple[str, ...], canary: str, service: str, as_json: bool, report: str) -> int:
    """One model across images, engines, devices and hosts: a table of what the judges' stores hold, and a picture.

    STORE is the file that the exporter's --store names; a copy is read, so the exporter may keep running. Give
    several hosts names: gpu-1=one.sqlite gpu-2=two.sqlite.

    Only steady runs count, and only starts with 8 or more. SD is that of the starts' medians: do not trust a
    difference that is not well above it.
    """
    hosts: dict[str, Path] = {}
    for each in stores:
        host, named, path = each.partition("=")
        name = host if named else Path(each).stem
        if name in hosts:
            raise UsageError(f"{each}: two stores of the host `{name}`; name them, HOST=STORE")
        hosts[name] = Path(path if named else each)
    kinds = overview(hosts, canary, service)
    if not kinds:
        raise UsageError(
            f"{stores[0]}: no start of canary `{canary}`, service `{service}`, has 8 steady runs; wait for them"
        )
    if report:
        title = "Latency across images, engines, devices and hosts"
        page.write(report, page.page(title, [page.overview(kinds)], []))
    if as_json:
        say(json.dumps(msgspec.to_builtins(kinds)) + "\n")
    else:
        say(text(kinds, width(), several=len(hosts) > 1))
    return 0


def text(kinds: Sequence[OverviewRow], columns: int, *, several: bool) -> str:
    """Return a block for each canary: three lines for each row, with its share of the slowest as a bar.

    Args:
        kinds: Rows; those of a canary one after the other.
        columns: Of the terminal.
        several: Whether there are several hosts, so that each row names its own.
    """
    blocks = []
    for canary, group in groupby(kinds, key=lambda kind: kind.canary):
        each = list(group)
        slowest = max(kind.median for kind in each)
        lines = [shown(canary)]
        for kind in each:
            bar = "█" * max(1, round(_BAR * kind.median / slowest))
            deviation = "" if kind.deviation is None else f" ±{100 * kind.deviation:.1f} %"
            slower = f"+{100 * kind.slower:.1f} %" if kind.slower else "fastest"
            lines.append(f"  {bar:<{_BAR}}  {value(kind.median, 's'):>9}{deviation:<9} {slower:>10}")
            where = [
                kind.host if several else "",
                kind.service,
                kind.image,
                kind.origin,
                kind.engine,
                kind.device,
            ]
            lines.append("    " + shown(" · ".join(filter(None, where)), columns - 4))
            cold = f"; load {value(kind.load, 's')}" if kind.load is not None else ""
            first = f"; first run {value(kind.first_run, 's')}" if kind.first_run is not None else ""
            rests = f"{count(kind.runs, 'run')} of {count(kind.starts, 'start')}"
            lines.append(f"    {rests}; p90 {value(kind.p90, 's')}{cold}{first}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"
