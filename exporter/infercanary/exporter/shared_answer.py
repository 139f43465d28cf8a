"""An answer that is made once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 10.0
_TIMES_ITS_WORK = (
    20.0  # so that it takes a twentieth of the event loop's time at most, whoever asks how often
)


class SharedAnswer:
    """Bytes that take time to make. Those who ask meanwhile, and a second later, get the same ones.

    Args:
        make: Makes them, on the event loop.
    """

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._making: asyncio.Task[bytes] | None = None
        self._good_until = 0.0

    async def get(self) -> bytes:
        """The bytes, as they were a second ago or, where they take long, so many times that long.

        Raises:
            Exception: What making them raised; whoever asks next tries again.
        """
        making = self._making
        if making is None or (making.done() and (making.cancelled() or time.monotonic() >= self._good_until)):
            making = self._making = asyncio.create_task(self._made())
        return await asyncio.shield(making)  # who asked first may leave

    async def _made(self) -> bytes:
        begin = self._good_until = time.monotonic()
        made = await self._make()
        now = time.monotonic()
        self._good_until = now + min(_MOST_SECONDS, max(_LEAST_SECONDS, _TIMES_ITS_WORK * (now - begin)))
        return made
