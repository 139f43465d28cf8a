"""TLS and users: the command with a web config, asked by clients that may and that may not."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner

from infercanary.command import check
from infercanary.command.settings import UsageError
from infercanary.exporter import web

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
def running(
    folder: Path, web_config: str, settings: str = "discovery: none", python_path: str = ""
) -> Iterator[str]:
    """The exporter's URL; after the block it ends as a container does."""
    (folder / "exporter.yaml").write_text(settings)
    (folder / "web.yml").write_text(web_config)
    command = [sys.executable, "-m", "infercanary.exporter", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--config", "exporter.yaml", "--web-config", "web.yml"],
        stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (python_path, os.environ.get("PYTHONPATH"))))},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "event=listening" in line:
                yield line.partition("url=")[2].split()[0]
                process.terminate()
                process.stderr.read()
                assert process.wait(60) == 0
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
        for path in ("/metrics", "/", "/runbooks", "/-/healthy", "/api/v1/verdict?service=s"):
            assert get(url + path) == 401
            assert get(url + path, "prometheus:wrong") == get(url + path, "nobody:canary") == 401
            assert get(url + path, "prometheus:canary") == 200
        for odd in ("Basic !", "Basic", "Bearer canary", f"Basic {base64.b64encode(b'x').decode()}", ""):
            assert get(f"{url}/metrics", Authorization=odd) == 401
        assert get(f"{url}/metrics", f"prometheus:{'x' * 5000}") == 401
        assert get(f"{url}/metrics", "prometheus:\0") == 401


USERS = "basic_auth_users: {prometheus: '%s', removed: '%s'}"
OTHER = HASH[:-1] + ("a" if HASH[-1] != "a" else "b")  # of another password, and as long


def swapped(path: Path, text: str) -> None:
    """As Kubernetes renews a mounted Secret: the file is a link through a folder that becomes another one."""
    folder = path.parent / f"..data_{time.monotonic_ns()}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent / "..new"
    link.symlink_to(folder.name)
    link.replace(path.parent / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


def replaced(path: Path, text: str) -> None:
    """As editors do."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def in_the_same_second(path: Path, text: str) -> None:
    """In place and as long, on a file system that keeps whole seconds."""
    seconds = path.stat().st_mtime
    path.write_text(text.ljust(path.stat().st_size))
    os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("write", [Path.write_text, replaced, swapped, in_the_same_second])
def test_the_file_is_read_at_each_request(tmp_path: Path, write: Callable[[Path, str], object]) -> None:
    """Also passwords that were remembered go."""
    path, keeps = tmp_path / "web.yml", f"basic_auth_users: {{prometheus: '{HASH}'"
    with running(tmp_path, USERS % (HASH, HASH)) as url:
        for user in ("prometheus", "removed"):
            assert get(url, f"{user}:canary") == 200
        write(path, f"{keeps}}}")
        assert get(url, "removed:canary") == 401
        assert get(url, "prometheus:canary") == 200
        write(path, f"{keeps}, added: '{HASH}'}}")
        assert get(url, "added:canary") == 200
        write(path, f"{keeps}, added: '{OTHER}'}}")
        assert get(url, "added:canary") == 401
        assert get(url, "prometheus:canary") == 200


@pytest.mark.parametrize(
    "between",
    ["", "basic_auth_users: {}", "basic_auth_users: {prometheus: [", "basic_auth_users: {prometheus: canary}", None],
)  # fmt: skip
def test_nobody_is_let_in_while_the_file_cannot_be_used(tmp_path: Path, between: str | None) -> None:
    """An editor may empty a file before it writes it, and what is wrong may hide who was to be taken out."""
    path = tmp_path / "web.yml"
    with running(tmp_path, USERS % (HASH, HASH)) as url:
        assert get(url, "removed:canary") == 200
        path.unlink() if between is None else path.write_text(between)
        for user in ("removed:canary", "prometheus:canary", "prometheus:wrong", ""):
            assert get(url, user) == -1, "neither let in, nor asked for another password"
        path.write_text(f"basic_auth_users: {{prometheus: '{HASH}'}}")
        assert get(url, "prometheus:canary") == 200
        assert get(url, "removed:canary") == get(url) == 401


HANGS = """
import pathlib, socket, threading
real = socket.getaddrinfo

def hangs(host, *rest, **more):
    if "hangs" not in str(host):
        return real(host, *rest, **more)
    pathlib.Path("asked", str(host)).touch()
    threading.Event().wait()

socket.getaddrinfo = hangs
"""


def test_look_ups_that_hang_stop_no_login_reload_or_end(tmp_path: Path) -> None:
    """More of them than Python's own pool has threads; the end is that of :func:`running`."""
    count = min(32, (os.cpu_count() or 1) + 4) + 2
    probes = [f"{{url: 'http://hangs-{n}:1', service: s, container: c{n}}}" for n in range(count)]
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    (tmp_path / "asked").mkdir()
    settings = f"poll_seconds: 0.1\ndiscovery: none\nprobes: [{', '.join(probes)}]"
    with running(tmp_path, USERS % (HASH, HASH), settings, str(tmp_path)) as url:
        deadline = time.monotonic() + 60
        while len([*(tmp_path / "asked").iterdir()]) < count - 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert get(url, "prometheus:canary") == 200
        (tmp_path / "exporter.yaml").write_text(
            "discovery: none"
        )  # its probes, whose look-ups hang, are gone
        request = urllib.request.Request(f"{url}/metrics")
        request.add_header("Authorization", f"Basic {base64.b64encode(b'prometheus:canary').decode()}")
        while b'service="s"' in urllib.request.urlopen(request, timeout=60).read():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_tls_and_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    with running(tmp_path, "tls_server_config: {cert_file: server.pem, key_file: server.key}") as url:
        assert url.startswith("https://")
        before = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        assert get(f"{url}/metrics", context=before) == 200
        with pytest.raises(REFUSED):
            get(url.replace("https", "http"))
        (tmp_path / "server.key").write_text("broken")
        assert get(f"{url}/metrics", context=before) == -1, "nobody is let in while a file cannot be used"
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
        "client_auth_type: RequireAndVerifyClientCert}"
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
        (tmp_path / "web.yml").write_text(settings.replace("client.pem", "stranger.pem"))
        assert get(f"{url}/metrics", context=knows("stranger")) == 200
        with pytest.raises(REFUSED):
            get(f"{url}/metrics", context=knows("client"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("basic_auth_user: {}", "unknown key `basic_auth_user`"),
        ("rate_limit: {interval: 1s, burst: 20}", "unknown key `rate_limit`"),
        ("tls_server_config: {cert_file: a, key_file: b, max_version: X}", "unknown key `max_version`"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequestClientCert}", "client_auth_type"),
        ("basic_auth_users: {a: canary}", "basic_auth_users.a: that is no bcrypt hash of a cost from 4"),
        (f"basic_auth_users: {{a: '{HASH[:4]}31{HASH[6:]}'}}", "basic_auth_users.a: that is no bcrypt hash of a cost"),
        ("tls_server_config: {cert_file: server.pem}", "tls_server_config: the required key `key_file` is missing"),
        ("tls_server_config: {cert_file: none.pem, key_file: server.key}",
         "none.pem'); give PEM files"),
        ("tls_server_config: {cert_file: server.pem, key_file: other.key}", "KEY_VALUES_MISMATCH"),
        ("tls_server_config: {cert_file: server.pem, key_file: locked.key}", "a key without a password"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: server.pem}",
         "client_ca_file and `client_auth_type: RequireAndVerifyClientCert` go together"),
        ("tls_server_config: {cert_file: server.pem, key_file: server.key, "
         "client_auth_type: RequireAndVerifyClientCert}", "go together; give both or none"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(pems: Callable[[], Path], text: str, line: str) -> None:
    path = pems() / "web.yml"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        web.Secured(path)
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


async def test_a_user_who_is_not_there_takes_as_long_and_a_good_password_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{prometheus: '{HASH}', other: '{OTHER}'}}")
    checked: list[bytes] = []
    real = bcrypt.checkpw

    def noted(password: bytes, hashed: bytes) -> bool:
        checked.append(hashed)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    secured = web.Secured(path)

    async def is_user(given: str) -> bool:
        checked.clear()
        headers = {"Authorization": f"Basic {base64.b64encode(given.encode()).decode()}"}
        return await secured._is_user(make_mocked_request("GET", "/", headers=headers))

    assert not await is_user("prometheus:wrong") and checked == [HASH.encode()]
    assert not await is_user("nobody:wrong") and checked == [HASH.encode()]
    assert not await is_user("nobody:canary") and checked == [HASH.encode()]
    assert not await is_user("other:canary") and checked == [OTHER.encode()]
    assert await is_user("prometheus:canary") and checked == [HASH.encode()]
    assert await is_user("prometheus:canary") and not checked, "a good password is remembered"
    assert not await is_user("prometheus:wrong") and checked == [HASH.encode()]
