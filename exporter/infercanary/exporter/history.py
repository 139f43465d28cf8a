"""Summaries of the last runs of each canary, for the status page."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from infercanary.contract.report import Run
from infercanary.contract.vocabulary import Outcome
from infercanary.judge.policy import LIVE

_WAITING_SECONDS = 600.0
"""CPU wait is averaged over this time: a shorter contention does not count."""
_RUNS = 120
_CANARIES = 16


class RunSummary(msgspec.Struct, frozen=True, gc=False):
    """One run. Latencies in seconds, over the run's repeats; None where no repeat ended."""

    started_at: float
    outcome: Outcome
    detail: str
    median: float | None
    low: float | None
    high: float | None
    waited: float | None = None
    """CPU wait in the median, caused by other processes on the host; None if unknown."""


def summarise(run: Run) -> RunSummary:
    """Summarise a run. No percentile: a run has too few repeats for one."""
    latencies = run.latencies
    middle = median(latencies) if latencies else None
    low, high = min(latencies, default=None), max(latencies, default=None)
    return RunSummary(run.started_at, run.outcome, run.detail, middle, low, high, run.waited)


def waiting_share(runs: Sequence[RunSummary]) -> float:
    """Share of a canary's latency that is CPU wait caused by other processes on the host.

    Args:
        runs: Runs of one canary, one or more, in order of time.

    Returns:
        Share from 0 to 1, of the medians of the latest runs; NaN if too few runs measured it.
    """
    since = runs[-1].started_at - _WAITING_SECONDS
    latest = [run for run in runs if run.started_at >= since and run.waited is not None and run.median]
    if len(latest) < LIVE.pool.fewest_new_runs:
        return math.nan
    return min(1.0, sum(run.waited or 0.0 for run in latest) / sum(run.median or 0.0 for run in latest))


class History(dict[str, deque[RunSummary]]):
    """The last runs of each of the canaries seen last, bounded in both."""

    def take(self, runs: Iterable[Run]) -> None:
        """Add ``runs`` of any canaries, oldest first."""
        for run in runs:
            summaries = self.pop(run.canary, None) or deque(maxlen=_RUNS)
            if summaries and summaries[-1].detail:  # a reason is shown of the last run alone
                summaries[-1] = msgspec.structs.replace(summaries[-1], detail="")
            summaries.append(summarise(run))
            self[run.canary] = summaries
            if len(self) > _CANARIES:
                del self[next(iter(self))]
