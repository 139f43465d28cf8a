"""Child processes of a command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress

_END_SECONDS = 10.0


def free_port() -> int:
    """Return a free port of the loopback interface, on which a child can listen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and its process group by SIGTERM, and after a delay by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
