"""What a start may differ by before its own service has shown it: learned from all services of a store.

Each service that was restarted has a restart SD of its own. How these are distributed is fitted as in limma (Smyth,
"Linear Models and Empirical Bayes Methods for Assessing Differential Expression in Microarray Experiments", 2004,
section 6.2): service variances are taken for draws of a scaled inverse chi-square, which is the conjugate prior of a
normal variance, so that a service's own restarts join it as they do the assumed one. Each service counts once, however
often it was restarted, and extremes are winsorized (as in Phipson, Lee, Majewski, Alexander and Smyth, "Robust
hyperparameter estimation protects against hypervariable genes", 2016): one in ten that is odd or lies does not change
all others' intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from scipy.special import polygamma, psi

from infercanary.judge.contention import uncontended
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.restarts import restarts_of
from infercanary.judge.shift import Restarts


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """A prior as it is stored. A verdict names the number of the one that it used; 0 is the policy's own."""

    number: int = 0
    sd: float = LIVE.pool.restart_sd
    df: float = LIVE.pool.restart_df
    services: int = 0
    """That it was learned from."""

    def of(self, policy: Policy) -> Policy:
        """The policy with this prior.

        Args:
            policy: The numbers that decide.

        Returns:
            The same policy for number 0, whose prior it has.
        """
        if not self.number:
            return policy
        return policy.but(restart_sd=self.sd, restart_df=self.df, prior=self.number)


def taught_by(
    starts: Sequence[Start], siblings: Sequence[Start] = (), policy: Policy = LIVE
) -> Restarts | None:
    """How much the starts of one service differ, without any prior.

    They are corrected for what siblings felt of the host, where that is known, and those that waited for others on the
    host are left out: a start in a contended hour is no sign that starts differ.

    Args:
        starts: Of the service, with the runs of one canary, in order of time.
        siblings: Starts of other services on the host.
        policy: The fewest runs of a start.

    Returns:
        None where no image was started again.
    """
    known = restarts_of(uncontended(starts, [], policy.pool), policy.pool)
    df = known.df - policy.pool.restart_df
    squares = known.df * known.sd**2 - policy.pool.restart_df * policy.pool.restart_sd**2
    return Restarts(math.sqrt(max(squares, 0.0) / df), df) if df > 0.5 else None


def learned(services: Iterable[Restarts], policy: Policy = LIVE) -> Prior | None:
    """The prior that these services show.

    It is a standard error wider than the fit, since few services show little, and its tail stays heavy.

    Args:
        services: What each taught by itself.
        policy: How many services it takes, and the bounds of what is believed.

    Returns:
        The prior, without a number; None where too few services were restarted: then the policy's own holds.
    """
    known = [service for service in services if service.df > 0]
    if len(known) < policy.pool.prior_services:
        return None
    halves = np.array([service.df / 2 for service in known])
    variances = np.maximum([service.sd for service in known], policy.pool.prior_least_sd) ** 2
    logs = np.sort(np.log(variances) - psi(halves) + np.log(halves))
    cut = max(1, int(policy.pool.prior_trimmed * len(known)))
    logs = logs.clip(logs[cut], logs[-1 - cut])
    spread = float(logs.var(ddof=1)) * policy.pool.prior_winsorized
    half = _inverse_trigamma(spread - float(polygamma(1, halves).mean()))
    middle = float(logs.mean()) + math.sqrt(spread / len(known))
    if math.isfinite(half):
        middle += float(psi(half)) - math.log(half)
    df = min(max(2 * half, policy.pool.prior_least_df), policy.pool.prior_most_df)
    return Prior(sd=max(math.exp(middle / 2), policy.pool.prior_least_sd), df=df, services=len(known))


def has_moved(known: Prior, now: Prior, policy: Policy = LIVE) -> bool:
    """Whether what was learned is worth another number.

    Args:
        known: The last one that was stored.
        now: What is learned now.
        policy: By how much it must differ.

    Returns:
        False for one that would change hardly any verdict.
    """
    most = math.log1p(policy.pool.prior_moved)
    return any(abs(math.log(a / b)) > most for a, b in ((now.sd, known.sd), (now.df, known.df)))


def _inverse_trigamma(value: float) -> float:
    """Where the trigamma function has this value; infinite for none above zero."""
    if value <= 1e-4:
        return math.inf
    low, high = 1e-3, 1e5
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if polygamma(1, middle) > value else (low, middle)
    return low
