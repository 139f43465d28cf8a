"""Profiled repeats: which operators a canary's time goes to, now and then, apart from the timed ones.

They come once a canary is steady, again ten minutes later, then hourly, from a share of the duty cap that is kept for
them (docs/adr/0023-profiled-repeats.md), and never while the host's own work waits.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from infercanary.contract.profile import Profile
from infercanary.contract.vocabulary import CPU_WAIT_INSIDE, GPU_BUSY
from infercanary.probe.canary import Canary
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, Worker, one_line
from infercanary.probe.pool import Pool
from infercanary.probe.shortage import give_back
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

MOST_REPEATS, LEAST_REPEATS = 5, 3
_OVERHEAD = 2  # repeats that an engine makes beside those that count, about
_PUT_OFF_SECONDS = 60.0
_JITTER = 0.1
_OTHERS = frozenset({CPU_WAIT_INSIDE, GPU_BUSY})  # tags of a run beside which requests wait


class Profiling:
    """Profiles one canary when its time has come, in a thread that ends after it (or hangs).

    Args:
        canary: The one that is profiled, while it is steady.
        target: The canary's.
        share: Of the time, that its profiles may take.
        timeout: Seconds that a profile may take.
        pool: The server's own; None to run in a thread of its own.
        rng: Where the jitter comes from, which keeps replicas apart; None for one of its own.
    """

    def __init__(
        self,
        canary: Canary,
        target: Target,
        share: float,
        timeout: float,
        pool: Pool | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.is_guest = False
        """Whether the process is a server's, whose free memory is not given back."""
        self._canary = canary
        self._target = target
        self._share = share
        self._timeout = timeout
        self._pool = pool
        self._rng = rng or random.Random()  # noqa: S311 - spreading load, not secrets
        self._worker = Worker(f"infercanary-{canary.name}-profile")
        self._taken = 0
        self._cost = 0.0  # of the last one; 0 before the first
        self._found: Profile | None = None  # not taken yet
        self._complaint = ""
        self._is_over = False  # the engine cannot be profiled here, or hung in it
        self.next_at = 0.0
        """When the next one may begin (monotonic), once the canary is steady."""

    @property
    def canary(self) -> str:
        """The name of the one that is profiled."""
        return self._canary.name

    @property
    def is_running(self) -> bool:
        """Whether a profile holds its thread. Between steps it is one that was given up and goes on: it disturbs."""
        return self._worker.is_busy

    def is_due(self, now: float) -> bool:
        """Whether it is time for a profile.

        Args:
            now: Seconds, monotonic.
        """
        due = now >= self.next_at and self._canary.state == "steady"
        return due and not (self._is_over or self.is_running)

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
        """Profile it, if it is time for that; the seconds that took, 0 where nothing was done.

        Args:
            now: Seconds, monotonic.

        Returns:
            Seconds.
        """
        if not self.is_due(now):
            return 0.0
        if self._is_waited_for():
            self.put_off(now)
            return 0.0
        begin = time.monotonic()
        self._profile(self._repeats())
        took = time.monotonic() - begin
        self._cost = took
        self._taken += 1
        pause = AGAIN_SECONDS if self._taken == 1 else EVERY_SECONDS
        pause = min(MAX_PAUSE, max(pause, took / self._share))
        self.next_at = max(self.next_at, now + pause * self._rng.uniform(1.0, 1.0 + _JITTER))
        return took

    def taken(self) -> Profile | None:
        """Take what was found since the last call: each profile is given once.

        Returns:
            The profile; None where there is none.
        """
        found, self._found = self._found, None
        return found

    def interrupt(self) -> None:
        """End the wait for the profile under way, now and from now on; callable from any thread."""
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Whether its thread ended within ``seconds``.

        Args:
            seconds: How long to wait.
        """
        ended = self._worker.stop(seconds)
        if not ended:
            log.warning("canary %s: its profiler still hangs; the thread ends with the process", self.canary)
        return ended

    def _is_waited_for(self) -> bool:
        """Whether the host's own work waits for what the canary runs on."""
        if self._canary.gives_way or not _OTHERS.isdisjoint(self._canary.last_tags):
            return True
        return self._target.is_busy()

    def _repeats(self) -> int:
        """As many as the budget of an hour holds, of three to five."""
        cost = self._canary.repeat_cost
        if cost <= 0:
            return MOST_REPEATS
        affordable = int(self._share * EVERY_SECONDS / cost) - _OVERHEAD
        return max(LEAST_REPEATS, min(MOST_REPEATS, affordable))

    def _profile(self, repeats: int) -> None:
        try:
            profile = self._worker.call(lambda: self._profiled(repeats), self._timeout)
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            # It goes on, and what hung once may hang each time.
            self._is_over = True
            self._complain(f"no profile within {self._timeout:g} s (timeout_seconds); not tried again")
        except Unprofiled as error:
            self._is_over = True
            self._complain(str(error), logging.INFO)
        except Failure as error:
            self._complain(str(error))
        except BaseException as error:  # the target may be anyone's
            self._complain(one_line(error))
        else:
            self._complaint = ""
            self._found = profile
        if not self.is_guest:
            give_back()  # a profiler's buffers are megabytes, and the next run's memory is measured
            self._repeat()
        self._worker.rest()

    def _repeat(self) -> None:
        """Once without a profiler: the next run finds memory as each run does, and takes none of it anew."""
        if self._found is None:
            return
        with suppress(Exception):  # the next run says what is wrong
            self._worker.call(lambda: self._target.clock.measure(self._target.run), self._timeout)

    def _profiled(self, repeats: int) -> Profile:
        """In the profile's thread; or in the server's pool, with as few repeats as a profile needs."""
        if self._pool is None:
            return self._target.profile(repeats)
        if self._target.profiler == "second_model":
            raise Unprofiled(
                "its profiler loads the model once more, which would hold a thread of the server's pool"
            )
        profile: Profile = self._pool.submit(lambda: self._target.profile(LEAST_REPEATS)).result()
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
    found: dict[str, Profile | str] = {}
    for canary in canaries:
        target = targets[canary.name]
        own = trace
        if trace is not None and len(canaries) > 1:
            own = trace.with_name(f"{trace.stem}.{canary.name}{trace.suffix}")
        if not canary.is_open:
            found[canary.name] = "it could not be opened; the log says why"
        else:
            try:
                found[canary.name] = target.profile(MOST_REPEATS, own)
            except Unprofiled as error:
                found[canary.name] = str(error)
            except Exception as error:  # the target may be anyone's
                found[canary.name] = one_line(error)
    return found
