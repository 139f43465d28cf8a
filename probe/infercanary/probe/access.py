"""Who may ask the probe for its report: TLS, and a token that the exporter shows."""

from __future__ import annotations

import hmac
import os
import ssl
from contextlib import suppress
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError


class ServerTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``tls:``."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    """Who signs the exporter's certificate; empty where it needs none."""


class Access:
    """TLS and a token, or neither. A token or certificate that was renewed counts from the next connection on.

    Args:
        tls: Certificate and key; None for plain HTTP.
        token_file: The token is its text; None for everybody.

    Raises:
        UsageError: A file cannot be used.
    """

    def __init__(self, tls: ServerTls | None = None, token_file: str | None = None) -> None:
        self._tls = tls
        self._token_file = token_file
        self._changed: list[int] = []
        self._context: ssl.SSLContext | None = None
        if token_file is not None and not self._token():
            raise UsageError(f"token_file: {token_file} cannot be read or is empty; write a token there")
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"tls: its files cannot be used ({getattr(error, 'strerror', None) or error}); give a certificate "
                "and its key as PEM"
            ) from None

    def context(self) -> ssl.SSLContext | None:
        """Return the context of the next connection; None for plain HTTP."""
        with suppress(
            OSError, ValueError
        ):  # half a renewal: the one before serves until the other half is there
            self._load()
        return self._context

    def allows(self, authorization: bytes) -> bool:
        """Say whether this header's value shows the token."""
        if self._token_file is None:
            return True
        token = self._token()
        return bool(token) and hmac.compare_digest(authorization, b"Bearer " + token)

    def _token(self) -> bytes:
        try:
            return Path(self._token_file or "").read_bytes()[:4096].strip()
        except OSError:
            return b""

    def _load(self) -> None:
        """Make the TLS context anew if a file has changed."""
        if (tls := self._tls) is None:
            return
        changed = [os.stat(file).st_mtime_ns for file in msgspec.structs.astuple(tls) if file]
        if changed == self._changed:
            return
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse)
        if tls.client_ca_file:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(tls.client_ca_file)
        self._context, self._changed = context, changed


def _refuse() -> str:
    """Without it, OpenSSL asks for a key's password on the terminal."""
    raise ValueError("the key has a password")
