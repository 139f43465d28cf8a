"""Restart variance: how much starts of one image differ, learned from earlier restarts.

Until a service has restarts of its own, it is learned from all services of a store. Service variances are modelled as
draws of a scaled inverse chi-square, the conjugate prior of a normal variance (as in limma: Smyth, "Linear Models and
Empirical Bayes Methods for Assessing Differential Expression in Microarray Experiments", 2004), so a service's own
restarts combine with it. Each service counts once, and the median counts: one odd service in ten changes the SD by
less than a fifth (``benchmarks/priors.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

import msgspec
import numpy as np
from scipy.special import fdtri

from infercanary.judge.align import grouped
from infercanary.judge.contention import uncontended
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE, Pool
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import learn


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """A prior as it is stored; number 0 is the policy's own."""

    number: int = 0
    sd: float = LIVE.pool.restart_sd

    @property
    def changes(self) -> dict[str, float]:
        """Changes of a policy that apply this prior."""
        return {"restart_sd": self.sd, "prior": self.number}


def restarts_of(starts: Iterable[Start], pool: Pool = LIVE.pool) -> Restarts:
    """Learn the restart variance from the last runs of each start.

    A replica is one container of an image. If pods come back under new names, it is several: a new one replaces one
    that ended before the new one had enough runs and that nobody replaced yet.

    Args:
        starts: Starts of one service with the runs of one canary.
        pool: Prior, and which runs of a start are a baseline.

    Returns:
        The prior alone if no image was started twice.
    """
    long = (start for start in starts if len(start.samples) >= pool.fewest_runs)
    replicas: list[list[Start]] = []
    for group in grouped(long, attrgetter("replica")).values():
        ready = group[0].times[pool.fewest_runs - 1]
        ended = [
            replica
            for replica in replicas
            if replica[-1].times[-1] < ready and replica[0].work == group[0].work
        ]
        if ended:
            ended[-1].extend(group)
        else:
            replicas.append(group)
    return learn([[s.latest(pool.baseline_runs).series for s in starts] for starts in replicas], pool)


def restarts_before(last: Start, starts: Sequence[Start], pool: Pool) -> Restarts:
    """Learn the restart variance from the first runs of all starts but ``last``, even of those that began later.

    A drift within a start is no restart variance: it would excuse itself.

    Args:
        last: Newest start of the container whose drift is tested.
        starts: Starts of its service with the runs of one canary.
    """
    opening = 48  # runs: two to eight minutes
    others = uncontended(starts, [], pool)
    return restarts_of((start.first(opening) for start in others if start is not last), pool)


def taught_by(starts: Sequence[Start], pool: Pool) -> Restarts | None:
    """Return the restart variance of one service without a prior; None if no image was started twice.

    Contended starts are left out: their difference is not due to the restart.
    """
    nothing = replace(pool, restart_df=1e-9)
    taught = restarts_of(uncontended(starts, [], pool), nothing)
    return taught if taught.df > 0.5 else None


def learned(services: Sequence[Restarts]) -> Prior | None:
    """Return the prior that these services teach, without a number; None for too few services.

    It is one standard error wider than the fit, because few services are weak evidence. Its degrees of freedom are
    the policy's, so its tail stays heavy.
    """
    if len(services) < 8:  # fewer are too weak
        return None
    sds, dfs = np.array(services).T
    # A service's variance over the prior's is an F variable: divide by its median. No SD is below .2 %.
    logs = np.log(np.maximum(sds, 0.002) / np.sqrt(fdtri(dfs, LIVE.pool.restart_df, 0.5)))
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    return Prior(sd=math.exp(middle + (high - low) / math.sqrt(len(services))))
