"""Writes to standard output: a terminal or a pipe, with or without colours, in any encoding."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

import click

from infercanary.command.settings import UsageError
from infercanary.compare.picture import plain
from infercanary.contract.text import printable

_LEAST_WIDTH, _MOST_WIDTH = 80, 120
_ODD = re.compile(r"\r(?!\n)|[^\r\n -~]+")  # all but ASCII and line ends; those of CSV are CR LF
_COLOURS: Mapping[str, str] = {
    "regressed": "red", "slower": "red", "improved": "green", "faster": "green", "equivalent": "green",
    "steady": "green", "inconclusive": "yellow", "unconfirmed": "yellow", "changed": "yellow",
}  # fmt: skip


def width() -> int:
    """Return the number of columns for text, from 80 to 120."""
    return min(_MOST_WIDTH, max(_LEAST_WIDTH, shutil.get_terminal_size().columns))


def say(text: str, verdict: str = "") -> None:
    """Print ``text``; on a terminal, the first ``verdict`` in it is coloured, unless NO_COLOR is set.

    Args:
        text: With its line ends; none is added. Names of files and labels in it may have any characters.
        verdict: The word to colour; empty for none.

    Raises:
        UsageError: Standard output does not take it. Python's own exit code for that, 1, means "regressed".
    """
    if sys.stdout is None:
        raise UsageError("the answer cannot be printed (standard output is closed); give it somewhere to go")
    text = _ODD.sub(lambda match: printable(match[0]), text)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = plain(text)
    if (
        verdict in _COLOURS
        and sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    ):
        text = text.replace(verdict, click.style(verdict, fg=_COLOURS[verdict], bold=True), 1)
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:  # the reader has read enough; the exit code is still the answer
        _discard()
    except OSError as error:
        _discard()
        raise UsageError(f"the answer cannot be printed ({error.strerror}); free some room") from None


def _discard() -> None:
    """Drop what is left in the buffer: flushed at the exit, it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
