"""The demo's screen: addresses, both images in a table, and one line that says what the demo waits for."""

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
    """Return what the demo waits for.

    Args:
        phase: "baseline", or "upgrade" once the slower image is started.
        runs: Latencies of this image's runs; None or empty before the first.
        needed: Number of runs that the judge needs.
        answer: Of the exporter's verdict API (``docs/schemas/verdict-api.v1.yaml``); empty before the exporter answers.
    """
    if not runs:
        return f"{phase}: starting the server, which loads the model and warms up"
    if len(runs) < needed:
        return f"{phase}: run {len(runs) + 1} of {needed}"
    return f"{phase}: {len(runs)} runs, waiting for the judge; so far: {answer.get('sentence', 'no answer')}"


def is_final(answer: Mapping[str, Any]) -> bool:
    """Whether the judge has decided."""
    return answer.get("verdict") in ("regressed", "improved", "equivalent")


def outcome(answer: Mapping[str, Any], seconds: float, status: str) -> tuple[ExitCode, str]:
    """Return the exit code of the demo, and a line that says how it ended.

    Args:
        answer: The judge's last.
        seconds: Time since the first server was up.
        status: What the demo waited for last.
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
    """Draw everything.

    Args:
        links: Lines of addresses.
        latencies: Phase → seconds of each run.
        answer: The judge's last; its sentence is shown once it is final.
        status: What the demo waits for, or how it ended.
    """
    table = Table("", "runs", "median", box=box.SIMPLE_HEAD)
    for phase, runs in latencies.items():
        table.add_row(phase, str(len(runs)), value(statistics.median(runs), "s") if runs else "")
    sentence = answer["sentence"] if is_final(answer) else ""
    return Group(Text(links, "cyan"), _NOTE, table, Text(sentence, "bold"), Text(status, "green"))
