"""Serves several probes from one process until the process is ended."""

import signal
import threading

from infercanary.probe.serve import ReportServer


def serve(host, first, reports):
    """Print the addresses of the probes, and serve until SIGTERM.

    Args:
        host: Address to listen on.
        first: Port of the first probe; the other probes use the next ports. 0 for any free port.
        reports: One function for each probe, which returns the probe's report.
    """
    servers = [
        ReportServer(f"{host}:{first + n if first else 0}", report) for n, report in enumerate(reports)
    ]
    print(" ".join(server.address for server in servers), flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
