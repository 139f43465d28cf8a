"""``infercanary scan``: the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.compare import options
from infercanary.compare.changes import scan_runs
from infercanary.compare.document import scan_document
from infercanary.compare.options import Output
from infercanary.compare.read import pick, read
from infercanary.judge.policy import FILES


@click.command(
    name="scan",
    epilog=exit_codes.epilog(
        {
            ExitCode.FINE: "no change found, or none that leaves the last level slower than the first by "
            f"{100 * FILES.decide.smallest_effect:g} % or more",
            ExitCode.REGRESSED: "the last level is slower than the first by that, through changes that were found",
            ExitCode.INCONCLUSIVE: "too short",
        },
        exit_codes.SEVERAL,
    ),
)
@click.argument("file", metavar="FILE")
@options.canary
@options.choice
@options.output()
def command(file: str, canary: str, column: str, where: Sequence[tuple[str, str]], **output: Any) -> int:
    """Find where the level of one series changed: when, by how much, and what began there.

    \b
      infercanary scan runs.jsonl --html report.html
      infercanary scan latencies.csv --column latency_ms --where model=resnet18

    FILE is a journal of a probe, or numbers in order of time: one a line, a JSON array, JSON objects, CSV or TSV with a
    header, or single runs as load generators and benchmarks write them. The format is detected; it may be packed with
    gzip; `-` is standard input. An index counts the runs that count, from 0 on.
    """
    recording = read([file], column=column, where=where)
    documents = [
        scan_document(scan_runs(name, series, components=recording.components), series)
        for name, series in pick(recording, canary).items()
    ]
    return Output(**output).show(documents, recording.notes, title=" + ".join(recording.places))
