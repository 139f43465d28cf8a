"""Delays Ctrl-C and SIGTERM to the next safe point, for commands that must end their own containers or processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SLICE_SECONDS = 0.1


class Interrupted(Exception):
    """A signal interrupted the command."""


class Interruption:
    """Records a signal in ``number`` (0 for none). A second signal ends the process at once."""

    number = 0

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal came."""
        if self.number:
            raise Interrupted

    def pause(self, seconds: float) -> None:
        """Sleep in short steps; raise :class:`Interrupted` if a signal came.

        A :class:`threading.Event` could deadlock, because the signal handler may interrupt the owner of the event's
        lock.
        """
        deadline = time.monotonic() + seconds
        self.check()
        while (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(rest, _SLICE_SECONDS))
            self.check()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals within the block, then restore the previous handlers."""
        before = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            for number, handler in before.items():
                # A signal that the parent ignores stays ignored: a command under `nohup` must survive the end of its
                # terminal.
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
