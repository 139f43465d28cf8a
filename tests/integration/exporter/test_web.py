"""TLS and basic auth: the command with a web config, and clients with and without access."""

import base64
import http.client
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import bcrypt
import pytest
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner

from infercanary.command import cli
from infercanary.command.settings import UsageError
from infercanary.exporter import web
from tests.integration.exporter.processes import ExporterProcess, certificate, until
from tests.programs import ended
from tests.scenarios import cases, scenarios

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for the certificates")

# The error of a refused connection depends on the side that closes first.
REFUSED = (urllib.error.URLError, ConnectionError, ssl.SSLError, http.client.HTTPException)
HASH = bcrypt.hashpw(b"canary", b"$2b$04$" + b"." * 22).decode()  # one password hash for all test processes
OTHER = HASH[:-1] + ("a" if HASH[-1] != "a" else "b")  # hash of another password of the same length


def users(**hashes):
    return f"basic_auth_users: {{{', '.join(f'{name}: {value!r}' for name, value in hashes.items())}}}"


def basic(user):
    return f"Basic {base64.b64encode(user.encode()).decode()}"


@contextmanager
def running(folder, web_config, settings="discovery: none", python_path=""):
    (folder / "web.yml").write_text(web_config)
    paths = os.pathsep.join(filter(None, (python_path, os.environ.get("PYTHONPATH"))))
    exporter = ExporterProcess(folder, {}, {"PYTHONPATH": paths})
    with exporter.listening(settings, "--web-config", "web.yml") as url:
        yield url
        exporter.stop()


def get(url, user="", context=None, authorization=""):
    """Return the status, or -1 if the answer refuses the user without a request for a password."""
    header = {"Authorization": basic(user) if user else authorization}
    request = urllib.request.Request(url, headers=header if header["Authorization"] else {})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code if error.headers.get("WWW-Authenticate") == 'Basic realm="infercanary"' else -1


def test_users(tmp_path):
    with running(tmp_path, users(prometheus=HASH)) as url:
        checked = CliRunner().invoke(cli.cli, ["check-config", "--web-config", str(tmp_path / "web.yml")])
        assert checked.output == f"{tmp_path / 'web.yml'}: good\n"
        for path in ("/metrics", "/", "/runbooks", "/-/healthy", "/api/v1/verdict?service=s"):
            refused = [get(url + path, user) for user in ("", "prometheus:wrong", "nobody:canary")]
            assert refused == [401] * 3
            assert get(url + path, "prometheus:canary") == 200
        for odd in (
            "Basic !",
            "Basic",
            "Bearer canary",
            *map(basic, ("x", f"prometheus:{'x' * 5000}", "prometheus:\0")),
        ):
            assert get(f"{url}/metrics", authorization=odd) == 401


def swapped(path, text):
    """Replace the file as Kubernetes updates a mounted Secret: the path is a link through a folder, which changes."""
    folder = path.parent / f"..data_{time.monotonic_ns()}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent / "..new"
    link.symlink_to(folder.name)
    link.replace(path.parent / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


def in_the_same_second(path, text):
    """Overwrite the file with equal size and time, as on a file system that stores only whole seconds."""
    seconds = path.stat().st_mtime
    path.write_text(text.ljust(path.stat().st_size))
    os.utime(path, (seconds, seconds))


def test_the_file_is_read_at_each_request(tmp_path):
    """A changed file also invalidates cached passwords. An unusable file denies access to everybody: an empty
    file must not switch passwords off, and the old file may still list a removed user.
    """
    path, both = tmp_path / "web.yml", users(prometheus=HASH, removed=HASH)
    with running(tmp_path, both) as url:

        def lets_in(*names):
            return [get(url, f"{name}:canary") for name in names]

        for write in (in_the_same_second, swapped):
            write(path, both)
            assert lets_in("prometheus", "removed") == [200, 200]
            write(path, users(prometheus=HASH))
            assert lets_in("removed", "prometheus") == [401, 200]
            write(path, users(prometheus=HASH, removed=OTHER))
            assert lets_in("removed") == [401]
        for wrong in ("", users(), "basic_auth_users: {prometheus: [", users(prometheus="canary"), None):
            assert lets_in("prometheus") == [200]
            path.unlink() if wrong is None else path.write_text(wrong)
            refused = [get(url, user) for user in ("prometheus:canary", "prometheus:wrong", "")]
            assert refused == [-1] * 3  # refused, without a request for another password
            path.unlink(missing_ok=True)
            path.write_text(users(prometheus=HASH))
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


def test_look_ups_that_hang_stop_no_login_reload_or_end(tmp_path):
    """More look-ups of host names hang than Python's pool has threads."""
    count = min(32, (os.cpu_count() or 1) + 4) + 2
    probes = [f"{{url: 'http://hangs-{n}:1', service: s, container: c{n}}}" for n in range(count)]
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    asked = tmp_path / "asked"
    asked.mkdir()
    settings = f"poll_seconds: 0.1\ndiscovery: none\nprobes: [{', '.join(probes)}]"
    with running(tmp_path, users(prometheus=HASH), settings, str(tmp_path)) as url:
        until(lambda: len([*asked.iterdir()]) >= count - 2, 60)
        assert get(url, "prometheus:canary") == 200
        # remove the probes whose look-ups hang
        (tmp_path / "exporter.yaml").write_text("discovery: none")
        login = {"Authorization": basic("prometheus:canary")}
        request = urllib.request.Request(f"{url}/metrics", headers=login)
        until(lambda: b'service="s"' not in urllib.request.urlopen(request, timeout=60).read(), 60)


def test_tls_and_a_certificate_that_is_renewed(tmp_path):
    pem = str(certificate(tmp_path, "server"))
    with running(tmp_path, "tls_server_config: {cert_file: server.pem, key_file: server.key}") as url:
        assert url.startswith("https://")
        before = ssl.create_default_context(cafile=pem)
        assert get(f"{url}/metrics", context=before) == 200
        with pytest.raises(REFUSED):
            get(url.replace("https", "http"))
        (tmp_path / "server.key").write_text("broken")
        assert get(f"{url}/metrics", context=before) == -1  # nobody has access while the file is unusable
        certificate(tmp_path, "server")
        assert get(f"{url}/metrics", context=ssl.create_default_context(cafile=pem)) == 200
        with pytest.raises(urllib.error.URLError):
            get(f"{url}/metrics", context=before)


VERIFIES = "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: client.pem, client_auth_type: RequireAndVerifyClientCert}"  # noqa: E501


def test_clients_with_a_certificate(tmp_path):
    certificate(tmp_path, "server")
    for name in ("client", "stranger"):
        certificate(tmp_path, name, "-addext", "extendedKeyUsage=clientAuth")

    def lets_in(name):
        context = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        if name:
            context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        with suppress(*REFUSED):
            return get(f"{url}/metrics", context=context) == 200
        return False

    with running(tmp_path, VERIFIES) as url:
        assert [*map(lets_in, ("client", "", "stranger"))] == [True, False, False]
        (tmp_path / "web.yml").write_text(VERIFIES.replace("client.pem", "stranger.pem"))
        assert [*map(lets_in, ("client", "", "stranger"))] == [False, False, True]


MISTAKES = scenarios(f"""
basic_auth_user: {{}}                                                    | unknown key `basic_auth_user`
tls_server_config: {{cert_file: a, key_file: b, client_auth_type: RequestClientCert}} | client_auth_type
basic_auth_users: {{a: canary}}                                          | basic_auth_users.a: not a bcrypt hash with a cost from 4
basic_auth_users: {{a: '{HASH[:4]}31{HASH[6:]}'}}                        | basic_auth_users.a: not a bcrypt hash with a cost
tls_server_config: {{cert_file: server.pem}}                             | tls_server_config: the required key `key_file` is missing
tls_server_config: {{cert_file: none.pem, key_file: server.key}}         | none.pem'); use PEM files
tls_server_config: {{cert_file: server.pem, key_file: other.key}}        | KEY_VALUES_MISMATCH
tls_server_config: {{cert_file: server.pem, key_file: locked.key}}       | a key without a password
{VERIFIES.replace("client_ca_file: client.pem, ", "")}                   | need each other; set both or neither
{VERIFIES.partition(", client_auth_type")[0] + "}"}                      | need each other; set both or neither
""")  # noqa: E501


@cases(MISTAKES)
def test_mistakes_are_one_line(text, line, pems):
    path = pems / "web.yml"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        web.Secured(path)
    assert str(mistake.value).startswith(str(path)) and line in str(mistake.value), str(mistake.value)


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pems")
    for name in ("server", "client", "other"):
        certificate(folder, name)
    command = "openssl pkey -aes256 -passout pass:secret -in server.key -out locked.key"
    ended(*command.split(), cwd=folder)
    return folder


async def test_a_user_who_is_not_there_takes_as_long_and_a_good_password_is_checked_once(
    tmp_path, monkeypatch
):
    path = tmp_path / "web.yml"
    path.write_text(users(prometheus=HASH, other=OTHER))
    checked = []
    real = bcrypt.checkpw

    def noted(password, hashed):
        checked.append(hashed.decode())
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    secured = web.Secured(path)
    for user, is_user, hashes in (
        ("prometheus:wrong", False, [HASH]),
        ("nobody:wrong", False, [HASH]),
        ("nobody:canary", False, [HASH]),
        ("other:canary", False, [OTHER]),
        ("prometheus:canary", True, [HASH]),
        ("prometheus:canary", True, []),
        ("prometheus:wrong", False, [HASH]),
    ):
        checked.clear()
        request = make_mocked_request("GET", "/", headers={"Authorization": basic(user)})
        assert (await secured._is_user(request), checked) == (is_user, hashes), user
