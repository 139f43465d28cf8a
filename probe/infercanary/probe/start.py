"""Time since the container's start. A cold start includes the start of the interpreter and all imports."""

from __future__ import annotations

import os
import time

import psutil

from infercanary.contract.started import started

# Inode of the machine's own PID namespace: PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h. In any other
# namespace, process 1 is the container's first process.
_HOST_NAMESPACE = "pid:[4026531836]"


# Maximum delay between the start of a container and of a process that belongs to this start. A later process is a
# replacement, and its start is not a cold start.
_REPLACED_SECONDS = 600.0


def in_container() -> bool:
    """True if this process sees only the processes of a container, not those of the host."""
    try:
        return os.readlink("/proc/self/ns/pid") != _HOST_NAMESPACE
    except OSError:
        return False


def since_start() -> float | None:
    """Return the seconds since the container's first process started; outside a container, since this process
    started.

    Returns:
        None if :func:`of_container` returns None. Without procfs, seconds since the import of this module.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        own = now - started(os.getpid())
        return of_container(own, now - started(1)) if in_container() else max(0.0, own)
    except (psutil.Error, OSError, RuntimeError):  # RuntimeError: a procfs without a boot time
        return time.monotonic() - _IMPORTED


def of_container(own: float, first: float) -> float | None:
    """Return the age of the container if this process belongs to the container's start.

    The start of a recycled worker, or of a restarted probe, is not a cold start.

    Args:
        own: Seconds since the start of this process.
        first: Seconds since the start of the container's first process.

    Returns:
        Seconds; None if this process began long after the container.
    """
    return max(0.0, first) if first - own < _REPLACED_SECONDS else None


_IMPORTED = time.monotonic()
