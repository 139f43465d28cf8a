"""Questions to an API server or a kubelet, with the token of now, and why one had no answer.

The client library is not used: it reads the service account's token once, and a token is renewed within the hour.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from infercanary.exporter.discovery.kubernetes_watch import ExpiredError, WatchError

CONNECT_SECONDS = 10.0
Reason = Literal[
    "expired",
    "silent",
    "closed",
    "unreachable",
    "refused",
    "no_credentials",
    "untrusted",
    "error",
    "malformed",
    "internal",
]
"""Why a request to the API server, or to the kubelet, failed."""


class RefusedError(Exception):
    """An HTTP status that is no success. One line, for people, with the fix where there is one."""


class TooLargeError(Exception):
    """A body over the bound."""


class CredentialsError(Exception):
    """The token or the CA cannot be read."""


class UntrustedError(Exception):
    """Its certificate is signed by somebody else, or names another host."""


_REASONS: tuple[tuple[tuple[type[Exception], ...], Reason], ...] = (
    ((ExpiredError,), "expired"),
    ((RefusedError,), "refused"),
    ((CredentialsError,), "no_credentials"),
    ((UntrustedError,), "untrusted"),
    ((WatchError,), "error"),
    ((TooLargeError, msgspec.DecodeError), "malformed"),
    ((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError), "unreachable"),
    ((asyncio.TimeoutError,), "silent"),
    ((aiohttp.ClientPayloadError, aiohttp.ClientConnectionError), "closed"),
    ((aiohttp.ClientError,), "malformed"),
)
"""The first of them that an error is."""


def reason_of(error: Exception) -> Reason:
    """Why a question had no answer.

    Args:
        error: What :meth:`PodServer.ask` or whoever read its answer raised.

    Returns:
        ``internal`` for what is a fault of the exporter.
    """
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), "internal")


class PodServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pods of one node are asked for."""

    url: str
    """Of its list of pods."""
    query: Mapping[str, str] = {}
    """Of each question."""
    token_file: str
    """Read anew for each question; empty for none."""
    ca_file: str
    """Read anew for each question; empty for the system's."""
    skip_verify: bool = False
    """Take any certificate."""
    fixes: Mapping[int, str]
    """HTTP status → what people do about it."""
    trust: str
    """What they do about a certificate that is not trusted."""

    @asynccontextmanager
    async def ask(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer.

        Args:
            session: Any.
            query: What this question adds.
            timeout: Of the whole of it.

        Yields:
            The answer, with its body still to be read.

        Raises:
            ExpiredError: What it is to go on from is too old.
            RefusedError: It is no success.
            CredentialsError: The token or the CA cannot be read.
            UntrustedError: Its certificate is not trusted.
        """
        try:
            headers, context = await asyncio.to_thread(self._credentials)
        except OSError as error:
            raise CredentialsError(f"{error}; see kubernetes.token_file and kubernetes.ca_file") from None
        try:
            async with session.get(
                self.url, params={**self.query, **query}, headers=headers, ssl=context, timeout=timeout,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status == 410:
                    raise ExpiredError("HTTP 410")
                if response.status != 200:
                    fix = self.fixes.get(response.status)
                    raise RefusedError(f"HTTP {response.status}" + (f": {fix}" if fix else ""))
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise UntrustedError(f"{error.certificate_error}; {self.trust}") from None

    async def read(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], seconds: float, most: int
    ) -> bytes:
        """A whole answer.

        Args:
            session: Any.
            query: What this question adds.
            seconds: The longest that it may take.
            most: Bytes that it may have.

        Returns:
            Its body.

        Raises:
            ExpiredError: What it is to go on from is too old.
            RefusedError: It is no success.
            TooLargeError: It is larger.
        """
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        body = bytearray()
        async with self.ask(session, query, timeout) as response:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > most:
                    raise TooLargeError(f"the answer is over {most} bytes")
        return bytes(body)

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        """The headers with the token of now, and whom to trust."""
        headers = {"Accept": "application/json"}
        if self.token_file:
            headers["Authorization"] = f"Bearer {Path(self.token_file).read_text().strip()}"
        if self.skip_verify or not self.url.startswith("https:"):
            return headers, not self.skip_verify
        return headers, ssl.create_default_context(cafile=self.ca_file or None)
