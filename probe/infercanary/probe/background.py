"""Background work of a canary: what is done between its runs, in a thread that ends after it (or hangs)."""

from __future__ import annotations

import logging

from infercanary.contract.profile import Profile
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import Worker

log = logging.getLogger("infercanary.probe")


class Background:
    """Work between the runs of one canary.

    Args:
        canary: Must be fit for it. Its target does the work, in its pool; what takes longer than its timeout hangs.
        work: Name for threads and the log: ``sweep``.
    """

    is_guest = False
    """Whether the process is a server's, whose free memory is not given back."""

    def __init__(self, canary: Canary, work: str) -> None:
        self.canary = canary.name
        self._canary = canary
        self._work = work
        self._worker = Worker(f"infercanary-{canary.name}-{work}")

    @property
    def is_running(self) -> bool:
        """Whether it holds its thread. Between steps it is work that was given up and goes on: it disturbs."""
        return self._worker.is_busy

    def start(self, now: float) -> None:
        """Count from ``now``, when warm-up is over."""

    def take_measures(self) -> dict[str, float]:
        """Take the measures (name → value) since the last call."""
        return {}

    def take_profile(self) -> Profile | None:
        """Take the profile that was made since the last call, if any."""
        return None

    def interrupt(self) -> None:
        """End the work, or the wait for it, now and from now on; callable from any thread."""
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Whether its thread ended within ``seconds``."""
        ended = self._worker.stop(seconds)
        if not ended:
            log.warning(
                "canary %s: its %s still hangs; the thread ends with the process", self.canary, self._work
            )
        return ended
