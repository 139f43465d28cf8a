"""Restart variance: the variance between starts of one image, learned from earlier restarts.

Until a service has been restarted, its restart variance is estimated from all services of a store. The variances of
services are modelled as draws from a scaled inverse chi-square distribution, the conjugate prior of a normal variance
(as in limma: Smyth, "Linear Models and Empirical Bayes Methods for Assessing Differential Expression in Microarray
Experiments", 2004). So the prior combines with a service's own restarts. The prior is based on the median service:
one unusual service in ten changes the SD by less than a fifth (``benchmarks/priors.py``).
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
    """A stored prior of the restart variance. Number 0 is the policy's assumed prior."""

    number: int = 0
    sd: float = LIVE.pool.restart_sd

    @property
    def changes(self) -> dict[str, float]:
        """Policy fields that this prior changes, by name."""
        return {"restart_sd": self.sd, "prior": self.number}


def restarts_of(starts: Iterable[Start], pool: Pool = LIVE.pool) -> Restarts:
    """Learn the restart variance from the last runs of each start.

    A replica's starts have the same container and image. Restarted pods may have new names: then a container with a new
    name continues a replica that ended before the new container had enough runs.

    Args:
        starts: Starts of one service with the runs of one canary.
        pool: Prior, and limits that select starts and runs.

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
    """Learn the restart variance from the first runs of all starts except ``last``, including later starts.

    A drift in later runs would increase the restart variance and so hide itself. So later runs do not count.

    Args:
        last: Newest start of the container whose drift is tested.
        starts: Starts of its service with the runs of one canary.
    """
    opening = 48  # number of first runs, which take two to eight minutes
    others = uncontended(starts, [], pool)
    return restarts_of((start.first(opening) for start in others if start is not last), pool)


def taught_by(starts: Sequence[Start], pool: Pool) -> Restarts | None:
    """Return the restart variance of one service, estimated without a prior.

    Contended starts are left out, because their differences are not due to restarts.

    Returns:
        None if no image was started twice.
    """
    nothing = replace(pool, restart_df=1e-9)
    taught = restarts_of(uncontended(starts, [], pool), nothing)
    return taught if taught.df > 0.5 else None


def learned(services: Sequence[Restarts]) -> Prior | None:
    """Return the prior learned from the restart variances of services. The prior has no number yet.

    The prior's SD is one standard error larger than the estimate, because few services are weak evidence. The prior
    has the degrees of freedom of the policy, so its tail is heavy.

    Returns:
        None if there are fewer than eight services.
    """
    if len(services) < 8:  # fewer services are too weak evidence
        return None
    sds, dfs = np.array(services).T
    # A service's variance divided by the prior's has an F distribution, so divide by the median of this distribution.
    # An SD below .2 % counts as .2 %.
    logs = np.log(np.maximum(sds, 0.002) / np.sqrt(fdtri(dfs, LIVE.pool.restart_df, 0.5)))
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    return Prior(sd=math.exp(middle + (high - low) / math.sqrt(len(services))))
