from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a loopback port that will probably still be free when a server is restarted on it.

    The port is outside the kernel's ephemeral range (``net.ipv4.ip_local_port_range``), so outgoing
    connections never use the port.
    """
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port
