"""Detects a server in this process's own container. The container's memory then includes the server's memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from infercanary.probe.start import in_container

_PROC = Path("/proc")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def listens_here(host: str, port: int) -> bool:
    """True if the host's name means this host, and a process in this process's container listens on the port.

    The containers of a pod share addresses but not memory, so the listening process must be visible and in the same
    cgroup. The search reads all open files, which takes milliseconds: call this once.

    Args:
        host: Name or address; only ``localhost``, ``127.0.0.1`` and ``::1`` are this host.
        port: TCP port.

    Returns:
        The result is also False if the process is not visible.
    """
    if host not in _LOOPBACK or not in_container():
        return False
    try:
        container = (_PROC / "self/cgroup").read_bytes()
        connections = psutil.net_connections("tcp")
        listening = [c for c in connections if c.status == psutil.CONN_LISTEN and c.laddr[1:2] == (port,)]
        groups = {(_PROC / str(c.pid) / "cgroup").read_bytes() for c in listening if c.pid is not None}
        return groups == {container}
    except (OSError, psutil.Error, RuntimeError):
        return False
