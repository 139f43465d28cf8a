"""Credentials of the exporter for probes: TLS settings and a token."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError


class ProbeTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``probe_tls:``: TLS settings for probes found by discovery."""

    ca_file: str
    """File of the CA certificates that sign the probes' certificates."""
    server_name: str = ""
    """Name in a probe's certificate; empty to check the polled address, which changes with each container."""


class ProbeAccess(msgspec.Struct, frozen=True):
    """Credentials for each probe; none by default.

    With ``tls``, no token is sent over HTTP. Without ``tls``, any server at an ``http://`` address gets the token.
    """

    tls: ProbeTls | None = None
    token_file: str | None = None

    def check(self) -> None:
        """Check that the files can be used.

        Raises:
            UsageError: A file cannot be used.
        """
        if self.token_file is not None and not _token(self.token_file):
            raise UsageError(
                f"probe_token_file: {self.token_file} cannot be read or is empty; write a token to the file"
            )
        self.context()

    @property
    def name(self) -> str:
        """Name in a probe's certificate; empty to check the host of the address."""
        return self.tls.server_name if self.tls else ""

    def url(self, found: str | None) -> str | None:
        """Return the address of a discovered probe, changed to https if TLS is set.

        Args:
            found: ``http://…`` or ``unix://…``; None if the address is missing.
        """
        scheme, _, rest = (found or "").partition("://")
        return f"https://{rest}" if self.tls and scheme.lower() == "http" else found

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. A changed CA file applies from the next connection on.

        Raises:
            UsageError: A file cannot be used.
        """
        tls = self.tls
        try:
            return _context(tls and tls.ca_file, Path(tls.ca_file).stat().st_mtime_ns if tls else 0)
        except (OSError, ValueError) as error:
            raise UsageError(f"probe_tls: ca_file cannot be used ({error}); use a PEM file") from None

    def header(self, scheme: str) -> str:
        """Return the request header with the token; empty if a probe with this URL scheme gets no token."""
        if self.token_file is None or (self.tls and scheme == "http"):
            return ""
        return f"Authorization: Bearer {_token(self.token_file)}\r\n"


NO_ACCESS = ProbeAccess()


@lru_cache(maxsize=2)
def _context(ca_file: str | None, _changed_at: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _token(file: str) -> str:
    """Read a token; empty if the file cannot be read, or is not printable ASCII."""
    try:
        text = Path(file).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    if not text.isprintable():
        return ""
    return text
