"""How long ago the container started: a cold start includes the interpreter and all imports."""

from __future__ import annotations

import os
import time

import psutil

from infercanary.contract.started import started

# The inode of the machine's own PID namespace, PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h. In any
# other one, process 1 is the container's first.
_HOST_NAMESPACE = "pid:[4026531836]"


# A process that began so much later than its container has replaced another one: its start is not the container's.
_REPLACED_SECONDS = 600.0


def in_container() -> bool:
    """Return whether the processes that this one sees are those of a container, not all of the host's."""
    try:
        return os.readlink("/proc/self/ns/pid") != _HOST_NAMESPACE
    except OSError:
        return False


def since_start() -> float | None:
    """Seconds since the container's first process started; outside of a container, since this one did.

    Returns:
        Seconds, or None where :func:`of_container` is; since this module was imported where procfs cannot be read.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        own = now - started(os.getpid())
        return of_container(own, now - started(1)) if in_container() else max(0.0, own)
    except (psutil.Error, OSError, RuntimeError):  # the last one is psutil's for a procfs without a boot time
        return time.monotonic() - _IMPORTED


def of_container(own: float, first: float) -> float | None:
    """Return how long the container has been up if this process belongs to its start.

    A worker that a server recycled, or a probe that was started again, is no cold start.

    Args:
        own: Seconds since this process started.
        first: Seconds since the container's first process did.

    Returns:
        Seconds; None where the container had been up for long when this process began.
    """
    return max(0.0, first) if first - own < _REPLACED_SECONDS else None


_IMPORTED = time.monotonic()
