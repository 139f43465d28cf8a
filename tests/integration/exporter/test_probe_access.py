"""TLS and a token between exporter and probe: the probe's real server, and the exporter's real polls."""

from __future__ import annotations

import itertools
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from honest import Honest

from infercanary.client.access import ProbeAccess, ProbeTls
from infercanary.command.settings import UsageError
from infercanary.exporter.config import check
from infercanary.probe import callers
from infercanary.probe.access import Access, ServerTls
from infercanary.probe.serve import ReportServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that sign themselves, of a probe and of a stranger; and a token."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("probe", "stranger"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}.infercanary",
             "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            check=True, capture_output=True, cwd=folder,
        )  # fmt: skip
    (folder / "token").write_text("open sesame\n")
    return folder


def server_tls(files: Path, name: str = "probe") -> ServerTls:
    return ServerTls(cert_file=f"{files}/{name}.pem", key_file=f"{files}/{name}.key")


@pytest.fixture
def probe(files: Path) -> Iterator[ReportServer]:
    server = ReportServer("127.0.0.1:0", Honest(1).report, Access(server_tls(files), f"{files}/token"))
    yield server
    server.close()


def client_tls(files: Path, ca: str = "probe", name: str = "probe.infercanary") -> ProbeTls:
    return ProbeTls(ca_file=f"{files}/{ca}.pem", server_name=name)


async def test_both_know_each_other(
    exporter: Any, config: Any, eventually: Any, files: Path, probe: ReportServer
) -> None:
    settings = config(("tls", probe.address), probe_tls=client_tls(files), probe_token_file=f"{files}/token")
    async with exporter(settings) as run:
        await eventually(lambda: run.value("infercanary_up", container="tls"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"probe_token_file": None}, "http_status"),
        ({"ca": "stranger"}, "unreachable"),
        ({"name": "another.infercanary"}, "unreachable"),
    ],
)
async def test_a_stranger_on_either_side_is_refused(
    exporter: Any, config: Any, eventually: Any, files: Path, probe: ReportServer, changes: Any, reason: str
) -> None:
    tls = client_tls(files, changes.get("ca", "probe"), changes.get("name", "probe.infercanary"))
    token = changes.get("probe_token_file", f"{files}/token")
    async with exporter(config(("tls", probe.address), probe_tls=tls, probe_token_file=token)) as run:

        async def failed() -> bool:
            return bool(await run.labels("infercanary_poll_failures_total"))

        await eventually(failed)
        found = {labels["reason"] for labels in await run.labels("infercanary_poll_failures_total")}
        assert found <= {reason, "unreachable", "closed_early"} and (
            reason in found or reason != "http_status"
        )
        assert await run.value("infercanary_up", container="tls") == 0


def test_tls_handshakes_are_charged(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond: an address with many is refused."""
    monkeypatch.setattr(callers, "ADDRESS_BURST_SECONDS", 0.01)
    server = ReportServer("127.0.0.1:0", lambda since: b"report", Access(server_tls(files)))
    context = ssl.create_default_context(cafile=f"{files}/probe.pem")

    def shake_hands() -> bool:
        port = int(server.address.rpartition(":")[2])
        try:
            with socket.create_connection(("127.0.0.1", port)) as client:
                context.wrap_socket(client, server_hostname="probe.infercanary").close()
        except OSError:
            return False
        return True

    try:
        done = list(itertools.takewhile(bool, (shake_hands() for _ in range(500))))
        assert 3 < len(done) < 500
    finally:
        server.close()


async def test_a_token_is_for_whom_tls_confirms(files: Path) -> None:
    access = ProbeAccess(client_tls(files), f"{files}/token")
    assert access.url("http://10.0.0.7:9798") == "https://10.0.0.7:9798"
    assert access.header("https") == "Authorization: Bearer open sesame\r\n"
    assert not access.header("http")
    assert ProbeAccess(None, f"{files}/token").header("http")


def test_a_token_alone_and_one_that_is_renewed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    server = ReportServer("127.0.0.1:0", lambda since: b"report", Access(None, str(token)))

    def status(path: str, shown: str) -> int:
        request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {shown}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    try:
        assert status("/report", "first") == 200
        assert status("/report", "wrong") == status("/report", "") == 401
        token.write_text("second")
        assert status("/report", "second") == 200
        assert status("/report", "first") == 401
        token.unlink()
        assert status("/report", "second") == status("/report", "") == 401, (
            "a token that is gone opens nothing"
        )
    finally:
        server.close()


def test_a_certificate_that_is_renewed(files: Path, tmp_path: Path) -> None:
    def renew(name: str, kind: str) -> None:
        shutil.copy(files / f"{name}.{kind}", tmp_path / kind)

    for kind in ("pem", "key"):
        renew("probe", kind)
    access = Access(ServerTls(cert_file=f"{tmp_path}/pem", key_file=f"{tmp_path}/key"))
    first = access.context()
    renew("stranger", "pem")
    assert access.context() is first, "half a renewal: the certificate before serves"
    renew("stranger", "key")
    second = access.context()
    assert first is not second is access.context()


def test_files_that_cannot_be_used_are_one_line(files: Path, tmp_path: Path) -> None:
    for section, line in {
        f"probe_tls: {{ca_file: {tmp_path}/none}}": "probe_tls: ca_file cannot be used",
        f"probe_token_file: {tmp_path}/none": "probe_token_file: .* cannot be read or is empty",
    }.items():
        (tmp_path / "exporter.yaml").write_text(section)
        with pytest.raises(UsageError, match=line):
            check(tmp_path / "exporter.yaml")
    with pytest.raises(UsageError, match="tls: its files cannot be used"):
        Access(server_tls(files, "none"))
    with pytest.raises(UsageError, match=r"token_file: .* cannot be read or is empty"):
        Access(None, f"{tmp_path}/none")
