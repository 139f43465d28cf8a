"""``infercanary report``: the command."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.compare import options, stores
from infercanary.compare.comparison import judged
from infercanary.compare.content import content
from infercanary.compare.efficiency import Efficiency
from infercanary.compare.hosts import compare_hosts, hosts_document
from infercanary.compare.journal import is_journal
from infercanary.compare.options import Output
from infercanary.compare.overview import OverviewRow, overview, overview_document
from infercanary.compare.read import journal_lines, read
from infercanary.compare.record import Recorder
from infercanary.compare.recording import RecordedSide
from infercanary.compare.runs import runs_of_journal, runs_of_start
from infercanary.compare.terminal import say
from infercanary.judge.identity import Digests
from infercanary.pages.table_csv import Cell
from infercanary.render.json import json_line, plain_values
from infercanary.store.store import is_shared


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
    help="Price of an hour of the machine or GPU, such as 2.5, in any currency, for the cost of 1,000 inferences. May "
    "be repeated with the names of hosts.",
)
@click.option(
    "--runs", "each_run", is_flag=True, help="Print each run instead of tables (--json or --format csv)."
)
@click.option(
    "--hosts",
    "model",
    default="",
    metavar="MODEL",
    help="Compare the hosts that run the canary MODEL (a pattern) in the same image: which differences explain the "
    "spread. Also reads journals.",
)
@options.record
@options.image
@options.output("csv")
def command(
    files: tuple[str, ...],
    canary: str,
    service: str,
    given_prices: tuple[str, ...],
    each_run: bool,
    model: str,
    recorder: Recorder | None,
    digests: Digests,
    **more: Any,
) -> int:
    """Compare one model across images, engines, devices and hosts: tables from the stores of exporters.

    \b
      infercanary report gpu-1=one.sqlite gpu-2=two.sqlite --price 2.5
      infercanary report runs.jsonl --format csv
      infercanary report --hosts resnet18 gpu-1=one.sqlite gpu-2=two.sqlite

    FILE is a store (the file or postgresql://… that the exporter's --store names), or a journal of a probe. The
    exporter may keep running. From a journal, each run becomes a row (--json, --format csv); with --record, journals
    are only recorded. Name the hosts if there are several. Recorded benchmarks have their own host; their service is
    the command that recorded them.

    Tables include only steady runs of starts with 8 or more steady runs. SD is the standard deviation of the starts'
    medians. Trust only a difference well above this SD. The cost of 1,000 inferences is for the best known throughput:
    of a sweep, of the canary's own requests, or computed from the latency of one inference at a time.
    """
    output = Output(**more)
    hosts: dict[str, str] = {}
    for file in files:
        name, is_named, path = ("", "", file) if is_shared(file) else file.partition("=")
        host = name if is_named else Path(file).stem
        if host in hosts:
            raise UsageError(f"{file}: two files of the host `{host}`; give each a host name, HOST=FILE")
        hosts[host] = path if is_named else file
    if recorder:
        for file in files:
            host, _, path = file.rpartition("=")
            for name, runs in read([path]).canaries.items():
                recorder.add("report", name, [RecordedSide(judged(runs).starts, "", digests, host)])
        recorder.save()
        return 0
    journals = {host: _journal(path) for host, path in hosts.items() if not stores.is_store(path)}
    if model:
        if output.form == "csv" or each_run or given_prices or canary != "*" or (journals and service != "*"):
            raise UsageError(
                f"--hosts {model}: remove --canary, --price, --runs, --format csv and (with a journal) --service"
            )
        return _show_hosts(output, hosts, journals, model, service)
    if journals or each_run:
        if output.form == "text" or output.html or given_prices or (journals and service != "*"):
            raise UsageError(
                f"{hosts[next(iter(journals or hosts))]}: each run is a row of a table; give --format csv or --json, "
                "and remove --html, --price and (with a journal) --service"
            )
        output.show_rows(_runs(hosts, journals, canary, service))
        return 0
    rows = overview(hosts, canary, service, given_prices)
    if not rows:
        raise UsageError(
            f"{files[0]}: no start of canary `{canary}`, service `{service}`, has 8 steady runs yet; wait for "
            "more runs"
        )
    if output.form != "text":
        # Columns of names come before columns of numbers.
        order = sorted(OverviewRow.__struct_fields__, key=Efficiency.__struct_fields__.__contains__)
        output.show_rows([{name: getattr(row, name) for name in order} for row in rows])
        output = output._replace(form="none")
    return output.show([overview_document(rows)], title="Latency across images, engines, devices and hosts")


def _show_hosts(
    output: Output, hosts: Mapping[str, str], journals: Mapping[str, bytes], model: str, service: str
) -> int:
    notes: list[str] = []
    results = compare_hosts(hosts, journals, model, service, notes)
    if not results:
        raise UsageError(
            f"{next(iter(hosts.values()))}: no start of canary `{model}`, service `{service}`, has 8 steady runs yet; "
            "wait for more runs"
        )
    if output.form == "json":
        say(json_line(plain_values(results)))
        output = output._replace(form="none")
    return output.show([*map(hosts_document, results)], notes, title="Latency across hosts")


def _journal(path: str) -> bytes:
    data = content(path)
    if not is_journal(data):
        raise UsageError(
            f"{path}: not the judge's store; give the file that the exporter's --store names, or a journal"
        )
    return data


def _runs(
    hosts: Mapping[str, str], journals: Mapping[str, bytes], canary: str, service: str
) -> list[dict[str, Cell]]:
    """Return the runs of journals and stores. Remarks go to standard error, because standard output has the table."""
    notes: list[str] = []
    rows = []
    for host, data in journals.items():
        lines = journal_lines({hosts[host]: data}, [*hosts.values()], notes)
        rows += runs_of_journal(host, lines, notes)
    stored = {host: path for host, path in hosts.items() if host not in journals}
    for host, _, start, samples in stores.starts(stored, canary, service):
        rows += runs_of_start(host, start, samples)
    rows = [row for row in rows if fnmatchcase(str(row["canary"]), canary)]
    if not rows:
        first = next(iter(hosts.values()))
        raise UsageError(f"{first}: no run of canary `{canary}`, service `{service}`; wait for runs")
    for note in notes:
        click.echo(f"infercanary: {note}", err=True)
    return rows
