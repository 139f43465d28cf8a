"""The probe's door, by real sockets: what a caller may do, and what a hostile one cannot."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from watching import until

from infercanary.command.settings import UsageError
from infercanary.probe import callers, serve
from infercanary.probe.serve import ReportServer


@pytest.fixture
def server() -> Iterator[ReportServer]:
    server = ReportServer("127.0.0.1:0", lambda since: b"report since " + since.encode())
    yield server
    server.close()


def connect(server: ReportServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=30)


def get(server: ReportServer, path: str = "/report") -> bytes:
    with urllib.request.urlopen(server.address + path, timeout=30) as response:
        body: bytes = response.read()
    return body


def handlers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "process_request_thread" in t.name]


def test_paths(server: ReportServer) -> None:
    assert get(server) == b"report since "
    assert get(server, "/report?since=abc.1&x=2") == b"report since abc.1"
    assert get(server, "/report?since=%C3%A9") == "report since é".encode()
    assert get(server, "/-/healthy") == b"ok\n"
    for path in ("/", "/reports", "/report/", "/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            get(server, path)
        assert b"/report" in caught.value.read()
        caught.value.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "BREW"])
def test_only_get(server: ReportServer, method: str) -> None:
    with connect(server) as client:
        client.sendall(f"{method} /report HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        assert b" 501 " in client.makefile("rb").readline()


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS on the wrong port
        b"\x00" * 100_000,
        b"GET /report HTTP/1.1\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
        b"GET /report HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /report HTTP/9.9\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
    ],
    ids=lambda junk: repr(junk[:16]),
)
def test_garbage_costs_nothing(server: ReportServer, junk: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with connect(server) as client, contextlib.suppress(OSError):
        client.sendall(junk)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    assert get(server) == b"report since "
    assert capfd.readouterr() == ("", ""), "nothing in the host's output"


def test_callers_that_go_away_cost_nothing(server: ReportServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(30):
        client = connect(server)
        client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
        client.close()
    assert get(server) == b"report since "
    until(lambda: not handlers())
    assert capfd.readouterr() == ("", "")


def test_slow_loris_neither_keeps_others_out_nor_stays(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 callers that never finish a request, some of which drip a byte now and then."""
    monkeypatch.setattr(serve, "_SECONDS", 1.5)
    idle = [connect(server) for _ in range(40)]
    dripping = True

    def drip() -> None:
        while dripping:
            for client in idle[::2]:
                with contextlib.suppress(OSError):
                    client.send(b"G")
            time.sleep(0.1)

    helper = threading.Thread(target=drip)
    helper.start()
    begin = time.monotonic()
    assert get(server) == b"report since "
    assert time.monotonic() - begin < 1.5, "an honest caller had to wait for them to time out"
    until(lambda: not handlers(), "a dripping caller holds its thread for ever")
    dripping = False
    helper.join()
    for client in idle:
        client.close()


def test_threads_are_bounded(server: ReportServer) -> None:
    clients = [connect(server) for _ in range(60)]
    until(lambda: len(handlers()) <= 8)
    assert get(server) == b"report since "
    for client in clients:
        client.close()


def test_a_caller_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_SECONDS", 1.0)
    server = ReportServer("127.0.0.1:0", lambda since: b"x" * 50_000_000)
    try:
        with connect(server) as client:
            client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
            until(handlers)
            until(lambda: not handlers())
    finally:
        server.close()


def test_an_answer_that_fails_fails_alone(capfd: pytest.CaptureFixture[str]) -> None:
    def answer(since: str) -> bytes:
        if since == "bad":
            raise RuntimeError("a defect")
        return b"ok"

    server = ReportServer("127.0.0.1:0", answer)
    try:
        with pytest.raises((OSError, urllib.error.URLError)):
            get(server, "/report?since=bad")
        assert get(server) == b"ok"
    finally:
        server.close()
    assert capfd.readouterr() == ("", "")


def test_its_cpu_time_is_reported(server: ReportServer) -> None:
    get(server)
    until(lambda: server.cpu_seconds > 0)


def test_ipv6() -> None:
    try:
        server = ReportServer("[::1]:0", lambda since: b"six")
    except UsageError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert server.address.startswith("http://[::1]:")
    assert get(server) == b"six"
    server.close()


def test_the_port_is_free_again_after_close(server: ReportServer) -> None:
    get(server)
    server.close()
    ReportServer(server.address.removeprefix("http://"), lambda since: b"").close()


def test_one_address_leaves_others_their_turn(server: ReportServer) -> None:
    """64 idle connections of another address, again and again: an honest caller is never the one that gives way."""
    idle = []
    for _ in range(64):
        client = socket.socket()
        client.bind(("127.0.0.2", 0))
        client.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
        idle.append(client)
    honest = connect(server)
    for client in idle[:20]:
        client.close()
    honest.sendall(b"GET /report HTTP/1.1\r\n\r\n")
    assert b" 200 " in honest.makefile("rb").readline()
    honest.close()
    for client in idle:
        client.close()


def test_a_caller_takes_a_bounded_share_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of 20 ms each: after the burst most are refused, and another address is answered."""
    monkeypatch.setattr(callers, "BURST_SECONDS", 0.1)

    def answer(since: str) -> bytes:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return b"ok"

    server = ReportServer("127.0.0.1:0", answer)
    try:
        answered = 0
        for _ in range(50):
            with contextlib.suppress(OSError):
                get(server)
                answered += 1
        assert 1 <= answered < 25
        with socket.socket() as other:
            other.bind(("127.0.0.3", 0))
            other.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
            other.sendall(b"GET /report HTTP/1.1\r\n\r\n")
            assert b" 200 " in other.makefile("rb").readline()
    finally:
        server.close()
