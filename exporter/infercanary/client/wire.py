"""What an answer may cost on its way in: bytes as they are sent, and CPU time to take HTTP apart.

A body of one-byte chunks is six times as long as it counts, and takes a call for each; interim answers
(``100 Continue``) may go on for ever. All of that is parsed on the event loop, where scrapes are served too. What is
parsed is kept until the poll ends: a head of 128 long lines is 1 MB, and of answers that nobody asked for each is 7 kB.
So all answers together have a share of the event loop's time, and take turns in it, piece by piece.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler

CPU_SECONDS = 0.05
"""Of one answer. 4 MiB as they come take a few milliseconds."""
_HEAD_BYTES = 16 << 10  # of all heads; a probe's has 200
_HEAD_PIECE_BYTES = 512
_PIECE_BYTES = 4 << 10  # between two looks at the clock: 700 chunks of one byte
_TURN_SECONDS = 0.005
_REST = 2.0  # times a turn, for all else on the event loop: answers have a third of its time
_ANSWERS = 8  # that nobody has read: interim ones may come with the one that was asked for


class TooCostly(ClientPayloadError):
    """An answer took more bytes or more CPU time than any report does."""


class TooLarge(ClientPayloadError):
    """The body of an answer is longer than a report may be."""


class Turns:
    """The share of the event loop's time that the answers of all probes have together."""

    def __init__(self) -> None:
        self._waiting: deque[Metered] = deque()
        self._next: asyncio.TimerHandle | None = None

    def wait(self, connection: Metered) -> None:
        """Have a connection take what came, at once where the share allows it.

        Args:
            connection: One that is not waiting.
        """
        self._waiting.append(connection)
        if self._next is None:
            self._turn()

    def _turn(self) -> None:
        begin = spent = time.thread_time()
        while self._waiting and spent - begin < _TURN_SECONDS:
            connection = self._waiting.popleft()
            try:
                if connection.take_piece():
                    self._waiting.append(connection)
            except Exception as error:  # a fault of ours must cost this connection only
                connection.fail(error)
            spent = time.thread_time()
        self._next = asyncio.get_running_loop().call_later(_REST * (spent - begin), self._rested)

    def _rested(self) -> None:
        self._next = None
        if self._waiting:
            self._turn()


class Meter:
    """CPU time that the answers of one probe took.

    Args:
        turns: Shared by all probes.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.cpu_seconds = 0.0

    def read(self) -> float:
        """Seconds since it was last read."""
        seconds, self.cpu_seconds = self.cpu_seconds, 0.0
        return seconds


class Metered(ResponseHandler):
    """aiohttp's side of a connection, which ends where an answer costs too much. It serves one answer.

    Args:
        loop: The running one.
        most_bytes: Of the body; as much again as an eighth, and its head, may be HTTP's own.
        meter: Of the probe.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most_bytes: int, meter: Meter) -> None:
        super().__init__(loop=loop)
        self.cpu_seconds = 0.0
        self._meter = meter
        self._most_bytes = most_bytes
        self._bytes_left = most_bytes + most_bytes // 8 + _HEAD_BYTES
        self._head_bytes_left = _HEAD_BYTES
        self._ended = False
        self._untaken, self._place = b"", 0

    def data_received(self, data: bytes) -> None:
        """Keep what came, for this answer's turn; meanwhile nothing more is read.

        Args:
            data: As it was sent; empty where aiohttp goes on with what it has.
        """
        if self._ended:
            return
        if not data:
            self._take(data)
            return
        is_waiting = bool(self._untaken)
        self._untaken += data
        if not is_waiting:
            self._meter.turns.wait(self)
        self._hold()

    def take_piece(self) -> bool:
        """Take the next piece of what came.

        Returns:
            Whether there is more.
        """
        is_body = self._payload is not None and not self._payload.is_eof()
        size = _PIECE_BYTES if is_body else _HEAD_PIECE_BYTES
        piece = self._untaken[self._place : self._place + size]
        self._place += size
        if self.transport is not None:  # else it was closed meanwhile
            self._head_bytes_left -= 0 if is_body else len(piece)
            self._take(piece)
        if self.transport is not None and not self._ended and self._place < len(self._untaken):
            return True
        self._untaken, self._place = b"", 0
        if self.transport is not None and not self._ended and not self._reading_paused:
            self.transport.resume_reading()
        return False

    def resume_reading(self, *given: Any, **named: Any) -> None:
        """Go on, unless what came already waits for its turn.

        Args:
            given: As aiohttp gives them.
            named: As aiohttp gives them.
        """
        super().resume_reading(*given, **named)
        self._hold()

    def _hold(self) -> None:
        if self._untaken and self.transport is not None:
            self.transport.pause_reading()

    def _take(self, piece: bytes) -> None:
        self._bytes_left -= len(piece)
        begin = time.thread_time()
        super().data_received(piece)
        chunks: Any = getattr(self._payload, "_buffer", ())  # an empty answer has none
        if len(chunks) > 1:
            # aiohttp's reader takes five times as long for many chunks as its parser does.
            whole = b"".join(chunks)
            chunks.clear()
            chunks.append(whole)
        seconds = time.thread_time() - begin
        self.cpu_seconds += seconds
        self._meter.cpu_seconds += seconds
        if getattr(self._payload, "total_bytes", 0) > self._most_bytes:
            self.fail(TooLarge())
        elif (
            self.cpu_seconds > CPU_SECONDS
            or min(self._bytes_left, self._head_bytes_left) < 0
            or len(self) > _ANSWERS
        ):
            self.fail(
                TooCostly(
                    "its HTTP costs more than any report: odd chunks, a long head, or more answers than one"
                )
            )

    def set_exception(self, exc: BaseException, *causes: BaseException) -> None:
        """Note why it failed; what is too costly stays so, also when its connection is lost for that.

        Args:
            exc: Why.
            causes: As aiohttp gives them.
        """
        if not self._ended:
            super().set_exception(exc, *causes)

    def fail(self, error: Exception) -> None:
        """End the connection.

        Args:
            error: What its reader gets.
        """
        if self._payload is not None:
            self._payload.set_exception(error)
            self._payload = None
        self.set_exception(error)
        self._ended = True
        if self.transport is not None:
            self.transport.abort()
