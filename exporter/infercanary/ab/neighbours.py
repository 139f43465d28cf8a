"""Selects the runs that count after other work on the host began or ended during an experiment. Pure functions.

A neighbour that uses the CPU for half a minute slows one start but not the next, whatever the image is. Contended
runs carry a tag. Contended runs are excluded only if both images have about the same share of them. Then the exclusion
favours neither image. An image that slows itself (more threads than CPUs) has more contended runs in every pair; then
all runs count. A run with CPU wait caused inside its own container always counts, because the image causes this wait.
Other processes on the host may have slowed this run as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TypeAlias

from scipy.special import stdtrit

from infercanary.contract.vocabulary import BY_OTHERS, CPU_WAIT_INSIDE
from infercanary.judge.model import Sample, Start
from infercanary.judge.policy import EXPERIMENT

StartPairs: TypeAlias = Sequence[tuple[Start, Start]]
"""Pairs in order of time: start of A and start of B, with their settled runs."""

_MORE = 0.05  # share of runs; a smaller difference between the sides' contended runs is ignored
_MOST = 0.5  # share of runs; the host is the cause if both sides have more contended runs
# Confidence of the difference. After a missed difference, contended runs are excluded. A false difference is less
# harmful, because all runs then count. So the confidence is low.
_LEVEL = 0.8


def is_quiet(sample: Sample) -> bool:
    """True if a run always counts: it was not contended, or its own container slowed it."""
    return CPU_WAIT_INSIDE in sample.tags or BY_OTHERS.isdisjoint(sample.tags)


def counted(pairs: StartPairs) -> tuple[StartPairs, Sequence[str]]:
    """Return the pairs with either all runs or only the uncontended runs, and a remark on excluded runs.

    Args:
        pairs: One or more pairs.
    """
    if len(pairs) < 2:
        return pairs, ()  # a single pair cannot show a difference between the sides
    quiet = [(_quiet(a), _quiet(b)) for a, b in pairs]
    shares = [
        [1 - len(kept.samples) / len(start.samples) for start, kept in zip(*both, strict=True)]
        for both in zip(pairs, quiet, strict=True)
    ]
    a, b = map(fmean, zip(*shares, strict=True))
    if not a + b:
        return pairs, ()
    if min(a, b) < _MOST and _differ([b - a for a, b in shares]):
        return pairs, [
            f"{100 * a:.0f} % of A's runs and {100 * b:.0f} % of B's were contended, in most pairs; "
            "the image itself may cause that, so all runs count"
        ]
    fewest = EXPERIMENT.pool.fewest_runs
    kept = [pair for pair in quiet if all(len(start.samples) >= fewest for start in pair)]
    if 2 * len(kept) < len(pairs):
        return pairs, ["most runs were contended; all runs count, and the result is less certain"]
    before, after = (sum(len(start.samples) for pair in side for start in pair) for side in (pairs, kept))
    return kept, [f"{before - after} of {before} runs excluded: contended"]


def _differ(differences: Sequence[float]) -> bool:
    """True if the sides' shares of contended runs differ by more than the scatter between pairs."""
    n = len(differences)
    error = stdev(differences) / math.sqrt(n)
    return abs(fmean(differences)) > max(_MORE, float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * error)


def _quiet(start: Start) -> Start:
    return Start(start.generation, [sample for sample in start.samples if is_quiet(sample)])
