"""The last runs of each canary, in short: what the status page draws."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from infercanary.contract.report import Run
from infercanary.contract.vocabulary import Outcome
from infercanary.judge.policy import LIVE, Policy

WAITING_SECONDS = 600.0
"""Latest runs of so long show how much of the latency is waiting: a shorter contention does not count."""
_RUNS = 120
_CANARIES = 16


class RunSummary(msgspec.Struct, frozen=True, gc=False):
    """One run. Latencies in seconds, over the run's repeats; None where no repeat ended."""

    canary: str
    started_at: float
    outcome: Outcome
    detail: str
    median: float | None
    low: float | None
    high: float | None
    waited: float | None = None
    """How much the median is higher for waiting for CPUs that others on the host had; None where unknown."""


def summarise(run: Run) -> RunSummary:
    """``run`` in short. No percentile: a run has too few repeats for one.

    Args:
        run: Checked.

    Returns:
        Median, least and most in seconds; None without latencies.
    """
    latencies = sorted(run.latencies)
    return RunSummary(
        sys.intern(run.canary),
        run.started_at,
        run.outcome,
        run.detail[:500],
        median(latencies) if latencies else None,
        latencies[0] if latencies else None,
        latencies[-1] if latencies else None,
        run.waited,
    )


def waiting_share(runs: Sequence[RunSummary], policy: Policy = LIVE) -> float | None:
    """How much of a canary's latency is waiting for CPUs that others on the host have.

    Args:
        runs: Of one canary, in order of time.
        policy: Of how long, and of how many runs at least.

    Returns:
        Share from 0 to 1, of the medians of the latest runs; None where too few of these say it.
    """
    since = runs[-1].started_at - WAITING_SECONDS if runs else 0.0
    known = [
        (run.waited, run.median)
        for run in runs
        if run.started_at >= since and run.waited is not None and run.median
    ]
    if len(known) < policy.pool.fewest_new_runs:
        return None
    return min(1.0, sum(waited for waited, _ in known) / sum(latency for _, latency in known))


def baseline(runs: Sequence[RunSummary], policy: Policy = LIVE, judged: int = 0) -> str:
    """How far the baseline of a canary is that was not upgraded yet.

    Args:
        runs: Of one canary and start, in order of time.
        policy: How many runs a baseline has.
        judged: Number of runs that the judge knew at its last look, also of earlier starts and of other replicas.

    Returns:
        Such as ``baseline 11 of 24 runs, about 2 min left``, by the pace of the latest runs.
    """
    own = sum(run.outcome == "ok" for run in runs)
    count = max(own, judged)
    missing = policy.pool.full_baseline_runs - count
    if missing <= 0:
        return f"baseline complete: {policy.pool.full_baseline_runs} runs or more; an upgrade can be judged"
    others = ", with those of earlier starts and other replicas" if count > own else ""
    return f"baseline {count} of {policy.pool.full_baseline_runs} runs{others}{time_left(missing, runs)}"


def time_left(missing: int, runs: Sequence[RunSummary]) -> str:
    """How long a canary takes for some more runs.

    Args:
        missing: So many.
        runs: Of one canary and start, in order of time.

    Returns:
        Such as ``, about 2 min left``; an empty text where fewer than two runs ended well, or none is missing.
    """
    times = [run.started_at for run in runs if run.outcome == "ok"]
    gaps = [after - before for before, after in pairwise(times[-12:])]
    if not gaps or missing <= 0:
        return ""
    seconds = missing * max(0.0, median(gaps))
    return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


class History:
    """The last runs of each of the canaries seen last, bounded in both."""

    def __init__(self) -> None:
        self.canaries: dict[str, deque[RunSummary]] = {}

    def take(self, summaries: Iterable[RunSummary]) -> None:
        """Add ``summaries``, oldest first.

        Args:
            summaries: Of any canaries.
        """
        for summary in summaries:
            runs = self.canaries.pop(summary.canary, None) or deque(maxlen=_RUNS)
            if runs and runs[-1].detail:  # of the last one alone it is shown
                runs[-1] = msgspec.structs.replace(runs[-1], detail="")
            runs.append(summary)
            self.canaries[summary.canary] = runs
            if len(self.canaries) > _CANARIES:
                del self.canaries[next(iter(self.canaries))]
