"""Handles Ctrl-C and SIGTERM at the next safe place, in a command that has containers or processes to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SLICE_SECONDS = 0.1


class Interrupted(Exception):
    """The command was asked to end."""


class Interruption:
    """Records a signal; ``number`` is the signal's, 0 for none. A second signal ends the process immediately."""

    number = 0

    def check(self) -> None:
        """Stop here if a signal came.

        Raises:
            Interrupted: One did.
        """
        if self.number:
            raise Interrupted

    def pause(self, seconds: float) -> None:
        """Sleep in slices, which a signal ends by :class:`Interrupted`.

        An event instead could deadlock: a handler that sets it may interrupt the owner of the event's lock.
        """
        deadline = time.monotonic() + seconds
        self.check()
        while (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(rest, _SLICE_SECONDS))
            self.check()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals within the block; afterwards restore the handlers of before."""
        before = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            for number, handler in before.items():
                # What the parent ignores stays ignored, so that `nohup` lets a command outlive its terminal.
                if handler is not signal.SIG_IGN:
                    signal.signal(number, self._take)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
