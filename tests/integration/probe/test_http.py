"""The probe's port with real sockets: permitted requests, and attacks of a hostile caller."""

import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from fresh import running
from watching import until

from infercanary.probe import callers, serve
from infercanary.probe.serve import ReportServer

GET = b"GET /report HTTP/1.1\r\n\r\n"
SMALL = b"report since "


def report(since):
    return SMALL + since.encode()


@contextmanager
def serving(answer=report, listen="127.0.0.1:0"):
    server = ReportServer(listen, answer)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def calls():
    with ExitStack() as stack:
        yield stack


def port_of(server):
    return int(server.address.rpartition(":")[2])


def connect(server, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=30, source_address=(source, 0))


def get(server, path="/report", at=""):
    with urllib.request.urlopen((at or server.address) + path, timeout=30) as response:
        return response.read()


def is_closed(client):
    client.settimeout(0.02)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_paths_and_methods(server):
    assert get(server) == get(server, "/report?x=2") == get(server, "/report?since=%C3%A9") == SMALL
    assert get(server, "/report?since=abc.1&x=2") == b"report since abc.1"
    for asked in ("GET /", "GET /reports", "GET /report/", "POST /report", "HEAD /report", "BREW /report"):
        with connect(server) as client:
            client.sendall(f"{asked} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            assert b" 404 " in client.makefile("rb").readline()
    until(lambda: server.cpu_seconds > 0, "the CPU time is reported")


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS on a plain HTTP port
        b"\x00" * 100_000,
        GET[:-2] + b"X: y\r\n" * 1_000 + b"\r\n",
        GET[:-2] + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /report HTTP/9.9\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
    ],
    ids=lambda junk: repr(junk[:16]),
)
def test_garbage_costs_nothing(server, junk, capfd):
    with connect(server) as client, suppress(OSError):
        client.sendall(junk)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    assert get(server) == SMALL
    assert capfd.readouterr() == ("", ""), "the server printed into the host's output"


def test_callers_that_go_away_cost_nothing(server, capfd, monkeypatch):
    monkeypatch.setattr(serve, "_ANSWER_SECONDS", 600.0)
    for _ in range(30):
        with connect(server, "127.0.0.2") as client:
            client.sendall(GET)
    assert get(server) == SMALL
    until(lambda: not server._open)
    assert capfd.readouterr() == ("", "")


def test_slow_loris_neither_keeps_others_out_nor_stays(server, calls, monkeypatch):
    """40 callers from one other address never finish a request, and half of them send single bytes at intervals."""
    monkeypatch.setattr(serve, "_HEAD_SECONDS", 2.0)
    idle, ended = [calls.enter_context(connect(server, "127.0.0.2")) for _ in range(40)], threading.Event()

    def drip():
        while not ended.wait(0.1):
            for client in idle[::2]:
                with suppress(OSError):
                    client.send(b"G")

    helper = threading.Thread(target=drip)
    helper.start()
    assert get(server) == SMALL
    assert server._open, "an honest caller waited for their time-out"
    until(lambda: not server._open, "a dripping caller holds its connection for ever")
    ended.set()
    helper.join()


def test_connections_are_bounded(server, calls):
    """One limit applies to the connections of each address, and one to all connections."""
    clients = [calls.enter_context(connect(server)) for _ in range(6)]
    until(lambda: sum(map(is_closed, clients)) == 2)
    clients += [calls.enter_context(connect(server, f"127.0.0.{n}")) for n in (2, 2, 3, 3, 4)]
    until(lambda: sum(map(is_closed, clients)) == 3)
    assert len(server._open) == 8
    calls.close()
    until(lambda: not server._open)
    for _ in range(1000):
        calls.enter_context(connect(server, "127.0.0.2"))
    assert get(server) == SMALL, "many connections of one address must not block the exporter's polls"


def unread_bytes(server):
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [row for row in rows if row[1].endswith(f":{port_of(server):04X}") and row[3] != "0A"]
    return sum(int(row[4].partition(":")[0], 16) for row in own)


@pytest.mark.parametrize(("size", "number"), [(5_000_000, 1), (100_000, 4)])
def test_callers_that_do_not_read_are_let_go_and_their_answers_discarded(calls, monkeypatch, size, number):
    """Regression: the kernel buffered 140 KB for each caller for minutes, in the container's memory: 20 MB in 12 s."""
    monkeypatch.setattr(serve, "_ANSWER_SECONDS", 1.5)
    with serving(lambda since: b"x" * size) as server:
        for _ in range(number):
            client = calls.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port_of(server)))
            client.sendall(GET)
        until(lambda: unread_bytes(server) > 100_000)
        assert unread_bytes(server) < number * (300 << 10)
        until(lambda: not server._open)
        assert unread_bytes(server) == 0


def test_a_burst_takes_a_tenth_of_a_cpu():
    """In the first second, callers get at most a tenth of a CPU; the threads of the host process get the rest."""

    def answer(since):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return b"report"

    with serving(answer) as server:
        begin = time.monotonic()
        while time.monotonic() < begin + 1:
            assert get(server) == b"report"
        assert server.cpu_seconds < 0.13 * (time.monotonic() - begin)


def test_only_callers_that_take_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(callers, "_BURST_REST", 0)
    monkeypatch.setattr(callers, "ADDRESS_SECONDS", 0.02)
    answered = 0
    with serving(lambda since: b"x" * 100_000) as server, suppress(ConnectionError):
        for _ in range(2000):
            with connect(server, "127.0.0.2") as client:
                client.sendall(GET)
                answered += bool(client.recv(1))
        assert len(get(server)) == 100_000
    assert 5 < answered < 1000


def test_after_a_refusal_nobody_is_accepted_for_a_while(calls, monkeypatch):
    monkeypatch.setattr(callers, "_BURST_REST", 0)
    monkeypatch.setattr(callers, "BURST_SECONDS", 0.001)
    with serving() as server:
        for _ in range(4):
            calls.enter_context(connect(server))
        begin, refused = time.monotonic(), 0
        while time.monotonic() < begin + 1:
            with suppress(OSError), connect(server) as client:
                client.recv(1)
            refused += 1
        assert 2 <= refused <= 4
        assert 0 < server.cpu_seconds < 0.01


def test_a_caller_that_drips_is_charged(server, monkeypatch):
    """Each byte wakes the server, so an address without CPU time left loses even its open connections."""
    monkeypatch.setattr(serve, "_HEAD_SECONDS", 60.0)
    monkeypatch.setattr(callers, "ADDRESS_SECONDS", 0.005)
    with connect(server) as client, pytest.raises(ConnectionError):  # noqa: PT012 - whichever byte it is
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(8000):
            client.send(b"G")
            time.sleep(0.001)


def test_a_caller_that_ends_its_side_gets_the_whole_answer():
    with serving(lambda since: b"x" * 3_000_000) as server, connect(server) as client:
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        assert client.makefile("rb").read().count(b"x") >= 3_000_000


def test_an_answer_that_fails_fails_alone(capfd):
    def answer(since):
        return {"": b"ok"}[since]

    with serving(answer) as server:
        with pytest.raises((OSError, urllib.error.URLError)):
            get(server, "/report?since=bad")
        assert get(server) == b"ok"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("listen", "hosts"),
    [
        ("0", "127.0.0.1 [::1]"),
        (":0", "127.0.0.1 [::1]"),
        ("[::]:0", "127.0.0.1 [::1]"),
        ("0.0.0.0:0", "127.0.0.1"),
        ("[::1]:0", "[::1]"),
    ],
)
def test_the_addresses_that_answer(listen, hosts):
    if "[::1]" in hosts and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with serving(listen=listen) as server:
        answered = []
        for host in ("127.0.0.1", "[::1]"):
            with suppress(urllib.error.URLError):
                assert get(server, "/report", f"http://{host}:{port_of(server)}") == SMALL
                answered.append(host)
        assert answered == hosts.split()
        assert get(server) == SMALL, "its address must answer"


HEADERS = GET[:-2] + b"".join(b"X%d: %s\r\n" % (n, b"y" * 65_000) for n in range(98))
SERVER = """
import signal
from infercanary.probe.serve import ReportServer

print(ReportServer("127.0.0.1:0", lambda since: b"report").address, flush=True)
signal.pause()
"""


@pytest.fixture
def process():
    with running(sys.executable, "-c", SERVER) as (started, line):
        yield started, line.strip()


def test_headers_take_no_memory(process):
    started, url = process
    address = ("127.0.0.1", int(url.rpartition(":")[2]))

    def peak():
        text = Path(f"/proc/{started.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) << 10

    def attack(_):
        with suppress(OSError), socket.create_connection(address, timeout=30) as client:
            client.sendall(HEADERS)
            client.recv(1)

    before = peak()
    with ThreadPoolExecutor(24) as attackers:
        [*attackers.map(attack, range(24))]
    with urllib.request.urlopen(f"{url}/report", timeout=30) as response:
        assert response.read() == b"report"
    assert peak() - before < 16 << 20


def test_as_many_wait_as_come_again_in_a_storm(process, calls):
    """1,000 callers connect at once while the server is stopped. No caller may need a second attempt."""
    if int(Path("/proc/sys/net/core/somaxconn").read_text()) < 1024:
        pytest.skip("the kernel's limit of waiting connections is lower")
    started, url = process
    started.send_signal(signal.SIGSTOP)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    for _ in range(1000):
        calls.enter_context(socket.create_connection(address, timeout=0.9, source_address=("127.0.0.2", 0)))
    started.send_signal(signal.SIGCONT)
    with urllib.request.urlopen(f"{url}/report", timeout=30) as response:
        assert response.read() == b"report"


def test_a_fork_keeps_nothing_of_the_port(server):
    """gunicorn with `--preload` and multiprocessing fork the process: the child must close the port and all
    connections.
    """
    waiting = connect(server)
    until(lambda: server._open)
    inodes = {os.fstat(sock.fileno()).st_ino for sock in (server._sock, server._open[0].sock)}
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:  # no assertion in the child, because the child must end here in any case
        try:
            os.read(parent, 1)
        finally:
            os._exit(0)

    def kept():
        numbers = set()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                numbers.add(file.stat().st_ino)
        return numbers & inodes

    try:
        until(lambda: not kept(), "the child keeps a socket open")
        waiting.sendall(GET)
        assert waiting.makefile("rb").read().endswith(SMALL)
        server.close()
        with serving(listen=server.address.removeprefix("http://")) as again:
            assert get(again) == SMALL
    finally:
        waiting.close()
        os.write(child, b".")
        os.waitpid(pid, 0)
