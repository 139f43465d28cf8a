"""What an answer may cost on its way in: bytes as they are sent, and CPU time to take HTTP apart.

A body of one-byte chunks is six times as long as it counts, and takes a call for each; interim answers
(``100 Continue``) may go on for ever. All of that is parsed on the event loop, where scrapes are served too.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler

CPU_SECONDS = 0.05
"""Of one answer. 4 MiB as they come take a few milliseconds."""
_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 4 << 10  # between two looks at the clock: 700 chunks of one byte


class TooCostly(ClientPayloadError):
    """An answer took more bytes or more CPU time than any report does."""


class Metered(ResponseHandler):
    """aiohttp's side of a connection, which ends where an answer costs too much. It serves one answer.

    Args:
        loop: The running one.
        most_bytes: Of the body; as much again as an eighth, and its head, may be HTTP's own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most_bytes: int) -> None:
        super().__init__(loop=loop)
        self.cpu_seconds = 0.0
        self._bytes_left = most_bytes + most_bytes // 8 + _HEAD_BYTES
        self._ended = False

    def data_received(self, data: bytes) -> None:
        """Take what came, piece by piece.

        Args:
            data: As it was sent; empty where aiohttp goes on with what it has.
        """
        if self._ended:
            return
        self._bytes_left -= len(data)
        for start in range(0, max(1, len(data)), _PIECE_BYTES):
            begin = time.thread_time()
            super().data_received(data[start : start + _PIECE_BYTES])
            self.cpu_seconds += time.thread_time() - begin
            if self.cpu_seconds > CPU_SECONDS or self._bytes_left < 0:
                self._end()
                return

    def set_exception(self, exc: BaseException, *causes: BaseException) -> None:
        """Note why it failed; what is too costly stays so, also when its connection is lost for that.

        Args:
            exc: Why.
            causes: As aiohttp gives them.
        """
        if not self._ended:
            super().set_exception(exc, *causes)

    def _end(self) -> None:
        error = TooCostly("its HTTP costs more than any report: odd chunks or interim answers")
        if self._payload is not None:
            self._payload.set_exception(error)
            self._payload = None
        self.set_exception(error)
        self._ended = True
        if self.transport is not None:
            self.transport.abort()
