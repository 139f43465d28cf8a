"""Credentials between exporter and probe: TLS, and a token."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError


class ProbeTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``probe_tls:``: probes that a discovery finds are asked over TLS."""

    ca_file: str
    """Certificates that sign those of probes."""
    server_name: str = ""
    """Name in a probe's certificate; empty for the address that is asked, which containers change."""


class ProbeAccess(msgspec.Struct, frozen=True):
    """Credentials for each probe; by default none.

    Where ``tls`` is set, a token is sent only over TLS; else to each probe, also to an impostor's.
    """

    tls: ProbeTls | None = None
    token_file: str | None = None

    def check(self) -> None:
        """Try the files.

        Raises:
            UsageError: One of them cannot be used.
        """
        if self.token_file is not None and not _token(self.token_file):
            raise UsageError(
                f"probe_token_file: {self.token_file} cannot be read or is empty; write a token there"
            )
        self.context()

    @property
    def name(self) -> str:
        """Name in a probe's certificate; empty for the host in its address."""
        return self.tls.server_name if self.tls else ""

    def url(self, found: str | None) -> str | None:
        """Change the address of a probe that a discovery found to TLS, where that is set.

        Args:
            found: ``http://…`` or ``unix://…``; None if there is none.
        """
        scheme, _, rest = (found or "").partition("://")
        return f"https://{rest}" if self.tls and scheme.lower() == "http" else found

    def context(self) -> ssl.SSLContext:
        """Settings of a TLS connection; files that were renewed count from the next one on.

        Raises:
            UsageError: A file cannot be used.
        """
        tls = self.tls
        try:
            return _context(tls and tls.ca_file, Path(tls.ca_file).stat().st_mtime_ns if tls else 0)
        except (OSError, ValueError) as error:
            raise UsageError(f"probe_tls: ca_file cannot be used ({error}); give a PEM file") from None

    def header(self, scheme: str) -> str:
        """Line of a request that shows the token; empty if a probe asked by such a URL gets none."""
        if self.token_file is None or (self.tls and scheme == "http"):
            return ""
        return f"Authorization: Bearer {_token(self.token_file)}\r\n"


NO_ACCESS = ProbeAccess()


@lru_cache(maxsize=2)
def _context(ca_file: str | None, _changed_at: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _token(file: str) -> str:
    """Read a token; empty where the file cannot be read."""
    try:
        text = Path(file).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    if not text.isprintable():
        return ""
    return text
