"""Background work of a canary between its runs. The work's thread ends after the work, unless the work hangs."""

from __future__ import annotations

import logging

from infercanary.contract.profile import Profile
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import Worker

log = logging.getLogger("infercanary.probe")

MAX_PAUSE = 86_400.0
"""Longest pause after expensive work, seconds."""
_PUT_OFF_SECONDS = 60.0


class Background:
    """Work between the runs of one canary.

    Args:
        canary: Canary whose target does the work, in the canary's pool. Work that exceeds its deadline counts as
            hanging.
        work: Name for threads and the log: ``sweep``.
    """

    is_guest = False
    """True in a server's process, where free memory is not returned to the kernel."""

    def __init__(self, canary: Canary, work: str) -> None:
        self.canary = canary.name
        self.next_at = 0.0
        """Monotonic time from which the work may begin or continue."""
        self.measures: dict[str, float] = {}
        """Measures (name → value) that the next run takes over."""
        self.profile: Profile | None = None
        """Profile that the next run takes over."""
        self._canary = canary
        self._work = work
        self._worker = Worker(f"infercanary-{canary.name}-{work}")

    @property
    def is_running(self) -> bool:
        """True while the work runs in its thread. Between steps, running work is abandoned work, which still slows
        runs.
        """
        return self._worker.is_busy

    def put_off(self, now: float) -> None:
        """Postpone the work by a minute: the device is busy, or memory is short."""
        self.next_at = now + _PUT_OFF_SECONDS

    def interrupt(self) -> None:
        """End the present wait for the work, and all later waits. The work may continue in its thread. Callable from
        any thread.
        """
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """End the thread. True if the thread ended within ``seconds``."""
        ended = self._worker.stop(seconds)
        if not ended:
            log.warning(
                "canary %s: the %s still hangs; the thread ends with the process", self.canary, self._work
            )
        return ended
