"""Profiled repeats: which operators a canary's time goes to, now and then, apart from the timed ones.

They come once a canary is steady, again ten minutes later, then hourly, from a share of the duty cap that is kept for
them (docs/adr/0023-profiled-repeats.md), and never while the host's own work waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from infercanary.contract.profile import Profile
from infercanary.contract.vocabulary import CPU_WAIT_INSIDE, GPU_BUSY
from infercanary.probe.background import Background
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, one_line
from infercanary.probe.memory import give_back
from infercanary.probe.pool import Pool
from infercanary.probe.schedule import jittered
from infercanary.probe.targets import Failure, Target, Unprofiled

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
        canary: The one that is profiled, while it is steady.
        target: The canary's.
        share: Of the time, that its profiles may take.
        timeout: Seconds that a profile may take.
        pool: The server's own; None to run in a thread of its own.
    """

    def __init__(
        self, canary: Canary, target: Target, share: float, timeout: float, pool: Pool | None = None
    ) -> None:
        super().__init__(canary, target, "profile", timeout, pool)
        self.is_guest = False
        """Whether the process is a server's, whose free memory is not given back."""
        self.next_at = 0.0
        """When the next one may begin (monotonic), once the canary is steady."""
        self._share = share
        self._pause = AGAIN_SECONDS
        self._profile: Profile | None = None  # not taken yet
        self._complaint = ""
        self._is_over = False  # the engine cannot be profiled here, or hung in it

    def is_due(self, now: float) -> bool:
        """Whether it is time for a profile."""
        is_ready = self._canary.state == "steady" and not self._is_over and not self.is_running
        return is_ready and now >= self.next_at

    def put_off(self, now: float, why: str = "") -> None:
        """Try again in a minute.

        Args:
            now: Seconds, monotonic.
            why: For the log, once; empty where the host's own work waits, which is no fault.
        """
        self.next_at = now + _PUT_OFF_SECONDS
        if why:
            self._complain(why)

    def step(self, now: float) -> float:
        """Profile it, if it is time for that; the seconds that took, 0 where nothing was done."""
        if not self.is_due(now):
            return 0.0
        # Does the host's own work wait for what the canary runs on?
        is_crowded = self._canary.gives_way or not _OTHERS.isdisjoint(self._canary.last_tags)
        if is_crowded or self._target.is_busy():
            self.put_off(now)
            return 0.0
        begin = time.monotonic()
        self._measure()
        took = time.monotonic() - begin
        pause = min(MAX_PAUSE, max(self._pause, took / self._share))
        self.next_at = now + jittered(pause)
        self._pause = EVERY_SECONDS
        return took

    def taken(self) -> Profile | None:
        """Take the profile that was made since the last call, if any: each is given once."""
        profile, self._profile = self._profile, None
        return profile

    def _measure(self) -> None:
        try:
            self._profile = self._worker.call(self._profile_in_turns, self._timeout)
            self._complaint = ""
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            # It goes on, and what hung once may hang each time.
            self._is_over = True
            self._complain(f"no profile within {self._timeout:g} s (timeout_seconds); not tried again")
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
                    self._worker.call(lambda: self._target.clock.measure(self._target.run), self._timeout)
        self._worker.rest()

    def _profile_in_turns(self) -> Profile:
        """In the profile's thread; or in the server's pool, in one turn with as few repeats as a profile needs."""
        target, pool = self._target, self._pool
        if pool is None:
            return target.profile(REPEATS)
        if target.profiler == "second_model":
            raise Unprofiled(
                "its profiler loads the model once more, which would hold a thread of the server's pool"
            )
        profile: Profile = pool.submit(lambda: target.profile(_REPEATS_OF_A_TURN)).result()
        return profile

    def _complain(self, detail: str, level: int = logging.WARNING) -> None:
        if detail != self._complaint:  # once per change, not once per hour
            log.log(level, "canary %s: no profile: %s", self.canary, detail)
        self._complaint = detail


def profile_each(
    canaries: Sequence[Canary], targets: Mapping[str, Target], trace: Path | None
) -> dict[str, Profile | str]:
    """Profile canaries one after another, in the calling thread: for a person who waits for it.

    Args:
        canaries: Tried to be opened.
        targets: Canary → target.
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
            profiles[canary.name] = targets[canary.name].profile(REPEATS, path)
        except Exception as error:  # the target may be anyone's
            profiles[canary.name] = _words(error)
    return profiles


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, (Failure, Unprofiled)) else one_line(error)
