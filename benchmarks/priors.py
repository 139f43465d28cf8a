"""Measures how far false reports distort the learned prior of the restart variance.

The script simulates honest services, whose restart variances follow a scaled inverse chi-square distribution, and adds
services that report a restart SD of 55 % or of zero. A false alarm is an unchanged service whose difference between
starts is beyond the prior's 99 % interval.
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
    """Result of one trial: the prior's restart SD, and the share of false alarms."""

    sd: float
    false: float


def trial(rng: np.random.Generator, services: int, tail: float, liars: int, claimed: float) -> Found:
    """Simulate one fleet, and learn its prior.

    Args:
        services: Number of honest services.
        tail: Degrees of freedom of the distribution of restart variances.
        liars: Number of services with a false report.
        claimed: Restart SD in a false report.
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
    print("| honest | tail | liars | SD, % | false alarms, % |\n|---:|---:|---|---|---|")
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
