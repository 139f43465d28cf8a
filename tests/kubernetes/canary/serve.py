"""A server without a probe, which gets requests from a sidecar; each answer takes a fixed time."""

import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ["WAIT_SECONDS"])


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Send head and body in one packet: a second packet would wait for the acknowledgement of the first.
    wbufsize = -1

    def do_GET(self):
        time.sleep(SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"yes")

    def log_message(self, *_arguments): ...


ThreadingHTTPServer(("127.0.0.1", 8000), Answer).serve_forever()
