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
            ExitCode.FINE: "no change of level found, or the last level is less than "
            f"{100 * FILES.decide.smallest_effect:g} % slower than the first",
            ExitCode.REGRESSED: "changes of level found, and the last level is slower than the first by this or more",
            ExitCode.INCONCLUSIVE: "series too short",
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

    FILE is a journal of a probe, or numbers in order of time: one number per line, a JSON array, JSON objects, CSV or
    TSV with a header, or single runs in the format of a load generator or benchmark. The format is detected. The file
    may be compressed with gzip; `-` is standard input. The index of a run is its position among the counted runs, from
    0 on.
    """
    recording = read([file], column=column, where=where)
    documents = [
        scan_document(scan_runs(name, series, components=recording.components), series)
        for name, series in pick(recording, canary).items()
    ]
    return Output(**output).show(documents, recording.notes, title=" + ".join(recording.places))
