"""Start time of a process. It identifies the process together with the PID, and begins the cold start."""

from __future__ import annotations

import psutil


def started(pid: int) -> float:
    """Return the start time of a process, in seconds since the machine's boot.

    psutil returns wall-clock times, which change if the clock is set. Start time minus boot time does not change:
    it is the kernel's counter, with a resolution of 10 ms (proc_pid_stat(5), field 22).

    Args:
        pid: Id of a process that this user can see.

    Returns:
        Seconds on CLOCK_BOOTTIME.

    Raises:
        psutil.Error: The process does not run, or is hidden from this user.
        OSError: There is no procfs.
    """
    boot = psutil.boot_time()  # before psutil.Process: psutil caches the boot time before version 7
    return psutil.Process(pid).create_time() - boot
