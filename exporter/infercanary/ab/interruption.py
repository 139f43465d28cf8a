"""Handles Ctrl-C and SIGTERM at the next safe place: a container that is being created has no id to remove it by."""

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
    """Records a signal; ``number`` is the signal's, 0 for none. A second signal ends the process immediately."""

    def __init__(self) -> None:
        self.number = 0

    def check(self) -> None:
        """Stop here if a signal came.

        Raises:
            ExperimentInterrupted: One did.
        """
        if self.number:
            raise ExperimentInterrupted

    def pause(self, seconds: float) -> None:
        """Sleep for ``seconds``, in slices.

        An event instead could deadlock: a handler that sets it may interrupt the owner of the event's lock.

        Args:
            seconds: How long; a signal ends it within a slice.

        Raises:
            ExperimentInterrupted: A signal came.
        """
        deadline = time.monotonic() + seconds
        self.check()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE_SECONDS))
            self.check()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals within the block; afterwards restore the handlers of before.

        Yields:
            Nothing.
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What the parent ignores stays ignored, so that `nohup` lets an experiment outlive its terminal.
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
