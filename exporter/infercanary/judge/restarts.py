"""The restart variance: by how much starts of one image differ, learned from those that there were.

Before a service has shown its own, it is learned from all services of a store. Service variances are taken for draws of
a scaled inverse chi-square, which is the conjugate prior of a normal variance (as in limma: Smyth, "Linear Models and
Empirical Bayes Methods for Assessing Differential Expression in Microarray Experiments", 2004), so that a service's own
restarts join it as they do the assumed one. Each service counts once, however often it was restarted, and the median
counts: one in ten that is odd or lies changes the SD by less than a fifth (``benchmarks/priors.py``).
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
        """The numbers of a policy with this prior."""
        return {"restart_sd": self.sd, "prior": self.number}


def restarts_of(starts: Iterable[Start], pool: Pool = LIVE.pool) -> Restarts:
    """Learn from the last runs of each start, which may be a baseline.

    A replica is a container of one image or, where pods come back under new names, several: a new one takes the place
    of one that ended before the new one's runs were enough, and that no other one replaced.

    Args:
        starts: Of one service, with the runs of one canary.
        pool: The prior, and which runs of a start are a baseline.

    Returns:
        The prior with what they add; the prior alone where no image was started again.
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
    """Learn from the first runs of all ``starts`` but ``last``, those that began later included.

    A drift within a start is not what restarts do: learned from, it would excuse itself.

    Args:
        last: The newest start of the container whose drift is asked for.
        starts: Of its service, with the runs of one canary.
        pool: The prior.

    Returns:
        The prior with what they add.
    """
    opening = 48  # runs: two to eight minutes
    others = uncontended(starts, [], pool)
    return restarts_of((start.first(opening) for start in others if start is not last), pool)


def taught_by(starts: Sequence[Start], pool: Pool) -> Restarts | None:
    """How much the starts of one service differ, without any prior.

    Contended starts are left out: a start in a contended hour is no sign that starts differ.

    Args:
        starts: Of the service, with the runs of one canary, in order of time.
        pool: Which runs count.

    Returns:
        None where no image was started again.
    """
    nothing = replace(pool, restart_df=1e-9)
    taught = restarts_of(uncontended(starts, [], pool), nothing)
    return taught if taught.df > 0.5 else None


def learned(services: Sequence[Restarts]) -> Prior | None:
    """The prior that these services show.

    It is a standard error wider than the fit, since few services show little. Its degrees of freedom are the policy's:
    its tail stays heavy, however alike the services are.

    Args:
        services: What each taught by itself.

    Returns:
        The prior, without a number; None where too few services were restarted: then the policy's own holds.
    """
    if len(services) < 8:  # fewer show little
        return None
    sds, dfs = np.array(services).T
    # A service's variance over the prior's is an F variable: each is divided by that one's median. No SD is below .2 %.
    logs = np.log(np.maximum(sds, 0.002) / np.sqrt(fdtri(dfs, LIVE.pool.restart_df, 0.5)))
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    return Prior(sd=math.exp(middle + (high - low) / math.sqrt(len(services))))
