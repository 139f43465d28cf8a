"""Progress lines on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from infercanary.contract.text import printable, shortened
from infercanary.render.text import plain

_LONGEST = 400


def show_progress(text: str) -> None:
    """Write one line in ASCII. An experiment continues without standard error, so errors are ignored."""
    with suppress(OSError, ValueError):
        print(plain(shortened(printable(text), _LONGEST)), file=sys.stderr, flush=True)
