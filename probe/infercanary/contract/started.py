"""When a process started: part of its identity, and the begin of a cold start."""

from __future__ import annotations

import psutil


def started(pid: int) -> float:
    """Return when a process started, as seconds from the machine's boot.

    psutil's times of the wall clock would do for neither use: a step of that clock moves them. Their difference is what
    the kernel counted, to a hundredth of a second (proc_pid_stat(5), field 22).

    Args:
        pid: Of a process that this one sees.

    Returns:
        Seconds on CLOCK_BOOTTIME.

    Raises:
        psutil.Error: It does not run, or is hidden from this user.
        OSError: There is no procfs.
    """
    boot = psutil.boot_time()  # first: psutil before 7 goes on with the boot time of the last call
    return psutil.Process(pid).create_time() - boot
