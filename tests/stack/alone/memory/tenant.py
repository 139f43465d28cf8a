"""A server that holds memory, and takes more on request. test_memory.py mounts this file into containers.

``GET /`` allocates memory and returns the server's state; ``POST /take?mib=300&rate=100`` allocates 300 MiB
at 100 MiB/s. At its start, the server has HOLDS MiB. With PROBE set, the probe of ``/app/probe.yaml`` runs in
this process.
"""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MIB = 1 << 20
PIECE = 4  # MiB

held = []
state = {"pid": os.getpid(), "started": time.time(), "failed": 0, "held": 0}


def take(mib, rate=float("inf")):
    begin, taken = time.monotonic(), 0
    while taken < mib:
        try:
            held.append(b"\1" * (PIECE * MIB))
        except MemoryError:
            state["failed"] += 1
            return
        taken += PIECE
        state["held"] += PIECE
        time.sleep(max(0.0, begin + taken / rate - time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            bytes(b"\1" * (8 * MIB))
        except MemoryError:
            state["failed"] += 1
        self.answer()

    def do_POST(self):
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        take(int(asked["mib"]), float(asked["rate"]))
        self.answer()

    def answer(self):
        body = json.dumps(state).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Log no requests: only the probe writes to the log."""


def main():
    take(int(os.environ.get("HOLDS", "700")))
    if os.environ.get("PROBE"):
        from infercanary.probe.config import read

        logging.basicConfig(level="INFO")
        read("/app/probe.yaml").start()
    ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()


main()
