"""Ports for test servers."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """One of the loopback that is likely to be free also when a server starts on it again.

    From the range that the kernel takes its own from (``net.ipv4.ip_local_port_range``) any connection may take it
    meanwhile.
    """
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port
