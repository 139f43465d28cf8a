"""CPU lists in the kernel's format, such as ``0-3,8``, for cpusets and Docker's ``--cpuset-cpus``."""

from __future__ import annotations

import re

MAX_CPUS = 8192
"""Largest number of CPUs of a Linux kernel (NR_CPUS, arch/x86/Kconfig)."""

_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def parse_cpus(text: str) -> int:
    """Parse a CPU list. The work is bounded by the text's length, because the text may be untrusted.

    Args:
        text: List such as ``0-3,8``; an empty text is an empty list.

    Returns:
        Set of CPUs as an integer with one bit for each CPU, which is fast to compare and to count.

    Raises:
        ValueError: The text is not a CPU list, or contains a number of :data:`MAX_CPUS` or more.
    """
    bits = 0
    for part in text.split(",") if text else ():
        found = _PART.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < MAX_CPUS:
            raise ValueError(f"{part[:40]!r} is neither a CPU nor a range of CPUs")
        bits |= (1 << last + 1) - (1 << first)
    return bits


def numbers(bits: int) -> frozenset[int]:
    """Return the CPU numbers in a set from :func:`parse_cpus`."""
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
