"""``%canary`` and ``%%canary``: ``%timeit`` with a warm-up until the latency is steady, and CUDA events on a GPU."""

from __future__ import annotations

import re
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.notebook.result import TimingResult
from infercanary.notebook.timed import RUNS, time

_USAGE = "%canary [--device cuda] [--name NAME] [--runs N] STATEMENT, or %%canary in the first line of a cell"
_OPTION = re.compile(r"\s*--(device|name|runs)[ =]\s*(\S+)")


def load(shell: Any) -> None:
    """Register the magics in IPython's ``InteractiveShell``."""

    def canary(line: str, cell: str | None = None) -> TimingResult | None:
        """Time a statement (%canary) or a whole cell (%%canary), after a warm-up until the latency is steady.

        --device cuda   measure by CUDA events
        --name NAME     name of the canary in `compare` and `save` (default: cell)
        --runs N        number of runs, of 5 to 50 repeats each (default: 12)
        """
        try:
            return _timed(shell, line, cell)
        except UsageError as error:
            print(f"infercanary: {error}")  # show one line instead of a traceback
            return None

    shell.register_magic_function(canary, "line_cell", "canary")


def _timed(shell: Any, line: str, cell: str | None) -> TimingResult:
    options = {"device": "cpu", "name": "cell", "runs": str(RUNS)}
    while option := _OPTION.match(line):
        options[option[1]] = option[2]
        line = line[option.end() :]
    if not options["runs"].isdecimal():
        raise UsageError(f"%canary: --runs {options['runs']} is not a number; write {_USAGE}")
    source = line if cell is None else f"{line}\n{cell}"
    if not source.strip():
        raise UsageError(f"%canary: no statement to time; write {_USAGE}")
    try:
        code = compile(shell.transform_cell(source), "<canary>", "exec")
    except SyntaxError as error:
        raise UsageError(
            f"%canary: {error.msg} in `{(error.text or source).strip()}`; write {_USAGE}"
        ) from None
    names = shell.user_ns

    def once() -> None:
        exec(code, names)  # noqa: S102 - the user's own cell

    return time(once, device=options["device"], name=options["name"], runs=int(options["runs"]))
