"""Files of a cgroup: what is missing, switched off or odd reads as empty or None, and nothing raises."""

from __future__ import annotations

import re
from pathlib import Path

_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)  # 2^64 has 20 digits


def text(file: Path) -> str:
    """The content of ``file``; empty where the controller is missing, or PSI is off (reading fails with EOPNOTSUPP).

    Args:
        file: It need not exist.
    """
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer(digits: str) -> int | None:
    """The whole number in ``digits``.

    Args:
        digits: Text of the kernel, such as ``1024``, ``max`` or nothing.

    Returns:
        The number; None where it is none (``max`` too).
    """
    return int(digits) if _INTEGER.fullmatch(digits) else None


def number(file: Path) -> int | None:
    """The whole number that is all that ``file`` holds.

    Args:
        file: It need not exist.

    Returns:
        The number; None where there is none.
    """
    return integer(text(file))


def table(file: Path) -> dict[str, int]:
    """Key → number, of a file with a line for each, such as memory.stat.

    Args:
        file: It need not exist.

    Returns:
        Without the lines of another form; empty where the file cannot be read.
    """
    lines = (line.split() for line in text(file).splitlines())
    pairs = ((line[0], integer(line[1])) for line in lines if len(line) == 2)
    return {key: value for key, value in pairs if value is not None}
