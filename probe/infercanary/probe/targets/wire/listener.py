"""Whether a server is in this process's own container, so that the container's memory is the server's."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import psutil

from infercanary.probe.start import in_container

_PROC = Path("/proc")


def listens_here(host: str, port: int, proc: Path = _PROC) -> bool:
    """Say whether a process of this one's container listens at an address of this host's own.

    Containers of a pod share their addresses and not their memory: so the process must be seen, in the same cgroup. All
    open files are looked through for it, milliseconds: ask once.

    Args:
        host: Name or address.
        port: TCP.
        proc: Where procfs is mounted.

    Returns:
        False also where that cannot be seen.
    """
    if not in_container():
        return False
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not all(ipaddress.ip_address(address[0]).is_loopback for *_, address in addresses):
            return False
        container = (proc / "self/cgroup").read_bytes()
        connections = psutil.net_connections("tcp")
        listening = [c for c in connections if c.status == psutil.CONN_LISTEN and c.laddr[1:2] == (port,)]
        groups = {(proc / str(c.pid) / "cgroup").read_bytes() for c in listening if c.pid is not None}
        return groups == {container}
    except (OSError, ValueError, psutil.Error, RuntimeError):
        return False
