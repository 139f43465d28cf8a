"""The command in a process of its own: it starts, says where, reloads, and stops."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from infercanary.command.settings import UsageError
from infercanary.exporter.__main__ import command


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The exporter's process and URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "infercanary.exporter", "--listen", "127.0.0.1:0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://[][:.\w]+:\d+", line):
                yield process, found[0]
                return
        raise AssertionError("it did not start")
    finally:
        process.kill()
        process.communicate()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "exporter.yaml"
    path.write_text("discovery: none")
    return path


@pytest.mark.parametrize(
    ("listen", "answers"),
    [(":0", {"127.0.0.1", "::1"}), ("[::]:0", {"127.0.0.1", "::1"}), ("0.0.0.0:0", {"127.0.0.1"})],
)
def test_every_address_is_of_both_kinds(path: Path, listen: str, answers: set[str]) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    with running("--config", str(path), "--listen", listen) as (_, url):
        found = set()
        for address in ("127.0.0.1", "::1"):
            try:
                socket.create_connection((address, int(url.rpartition(":")[2])), timeout=10).close()
            except ConnectionRefusedError:
                continue
            found.add(address)
        assert found == answers
        assert get(f"{url}/-/healthy")[0] == 200, "its log shows an address that can be asked"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_quickly(path: Path, number: signal.Signals) -> None:
    with running("--config", str(path)) as (process, url):
        assert get(f"{url}/-/healthy")[0] == 200
        started = time.monotonic()
        process.send_signal(number)
        assert process.wait(5) == 0
        assert time.monotonic() - started < 3


def test_hangup_reads_a_file_that_is_the_same(path: Path) -> None:
    token = path.with_name("token")
    token.write_text("secret")
    path.write_text(f"discovery: none\nprobe_token_file: {token}")
    with running("--config", str(path)) as (process, url):
        token.unlink()
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while "infercanary_config_last_reload_successful 0.0" not in get(f"{url}/metrics")[1]:
            assert time.monotonic() < deadline
        assert process.poll() is None


def test_a_port_that_is_taken_is_one_line_before_anything_starts(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = CliRunner().invoke(command, ["--config", str(path), "--listen", address])
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert message.startswith(f"cannot listen on {address} (")
    assert "Address already in use); stop what uses it" in message
    assert "\n" not in message
    assert result.output == ""


def test_a_bad_config_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--config", str(tmp_path / "no.yaml")])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"{tmp_path}/no.yaml: cannot be read")
