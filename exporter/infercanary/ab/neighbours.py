"""Decides which runs count when other work on the host came and went during an experiment. Pure.

A neighbour that takes the CPU for half a minute slows one start and not the next, whatever the images. Contended runs
carry a tag. They are left out if that cannot favour an image: if both images had about as many of them. An
image that slows itself (more threads than CPUs) has more of them in every pair; then all runs count. A run
that waited for others in its own container counts, whatever else slowed it: that is the image's doing.
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
"""(A's start, B's start), each with its settled runs, in order of time."""

_MORE = 0.05  # of the runs: a smaller difference in contended runs is none
_MOST = 0.5  # of the runs: with more of them contended in both, it is the host
_LEVEL = 0.8  # confidence of that difference; low, because counting all runs is the safer error


def is_quiet(sample: Sample) -> bool:
    """Return whether a run counts in any case: it was not contended, or its own container slowed it too."""
    return CPU_WAIT_INSIDE in sample.tags or BY_OTHERS.isdisjoint(sample.tags)


def counted(pairs: StartPairs) -> tuple[StartPairs, Sequence[str]]:
    """Return the pairs with the runs that count, all or the uncontended ones, and a remark on the others.

    Args:
        pairs: At least one.
    """
    if len(pairs) < 2:
        return pairs, ()  # it shows nothing by itself
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
    """Return whether one side has more contended runs, beyond the scatter between pairs."""
    n = len(differences)
    error = stdev(differences) / math.sqrt(n)
    return abs(fmean(differences)) > max(_MORE, float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * error)


def _quiet(start: Start) -> Start:
    return Start(start.generation, [sample for sample in start.samples if is_quiet(sample)])
