"""What a caller sends, handed to aiohttp in small pieces, and nothing after what is not HTTP.

aiohttp takes a quarter of a megabyte at once. Where that is no HTTP, it keeps it, writes it into a message, and does so
again with what follows: 64 callers who send nothing but zeros took 4 GB in 14 seconds.
"""

from __future__ import annotations

import asyncio

from aiohttp.web_protocol import RequestHandler

_PIECE_BYTES = 16 << 10  # a TLS record


class Feed(asyncio.BufferedProtocol):
    """Stands between a connection and aiohttp's side of it.

    Args:
        handler: Of this connection.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._buffer = bytearray(_PIECE_BYTES)
        self._faults = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin.

        Args:
            transport: Of the connection.
        """
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End.

        Args:
            exc: Why; None where either side closed it.
        """
        self._handler.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next piece goes.

        Args:
            sizehint: As asyncio has it; it has no effect.

        Returns:
            The same each time.
        """
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on a piece.

        Args:
            nbytes: Of the buffer.
        """
        if self._faults:
            return
        self._handler.data_received(bytes(self._buffer[:nbytes]))
        messages = self._handler._messages  # aiohttp offers no other way
        self._faults = bool(messages) and not hasattr(
            messages[-1][0], "method"
        )  # it is no request, but an error

    def eof_received(self) -> None:
        """Nothing follows."""
        self._handler.eof_received()

    def pause_writing(self) -> None:
        """The caller does not take what is sent."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._handler.resume_writing()
