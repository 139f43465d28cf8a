"""Writes to standard output: a terminal or a pipe, with or without colours, in any encoding."""

from __future__ import annotations

import os
import re
import shutil
import sys

import click

from infercanary.command.exit_codes import OF_VERDICT, ExitCode
from infercanary.command.settings import UsageError
from infercanary.render.text import plain

_COLOURS = {ExitCode.REGRESSED: "red", ExitCode.FINE: "green", ExitCode.INCONCLUSIVE: "yellow"}
_VERDICT = re.compile(rf"^(\S[^:\n]*: )?({'|'.join(OF_VERDICT)})\b", re.MULTILINE)


def width() -> int:
    """Return the width of the output in columns, from 80 to 120."""
    return min(120, max(80, shutil.get_terminal_size().columns))


def say(text: str) -> None:
    """Print ``text``. On a terminal, a verdict at the beginning of a line (or after a name) has a colour.

    Args:
        text: Printable text with line ends; no line end is added.

    Raises:
        UsageError: Standard output cannot be written. Python itself would exit with 1, which means "regressed".
    """
    if sys.stdout is None:
        raise UsageError(
            "the answer cannot be printed (standard output is closed); redirect it to a file or a pipe"
        )
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = plain(text)
    text = _VERDICT.sub(
        lambda match: (match[1] or "") + click.style(match[2], _COLOURS[OF_VERDICT[match[2]]], bold=True),
        text,
    )
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    try:
        click.echo(text, nl=False, color=False if is_plain else None)
    except BrokenPipeError:  # the pipe's reader ended; the exit code still gives the answer
        _discard()
    except OSError as error:
        _discard()
        raise UsageError(f"the answer cannot be printed ({error.strerror}); free some disk space") from None


def _discard() -> None:
    """Discard the buffer's rest: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
