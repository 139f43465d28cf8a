"""How the exporter shows who it is to probes, and learns that they are who they should be: TLS, and a token."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from infercanary.command.settings import UsageError


class ProbeTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``probe_tls:``: probes that a discovery finds are asked over TLS."""

    ca_file: str
    """Who signs the certificates of probes."""
    server_name: str = ""
    """The name that is in them; empty for the address that is asked, which containers change."""
    cert_file: str = ""
    key_file: str = ""
    """What the exporter shows, where probes have a ``client_ca_file``."""


class ProbeAccess(msgspec.Struct, frozen=True):
    """What it shows to each probe; by default nothing.

    A token is shown to whom TLS confirms where ``tls`` is set; else to each probe, also to an impostor's.
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
        if self.tls is not None:
            if bool(self.tls.cert_file) != bool(self.tls.key_file):
                raise UsageError("probe_tls: cert_file and key_file go together; give both or none")
            try:
                _context(self.tls, _stamp(self.tls))
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"probe_tls: its files cannot be used ({getattr(error, 'strerror', None) or error}); give PEM files"
                ) from None

    def url(self, found: str) -> str:
        """Where a probe is asked that a discovery found.

        Args:
            found: ``http://…`` or ``unix://…``.

        Returns:
            The same over TLS, where that is set.
        """
        return (
            f"https://{found.removeprefix('http://')}" if self.tls and found.startswith("http://") else found
        )

    def request(self, url: str) -> dict[str, Any]:
        """What aiohttp's request takes for it; files that were renewed count from the next one on.

        Args:
            url: Of the probe.

        Returns:
            Arguments by name.

        Raises:
            UsageError: A file cannot be used any more.
        """
        over_tls = url.startswith("https://")
        arguments: dict[str, Any] = {}
        if over_tls and self.tls is not None:
            try:
                arguments["ssl"] = _context(self.tls, _stamp(self.tls))
            except (OSError, ValueError) as error:
                raise UsageError(f"probe_tls: {getattr(error, 'strerror', None) or error}") from None
            if self.tls.server_name:
                arguments["server_hostname"] = self.tls.server_name
        if self.token_file is not None and (over_tls or self.tls is None or url.startswith("unix://")):
            arguments["headers"] = {"Authorization": f"Bearer {_token(self.token_file)}"}
        return arguments


NO_ACCESS = ProbeAccess()


@lru_cache(maxsize=2)
def _context(tls: ProbeTls, _files_at: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_refuse)
    return context


def _stamp(tls: ProbeTls) -> tuple[int, ...]:
    """Changes with the files."""
    return tuple(Path(file).stat().st_mtime_ns for file in (tls.ca_file, tls.cert_file, tls.key_file) if file)


def _token(file: str) -> str:
    """Its text; empty where it cannot be read."""
    try:
        with open(file, "rb") as source:
            text = source.read(4096).decode("ascii").strip()
    except (OSError, ValueError):
        return ""
    if not text.isprintable():
        return ""
    return text


def _refuse() -> str:
    """Without it, OpenSSL asks for a key's password on the terminal."""
    raise ValueError("the key has a password")
