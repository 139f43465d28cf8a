"""Selects the runs that count if other work on the host began or ended during an experiment. Pure functions.

A neighbour that uses the CPU for half a minute slows one start but not the next, whatever the image is. Contended
runs carry a tag. They are excluded only if both images have about the same share of contended runs, because the
exclusion then favours neither image. An image that slows itself (more threads than CPUs) has more contended runs in
every pair; then all runs count. A run with CPU wait caused inside its own container always counts, even if other
processes on the host slowed the run as well, because the image causes this wait.
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
"""(start of A, start of B) for each pair, with settled runs, in order of time."""

_MORE = 0.05  # share of runs; a smaller difference between the sides' contended runs is ignored
_MOST = 0.5  # share of runs; if both sides have more contended runs than this, the host is the cause
# Confidence of the difference. It is low, because a missed difference is worse: contended runs are then excluded. A
# false difference only makes all runs count.
_LEVEL = 0.8


def is_quiet(sample: Sample) -> bool:
    """True if a run always counts, because it was not contended, or because its own container slowed it."""
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
    """True if the scatter between pairs does not explain the difference in contended runs between the sides."""
    n = len(differences)
    error = stdev(differences) / math.sqrt(n)
    return abs(fmean(differences)) > max(_MORE, float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * error)


def _quiet(start: Start) -> Start:
    return Start(start.generation, [sample for sample in start.samples if is_quiet(sample)])
