"""The kernel's lists of CPUs, such as ``0-3,8``, as cpusets and Docker's ``--cpuset-cpus`` write them."""

from __future__ import annotations

import re

MAX_CPUS = 8192
"""The most that Linux can be built for (NR_CPUS, arch/x86/Kconfig)."""

_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def parse_cpus(text: str) -> int:
    """Parse a list of CPUs, which may come from an untrusted source: the work is bounded by the length of ``text``.

    Args:
        text: Such as ``0-3,8``; an empty text names no CPU.

    Returns:
        The set of CPUs as an integer with a bit for each, so that sets are compared and counted quickly.

    Raises:
        ValueError: ``text`` is no such list, or names a CPU that no Linux has.
    """
    bits = 0
    for part in text.split(",") if text else ():
        found = _PART.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < MAX_CPUS:
            raise ValueError(f"{part[:40]!r} is no CPU and no range of CPUs")
        bits |= (1 << last + 1) - (1 << first)
    return bits


def numbers(bits: int) -> frozenset[int]:
    """The numbers of the CPUs in ``bits``, as :func:`parse_cpus` returns them.

    Args:
        bits: A bit for each CPU; 0 is the empty set.

    Returns:
        Numbers of CPUs, from 0 on.
    """
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
