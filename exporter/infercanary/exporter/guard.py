"""Who may ask the exporter, and over what: TLS and basic authentication, in the file of Prometheus' own exporters.

https://prometheus.io/docs/prometheus/latest/configuration/https/
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import bcrypt
import msgspec
import structlog
from aiohttp import BasicAuth, hdrs, web
from aiohttp.typedefs import Handler, Middleware

from infercanary.command.settings import UsageError, load

log = structlog.get_logger(__name__)

_REMEMBERED = 100
_MOST_PASSWORD_BYTES = 72  # bcrypt ignores the rest
_MOST_COST = 14  # about a second
_REALM = {hdrs.WWW_AUTHENTICATE: 'Basic realm="infercanary"'}


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; files are looked for beside the one that names them."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}
    """User → bcrypt hash of the password."""


class Secured(NamedTuple):
    """What a server takes of it; by default there is neither."""

    context: ssl.SSLContext | None = None
    middlewares: tuple[Middleware, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Secured:
        """By the settings in ``path``.

        Args:
            path: YAML with the keys of the exporter-toolkit's ``web.yml``.

        Returns:
            What the server takes.

        Raises:
            UsageError: One of them does not work.
        """
        config = load(path, WebConfig)
        _check_users(config.basic_auth_users, path)
        server = config.tls_server_config
        return cls(
            None if server is None else tls(server, path),
            (basic_auth(config.basic_auth_users),) if config.basic_auth_users else (),
        )


def _check_users(users: Mapping[str, str], path: Path) -> None:
    for user, hashed in users.items():
        if not user or ":" in user:
            raise UsageError(f"{path}: basic_auth_users: `{user}` is no name; leave the `:` out")
        cost = re.match(r"\$2[aby]\$(\d\d)\$", hashed)
        if cost is not None and int(cost[1]) > _MOST_COST:
            raise UsageError(
                f"{path}: basic_auth_users.{user}: a hash of cost {cost[1]} takes too long at each login; 10 is usual"
            )
        try:
            bcrypt.checkpw(b"", hashed.encode())
        except ValueError:
            raise UsageError(
                f"{path}: basic_auth_users.{user}: that is no bcrypt hash; make one with "
                "`htpasswd -nBC 10 ''`, which asks for the password"
            ) from None


def tls(config: Tls, path: Path) -> ssl.SSLContext:
    """What a listening socket takes; certificates that are renewed are used from the next connection on.

    Args:
        config: Certificate, key and what is asked of clients.
        path: The settings file: other paths in it are relative to its folder.

    Returns:
        A context for a server.
    """
    context = _context(config, path)
    current, known = context, _stamp(config, path)

    def renew(handshake: ssl.SSLObject, _name: str | None, _context_: ssl.SSLContext) -> None:
        nonlocal current, known
        if (now := _stamp(config, path)) != known:
            known = now
            try:
                current = _context(config, path)
            except UsageError as error:
                log.error("the new certificate is not used; the one before stays", error=str(error))
        handshake.context = current

    # Called at every handshake, also of a client that names no host (docs of ssl.SSLContext.sni_callback).
    context.sni_callback = renew
    return context


def basic_auth(users: Mapping[str, str]) -> Middleware:
    """A middleware that admits these users.

    bcrypt is slow on purpose: it runs in a thread, once at a time, and good passwords are remembered as salted hashes.
    An unknown user takes as long as a wrong password.

    Args:
        users: Name → bcrypt hash of the password.

    Returns:
        A middleware; it answers 401 to all others.
    """
    salt = secrets.token_bytes(16)
    unknown_user = bcrypt.hashpw(b"", bcrypt.gensalt(10)).decode()
    good: dict[bytes, None] = {}
    one_at_a_time = asyncio.Lock()

    async def is_good(user: str, password: bytes) -> bool:
        hashed = users.get(user)
        key = hashlib.blake2b(b"\0".join((user.encode(), password)), key=salt).digest()
        if hashed is not None and key in good:
            return True
        async with one_at_a_time:
            try:
                matches = await asyncio.to_thread(bcrypt.checkpw, password, (hashed or unknown_user).encode())
            except ValueError:  # some versions of bcrypt know passwords that cannot be
                matches = False
        if hashed is None or not matches:
            return False
        good[key] = None
        while len(good) > _REMEMBERED:
            del good[next(iter(good))]
        return True

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
        except ValueError:
            return web.Response(status=401, text="a user and a password are needed\n", headers=_REALM)
        password = given.password.encode()
        if len(password) > _MOST_PASSWORD_BYTES or not await is_good(given.login, password):
            return web.Response(status=401, text="wrong user or password\n", headers=_REALM)
        return await handler(request)

    return middleware


def _context(config: Tls, path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if config.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    )
    place = f"{path}: tls_server_config"
    try:
        context.load_cert_chain(
            _beside(path, config.cert_file), _beside(path, config.key_file), password=_refuse
        )
    except (OSError, ValueError) as error:  # ssl's own is an OSError
        raise UsageError(
            f"{place}: cert_file and key_file cannot be used ({_why(error)}); give a certificate and its key as PEM"
        ) from None
    if config.client_auth_type == "RequireAndVerifyClientCert":
        if not config.client_ca_file:
            raise UsageError(
                f"{place}.client_ca_file: it is missing; name who signs the clients' certificates"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    elif config.client_ca_file:
        raise UsageError(f"{place}.client_auth_type: with client_ca_file it is RequireAndVerifyClientCert")
    if config.client_ca_file:
        try:
            context.load_verify_locations(_beside(path, config.client_ca_file))
        except OSError as error:
            raise UsageError(
                f"{place}.client_ca_file: it cannot be used ({_why(error)}); give certificates as PEM"
            ) from None
    return context


def _beside(path: Path, file: str) -> Path:
    return path.parent / file


def _refuse() -> str:
    """Without it, OpenSSL asks for a key's password on the terminal."""
    raise ValueError("the key has a password")


def _stamp(config: Tls, path: Path) -> tuple[tuple[int, int], ...]:
    """Changes with the files: the time and the inode of each."""
    found = []
    for file in filter(None, (config.cert_file, config.key_file, config.client_ca_file)):
        try:
            stat = os.stat(_beside(path, file))
            found.append((stat.st_mtime_ns, stat.st_ino))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
