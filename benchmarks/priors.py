"""Measures the learned prior of the restart variance if some services report false values.

``python benchmarks/priors.py`` draws services whose restart variances follow a scaled inverse chi-square distribution.
Liars among them report a restart SD that is much too large or zero. A false alarm is a difference beyond the prior's
99 % interval.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t

from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import learned
from infercanary.judge.shift import Restarts

LIES = {"none": 0.0, "wide": 0.55, "narrow": 0.0}
TYPICAL_SD, TRIALS, NEW = 0.0085, 300, 2000


class Found(NamedTuple):
    """Result of one trial."""

    sd: float
    false: float


def trial(rng: np.random.Generator, services: int, tail: float, liars: int, claimed: float) -> Found:
    """One fleet.

    Args:
        rng: Draws.
        services: Honest ones.
        tail: Degrees of freedom of how their SDs differ.
        liars: Services beside them.
        claimed: The SD that these claim.

    Returns:
        What it learns, and the share of unchanged services that would be called.
    """

    def sds(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return TYPICAL_SD * np.sqrt(tail / rng.chisquare(tail, count))

    dfs = rng.integers(2, 9, services)
    own = sds(services) * np.sqrt(rng.chisquare(dfs) / dfs)
    shown = [Restarts(float(sd), float(df)) for sd, df in zip(own, dfs, strict=True)]
    prior = learned([*shown, *[Restarts(claimed, 5.0)] * liars])
    assert prior is not None
    differences = np.abs(rng.normal(0, 1, NEW) * sds(NEW))
    return Found(prior.sd, float((differences > t.ppf(0.995, LIVE.pool.restart_df) * prior.sd).mean()))


def main() -> None:
    """Print a table: medians over the trials, and the middle 90 %."""
    print("| honest | tail | liars | SD, % | called, % |\n|---:|---:|---|---|---|")
    for services in (20, 100):
        for tail in (1.5, 3.0):
            for lie, share in (("none", 0.0), ("wide", 0.1), ("wide", 0.2), ("narrow", 0.1), ("narrow", 0.2)):
                liars = round(share * services / (1 - share))
                rng = np.random.default_rng([services, int(10 * tail), liars])
                found = [trial(rng, services, tail, liars, LIES[lie]) for _ in range(TRIALS)]
                cells = []
                for values in zip(*found, strict=True):
                    low, middle, high = 100 * np.quantile(values, (0.05, 0.5, 0.95))
                    cells.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]")
                print(f"| {services} | {tail:g} | {liars} {lie} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
