"""``infercanary scan``: the command."""

from __future__ import annotations

import click

from infercanary.command import exit_codes
from infercanary.command.exit_codes import ExitCode
from infercanary.compare import options, page, text
from infercanary.compare.changes import scan_runs
from infercanary.compare.read import pick, read
from infercanary.compare.rows import Choice
from infercanary.compare.terminal import width
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
@options.as_json
@options.report
def command(file: str, canary: str, choice: Choice, as_json: bool, report: str) -> int:
    """Find where the level of one series changed: when, by how much, and what began there.

    \b
      infercanary scan runs.jsonl --html report.html
      infercanary scan latencies.csv --column latency_ms --where model=resnet18

    FILE is a journal of a probe, or numbers in order of time: one a line, a JSON array, JSON objects, CSV or TSV with a
    header, or single runs as load generators and benchmarks write them. The format is detected; it may be packed with
    gzip; `-` is standard input. An index counts the runs that count, from 0 on.
    """
    recording = read([file], choice=choice)
    series = pick(recording, canary)
    results = {
        name: scan_runs(name, each, files=recording.places, components=recording.components)
        for name, each in series.items()
    }
    code = exit_codes.worst([each.exit_code for each in results.values()])
    if report:
        articles = [page.scan(each, series[name]) for name, each in results.items()]
        page.write(
            report,
            page.page(" + ".join(recording.places), articles, recording.notes),
        )
    texts = (text.scan(each, series[name], width()) for name, each in results.items())
    options.show("json" if as_json else "text", [*results.values()], texts, recording.notes)
    return code
