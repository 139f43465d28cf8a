"""Access to the probe's report: TLS, and the exporter's token."""

from __future__ import annotations

import hmac
import ssl
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError


class ServerTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings in the section ``tls:``."""

    cert_file: str
    key_file: str


class Access:
    """TLS and a token, both optional. A renewed token or certificate applies from the next connection on."""

    def __init__(self, tls: ServerTls | None = None, token_file: str | None = None) -> None:
        self._tls, self._token_file = tls, token_file
        self._context: ssl.SSLContext | None = None
        if token_file is not None and not _read_token(token_file):
            raise UsageError(
                f"token_file: {token_file} cannot be read or is empty; write a token to the file"
            )
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"tls: the files cannot be used ({error}); give a certificate and its key as PEM, without a password"
            ) from None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection; None for plain HTTP."""
        # During a renewal, certificate and key may not match. Keep the previous pair until both files are new.
        with suppress(OSError, ValueError):
            self._load()
        return self._context

    def allows(self, authorization: bytes) -> bool:
        """True if the ``Authorization`` header has the token, or if no token is required."""
        if self._token_file is None:
            return True
        token = _read_token(self._token_file)
        return bool(token) and hmac.compare_digest(authorization, b"Bearer " + token)

    def _load(self) -> None:
        if (tls := self._tls) is not None:
            files = tls.cert_file, tls.key_file
            self._context = _make_context(*files, tuple(Path(file).stat().st_mtime_ns for file in files))


@lru_cache(maxsize=2)
def _make_context(certificate: str, key: str, _changed_at: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Without a password argument, OpenSSL would ask for the password on the terminal.
    context.load_cert_chain(certificate, key, password="")
    return context


def _read_token(file: str) -> bytes:
    try:
        return Path(file).read_bytes().strip()
    except OSError:
        return b""
