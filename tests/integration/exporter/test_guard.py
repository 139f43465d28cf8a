"""TLS and users: the command with a web config, asked by clients that may and that may not."""

from __future__ import annotations

import asyncio
import base64
import http.client
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner

from infercanary.command import check
from infercanary.command.settings import UsageError
from infercanary.exporter import guard

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

# What it says of a connection that is refused depends on who closes it first.
REFUSED = (urllib.error.URLError, ConnectionError, ssl.SSLError, http.client.HTTPException)
HASH = bcrypt.hashpw(b"canary", b"$2b$04$" + b"." * 22).decode()  # the same in each of the tests' processes


def certificate(folder: Path, name: str, *more: str) -> Path:
    """A certificate that signs itself, for 127.0.0.1; its key is beside it."""
    pem = folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / f"{name}.key"), "-out", str(pem), *more],
        check=True, capture_output=True,
    )  # fmt: skip
    return pem


@contextmanager
def running(folder: Path, web_config: str) -> Iterator[str]:
    """The exporter's URL."""
    (folder / "exporter.yaml").write_text("docker: {enabled: false}")
    (folder / "web.yml").write_text(web_config)
    command = [sys.executable, "-m", "infercanary.exporter", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--config", "exporter.yaml", "--web-config", "web.yml"],
        stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "event=listening" in line:
                yield line.partition("url=")[2].split()[0]
                return
        raise AssertionError("it did not start")
    finally:
        process.kill()
        process.communicate()


def get(url: str, user: str = "", context: ssl.SSLContext | None = None, **headers: str) -> int:
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=5, context=context
        ) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            asked_for = error.headers.get("WWW-Authenticate")
            return error.code if asked_for == 'Basic realm="infercanary"' else -1


def test_users(tmp_path: Path) -> None:
    with running(tmp_path, f"basic_auth_users: {{prometheus: '{HASH}'}}") as url:
        checked = CliRunner().invoke(check.command, ["--web-config", str(tmp_path / "web.yml")])
        assert checked.output == f"{tmp_path / 'web.yml'}: good\n"
        for path in ("/metrics", "/", "/runbooks", "/-/healthy", "/-/ready", "/api/v1/verdict?service=s"):
            assert get(url + path) == 401
            assert get(url + path, "prometheus:wrong") == get(url + path, "nobody:canary") == 401
            assert get(url + path, "prometheus:canary") == 200
        for odd in ("Basic !", "Basic", "Bearer canary", f"Basic {base64.b64encode(b'x').decode()}", ""):
            assert get(f"{url}/metrics", Authorization=odd) == 401
        assert get(f"{url}/metrics", f"prometheus:{'x' * 5000}") == 401
        assert get(f"{url}/metrics", "prometheus:\0") == 401


def test_tls_and_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    with running(tmp_path, "tls_server_config: {cert_file: server.pem, key_file: server.key}") as url:
        assert url.startswith("https://")
        before = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        assert get(f"{url}/metrics", context=before) == 200
        with pytest.raises(REFUSED):
            get(url.replace("https", "http"))
        (tmp_path / "server.key").write_text("broken")
        assert get(f"{url}/metrics", context=before) == 200, "the one before stays"
        certificate(tmp_path, "server")
        after = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        assert get(f"{url}/metrics", context=after) == 200
        with pytest.raises(urllib.error.URLError):
            get(f"{url}/metrics", context=before)


def test_clients_with_a_certificate(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    certificate(tmp_path, "client", "-addext", "extendedKeyUsage=clientAuth")
    certificate(tmp_path, "stranger", "-addext", "extendedKeyUsage=clientAuth")
    settings = (
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: client.pem, "
        "client_auth_type: RequireAndVerifyClientCert, min_version: TLS13}"
    )

    def knows(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        if name:
            context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        return context

    with running(tmp_path, settings) as url:
        assert get(f"{url}/metrics", context=knows("client")) == 200
        for name in ("", "stranger"):
            with pytest.raises(REFUSED):
                get(f"{url}/metrics", context=knows(name))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("basic_auth_user: {}", "unknown key `basic_auth_user`"),
        ("basic_auth_users: {a: canary}", "basic_auth_users.a: that is no bcrypt hash; make one with"),
        ("basic_auth_users: {'a:b': x}", "basic_auth_users: `a:b` is no name; leave the `:` out"),
        (f"basic_auth_users: {{a: '{HASH[:4]}31{HASH[6:]}'}}", "basic_auth_users.a: a hash of cost 31 takes too long"),
        ("tls_server_config: {cert_file: server.pem}", "tls_server_config: the required key `key_file` is missing"),
        ("tls_server_config: {cert_file: none.pem, key_file: server.key}",
         "cert_file and key_file cannot be used (No such file or directory)"),
        ("tls_server_config: {cert_file: server.pem, key_file: other.key}", "(KEY_VALUES_MISMATCH)"),
        ("tls_server_config: {cert_file: server.pem, key_file: locked.key}", "(the key has a password)"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: server.pem}",
         "tls_server_config.client_auth_type: with client_ca_file it is RequireAndVerifyClientCert"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.key, "
         "client_auth_type: RequireAndVerifyClientCert}", "tls_server_config.client_ca_file: it is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(pems: Callable[[], Path], text: str, line: str) -> None:
    path = pems() / "web.yml"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        guard.Secured.read(path)
    assert str(mistake.value).startswith(str(path)) and line in str(mistake.value), str(mistake.value)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    folder = tmp_path_factory.mktemp("pems")
    certificate(folder, "server")
    certificate(folder, "other")
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", str(folder / "server.key"),
         "-out", str(folder / "locked.key")],
        check=True, capture_output=True,
    )  # fmt: skip
    return lambda: folder


async def test_many_wrong_passwords_delay_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of one address: the next login there waits for one of them, and so does one of another address."""
    checked: list[bytes] = []

    def slowly(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return password == b"canary"

    monkeypatch.setattr(bcrypt, "checkpw", slowly)
    passwords = guard.Passwords({"prometheus": HASH})
    tries = [asyncio.create_task(passwords.is_good("a", "prometheus", b"%d" % n)) for n in range(64)]
    await asyncio.sleep(0)
    assert await passwords.is_good("a", "prometheus", b"canary")
    assert len(checked) <= 3
    assert await passwords.is_good("b", "prometheus", b"canary"), "remembered"
    assert await passwords.is_good("b", "prometheus", b"x") is False
    assert len(checked) <= 6
    found = await asyncio.gather(*tries)
    assert found.count(None) == 1, "one too many waited, and gave way"
    assert found.count(False) == 63


async def test_a_user_who_is_not_there_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same costs are computed for each name, also where users have hashes of several costs."""
    other = bcrypt.hashpw(b"other", bcrypt.gensalt(5)).decode()
    costs: list[int] = []
    real = bcrypt.checkpw

    def noted(password: bytes, hashed: bytes) -> bool:
        costs.append(int(hashed.split(b"$")[2]))
        return real(password, hashed)

    passwords = guard.Passwords({"prometheus": HASH, "other": other})
    monkeypatch.setattr(bcrypt, "checkpw", noted)
    for user in ("prometheus", "other", "nobody"):
        costs.clear()
        assert await passwords.is_good("a", user, b"wrong") is False
        assert costs == [4, 5], user
    assert await passwords.is_good("a", "other", b"other")
    assert await passwords.is_good("a", "prometheus", b"other") is False
