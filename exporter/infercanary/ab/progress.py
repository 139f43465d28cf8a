"""Shows progress on standard error: one line that is overwritten on a terminal, separate lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import TextIO

from infercanary.compare.picture import plain
from infercanary.compare.recording import shown

_NARROWEST = 40
_LONGEST = 400  # of a line outside a terminal


class Progress:
    """Writes progress. It never fails: an experiment goes on if standard error is closed.

    Args:
        stream: Where it is written; None for standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._over = self._stream.isatty()
        self._last = ""
        self._open = False

    def show(self, about: str, text: str) -> None:
        """Show ``text``. Where lines cannot be overwritten, only the first text of each ``about`` is written.

        Args:
            about: Which step it is about.
            text: One line; it is cut to the terminal's width.
        """
        if self._over:
            width = max(_NARROWEST, shutil.get_terminal_size().columns - 1)
            self._write(f"\r{shown(text, width)}\x1b[K")
            self._open = True
        elif about != self._last:
            self._last = about
            self._write(f"{shown(text, _LONGEST)}\n")

    def note(self, text: str) -> None:
        """Write a line that stays.

        Args:
            text: One line, however long.
        """
        self.clear()
        self._write(f"infercanary: {shown(text, _LONGEST)}\n")

    def clear(self) -> None:
        """Clear the line, for other output."""
        if self._open:
            self._open = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(plain(text))
            self._stream.flush()
