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
from typing import NamedTuple

from scipy.special import stdtrit

from infercanary.contract.vocabulary import BY_OTHERS, CPU_WAIT_INSIDE
from infercanary.judge.model import Sample, Start
from infercanary.judge.policy import EXPERIMENT

_MORE = 0.05  # of the runs: a smaller difference in contended runs is none
_MOST = 0.5  # of the runs: with more of them contended in both, it is the host
_LEVEL = 0.8  # confidence of that difference; low, because counting all runs is the safer error


class Counted(NamedTuple):
    """The pairs of starts with the runs that count, and a note on those that do not."""

    pairs: Sequence[tuple[Start, Start]]
    note: str = ""


def is_quiet(sample: Sample) -> bool:
    """Return whether it counts in any case: no other work on the host slowed it, or its own container did too.

    Args:
        sample: One run.
    """
    return CPU_WAIT_INSIDE in sample.tags or BY_OTHERS.isdisjoint(sample.tags)


def counted(pairs: Sequence[tuple[Start, Start]]) -> Counted:
    """Return the runs that count.

    Args:
        pairs: (A's start, B's start), each with its settled runs in order of time.

    Returns:
        Pairs, with all of their runs or with the uncontended ones.
    """
    shares = [tuple(_contended(start) for start in pair) for pair in pairs]
    if not any(max(pair, default=0.0) for pair in shares):
        return Counted(pairs)
    a, b = map(fmean, zip(*shares, strict=True))
    if min(a, b) < _MOST and _differ([b - a for a, b in shares]):
        return Counted(
            pairs,
            f"{100 * a:.0f} % of A's runs and {100 * b:.0f} % of B's had to wait for others, in most pairs; "
            "the image itself may cause that, so all runs count",
        )
    kept = [
        (a, b)
        for a, b in ((_quiet(a), _quiet(b)) for a, b in pairs)
        if min(len(a.samples), len(b.samples)) >= EXPERIMENT.pool.fewest_runs
    ]
    if 2 * len(kept) < len(pairs):
        return Counted(
            pairs,
            "most runs waited for other work on this host; all runs count, and the result is less certain",
        )
    before, after = (sum(len(start.samples) for pair in each for start in pair) for each in (pairs, kept))
    dropped = len(pairs) - len(kept)
    less = f", and with them {dropped} of {len(pairs)} pairs" if dropped else ""
    return Counted(
        kept,
        f"{before - after} of {before} runs that waited for other work on this host are left out{less}",
    )


def _differ(differences: Sequence[float]) -> bool:
    """Return whether one side has more of them, beyond the scatter between pairs."""
    mean = fmean(differences)
    if (n := len(differences)) < 2:
        return abs(mean) > 0.5
    se = stdev(differences) / math.sqrt(n)
    return abs(mean) > max(_MORE, float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * se)


def _contended(start: Start) -> float:
    return sum(not is_quiet(s) for s in start.samples) / len(start.samples) if start.samples else 0.0


def _quiet(start: Start) -> Start:
    return Start(start.generation, [s for s in start.samples if is_quiet(s)])
