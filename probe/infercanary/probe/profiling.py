"""Profiled repeats: which operators a canary's time goes to, now and then, apart from the timed ones.

They come once a canary is steady, again ten minutes later, then hourly, from a share of the duty cap that is kept for
them (docs/adr/0023-profiled-repeats.md), and never while the host's own work waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

from infercanary.contract.profile import Profile
from infercanary.contract.vocabulary import CPU_WAIT_INSIDE, GPU_BUSY
from infercanary.probe.background import Background
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, one_line
from infercanary.probe.memory import give_back
from infercanary.probe.schedule import jittered
from infercanary.probe.targets import Failure, Unprofiled
from infercanary.probe.watcher import Memory

log = logging.getLogger("infercanary.probe")


SHARE: Final = 0.05
"""Of the duty cap, kept for profiles: at 1 % that is 1.8 s an hour, five repeats of 300 ms."""

AGAIN_SECONDS: Final = 600.0
EVERY_SECONDS: Final = 3600.0
MAX_PAUSE: Final = 86_400.0
"""The longest time between two profiles, whatever one costs."""

PROFILER_BYTES: Final = 64 << 20
"""What torch's profiler takes for a moment: 47 MiB for five repeats of ResNet-18."""

REPEATS = 5
_REPEATS_OF_A_TURN = 3  # in a pool, whose requests wait for the turn
_PUT_OFF_SECONDS = 60.0
_OTHERS = frozenset({CPU_WAIT_INSIDE, GPU_BUSY})  # tags of a run beside which requests wait


class Profiling(Background):
    """Profiles one canary when its time has come, in a thread that ends after it (or hangs).

    Args:
        share: Of the time, that its profiles may take.
        memory: Asked before each profile; None for nothing.
    """

    def __init__(self, canary: Canary, share: float, memory: Memory | None = None) -> None:
        super().__init__(canary, "profile")
        self._memory = memory
        self.next_at = 0.0
        """When the next one may begin (monotonic), once the canary is steady."""
        self._share = share
        self._pause = AGAIN_SECONDS
        self._profile: Profile | None = None  # not taken yet
        self._turn: Future[Profile] | None = None  # the last one, in the server's pool
        self._complaint = ""
        self._is_over = False  # the engine cannot be profiled here, or hung in it

    def step(self, now: float) -> float:
        """Profile it, if it is time for that; the seconds that took, 0 where nothing was done."""
        if self._canary.state != "steady" or self._is_over or self.is_running or now < self.next_at:
            return 0.0
        # Does the host's own work wait for what the canary runs on?
        is_crowded = self._canary.gives_way or not _OTHERS.isdisjoint(self._canary.last_tags)
        lack = self._memory.lack_for_round(PROFILER_BYTES) if self._memory is not None else ""
        if lack or is_crowded or self._canary.target.is_busy():
            self.next_at = now + _PUT_OFF_SECONDS
            if lack:
                self._complain(lack)
            return 0.0
        begin = time.monotonic()
        self._measure()
        took = time.monotonic() - begin
        pause = min(MAX_PAUSE, max(self._pause, took / self._share))
        self.next_at = now + jittered(pause)
        self._pause = EVERY_SECONDS
        return took

    def take_profile(self) -> Profile | None:
        """See :meth:`Background.take_profile`."""
        profile, self._profile = self._profile, None
        return profile

    def _measure(self) -> None:
        try:
            self._profile = self._worker.call(self._profile_in_turns, self._canary.timeout)
            self._complaint = ""
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            # It goes on, and what hung once may hang each time.
            self._is_over = True
            self._complain(f"no profile within {self._canary.timeout:g} s (timeout_seconds); not tried again")
            # A turn that comes later would be beside a run.
            pool = self._canary.pool
            if pool is not None and self._turn is not None and not self._turn.cancel():
                pool.lost_a_thread()
        except Unprofiled as error:
            self._is_over = True
            self._complain(str(error), logging.INFO)
        except BaseException as error:  # the target may be anyone's
            self._complain(_words(error))
        if not self.is_guest:
            give_back()  # a profiler's buffers are megabytes, and the next run's memory is measured
            if self._profile is not None:
                # Once without a profiler: the next run finds memory as each run does, and takes none of it anew.
                with suppress(Exception):  # the next run says what is wrong
                    self._worker.call(
                        lambda: self._canary.target.clock.measure(self._canary.target.run),
                        self._canary.timeout,
                    )
        self._worker.rest()

    def _profile_in_turns(self) -> Profile:
        """In the profile's thread; or in the server's pool, in one turn with as few repeats as a profile needs."""
        target, pool = self._canary.target, self._canary.pool
        if pool is None:
            return target.profile(REPEATS)
        if target.profiler == "second_model":
            raise Unprofiled(
                "its profiler loads the model once more, which would hold a thread of the server's pool"
            )
        self._turn = pool.submit(lambda: target.profile(_REPEATS_OF_A_TURN))
        return self._turn.result()

    def _complain(self, detail: str, level: int = logging.WARNING) -> None:
        if detail != self._complaint:  # once per change, not once per hour
            log.log(level, "canary %s: no profile: %s", self.canary, detail)
        self._complaint = detail


def profile_each(canaries: Sequence[Canary], trace: Path | None) -> dict[str, Profile | str]:
    """Profile canaries one after another, in the calling thread: for a person who waits for it.

    Args:
        canaries: Tried to be opened.
        trace: As in :meth:`~infercanary.probe.loop.Probe.profile`.

    Returns:
        Canary → its profile, or one line that says why there is none.
    """
    profiles: dict[str, Profile | str] = {}
    for canary in canaries:
        if not canary.is_open:
            profiles[canary.name] = "it could not be opened; the log says why"
            continue
        path = trace
        if trace is not None and len(canaries) > 1:
            path = trace.with_name(f"{trace.stem}.{canary.name}{trace.suffix}")
        try:
            profiles[canary.name] = canary.target.profile(REPEATS, path)
        except Exception as error:  # the target may be anyone's
            profiles[canary.name] = _words(error)
    return profiles


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, (Failure, Unprofiled)) else one_line(error)
