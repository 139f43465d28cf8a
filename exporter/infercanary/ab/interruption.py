"""Ctrl-C and SIGTERM, heeded at the next safe place: a container that is being made has no id yet to end it by."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SLICE_SECONDS = 0.1


class ExperimentInterrupted(Exception):
    """The experiment was asked to end."""


class Interruption:
    """Whether a signal came; ``number`` is the signal's, 0 for none. The second one ends the process at once."""

    def __init__(self) -> None:
        self.number = 0

    def check(self) -> None:
        """Raise :class:`ExperimentInterrupted` where a signal came."""
        if self.number:
            raise ExperimentInterrupted

    def pause(self, seconds: float) -> None:
        """Sleep, unless interrupted: :class:`ExperimentInterrupted` then.

        In slices, and without a lock: a handler that sets an event may interrupt who just holds the event's lock.
        """
        deadline = time.monotonic() + seconds
        self.check()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))
            self.check()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Signals are taken here; afterwards by whoever took them before."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What the parent had ignored stays so: `nohup` is for experiments that outlive a terminal.
        wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._take) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
