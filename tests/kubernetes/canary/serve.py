"""A server without a probe, for a sidecar that sends requests: each answer takes a fixed time."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ["WAIT_SECONDS"])


class Answer(BaseHTTPRequestHandler):
    """Sleeps, and says yes."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for the first one's acknowledgement

    def do_GET(self):
        """Answer any path."""
        time.sleep(SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"yes")

    def log_message(self, *_arguments):
        """Say nothing of requests."""


ThreadingHTTPServer(("127.0.0.1", 8000), Answer).serve_forever()
