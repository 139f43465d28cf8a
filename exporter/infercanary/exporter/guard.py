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
from typing import Any, Literal, get_args

import bcrypt
import msgspec
import structlog
from aiohttp import BasicAuth, hdrs, web
from aiohttp.typedefs import Handler, Middleware

from infercanary.command.settings import UsageError, convert, load
from infercanary.exporter.caller import address_of

log = structlog.get_logger(__name__)

_REMEMBERED = 100
_MOST_WAITING = 64  # passwords of one address
_MOST_PASSWORD_BYTES = 72  # bcrypt ignores the rest
_MOST_COST = 14  # about a second
_MOST_FILE_BYTES = 1 << 20
_REALM = {hdrs.WWW_AUTHENTICATE: 'Basic realm="infercanary"'}


ClientAuth = Literal["NoClientCert", "RequireAndVerifyClientCert"]
Version = Literal["TLS12", "TLS13"]
_VALUES: Mapping[str, tuple[str, ...]] = {
    "client_auth_type": get_args(ClientAuth),
    "min_version": get_args(Version),
}


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; files are looked for beside the one that names them."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: ClientAuth = "NoClientCert"
    min_version: Version = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}
    """User → bcrypt hash of the password."""


_UNSUPPORTED: Mapping[str, frozenset[str]] = {
    "": frozenset({"http_server_config", "rate_limit"}),
    "tls_server_config": frozenset(
        {"cert", "key", "client_ca", "client_allowed_sans", "cipher_suites", "curve_preferences", "max_version",
         "prefer_server_cipher_suites"}
    ),
}  # fmt: skip
"""Keys of the exporter-toolkit that are refused: a key that is ignored would protect nothing."""


class Secured:
    """TLS and users, as the file says at each connection and each request.

    While the file cannot be used, nobody is let in: the users of before may be the ones who were taken out. A file
    without users, where there were some, is such a file, too: editors may empty a file before they write it.

    Args:
        path: The file; None for neither TLS nor users.

    Raises:
        UsageError: One of its settings does not work.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._loading: asyncio.Task[None] | None = None
        self._error: UsageError | None = None
        self._text = self._read()
        self._config = WebConfig() if path is None else read(path)
        self._is_fixed = path is None or not path.is_file()  # a pipe is read once
        self._passwords = Passwords(self._config.basic_auth_users)
        server = self._config.tls_server_config
        self._certificates = None if path is None or server is None else Certificates(server, path)

    @property
    def has_tls(self) -> bool:
        """Whether connections are TLS, from the start of the exporter to its end."""
        return self._certificates is not None

    async def context(self) -> ssl.SSLContext | None:
        """TLS context of the next connection; None without TLS."""
        await self._refresh()
        return None if self._certificates is None else self._certificates.context()

    @property
    def middlewares(self) -> tuple[Middleware, ...]:
        """Middleware that admits the users of the file; it answers 401 to others, 429 to who tries too many
        passwords, and 503 while the file cannot be used."""
        return () if self._path is None else (self._middleware,)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self._refresh()
        while self._error is None:
            passwords = self._passwords
            refusal = await passwords.refusal(request)
            await self._refresh()  # passwords wait for their turns
            if passwords is self._passwords and self._error is None:
                return await handler(request) if refusal is None else refusal
        return web.Response(status=503, text="the web config cannot be used; the exporter's log says why\n")

    def _read(self) -> bytes | None:
        """The file's text: its time may be the same after two changes within a second."""
        if self._path is None:
            return None
        try:
            if not self._path.is_file():  # a pipe may never end
                return None
            with self._path.open("rb") as file:
                return file.read(_MOST_FILE_BYTES)
        except OSError:
            return None

    async def _refresh(self) -> None:
        """Put the file in force as it is now; those who ask meanwhile wait for that, too."""
        while not self._is_fixed and ((text := self._read()) != self._text or self._loading is not None):
            if self._loading is None:
                self._loading = asyncio.create_task(self._load(text))
            await asyncio.shield(self._loading)  # who asked first may leave

    async def _load(self, text: bytes | None) -> None:
        assert self._path is not None
        try:
            config, passwords = await asyncio.to_thread(self._checked, self._path)
        except Exception as error:  # a fault of ours must let nobody in
            self._error = error if isinstance(error, UsageError) else UsageError(f"{self._path}: {error!r}")
            log.error(
                "the web config cannot be used; nobody is let in until it is fixed", error=str(self._error)
            )
        else:
            self._error, self._config, self._passwords = None, config, passwords
            if (config.tls_server_config is not None) != self.has_tls:
                log.warning("restart the exporter to apply tls_server_config", config=str(self._path))
            elif self._certificates is not None and config.tls_server_config is not None:
                self._certificates.config = config.tls_server_config
            log.info("web config reloaded", config=str(self._path))
        finally:
            self._text, self._loading = text, None

    def _checked(self, path: Path) -> tuple[WebConfig, Passwords]:
        """In a thread: hashes take time on purpose."""
        config = read(path)
        if self._config.basic_auth_users and not config.basic_auth_users:
            raise UsageError(
                f"{path}: basic_auth_users: there are none any more; to let everybody in, restart the exporter"
            )
        return config, Passwords(config.basic_auth_users)


def read(path: Path) -> WebConfig:
    """The settings in ``path``.

    Args:
        path: YAML with the keys of the exporter-toolkit's ``web.yml``.

    Raises:
        UsageError: One of them does not work.
    """
    document = load(path, dict[str, Any])
    for place, unsupported in _UNSUPPORTED.items():
        section = document.get(place) if place else document
        if isinstance(section, dict) and (found := [str(key) for key in section if key in unsupported]):
            kind = Tls if place else WebConfig
            keys = ", ".join(f"`{key}`" for key in found)
            raise UsageError(
                f"{path}: {f'{place}: ' if place else ''}not supported here: {keys}; leave it out; "
                f"supported keys: {', '.join(kind.__struct_fields__)}"
            )
    server = document.get("tls_server_config")
    for key, values in _VALUES.items():
        if isinstance(server, dict) and isinstance(value := server.get(key), str) and value not in values:
            raise UsageError(
                f"{path}: tls_server_config.{key}: `{value}` is not supported here; supported are {', '.join(values)}"
            )
    config = convert(document, WebConfig, str(path))
    _check_users(config.basic_auth_users, path)
    _check_tls(config.tls_server_config, path)
    return config


def _check_tls(config: Tls | None, path: Path) -> None:
    if config is None:
        return
    is_asked = config.client_auth_type == "RequireAndVerifyClientCert"
    if is_asked and not config.client_ca_file:
        raise UsageError(
            f"{path}: tls_server_config.client_ca_file: it is missing; name who signs the clients' certificates"
        )
    if config.client_ca_file and not is_asked:
        raise UsageError(
            f"{path}: tls_server_config.client_auth_type: with client_ca_file it is RequireAndVerifyClientCert"
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


class Certificates:
    """What connections take; certificates that are renewed are used from the next connection on.

    Args:
        config: Certificate, key and what is asked of clients; it may be replaced.
        path: The settings file: other paths in it are relative to its folder.
    """

    def __init__(self, config: Tls, path: Path) -> None:
        self.config = config
        self._path = path
        self._known: object = None
        self._context = _context(config, path)

    def context(self) -> ssl.SSLContext:
        """A context for a server; the one before where a file cannot be used."""
        if (now := (self.config, _stamp(self.config, self._path))) != self._known:
            self._known = now
            try:
                self._context = _context(self.config, self._path)
            except UsageError as error:
                log.error("the new certificate is not used; the one before stays", error=str(error))
        return self._context


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

    async def refusal(self, request: web.Request) -> web.Response | None:
        """Answer to a request without a user's password; None for one that has it.

        Args:
            request: Its header is whole.
        """
        if not self._users:
            return None
        try:
            given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
        except ValueError:
            return web.Response(status=401, text="a user and a password are needed\n", headers=_REALM)
        password = given.password.encode()
        good: bool | None = False
        if len(password) <= _MOST_PASSWORD_BYTES:
            peer = request.transport.get_extra_info("peername") if request.transport is not None else None
            good = await self.is_good(address_of(peer), given.login, password)
        if good is None:
            return web.Response(
                status=429, text="too many passwords are tried\n", headers={"Retry-After": "1"}
            )
        return None if good else web.Response(status=401, text="wrong user or password\n", headers=_REALM)

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
    if config.client_ca_file:
        context.verify_mode = ssl.CERT_REQUIRED
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
