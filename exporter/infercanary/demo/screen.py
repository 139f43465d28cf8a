"""The demo's screen: addresses, a table of both images, and one status line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from infercanary.command.exit_codes import ExitCode
from infercanary.render.units import value

_NOTE = """
A canary run every 2 s; in production every 10 s, for at most 1 % of the time.
The upgrade sets ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41."""

_BUSY = "Other work on this machine may be the reason."


def progress(phase: str, runs: Sequence[float] | None, needed: int, answer: Mapping[str, Any]) -> str:
    """Return the status line while the demo waits.

    Args:
        phase: "baseline", or "upgrade" after the slower image was started.
        runs: Latencies of the runs of this phase's image; None or empty before the first run.
        needed: Number of runs that the judge needs.
        answer: Answer of the exporter's verdict API (``docs/schemas/verdict-api.v1.yaml``); empty before the first
            answer.
    """
    if not runs:
        return f"{phase}: starting the server, which loads the model and warms up"
    if len(runs) < needed:
        return f"{phase}: run {len(runs) + 1} of {needed}"
    return f"{phase}: {len(runs)} runs, waiting for the judge; so far: {answer.get('sentence', 'no answer')}"


def is_final(answer: Mapping[str, Any]) -> bool:
    return answer.get("verdict") in ("regressed", "improved", "equivalent")


def outcome(answer: Mapping[str, Any], seconds: float, status: str) -> tuple[ExitCode, str]:
    """Return the exit code of the demo, and its last status line.

    Args:
        answer: The judge's last answer.
        seconds: Seconds since the first server answered.
        status: Last status line before the end.
    """
    after = f"{seconds:.0f} s after the server was up"
    if not is_final(answer):
        return ExitCode.INCONCLUSIVE, f"No verdict {after}. {_BUSY} Last state: {status}"
    if (answer["verdict"], answer["cause"]) == ("regressed", "image"):
        return ExitCode.FINE, f"The expected verdict, {after}."
    return ExitCode.REGRESSED, f"Not the expected verdict (regressed by the image), {after}. {_BUSY}"


def screen(
    links: str, latencies: Mapping[str, Sequence[float]], answer: Mapping[str, Any], status: str
) -> Group:
    """Return the text of the whole screen.

    Args:
        links: Lines of addresses.
        latencies: Latencies of the runs (seconds), by phase.
        answer: The judge's last answer. Its sentence is shown once the verdict is final.
        status: Status line: the current step, or the outcome.
    """
    table = Table("", "runs", "median", box=box.SIMPLE_HEAD)
    for phase, runs in latencies.items():
        table.add_row(phase, str(len(runs)), value(statistics.median(runs), "s") if runs else "")
    sentence = answer["sentence"] if is_final(answer) else ""
    return Group(Text(links, "cyan"), _NOTE, table, Text(sentence, "bold"), Text(status, "green"))
