"""Writes to standard output: a terminal or a pipe, with or without colours, in any encoding."""

from __future__ import annotations

import os
import re
import shutil
import sys

import click

from infercanary.command.settings import UsageError
from infercanary.render.text import plain

_COLOURS = {
    "red": ("regressed", "slower"),
    "green": ("improved", "faster", "equivalent", "steady"),
    "yellow": ("inconclusive", "unconfirmed", "changed"),
}


def width() -> int:
    """Return the number of columns for text, from 80 to 120."""
    return min(120, max(80, shutil.get_terminal_size().columns))


def say(text: str, *, is_coloured: bool = False) -> None:
    """Print ``text``.

    Args:
        text: Printable, with its line ends; none is added.
        is_coloured: Whether verdicts at the beginning of a line, or behind the name there, have a colour on a terminal;
            NO_COLOR switches colours off.

    Raises:
        UsageError: Standard output does not take it. Python's own exit code for that, 1, means "regressed".
    """
    if sys.stdout is None:
        raise UsageError("the answer cannot be printed (standard output is closed); give it somewhere to go")
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = plain(text)
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if is_coloured and has_colours:
        for colour, verdicts in _COLOURS.items():
            coloured = click.style(r"\2", fg=colour, bold=True)
            text = re.sub(
                rf"^(\S[^:\n]*: )?({'|'.join(verdicts)})\b", rf"\1{coloured}", text, flags=re.MULTILINE
            )
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
