"""Profiled repeats: a canary's time by operator, measured rarely and separately from the timed repeats.

A canary is profiled when it becomes steady, again after ten minutes, and then hourly. A share of the duty cap is
reserved for profiles (docs/adr/0023-profiled-repeats.md). No profile starts while the server's own work waits.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from infercanary.contract.profile import Profile, work
from infercanary.contract.report import Metric
from infercanary.contract.vocabulary import CPU_WAIT_INSIDE, GPU_BUSY
from infercanary.probe.background import MAX_PAUSE, Background
from infercanary.probe.canary import Canary
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import DeadlineExceeded, Interrupted, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.memory import give_back
from infercanary.probe.schedule import jittered
from infercanary.probe.targets import Failure, Unprofiled
from infercanary.probe.watcher import Memory

FLOPS = Metric(
    "infercanary_inference_flops",
    "gauge",
    "Floating-point operations of one inference, by the last profile; a lower bound.",
    ("canary",),
    reading="Divided by `infercanary_run_median_seconds`: the reached arithmetic. `infercanary doctor --limits` "
    "measures the ceiling. Missing if less than 80 % of the operators' time has known work.",
)
BYTES = Metric(
    "infercanary_inference_bytes",
    "gauge",
    "Bytes that the operators of one inference read and write, by the last profile; a lower bound.",
    ("canary",),
    reading="Divided by `infercanary_run_median_seconds`: the reached bandwidth; see `infercanary_inference_flops`.",
)

SHARE = 0.05
"""Share of the duty cap for profiles: with a cap of 1 %, this is 1.8 s an hour, or five repeats of 300 ms."""

AGAIN_SECONDS = 600.0
EVERY_SECONDS = 3600.0

PROFILER_BYTES = 64 << 20
"""Memory that torch's profiler takes for a short time: 47 MiB for five repeats of ResNet-18."""

REPEATS = 5
_REPEATS_OF_A_TURN = 3  # few repeats in the server's pool, because requests wait meanwhile
_OTHERS = frozenset({CPU_WAIT_INSIDE, GPU_BUSY})  # tags of runs during which requests or other GPU users wait


class Profiling(Background):
    """Profiles one canary when a profile is due, in a thread that ends after the profile (or hangs).

    Args:
        share: Share of the time that the profiles may take.
        tally: Storage of the metrics.
        memory: Checked before each profile.
    """

    def __init__(self, canary: Canary, share: float, tally: Tally, memory: Memory) -> None:
        super().__init__(canary, "profile")
        self._memory = memory
        self._tally = tally
        self._share = share
        self._pause = AGAIN_SECONDS
        self._turn: Future[Profile] | None = None  # last turn of a profile in the server's pool
        self._complaint = Complaint(f"canary {self.canary}: no profile")

    def step(self, now: float) -> float:
        """Profile the canary if a profile is due. Return the seconds that the profile took; 0 without a profile."""
        if self._canary.state != "steady" or self.is_running or now < self.next_at:
            return 0.0
        # True if the server's own work waits for the CPU or GPU that the canary uses.
        is_crowded = self._canary.gives_way or not _OTHERS.isdisjoint(self._canary.last_tags)
        if lack := self._memory.lack_for_round(PROFILER_BYTES):
            self._complaint.set(lack)
        if lack or is_crowded or self._canary.target.is_busy():
            self.put_off(now)
            return 0.0
        begin = time.monotonic()
        is_possible = self._measure()
        took = time.monotonic() - begin
        pause = min(MAX_PAUSE, max(self._pause, took / self._share))
        self.next_at = now + jittered(pause) if is_possible else math.inf
        self._pause = EVERY_SECONDS
        return took

    def _measure(self) -> bool:
        """Profile the canary. False if the next attempt would also fail."""
        is_possible = True
        try:
            self.profile = self._worker.call(self._profile_in_turns, self._canary.timeout)
            self._complaint.set("")
            for metric, amount in zip((FLOPS, BYTES), work(self.profile) or (), strict=False):
                self._tally.set(metric, amount, self.canary)
        except Interrupted:
            return True
        except DeadlineExceeded:
            # The call continues. A profile that hung once may hang each time.
            is_possible = False
            self._complaint.set(f"none within {self._canary.timeout:g} s (timeout_seconds); not tried again")
            # Cancel the turn, because a later turn could overlap a run.
            pool = self._canary.pool
            if pool is not None and self._turn is not None and not self._turn.cancel():
                pool.lost_a_thread()
        except Unprofiled as error:
            is_possible = False
            self._complaint.set(str(error), logging.INFO)
        except BaseException as error:  # the target may be a user's code, which may raise any exception
            self._complaint.set(_words(error))
        if not self.is_guest:
            give_back()  # release the profiler's buffers: these megabytes would count in the next run's memory
            if self.profile is not None:
                # Run once without a profiler, so that the next run finds its memory already allocated, as other runs
                # do.
                with suppress(Exception):  # the next run will report the same error
                    self._worker.call(
                        lambda: self._canary.target.clock.measure(self._canary.target.run),
                        self._canary.timeout,
                    )
        return is_possible

    def _profile_in_turns(self) -> Profile:
        """Profile in this thread. With a server's pool, profile in one turn of the pool with fewer repeats."""
        target, pool = self._canary.target, self._canary.pool
        if pool is None:
            return target.profile(REPEATS)
        if target.profiler == "second_model":
            raise Unprofiled(
                "the profiler loads the model a second time, which would block a thread of the server's pool"
            )
        self._turn = pool.submit(lambda: target.profile(_REPEATS_OF_A_TURN))
        return self._turn.result()


def profile_each(canaries: Sequence[Canary], trace: Path | None) -> dict[str, Profile | str]:
    """Profile canaries one after another in the calling thread, while a user waits for the result.

    Args:
        canaries: Canaries after an attempt to open them.
        trace: As in :meth:`~infercanary.probe.loop.Probe.profile`.

    Returns:
        Canary → its profile, or one line with the reason why there is none.
    """
    profiles: dict[str, Profile | str] = {}
    for canary in canaries:
        if not canary.is_open:
            profiles[canary.name] = "the canary could not be opened; the log says why"
            continue
        path = trace
        if trace is not None and len(canaries) > 1:
            path = trace.with_name(f"{trace.stem}.{canary.name}{trace.suffix}")
        try:
            profiles[canary.name] = canary.target.profile(REPEATS, path)
        except Exception as error:  # the target may be a user's code, which may raise any exception
            profiles[canary.name] = _words(error)
    return profiles


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, (Failure, Unprofiled)) else one_line(error)
