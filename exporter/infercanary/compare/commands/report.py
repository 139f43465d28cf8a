"""``infercanary report``: the command."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import click
import msgspec

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.paths import unreadable
from infercanary.command.settings import UsageError
from infercanary.compare import options, page, runs, spreadsheet, stores
from infercanary.compare.content import STANDARD_INPUT, content, named
from infercanary.compare.efficiency import in_words, prices
from infercanary.compare.journal import is_journal
from infercanary.compare.overview import OverviewRow, apart, overview
from infercanary.compare.read import journal_lines
from infercanary.compare.recording import shown
from infercanary.compare.runs import RunRow
from infercanary.compare.terminal import say, width
from infercanary.compare.text import wrapped
from infercanary.compare.units import count, value

_BAR = 24  # columns
_LONGEST = 400  # characters of what a row is of
_COLUMNS = {
    "canary": "canary", "host": "host", "service": "service", "image": "image", "origin": "origin", "engine": "engine",
    "device": "device", "starts": "starts", "runs": "runs", "latency_median_seconds": "median",
    "latency_deviation_ratio": "deviation", "latency_p90_seconds": "p90", "latency_above_fastest_ratio": "slower",
    "load_seconds": "load", "first_run_seconds": "first_run",
    "throughput_samples_per_second": "efficiency.throughput", "throughput_from": "efficiency.throughput_from",
    "best_load": "efficiency.best_load", "host_memory_bytes": "efficiency.host_memory",
    "device_memory_bytes": "efficiency.device_memory", "energy_per_1000_joules": "efficiency.energy_per_1000",
    "cost_per_1000": "efficiency.cost_per_1000", "model": "model", "settings": "settings",
}  # fmt: skip
"""Column of the CSV → field of a row."""


@click.command(name="report", epilog=exit_codes.epilog({ExitCode.FINE: "fine"}))
@click.argument("files", metavar="[HOST=]FILE...", nargs=-1, required=True)
@click.option(
    "--canary", default="*", metavar="PATTERN", help="Only canaries whose names match, such as 'resnet18*'."
)
@click.option("--service", default="*", metavar="PATTERN", help="Only services whose names match.")
@click.option(
    "--price",
    "given_prices",
    multiple=True,
    metavar="[HOST=]PRICE",
    help="What an hour of the machine or GPU costs, such as 2.5, in any currency: shows the cost of 1,000 inferences. "
    "May be repeated, with the name of a host.",
)
@options.form("How the table is printed.", ("text", "json", "csv"))
@click.option(
    "--runs", "each_run", is_flag=True, help="Print each run of the stores instead; needs --format csv."
)
@options.report
def command(
    files: tuple[str, ...],
    canary: str,
    service: str,
    given_prices: tuple[str, ...],
    form: str,
    each_run: bool,
    report: str,
) -> int:
    """Compare one model across images, engines, devices and hosts: a table from the stores of exporters, and a picture.

    \b
      infercanary report gpu-1=one.sqlite gpu-2=two.sqlite --price 2.5
      infercanary report runs.jsonl --format csv

    FILE is a store, the file that the exporter's --store names; a copy is read, so the exporter may keep running.
    Give several hosts names. With --format csv it may be a journal of a probe, too: then each run is a row.

    Of the table only steady runs count, and only starts with 8 or more. SD is that of the starts' medians: do not
    trust a difference that is not well above it. The cost of 1,000 inferences is that of the time they take at the best
    throughput that is known: of a sweep, of the canary's own requests, or by its latency as if each request were one
    inference.
    """
    hosts = _hosts(files)
    journals = {host: found for host, path in hosts.items() if (found := _journal(path)) is not None}
    if journals or each_run:
        _say_runs(hosts, journals, canary, service, form, bool(given_prices or report))
        return 0
    paths = {host: Path(path) for host, path in hosts.items()}
    kinds = overview(paths, canary, service, prices(given_prices, hosts))
    if not kinds:
        raise UsageError(
            f"{files[0]}: no start of canary `{canary}`, service `{service}`, has 8 steady runs; wait for them"
        )
    if report:
        title = "Latency across images, engines, devices and hosts"
        page.write(report, page.page(title, [page.overview(kinds)], []))
    if form == "json":
        say(options.json_line(msgspec.to_builtins(kinds)))
    elif form == "csv":
        _say_all(spreadsheet.lines([*_COLUMNS], map(attrgetter(*_COLUMNS.values()), kinds)))
    else:
        say(text(kinds, width(), several=len(hosts) > 1))
    return 0


def text(kinds: Sequence[OverviewRow], columns: int, *, several: bool) -> str:
    """Return a block for each canary: three lines or more for each row, with its share of the slowest as a bar.

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
        for kind, what in zip(each, apart(each), strict=True):
            bar = "█" * max(1, round(_BAR * kind.median / slowest))
            deviation = "" if kind.deviation is None else f" ±{100 * kind.deviation:.1f} %"
            slower = f"+{100 * kind.slower:.1f} %" if kind.slower else "fastest"
            lines.append(f"  {bar:<{_BAR}}  {value(kind.median, 's'):>9}{deviation:<9} {slower:>10}")
            host = kind.host if several else ""
            where = (host, kind.service, kind.image, kind.origin, what, kind.engine, kind.device)
            cold = f"; load {value(kind.load, 's')}" if kind.load is not None else ""
            first = f"; first run {value(kind.first_run, 's')}" if kind.first_run is not None else ""
            lines += _wrapped(" · ".join(filter(None, where)), columns)
            rests = f"{count(kind.runs, 'run')} of {count(kind.starts, 'start')}"
            lines.append(f"    {rests}; p90 {value(kind.p90, 's')}{cold}{first}")
            operators = ", ".join(f"{name} {100 * share:.0f} %" for name, share in kind.operators.items())
            lines += [*_wrapped(in_words(kind.efficiency), columns), *_wrapped(operators, columns)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _wrapped(line: str, columns: int) -> list[str]:
    return wrapped(shown(line, _LONGEST), columns, "    ", "    ") if line else []


def _hosts(files: Sequence[str]) -> dict[str, str]:
    """Return host → path; the name of a file without a host is that of the file."""
    found: dict[str, str] = {}
    for each in files:
        host, is_named, path = each.partition("=")
        name = host if is_named else Path(each).stem
        if name in found:
            raise UsageError(f"{each}: two files of the host `{name}`; name them, HOST=FILE")
        found[name] = path if is_named else each
    return found


def _journal(path: str) -> bytes | None:
    """Return the text of a journal; None of what is no journal."""
    file = Path(path)
    if path != STANDARD_INPUT:
        if not os.path.exists(path) or os.path.isdir(path):
            return None
        if os.path.isfile(path) and not unreadable(path):  # the beginning of a pipe can be read once only
            try:
                with file.open("rb") as head:
                    if head.read(16).startswith(stores.MAGIC):
                        return None
            except OSError:
                return None  # what opens it next says why
    found = content(path)
    return found if is_journal(found) else None


def _say_runs(
    hosts: Mapping[str, str],
    journals: Mapping[str, bytes],
    canary: str,
    service: str,
    form: str,
    is_priced_or_pictured: bool,
) -> None:
    """Print each run as a row."""
    first = hosts[next(iter(journals or hosts))]
    if form != "csv":
        what = f"{named(first)}: a journal" if journals else "--runs"
        raise UsageError(f"{what}: each run is a row of a table; give --format csv too")
    if is_priced_or_pictured:
        raise UsageError("--price and --html: are of the table of stores, not of runs; leave them out")
    if journals and service != "*":
        raise UsageError(f"--service: {named(first)} is a journal, which names no service; leave it out")
    notes: list[str] = []
    rows: list[RunRow] = []
    for host, path in hosts.items():
        if (data := journals.get(host)) is None:
            for _, generation, samples in stores.starts(Path(path), canary, service):
                rows += runs.of_start(host, generation, samples)
        else:
            found = runs.of_journal(host, journal_lines({path: data}, [*hosts.values()], notes))
            rows += [row for row in found if fnmatchcase(row.sample.canary, canary)]
    if not rows:
        raise UsageError(f"{named(first)}: no run of canary `{canary}`, service `{service}`; wait for some")
    columns = runs.header(rows)
    _say_all(spreadsheet.lines(columns, (runs.cells(row, columns) for row in rows)))
    for note in notes:
        click.echo(f"infercanary: {note}", err=True)  # standard output is the table


def _say_all(parts: Iterable[str]) -> None:
    for part in parts:
        say(part)
