"""How long ago the container started: a cold start includes the interpreter and all imports."""

from __future__ import annotations

import os
import time
from pathlib import Path

# The inode of the machine's own PID namespace, PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h. In any
# other one, process 1 is the container's first.
_HOST_NAMESPACE = "pid:[4026531836]"


# A process that began so much later than its container has replaced another one: its start is not the container's.
_REPLACED_SECONDS = 600.0


def since_start(proc: Path = Path("/proc")) -> float | None:
    """Seconds since the container's first process started; outside of a container, since this one did.

    None where the container had been up for long when this process began: a worker that a server recycled, or a probe
    that was started again, is no cold start.

    Args:
        proc: Where procfs is mounted.

    Returns:
        Seconds, or None; since this module was imported where procfs cannot be read.
    """
    try:
        own = _age(proc / "self" / "stat")
        if os.readlink(proc / "self" / "ns" / "pid") == _HOST_NAMESPACE:
            return own
        container = _age(proc / "1" / "stat")
        return container if container - own < _REPLACED_SECONDS else None
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def _age(stat: Path) -> float:
    # proc(5): field 22, in clock ticks since the boot. The name in field 2 may hold spaces and parentheses.
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


_IMPORTED = time.monotonic()
