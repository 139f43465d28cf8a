"""TLS and a token between exporter and probe, with the probe's real server and real polls."""

import itertools
import shutil
import socket
import ssl
import urllib.error
import urllib.request

import pytest
from honest import Honest

from infercanary.client.access import ProbeAccess, ProbeTls
from infercanary.command.settings import UsageError
from infercanary.exporter.config import check
from infercanary.probe import callers
from infercanary.probe.access import Access, ServerTls
from infercanary.probe.serve import ReportServer
from tests.integration.exporter.processes import certificate
from tests.scenarios import cases, scenarios

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for the certificates")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("probe", "stranger"):
        certificate(folder, name, address=f"DNS:{name}.infercanary")
    (folder / "token").write_text("open sesame\n")
    return folder


def server_tls(files, name="probe"):
    return ServerTls(cert_file=f"{files}/{name}.pem", key_file=f"{files}/{name}.key")


@pytest.fixture
def serves():
    servers = []

    def begin(access):
        servers.append(ReportServer("127.0.0.1:0", Honest(1).report, access))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def client_tls(files, ca="probe", name="probe.infercanary"):
    return ProbeTls(ca_file=f"{files}/{ca}.pem", server_name=name)


@cases(
    scenarios("""
probe    | probe.infercanary   | token |
probe    | probe.infercanary   |       | http_status
stranger | probe.infercanary   | token | unreachable closed_early
probe    | another.infercanary | token | unreachable closed_early
"""),
)
async def test_both_know_each_other_or_a_stranger_is_refused(ca, name, token, reasons, watch, files, serves):
    probe = serves(Access(server_tls(files), f"{files}/token"))
    access = {
        "probe_tls": client_tls(files, ca, name),
        "probe_token_file": f"{files}/{token}" if token else None,
    }
    async with watch({"tls": probe.address}, **access) as run:
        if not reasons:
            await run.appears("infercanary_up", container="tls")
            return
        await run.becomes(0, "infercanary_up", container="tls")
        found = {labels["reason"] for labels in await run.labels("infercanary_poll_failures_total")}
        assert found
        assert found <= {*reasons.split()}


def test_tls_handshakes_are_charged(files, serves, monkeypatch):
    """Each handshake takes a millisecond of CPU time, so the probe refuses an address with many handshakes."""
    monkeypatch.setattr(callers, "ADDRESS_SECONDS", 0.01)
    port = int(serves(Access(server_tls(files))).address.rpartition(":")[2])
    context = ssl.create_default_context(cafile=f"{files}/probe.pem")

    def shake_hands():
        try:
            with socket.create_connection(("127.0.0.1", port)) as client:
                context.wrap_socket(client, server_hostname="probe.infercanary").close()
        except OSError:
            return False
        return True

    assert 3 < len([*itertools.takewhile(bool, (shake_hands() for _ in range(500)))]) < 500


def test_a_token_is_for_whom_tls_confirms(files):
    access = ProbeAccess(client_tls(files), f"{files}/token")
    assert access.url("http://10.0.0.7:9798") == "https://10.0.0.7:9798"
    assert access.header("https") == "Authorization: Bearer open sesame\r\n"
    assert not access.header("http")
    assert ProbeAccess(None, f"{files}/token").header("http")


def test_a_token_alone_and_one_that_is_renewed(tmp_path, serves):
    token = tmp_path / "token"
    token.write_text("first")
    address = serves(Access(None, str(token))).address

    def status(shown):
        request = urllib.request.Request(f"{address}/report", headers={"Authorization": f"Bearer {shown}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert [*map(status, ("first", "wrong", ""))] == [200, 401, 401]
    token.write_text("second")
    assert [*map(status, ("second", "first"))] == [200, 401]
    token.unlink()
    assert [*map(status, ("second", ""))] == [401, 401]


def test_a_certificate_that_is_renewed(files, tmp_path):
    def renew(name, *kinds):
        for kind in kinds:
            shutil.copy(files / f"{name}.{kind}", tmp_path / kind)

    renew("probe", "pem", "key")
    access = Access(ServerTls(cert_file=f"{tmp_path}/pem", key_file=f"{tmp_path}/key"))
    first = access.context()
    renew("stranger", "pem")
    assert access.context() is first  # while the certificate is renewed, the probe uses the earlier one
    renew("stranger", "key")
    assert first is not access.context() is access.context()


def test_files_that_cannot_be_used_are_one_line(files, tmp_path):
    none = f"{tmp_path}/none"
    (tmp_path / "tls").write_text(f"probe_tls: {{ca_file: {none}}}")
    (tmp_path / "token").write_text(f"probe_token_file: {none}")
    for load, line in (
        (lambda: check(tmp_path / "tls"), "probe_tls: ca_file cannot be used"),
        (lambda: check(tmp_path / "token"), "probe_token_file: .* cannot be read or is empty"),
        (lambda: Access(server_tls(files, "none")), "tls: the files cannot be used"),
        (lambda: Access(None, none), r"token_file: .* cannot be read or is empty"),
    ):
        with pytest.raises(UsageError, match=line):
            load()
