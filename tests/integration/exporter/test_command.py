"""The exporter's command in a separate process: start, printed address, reload, and stop."""

import signal
import socket
from contextlib import suppress

import pytest
from click.testing import CliRunner

from infercanary.command import cli
from infercanary.command.settings import UsageError
from tests.integration.exporter.processes import ExporterProcess, until
from tests.scenarios import cases


def has_ipv6():
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@cases([(":0", 2), ("[::]:0", 2), ("0.0.0.0:0", 1)])
def test_every_address_is_of_both_kinds(listen, count, tmp_path):
    exporter = ExporterProcess(tmp_path, {})
    with exporter.listening("discovery: none", listen=listen) as exporter.url:
        answers = []
        for address in ("127.0.0.1", "::1"):
            with suppress(ConnectionRefusedError):
                socket.create_connection((address, int(exporter.url.rpartition(":")[2])), timeout=10).close()
                answers.append(address)
        assert len(answers) == count
        assert "127.0.0.1" in answers
        assert exporter.get("/-/healthy")


def test_hangup_reads_a_file_that_is_the_same_and_an_interrupt_ends_it(tmp_path):
    token, exporter = tmp_path / "token", ExporterProcess(tmp_path, {})
    token.write_text("secret")
    with exporter.listening(f"discovery: none\nprobe_token_file: {token}"):
        token.unlink()
        exporter.process.send_signal(signal.SIGHUP)
        until(lambda: exporter.values("infercanary_config_last_reload_successful") == {"": 0.0}, 30)
        exporter.process.send_signal(signal.SIGINT)
        assert exporter.process.wait(30) == 0


def test_a_port_that_is_taken_is_one_line_before_anything_starts(tmp_path):
    path = tmp_path / "exporter.yaml"
    path.write_text("discovery: none")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = CliRunner().invoke(cli.cli, ["exporter", "--config", str(path), "--listen", address])
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert message.startswith(f"cannot listen on {address} (")
    assert "\n" not in message
    assert result.output == ""
