"""What an answer may cost on its way in: bytes as they are sent, and CPU time to take HTTP apart.

A body of one-byte chunks is six times as long as it counts, and takes a call for each; interim answers
(``100 Continue``) may go on for ever. All of that is parsed on the event loop, where scrapes are served too. What is
parsed is kept until the poll ends: a head of 128 long lines is 1 MB, and of answers that nobody asked for each is 7 kB.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler

CPU_SECONDS = 0.05
"""Of one answer. 4 MiB as they come take a few milliseconds."""
_HEAD_BYTES = 16 << 10  # of all heads; a probe's has 200
_HEAD_PIECE_BYTES = 512
_PIECE_BYTES = 4 << 10  # between two looks at the clock: 700 chunks of one byte
_ANSWERS = 8  # that nobody has read: interim ones may come with the one that was asked for


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
        self._head_bytes_left = _HEAD_BYTES
        self._ended = False

    def data_received(self, data: bytes) -> None:
        """Take what came, piece by piece.

        Args:
            data: As it was sent; empty where aiohttp goes on with what it has.
        """
        if self._ended:
            return
        self._bytes_left -= len(data)
        place = 0
        while place == 0 or place < len(data):
            is_body = self._payload is not None and not self._payload.is_eof()
            piece = data[place : place + (_PIECE_BYTES if is_body else _HEAD_PIECE_BYTES)]
            begin = time.thread_time()
            super().data_received(piece)
            self.cpu_seconds += time.thread_time() - begin
            self._head_bytes_left -= 0 if is_body else len(piece)
            place += max(1, len(piece))
            if (
                self.cpu_seconds > CPU_SECONDS
                or min(self._bytes_left, self._head_bytes_left) < 0
                or len(self) > _ANSWERS
            ):
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
        error = TooCostly(
            "its HTTP costs more than any report: odd chunks, a long head, or more answers than one"
        )
        if self._payload is not None:
            self._payload.set_exception(error)
            self._payload = None
        self.set_exception(error)
        self._ended = True
        if self.transport is not None:
            self.transport.abort()
