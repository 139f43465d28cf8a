"""TLS and basic auth of the exporter's port.

The web config is a file in the format of Prometheus' own exporters:
https://prometheus.io/docs/prometheus/latest/configuration/https/
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import bcrypt
import msgspec
import structlog
from aiohttp import BasicAuth, hdrs, web
from aiohttp.typedefs import Handler

from infercanary.command.settings import UsageError, load

log = structlog.get_logger(__name__)

# Checking a password at cost 14 takes about a second.
_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|1[0-4])\$[./0-9A-Za-z]{53}")
_REALM = {hdrs.WWW_AUTHENTICATE: 'Basic realm="infercanary"'}


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; paths are relative to the folder of the web config."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"

    def files(self, folder: Path) -> list[Path]:
        """Paths of the certificate, the key, and the CA certificates of clients (if set)."""
        return [folder / name for name in (self.cert_file, self.key_file, self.client_ca_file) if name]


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web config.

    An ignored key would protect nothing, so keys that only Prometheus' exporters know are refused.
    """

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}
    """Bcrypt hash of the password, by user name."""


class Secured:
    """TLS and basic auth. Changed files are read again.

    After an unusable change, every request is refused: the change may have removed users on purpose. A file that lost
    all users counts as unusable, because an editor may empty a file before writing.

    Raises:
        UsageError: A setting is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._config = _load(path)
        self._context = _context(self._config.tls_server_config, path)
        self._contents = self._read()
        self._mistake = ""
        self._salt = secrets.token_bytes(16)
        self._good: dict[str, bytes] = {}
        """Cache of the last correct password by user name, as a keyed hash. bcrypt is slow on purpose."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="login")

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection; None without TLS."""
        self._refresh()
        return self._context

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit only users of the web config: answer 401 to others, and 503 if the web config cannot be used."""
        self._refresh()
        if self._mistake:
            return web.Response(status=503, text="the web config cannot be used; see the exporter's log\n")
        if self._config.basic_auth_users and not await self._is_user(request):
            return web.Response(status=401, text="wrong or missing user or password\n", headers=_REALM)
        return await handler(request)

    async def _is_user(self, request: web.Request) -> bool:
        try:
            given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
        except ValueError:
            return False
        password, good, users = given.password.encode(), self._good, self._config.basic_auth_users
        digest = hashlib.blake2b(password, key=self._salt).digest()
        if hmac.compare_digest(good.get(given.login, b""), digest):
            return True
        # For an unknown user, also check a password: the answer should take equally long.
        hashed = users.get(given.login) or next(iter(users.values()))
        matches = await asyncio.get_running_loop().run_in_executor(self._thread, _matches, password, hashed)
        if not matches or given.login not in users:
            return False
        good[given.login] = digest
        return True

    def _refresh(self) -> None:
        """Read the files again if they changed."""
        if (contents := self._read()) == self._contents and not self._mistake:
            return
        had_users, mistake = bool(self._config.basic_auth_users), ""
        try:
            config = _load(self._path)
            context = _context(config.tls_server_config, self._path)
            if (had_users and not config.basic_auth_users) or (context is None) != (self._context is None):
                raise UsageError(
                    f"{self._path}: to switch TLS on or off, or to remove all users, restart the exporter"
                )
            self._config, self._context, self._good = config, context, {}
        except UsageError as error:
            mistake = str(error)
            if mistake != self._mistake:
                log.error(
                    "the web config cannot be used; all requests are refused until it is fixed", error=mistake
                )
        self._mistake, self._contents = mistake, contents

    def _read(self) -> list[bytes]:
        """Return the contents of the web config and of its TLS files.

        Two changes within a second may leave the same modification time, so changes are detected by content.
        """
        tls = self._config.tls_server_config
        return [_bytes(file) for file in (self._path, *(tls.files(self._path.parent) if tls else ()))]


def _load(path: Path) -> WebConfig:
    config = load(path, WebConfig)
    for user, hashed in config.basic_auth_users.items():
        if not _HASH.fullmatch(hashed):
            raise UsageError(
                f"{path}: basic_auth_users.{user}: not a bcrypt hash with a cost from 4 to 14; create one with "
                "`htpasswd -nBC 10 ''`, which asks for the password"
            )
    tls = config.tls_server_config
    if tls and bool(tls.client_ca_file) != (tls.client_auth_type == "RequireAndVerifyClientCert"):
        raise UsageError(
            f"{path}: tls_server_config: client_ca_file and `client_auth_type: RequireAndVerifyClientCert` need each "
            "other; set both or neither"
        )
    return config


def _matches(password: bytes, hashed: str) -> bool:
    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # some versions of bcrypt refuse some passwords
        return False


def _context(tls: Tls | None, path: Path) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate, key, *authorities = files = tls.files(path.parent)
    try:
        for file in files:
            file.stat()  # checked first: unlike ssl's error, this error names the file
        # Without a password argument, OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(certificate, key, password="")
        for file in authorities:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: tls_server_config: a file cannot be used ({error}); use PEM files, and a key without a "
            "password"
        ) from None
    return context


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""  # reading a pipe may never end
    except OSError:
        return b""
