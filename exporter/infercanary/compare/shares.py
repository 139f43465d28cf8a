"""Shares of the spread between hosts: one-way analysis of variance for each feature. Pure functions of numbers.

With few hosts and many features, a good fit by chance is likely. Latencies of hosts are seldom normal: often, some
hosts are fast and the others slow. So a permutation test over all features together decides (Westfall and Young,
"Resampling-Based Multiple Testing", 1993).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import ncfdtrinc

MOST_CHANCE = 0.05
_RIVAL = 2.0
_ASSIGNMENTS = 10_000


class Share(msgspec.Struct, frozen=True):
    """Share of the spread between hosts that a feature explains."""

    chance: float | None = None
    """Share of random assignments of hosts to latencies in which any feature fits at least as well; None for an
    untested feature.
    """
    share: float | None = None
    """Share of the variance, adjusted for the number of values (epsilon squared). None if the fit may be chance, or if
    another feature leaves less than twice the unexplained variance.
    """
    low: float | None = None
    high: float | None = None
    """Ends of the share's 95 % interval, by the noncentral F distribution."""


def shares_of(levels: Sequence[float], features: Sequence[Sequence[int]]) -> list[Share]:
    """Return the share of each feature.

    A feature is tested if at least two of its values occur at two or more hosts each, because a value of one host
    cannot be separated from this host's other properties.

    Args:
        levels: Logarithm of the latency by host.
        features: For each feature the number of its value, from 0, by host.
    """
    total = len(levels) - 1
    rows = np.tile(np.array(levels) - np.mean(levels), (_ASSIGNMENTS, 1))
    rows[1:] = np.random.default_rng(0).permuted(rows[1:], axis=1)
    rests = {}
    """Unexplained share of the variance, by feature and assignment."""
    for i, codes in enumerate(features):
        values = np.eye(max(codes) + 1)[[*codes]]
        hosts = values.sum(axis=0)
        if sum(hosts > 1) > 1:
            explained = np.square(rows @ values) @ (1 / hosts) / np.square(rows).sum(axis=1)
            rests[i] = np.maximum(1 - explained, 1e-9) * total / (total + 1 - len(hosts))
    shares = [Share()] * len(features)
    for i, rest in rests.items():
        own = float(rest[0])
        chance = float(np.mean(np.min([*rests.values()], axis=0) <= own * (1 + 1e-9)))
        shares[i] = Share(chance)
        if chance <= MOST_CHANCE and sum(each[0] < _RIVAL * own for each in rests.values()) == 1:
            between = max(features[i])
            within = total - between
            ends = ncfdtrinc(between, within, (0.975, 0.025), (total / own - within) / between)
            shares[i] = Share(chance, 1 - own, *(ends / (ends + len(levels))).tolist())
    return shares
