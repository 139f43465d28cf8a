"""Serves several probes from one process until the process is ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable

from infercanary.probe.serve import ReportServer


def serve(host: str, first: int, reports: Iterable[Callable[[str], bytes]]) -> None:
    """Print where they answer, and wait for SIGTERM.

    Args:
        host: That they listen on.
        first: The first one's port, and the others' follow; 0 for any.
        reports: What each answers.
    """
    servers = [
        ReportServer(f"{host}:{first + n if first else 0}", report) for n, report in enumerate(reports)
    ]
    print(" ".join(server.address for server in servers), flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
