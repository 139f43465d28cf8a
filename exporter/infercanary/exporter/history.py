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
"""Averaging time of CPU wait, seconds. Over this time, a short contention counts little."""
_RUNS = 120
_CANARIES = 16


class RunSummary(msgspec.Struct, frozen=True, gc=False):
    """Summary of one run. Latencies are in seconds; None if no repeat finished."""

    started_at: float
    outcome: Outcome
    detail: str
    median: float | None
    low: float | None
    high: float | None
    waited: float | None = None
    """Part of the median that is CPU wait caused by other processes on the host, seconds; None if unknown."""


def summarise(run: Run) -> RunSummary:
    """Summarise a run. A run has too few repeats for percentiles."""
    latencies = run.latencies
    middle = median(latencies) if latencies else None
    low, high = min(latencies, default=None), max(latencies, default=None)
    return RunSummary(run.started_at, run.outcome, run.detail, middle, low, high, run.waited)


def waiting_share(runs: Sequence[RunSummary]) -> float:
    """Return the share of a canary's latency that is CPU wait caused by other processes on the host.

    Args:
        runs: One or more runs of one canary, in order of time.

    Returns:
        Share from 0 to 1, computed over the medians of the latest runs; NaN if too few runs measured CPU wait.
    """
    since = runs[-1].started_at - _WAITING_SECONDS
    latest = [run for run in runs if run.started_at >= since and run.waited is not None and run.median]
    if len(latest) < LIVE.pool.fewest_new_runs:
        return math.nan
    return min(1.0, sum(run.waited or 0.0 for run in latest) / sum(run.median or 0.0 for run in latest))


class History(dict[str, deque[RunSummary]]):
    """Last runs of each canary, for limited numbers of runs and canaries."""

    def take(self, runs: Iterable[Run]) -> None:
        """Add runs of one or more canaries, in order of time."""
        for run in runs:
            summaries = self.pop(run.canary, None) or deque(maxlen=_RUNS)
            if summaries and summaries[-1].detail:  # the page has only the last run's reason
                summaries[-1] = msgspec.structs.replace(summaries[-1], detail="")
            summaries.append(summarise(run))
            self[run.canary] = summaries
            if len(self) > _CANARIES:
                del self[next(iter(self))]
