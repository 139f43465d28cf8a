"""``%canary`` and ``%%canary``: as ``%timeit``, with warm-up until steady, and CUDA events on a GPU."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.notebook.result import TimingResult
from infercanary.notebook.timed import RUNS, time

_USAGE = "%canary [--device cuda] [--name NAME] [--runs N] STATEMENT, or %%canary in the first line of a cell"


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"%canary: {message}; write {_USAGE}")


def _parser() -> argparse.ArgumentParser:
    parser = _Arguments(prog="%canary", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", default="cell")
    parser.add_argument("--runs", type=int, default=RUNS)
    return parser


def load(shell: Any) -> None:
    """Register the magics.

    Args:
        shell: IPython's ``InteractiveShell``.
    """

    def canary(line: str, cell: str | None = None) -> TimingResult | None:
        """Time a statement (%canary) or the whole cell (%%canary), after a warm-up until it is steady.

        --device cuda   measure by CUDA events
        --name NAME     of the canary, for `compare` and `save`; "cell" by default
        --runs N        12 by default, of 5 to 50 repeats each
        """
        try:
            return _timed(shell, line, cell)
        except UsageError as error:
            print(f"infercanary: {error}")  # one line, in place of a traceback
            return None

    shell.register_magic_function(canary, "line_cell", "canary")


def _timed(shell: Any, line: str, cell: str | None) -> TimingResult:
    options, statement = _split(line)
    arguments = _parser().parse_args(options)
    if cell is not None and statement:
        raise UsageError(f"%%canary: `{statement}` is no option; write {_USAGE}")
    source = statement if cell is None else cell
    if not source.strip():
        raise UsageError(f"%canary: there is nothing to time; write {_USAGE}")
    try:
        code = compile(shell.transform_cell(source), "<canary>", "exec")
    except SyntaxError as error:
        hint = f"; write {_USAGE}" if source.startswith("-") else ""
        raise UsageError(f"%canary: {error.msg} in `{(error.text or source).strip()}`{hint}") from None
    names = shell.user_ns

    def once() -> None:
        exec(code, names)  # noqa: S102 - the user's own cell

    return time(once, device=arguments.device, name=arguments.name, runs=arguments.runs)


def _split(line: str) -> tuple[list[str], str]:
    """The options at the beginning of a line, each with its value, and the rest as it is."""
    options: list[str] = []
    rest = line.lstrip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        if "=" not in word:
            value, _, rest = rest.lstrip().partition(" ")
            options += [word, *shlex.split(value)]
        else:
            options.append(word)
        rest = rest.lstrip()
    return options, rest
