"""One connection to the exporter: what it has asked, what its reader took, and when it is due to go."""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

from infercanary.contract.address import counted_as

Reason = Literal["no_request", "late_reader", "crowded", "refused", "busy", "malformed"]

HEADER_SECONDS = 10.0
IDLE_SECONDS = 330.0  # Prometheus itself closes after five minutes
YOUNG_SECONDS = 1.0  # an honest request follows its connection immediately
_HANDSHAKE = 22  # the first byte of TLS (RFC 8446, 5.1), in a header of five
_RECORD_HEADER_BYTES = 5
_MOST_RECORD_BYTES = 16_384


class Caller:
    """One that is open. Times are of the event loop's clock.

    Args:
        sock: As it was accepted.
        address: Of whom.
        now: When.
    """

    def __init__(self, sock: socket.socket, address: str, now: float) -> None:
        self.sock = sock
        self.address = address
        self.since = now
        """When it was accepted, or its last answer ended."""
        self.spoke = False
        """Whether a TLS handshake began."""
        self.asked = False
        self.deadline: float | None = None
        """Of the answer that is under way."""
        self.named = False
        self.handled = True
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self._unsent = 0
        self._took_at = now

    @property
    def open(self) -> bool:
        """Whether its socket is."""
        return self.sock.fileno() >= 0

    def begin(self, now: float, seconds: float, *, named: bool) -> None:
        """A whole request header is here.

        Args:
            now: When.
            seconds: For its answer.
            named: Whether the scraper named that time, and may rely on it.
        """
        self.asked, self.handled, self.deadline, self.named = True, False, now + seconds, named
        self._took_at, self._unsent = now, 0

    def look(self, now: float) -> None:
        """Note what its reader took since the last look, and whether the answer has ended.

        Args:
            now: The time.
        """
        unsent = unsent_bytes(self.transport) if self.transport is not None else 0
        if not unsent or unsent != self._unsent:
            self._took_at = now
        self._unsent = unsent
        if self.deadline is not None and self.handled and not unsent:
            self.deadline, self.since, self.named = None, now, False

    def late(self, now: float) -> Reason | None:
        """Why it is closed in any case.

        Args:
            now: The time.

        Returns:
            None while it may stay.
        """
        if self.deadline is not None:
            return "late_reader" if now > self.deadline else None
        return "no_request" if now - self.since > (IDLE_SECONDS if self.asked else HEADER_SECONDS) else None

    def rank(self, now: float) -> tuple[int, float] | None:
        """Its place among those that give way.

        Args:
            now: The time.

        Returns:
            The least goes first; None for one that does not give way.
        """
        if self.deadline is None:
            young = not self.asked and now - self.since < YOUNG_SECONDS
            return 2 + self.spoke if young else int(self.asked), self.since
        return None if self.named else (4 if self._unsent else 5, self._took_at)

    def end(self) -> None:
        """Close it immediately."""
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()  # in its TLS handshake


def unsent_bytes(transport: asyncio.Transport) -> int:
    """What a reader has yet to take, of what was written for it.

    Args:
        transport: Of it.

    Returns:
        Bytes in this process. From Python 3.11 on, TLS' own size leaves out what it gave to the transport below.
    """
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    size: int = transport.get_write_buffer_size()
    return size + (below.get_write_buffer_size() if below is not None else 0)


def address_of(peer: object) -> str:
    """Return the caller that a socket's peer is counted as; empty where there is none."""
    return counted_as(peer[0]) if isinstance(peer, tuple) else ""


async def first_record(sock: socket.socket) -> None:
    """Wait until a client's whole first TLS record is here: before it, TLS would take 256 KiB for the connection.

    Args:
        sock: It stays as it is, with all that was sent.

    Raises:
        ConnectionError: It is no TLS, or the client left.
    """
    loop = asyncio.get_running_loop()
    wanted = _RECORD_HEADER_BYTES
    while True:
        # The kernel wakes nobody for less.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock, _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock)
        record = sock.recv(wanted, socket.MSG_PEEK)
        if len(record) < wanted or record[0] != _HANDSHAKE:
            raise ConnectionError("no TLS")
        if wanted > _RECORD_HEADER_BYTES:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            return
        wanted += min(int.from_bytes(record[3:5], "big"), _MOST_RECORD_BYTES)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
