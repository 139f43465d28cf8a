"""Location of a PostgreSQL database: the URL in the setting `store:`, and the separate password file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from infercanary.store.base import StoreError

_DEFAULTS: Mapping[str, str] = {
    "client_encoding": "utf8",
    "connect_timeout": "5",
    "application_name": "infercanary-exporter",
    "target_session_attrs": "read-write",  # of several hosts, use the current primary
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
    "options": "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=10s",
}


class Location(msgspec.Struct, frozen=True):
    """Location of a database, without the password."""

    conninfo: str
    """Connection string for libpq."""
    shown: str
    """URL for messages, without parameters."""
    password_file: str | None
    lease_seconds: float
    """Seconds without a renewal after which another exporter may take over an exporter's services."""

    @classmethod
    def of(cls, url: str) -> Location:
        """Read ``postgresql://ROLE@HOST:PORT/DATABASE?PARAMETER=…``.

        Parameters are libpq's own, ``password_file`` and ``lease_seconds``.

        Raises:
            StoreError: The URL is invalid or contains a password.
        """
        base, _, text = url.partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        role, _, place = base.partition("//")[2].rpartition("@")
        is_cut = "@" in text  # parameters may seem to start at an unescaped `?` in a password
        shown = f"postgresql://{'…' if is_cut else place}"
        if "password" in query or ":" in role or is_cut:
            raise StoreError(
                f"{shown}: the URL contains the password, which anyone can read there; write the password to a file "
                "and add ?password_file=PATH, or use libpq's ?passfile=PATH or ?service=NAME"
            )
        file, lease = query.pop("password_file", None), query.pop("lease_seconds", "20")
        seconds = 0.0
        with suppress(ValueError):
            seconds = float(lease)
        if not 1 <= seconds <= 600:
            raise StoreError(f"{shown}: lease_seconds: {lease!r} is not a number from 1 to 600")
        parameters = urlencode({**_DEFAULTS, **query}, quote_via=quote)
        conninfo = f"{base}?{parameters}"
        with suppress(ImportError):
            import psycopg.conninfo

            try:
                psycopg.conninfo.conninfo_to_dict(conninfo)
            except psycopg.Error as error:
                raise StoreError(f"{shown}: {error}") from None
        return cls(conninfo, shown, file, seconds)

    def password(self) -> dict[str, str]:
        """Read the password file, for one connection.

        Returns:
            Connection parameters; empty without a password file. libpq then finds a password itself or needs none.

        Raises:
            StoreError: The file cannot be read.
        """
        if self.password_file is None:
            return {}
        try:
            return {"password": Path(self.password_file).read_text().rstrip("\r\n")}
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise StoreError(f"password_file {self.password_file}: {reason}") from None
