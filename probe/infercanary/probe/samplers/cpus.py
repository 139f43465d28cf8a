"""The kernel's lists of CPUs, as cpusets and sysfs (``local_cpulist``) write them."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs that a list such as ``0-3,8`` names. Raises :class:`ValueError` where it is none.

    Four digits are enough for any kernel (NR_CPUS is 8192 at most), and keep a damaged file from naming millions.
    """
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        if not (found := _PART.fullmatch(part)):
            raise ValueError(f"{part[:40]!r} is no CPU and no range of CPUs")
        cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(cpus)
