"""Shows progress on standard error: one line that is overwritten on a terminal, separate lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import TextIO

from infercanary.contract.text import printable, shortened
from infercanary.render.text import plain

_NARROWEST = 40
_LONGEST = 400  # of a line outside a terminal


class Progress:
    """Writes progress in ASCII. It never fails: an experiment goes on if standard error is closed.

    Args:
        stream: Where it is written; None for standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._last = ""
        self._is_open = False

    def show(self, about: str, text: str) -> None:
        """Show one line. Where lines cannot be overwritten, only the first text of each ``about`` is written.

        Args:
            about: Which step it is about.
            text: It is cut to the terminal's width.
        """
        if self._stream.isatty():
            self._is_open = True
            width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
            self._write(text, width, "\r", "\x1b[K")
        elif about != self._last:
            self._last = about
            self._write(text)

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._write(f"infercanary: {text}")

    def clear(self) -> None:
        """Clear the line, for other output."""
        if self._is_open:
            self._is_open = False
            self._write("", 0, "\r\x1b[K", "")

    def _write(self, text: str, most: int = _LONGEST, first: str = "", last: str = "\n") -> None:
        with suppress(OSError, ValueError):
            self._stream.write(first + shortened(plain(printable(text)), most) + last)
            self._stream.flush()
