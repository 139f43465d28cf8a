"""A process whose wall clock a test sets while the process runs (libfaketime)."""

from pathlib import Path

import pytest

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
needs_faketime = pytest.mark.skipif(
    LIBRARY is None, reason="setting a clock needs libfaketime: apt-get install libfaketime"
)


class Clock:
    """Wall clock of the processes that are started with its variables; the first offset is 0.

    Args:
        offset: New file for the offset, in a folder that these processes may read.
    """

    def __init__(self, offset):
        self._offset = offset
        self._seconds = 0
        self.move(0)

    @property
    def environment(self):
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def move(self, seconds):
        """Move the clock forward, or back if ``seconds`` is negative."""
        self._seconds += seconds
        new = self._offset.with_suffix(".new")
        new.write_text(f"{self._seconds:+d}")
        new.chmod(0o644)
        new.replace(self._offset)
