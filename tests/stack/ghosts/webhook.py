"""Prints each notification of Alertmanager as a line of JSON. test_ghosts.py mounts this file into a container."""

import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        notification = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(json.dumps({"received_at": time.time(), **notification}), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


HTTPServer(("", 8080), Webhook).serve_forever()
