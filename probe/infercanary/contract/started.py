"""Start time of a process: part of its identity, and the beginning of a cold start."""

from __future__ import annotations

import psutil


def started(pid: int) -> float:
    """Return when a process started, in seconds since the machine's boot.

    psutil's wall-clock times move with a step of the clock. Their difference is the kernel's counter, to a hundredth
    of a second (proc_pid_stat(5), field 22).

    Args:
        pid: A visible process.

    Returns:
        Seconds on CLOCK_BOOTTIME.

    Raises:
        psutil.Error: It does not run, or is hidden from this user.
        OSError: There is no procfs.
    """
    boot = psutil.boot_time()  # first, because psutil before 7 caches the boot time
    return psutil.Process(pid).create_time() - boot
