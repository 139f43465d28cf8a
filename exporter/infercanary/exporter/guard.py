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
from infercanary.exporter.caller import address_of

log = structlog.get_logger(__name__)

_REMEMBERED = 100
_MOST_WAITING = 64  # passwords of one address
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
        cost = re.match(r"\$2[abxy]\$(\d\d)\$", hashed)
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


class Passwords:
    """Checks passwords by bcrypt, which is slow on purpose: in a thread, one at a time, with good ones remembered.

    Addresses get their turns one after the other, and each the last that it asked for first: who tries many passwords
    delays nobody else, and himself most. What is tried takes as long for a user who is not there as for one who is: one
    hash of each cost that occurs is computed for each.

    Args:
        users: Name → bcrypt hash of the password.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._salt = secrets.token_bytes(16)
        costs = sorted({_cost(hashed) for hashed in users.values()})
        self._nobodys = {cost: bcrypt.hashpw(b"", bcrypt.gensalt(cost)).decode() for cost in costs}
        self._good: dict[bytes, None] = {}
        self._waiting: dict[str, list[tuple[str, bytes, asyncio.Future[bool | None]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def is_good(self, address: str, user: str, password: bytes) -> bool | None:
        """Whether this is the user's password.

        Args:
            address: Of whom asks.
            user: Any name.
            password: At most 72 bytes.

        Returns:
            None where the address has tried so many that this one gave way to later ones.
        """
        key = hashlib.blake2b(b"\0".join((user.encode(), password)), key=self._salt).digest()
        if user in self._users and key in self._good:
            return True
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(address, [])
        waiting.append((user, password, answer))
        if len(waiting) > _MOST_WAITING:
            waiting.pop(0)[-1].set_result(None)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check())
        if good := await answer:
            self._good[key] = None
            while len(self._good) > _REMEMBERED:
                del self._good[next(iter(self._good))]
        return good

    async def _check(self) -> None:
        """One after the other, until none waits."""
        while self._waiting:
            address, waiting = next(iter(self._waiting.items()))
            del self._waiting[address]
            user, password, answer = waiting.pop()
            if waiting:
                self._waiting[address] = waiting  # after all others
            if not answer.done():
                good = await asyncio.to_thread(self._matches, user, password)
                if not answer.done():
                    answer.set_result(good)

    def _matches(self, user: str, password: bytes) -> bool:
        hashed = self._users.get(user)
        own = _cost(hashed) if hashed is not None else None
        found = [
            _is_hash_of(hashed if hashed is not None and cost == own else nobodys, password)
            for cost, nobodys in self._nobodys.items()
        ]
        return own is not None and found[[*self._nobodys].index(own)]


def basic_auth(users: Mapping[str, str]) -> Middleware:
    """A middleware that admits these users.

    Args:
        users: Name → bcrypt hash of the password.

    Returns:
        A middleware; it answers 401 to all others, and 429 to who tries too many passwords.
    """
    passwords = Passwords(users)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
        except ValueError:
            return web.Response(status=401, text="a user and a password are needed\n", headers=_REALM)
        password = given.password.encode()
        good: bool | None = False
        if len(password) <= _MOST_PASSWORD_BYTES:
            peer = request.transport.get_extra_info("peername") if request.transport is not None else None
            good = await passwords.is_good(address_of(peer), given.login, password)
        if good is None:
            return web.Response(
                status=429, text="too many passwords are tried\n", headers={"Retry-After": "1"}
            )
        if not good:
            return web.Response(status=401, text="wrong user or password\n", headers=_REALM)
        return await handler(request)

    return middleware


def _cost(hashed: str) -> int:
    return int(hashed.split("$")[2])


def _is_hash_of(hashed: str, password: bytes) -> bool:
    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # some versions of bcrypt know passwords that cannot be
        return False


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
