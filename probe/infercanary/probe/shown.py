"""What ``--once`` and ``--profile`` share: a probe that is opened for a person, and text for that person's terminal."""

from __future__ import annotations

import io
import logging
import shutil
import sys

import click

from infercanary.command.settings import UsageError
from infercanary.probe.loop import Probe

log = logging.getLogger("infercanary.probe")


def opened(probe: Probe) -> UsageError | None:
    """Open every canary; the others are of use where one cannot be opened.

    Args:
        probe: One that was not opened yet.

    Returns:
        The user's mistake by which one cannot, to be raised when the others were shown; None where there is none.
    """
    log.info("loading and warming up every canary; a large model takes minutes")
    try:
        probe.open()
    except UsageError as error:
        return error
    return None


def columns(least: int, most: int) -> int:
    """Return the terminal's width.

    Args:
        least: Of a narrower one, in columns.
        most: Of a wider one.
    """
    return min(most, max(least, shutil.get_terminal_size().columns))


def show(text: str) -> None:
    """Print text on standard output, in whatever encoding it has: a µ is not in every container's.

    Args:
        text: With its last line's end.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    click.echo(text, nl=False)


def time_text(seconds: float | None) -> str:
    """Seconds in words: ``12.3 ms``, or ``unknown``; with a space that does not break.

    Args:
        seconds: 0 or more; None where it is not known.

    Returns:
        The largest unit in which it is 1 or more, down to µs, with four digits.
    """
    if seconds is None:
        return "unknown"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{digits(seconds * factor)}\xa0{unit}"
    return f"{digits(seconds * 1e6)}\xa0µs"


def digits(number: float) -> str:
    """Write a number with four digits.

    Args:
        number: 0 or more.

    Returns:
        At most three digits after the point.
    """
    before = len(str(int(number)))
    return f"{number:.{min(3, max(0, 4 - before))}f}"
