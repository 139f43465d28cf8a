"""Reads files of a cgroup. A missing, disabled or malformed file gives "" or None, never an exception."""

from __future__ import annotations

import re
from pathlib import Path

_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)  # whole number: 2^64 has 20 digits


def text(file: Path) -> str:
    """Return the content of a file; empty if it cannot be read (no controller, or PSI is off: EOPNOTSUPP)."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer(digits: str) -> int | None:
    """Return the whole number in a text of the kernel, such as ``1024``; None for other texts, such as ``max``."""
    return int(digits) if _INTEGER.fullmatch(digits) else None


def number(file: Path) -> int | None:
    """Return the whole number that is the only content of a file; None for other content."""
    return integer(text(file))


def table(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a ``key number`` on each line, such as memory.stat."""
    lines = (line.split() for line in text(file).splitlines())
    pairs = ((line[0], integer(line[1])) for line in lines if len(line) == 2)
    return {key: value for key, value in pairs if value is not None}
