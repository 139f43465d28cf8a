"""Client of Prometheus: another server, or a refused query, is reported in one line."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grafana.prometheus import Prometheus, Refused
from infercanary.command.settings import UsageError


@pytest.fixture
def serve():
    servers = []

    def start(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return Prometheus(f"http://127.0.0.1:{server.server_port}/")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_query_that_is_refused(serve):
    with pytest.raises(Refused, match=r"^parse error$"):
        serve(400, b'{"status": "error", "error": "parse error"}').at("x{", 0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (404, b"not here"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b"\xff"),
        (200, b'{"status": "success"}'),
    ],
)
def test_a_server_that_is_not_prometheus(serve, status, body):
    there = serve(status, body)
    with pytest.raises(
        UsageError, match=f"^{there.url}: the answer is not in Prometheus' format; check the address$"
    ):
        there.at("x", 0)


@pytest.mark.parametrize("url", ["", "127.0.0.1:9090", "ftp://127.0.0.1", "http//x"])
def test_invalid_addresses(url):
    with pytest.raises(UsageError, match=r"not a web address; write it like http://127\.0\.0\.1:9090"):
        Prometheus(url)
