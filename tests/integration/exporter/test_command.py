"""The command in a process of its own: it starts, says where, reloads, and stops."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from infercanary.command import cli
from infercanary.command.settings import UsageError
from tests.integration.exporter.processes import ExporterProcess, until


@contextmanager
def running(path: Path, listen: str = "127.0.0.1:0") -> Iterator[tuple[ExporterProcess, str]]:
    """The exporter and its URL."""
    text = path.read_text()
    exporter = ExporterProcess(path.parent, {})
    path.write_text(text)
    exporter.arguments = ("--listen", listen)
    exporter.start()
    try:
        until(lambda: "event=listening" in exporter.log, 60)
        yield exporter, exporter.log.partition("url=")[2].split()[0]
    finally:
        assert exporter.process is not None
        exporter.process.kill()
        exporter.process.wait()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "exporter.yaml"
    path.write_text("discovery: none")
    return path


def has_ipv6() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(("listen", "count"), [(":0", 2), ("[::]:0", 2), ("0.0.0.0:0", 1)])
def test_every_address_is_of_both_kinds(path: Path, listen: str, count: int) -> None:
    with running(path, listen) as (_, url):
        answers = []
        for address in ("127.0.0.1", "::1"):
            with suppress(ConnectionRefusedError):
                socket.create_connection((address, int(url.rpartition(":")[2])), timeout=10).close()
                answers.append(address)
        assert len(answers) == count and "127.0.0.1" in answers
        assert get(f"{url}/-/healthy"), "its log shows an address that can be asked"


def test_hangup_reads_a_file_that_is_the_same_and_an_interrupt_ends_it(path: Path) -> None:
    token = path.with_name("token")
    token.write_text("secret")
    path.write_text(f"discovery: none\nprobe_token_file: {token}")
    with running(path) as (exporter, url):
        assert exporter.process is not None
        token.unlink()
        exporter.process.send_signal(signal.SIGHUP)
        until(lambda: "infercanary_config_last_reload_successful 0.0" in get(f"{url}/metrics"), 30)
        exporter.process.send_signal(signal.SIGINT)
        assert exporter.process.wait(30) == 0


def test_a_port_that_is_taken_is_one_line_before_anything_starts(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = CliRunner().invoke(cli.cli, ["exporter", "--config", str(path), "--listen", address])
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert message.startswith(f"cannot listen on {address} (") and "\n" not in message
    assert result.output == ""
