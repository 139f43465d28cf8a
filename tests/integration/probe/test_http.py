"""The probe's door, by real sockets: what a caller may do, and what a hostile one cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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


def connect(server: ReportServer, source: str = "127.0.0.1") -> socket.socket:
    port = int(server.address.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def get(server: ReportServer, path: str = "/report", at: str = "") -> bytes:
    with urllib.request.urlopen((at or server.address) + path, timeout=30) as response:
        body: bytes = response.read()
    return body


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed it."""
    client.settimeout(0.02)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def opened(server: ReportServer) -> int:
    return len(server._open)


def test_paths(server: ReportServer) -> None:
    assert get(server) == b"report since "
    assert get(server, "/report?since=abc.1&x=2") == b"report since abc.1"
    assert get(server, "/report?x=2") == get(server, "/report?since=%C3%A9") == b"report since "
    for path in ("/", "/reports", "/report/", "/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            get(server, path)
        assert b"/report" in caught.value.read()
        caught.value.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "BREW"])
def test_only_get(server: ReportServer, method: str) -> None:
    with connect(server) as client:
        client.sendall(f"{method} /report HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        assert b" 404 " in client.makefile("rb").readline()


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


def test_callers_that_go_away_cost_nothing(
    server: ReportServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_ANSWER_SECONDS", 600.0)
    for _ in range(30):
        client = connect(server, "127.0.0.2")
        client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
        client.close()
    assert get(server) == b"report since "
    until(lambda: not opened(server))
    assert capfd.readouterr() == ("", "")


def test_slow_loris_neither_keeps_others_out_nor_stays(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 callers of another address that never finish a request, some of which drip a byte now and then."""
    monkeypatch.setattr(serve, "_HEAD_SECONDS", 1.5)
    idle = [connect(server, "127.0.0.2") for _ in range(40)]
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
    until(lambda: not opened(server), "a dripping caller holds its connection for ever")
    dripping = False
    helper.join()
    for client in idle:
        client.close()


def test_connections_are_bounded(server: ReportServer) -> None:
    """Of one address, and in all; who is refused learns it immediately."""
    clients = [connect(server) for _ in range(6)]
    until(lambda: sum(map(is_closed, clients)) == 2)
    clients += [connect(server, f"127.0.0.{n}") for n in (2, 2, 3, 3, 4)]
    until(lambda: sum(map(is_closed, clients)) == 3)
    assert opened(server) == 8
    for client in clients:
        client.close()
    until(lambda: not opened(server))
    assert get(server) == b"report since "


def test_a_thousand_held_connections_of_one_address_leave_the_exporter_its_polls(
    server: ReportServer,
) -> None:
    clients = [connect(server, "127.0.0.2") for _ in range(1000)]
    try:
        for _ in range(5):
            assert get(server) == b"report since "
    finally:
        for client in clients:
            client.close()


def test_a_caller_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_ANSWER_SECONDS", 3.0)
    server = ReportServer("127.0.0.1:0", lambda since: b"x" * 5_000_000)
    try:
        with not_reading(server):
            until(lambda: unread_bytes(server) > 100_000)
            assert unread_bytes(server) < 300 << 10, "the kernel keeps it in the container's memory"
            until(lambda: not opened(server))
    finally:
        server.close()


def test_a_burst_takes_a_tenth_of_a_cpu() -> None:
    """Whatever callers ask within the first second, their host's threads have the rest."""

    def answer(since: str) -> bytes:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return b"report"

    server = ReportServer("127.0.0.1:0", answer)
    try:
        begin = time.monotonic()
        while time.monotonic() < begin + 1:
            assert get(server) == b"report"
        assert server.cpu_seconds < 0.13 * (time.monotonic() - begin)
    finally:
        server.close()


def test_who_takes_too_much_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_BURST_REST", 0)
    monkeypatch.setattr(callers, "ADDRESS_BURST_SECONDS", 0.02)
    server = ReportServer("127.0.0.1:0", lambda since: b"x" * 100_000)
    answered = 0
    try:
        for _ in range(2000):
            with connect(server, "127.0.0.2") as client:
                client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
                try:
                    answered += bool(client.recv(1))
                except ConnectionError:
                    break
        assert 5 < answered < 1000
        assert len(get(server)) == 100_000
    finally:
        server.close()


def test_accepting_and_refusing_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_BURST_REST", 0)
    monkeypatch.setattr(callers, "BURST_SECONDS", 0.001)
    server = ReportServer("127.0.0.1:0", lambda since: b"report")
    held = [connect(server) for _ in range(4)]
    try:
        begin = time.monotonic()
        while time.monotonic() < begin + 1:
            with contextlib.suppress(OSError), connect(server) as client:
                client.recv(1)
        assert 0 < server.cpu_seconds < 0.08
    finally:
        for client in held:
            client.close()
        server.close()


def test_a_caller_that_drips_is_charged(server: ReportServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte wakes the server: an address that has spent its CPU time loses its open connections, too."""
    monkeypatch.setattr(serve, "_HEAD_SECONDS", 60.0)
    monkeypatch.setattr(callers, "ADDRESS_BURST_SECONDS", 0.005)

    def drip(client: socket.socket) -> None:
        for _ in range(8000):
            client.send(b"G")
            time.sleep(0.001)

    with connect(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(ConnectionError):
            drip(client)


def not_reading(server: ReportServer, source: str = "127.0.0.1") -> socket.socket:
    """A caller that asked, and takes 2 KiB of its answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.bind((source, 0))
    client.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
    client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
    return client


def unread_bytes(server: ReportServer) -> int:
    """Bytes that the kernel keeps for callers of this server."""
    port = f":{int(server.address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(port) and row[3] != "0A")


def test_an_answer_that_nobody_reads_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kept 140 KB of each for minutes, in the container's memory: 20 MB in 12 s."""
    monkeypatch.setattr(serve, "_ANSWER_SECONDS", 1.0)
    server = ReportServer("127.0.0.1:0", lambda since: b"x" * 100_000)
    clients = [not_reading(server) for _ in range(4)]
    try:
        until(lambda: unread_bytes(server) > 100_000)
        until(lambda: not opened(server))
        assert unread_bytes(server) == 0
    finally:
        for client in clients:
            client.close()
        server.close()


def test_a_caller_that_ends_its_side_gets_the_whole_answer() -> None:
    """As `nc -N`: it sends its request and the end of its stream together."""
    server = ReportServer("127.0.0.1:0", lambda since: b"x" * 3_000_000)
    try:
        with connect(server) as client:
            client.sendall(b"GET /report HTTP/1.1\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            time.sleep(0.2)
            assert client.makefile("rb").read().count(b"x") >= 3_000_000
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


@pytest.mark.parametrize(("listen", "number"), [("0", 2), ("[::]:0", 2), ("0.0.0.0:0", 1)])
def test_every_address_is_of_both_kinds(listen: str, number: int) -> None:
    server = ReportServer(listen, lambda since: b"both")
    port = server.address.rpartition(":")[2]
    try:
        answered = 0
        for host in ("127.0.0.1", "[::1]"):
            with contextlib.suppress(urllib.error.URLError):
                answered += get(server, "/report", f"http://{host}:{port}") == b"both"
        if server.address.startswith("http://0.0.0.0:") and listen != "0.0.0.0:0":
            pytest.skip("no IPv6 here")
        assert answered == number
        assert get(server) == b"both", "its address can be asked"
    finally:
        server.close()


def test_the_port_is_free_again_after_close(server: ReportServer) -> None:
    get(server)
    server.close()
    ReportServer(server.address.removeprefix("http://"), lambda since: b"").close()


HEADERS = b"GET /report HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"y" * 65_000) for n in range(98))
SERVER = """
import signal
from infercanary.probe.serve import ReportServer

print(ReportServer("127.0.0.1:0", lambda since: b"report").address, flush=True)
signal.pause()
"""


def memory(pid: int) -> int:
    """Bytes that a process had at most."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) << 10


def test_headers_take_no_memory() -> None:
    """24 connections from one address, each with 98 lines of 64 KiB: 414 MB before heads were bounded."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            before = memory(process.pid)
            port = int(url.rpartition(":")[2])

            def attack() -> None:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=30) as client,
                ):
                    client.sendall(HEADERS)
                    client.recv(1)

            attackers = [threading.Thread(target=attack) for _ in range(24)]
            for attacker in attackers:
                attacker.start()
            for attacker in attackers:
                attacker.join()
            with urllib.request.urlopen(f"{url}/report", timeout=30) as response:
                assert response.read() == b"report"
            assert memory(process.pid) - before < 16 << 20
        finally:
            process.kill()


def test_as_many_wait_as_come_again_in_a_storm() -> None:
    """1,000 callers at once, while the server does nothing: none of them, and no exporter, is made to try again."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < 1024:
        pytest.skip("the kernel lets fewer wait")
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        callers = []
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            process.send_signal(signal.SIGSTOP)
            for _ in range(1000):
                port = int(url.rpartition(":")[2])
                caller = socket.create_connection(
                    ("127.0.0.1", port), timeout=0.9, source_address=("127.0.0.2", 0)
                )
                callers.append(caller)
            process.send_signal(signal.SIGCONT)
            with urllib.request.urlopen(f"{url}/report", timeout=30) as response:
                assert response.read() == b"report"
        finally:
            for caller in callers:
                caller.close()
            process.kill()


def test_a_fork_keeps_nothing_of_the_port(server: ReportServer) -> None:
    """As gunicorn with `--preload` and multiprocessing do: the child must neither hold the port nor a connection."""
    waiting = connect(server)
    until(lambda: opened(server))
    inodes = {os.fstat(sock.fileno()).st_ino for sock in (server._sock, server._open[0].sock)}
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:  # no assertion in the child: it must end here in any case
        try:
            os.read(parent, 1)
        finally:
            os._exit(0)

    def kept() -> set[int]:
        numbers = set()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                numbers.add(file.stat().st_ino)
        return numbers & inodes

    try:
        until(lambda: not kept(), "the child keeps a socket open")
        waiting.sendall(b"GET /report HTTP/1.1\r\n\r\n")
        assert waiting.makefile("rb").read().endswith(b"report since ")
        server.close()
        again = ReportServer(server.address.removeprefix("http://"), lambda since: b"again")
        assert get(again) == b"again"
        again.close()
    finally:
        waiting.close()
        os.write(child, b".")
        os.waitpid(pid, 0)
