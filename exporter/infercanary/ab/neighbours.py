"""Which runs count, where neighbours came and went during an experiment. Pure.

A neighbour that takes the CPU for half a minute hits one start and misses the next: that says nothing of the images.
Runs that a neighbour disturbed carry a tag; they are left out where that cannot favour an image, that is where both
images had as many of them, as far as the pairs tell. An image that disturbs itself (more threads than CPUs) has more
of them in every pair: then all runs count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from infercanary.contract.vocabulary import BY_OTHERS
from infercanary.judge.causes import Start
from infercanary.judge.model import Sample
from infercanary.judge.statistics import FEWEST

_MORE = 0.05  # of the runs: by less the images do not differ in how many are disturbed
_MOST = 0.5  # of the runs: with more of them disturbed in both, it is the host
_LEVEL = 0.8  # of the interval around that difference: rather count all than favour one


class Counted(NamedTuple):
    """For each pair its two starts, with the runs that count; and in words what does not, if anything."""

    pairs: Sequence[tuple[Start, Start]]
    left_out: int = 0
    """Runs."""
    pairs_left_out: int = 0
    note: str = ""


def is_quiet(sample: Sample) -> bool:
    """Whether no neighbour disturbed it."""
    return BY_OTHERS.isdisjoint(sample.tags)


def counted(pairs: Sequence[tuple[Start, Start]]) -> Counted:
    """The runs that count of pairs (A's start, B's start), each with its settled runs in order of time."""
    shares = [tuple(_disturbed(start) for start in pair) for pair in pairs]
    if not any(max(pair, default=0.0) for pair in shares):
        return Counted(pairs)
    a, b = (math.fsum(side) / len(shares) for side in zip(*shares, strict=True))
    if min(a, b) < _MOST and _differ([b - a for a, b in shares]):
        return Counted(
            pairs,
            note=f"{100 * a:.0f} % of A's runs and {100 * b:.0f} % of B's had to wait for others, in pair after pair; "
            "that may be the image's own doing, so all runs count",
        )
    quiet = [tuple(_quiet(start) for start in pair) for pair in pairs]
    kept = [(a, b) for a, b in quiet if min(len(a.samples), len(b.samples)) >= FEWEST]
    if 2 * len(kept) < len(pairs):
        return Counted(
            pairs, note="others on this host kept most runs waiting; all runs count, and tell less"
        )
    before = sum(len(start.samples) for pair in pairs for start in pair)
    left_out = before - sum(len(start.samples) for pair in kept for start in pair)
    dropped = len(pairs) - len(kept)
    less = f", and with them {dropped} of {len(pairs)} pairs" if dropped else ""
    return Counted(
        kept,
        left_out,
        dropped,
        f"{left_out} of {before} runs that others on this host kept waiting are left out{less}",
    )


def _differ(differences: Sequence[float]) -> bool:
    """Whether one side has more of them in pair after pair."""
    n = len(differences)
    mean = math.fsum(differences) / n
    if n < 2:
        return abs(mean) > 0.5
    se = math.sqrt(math.fsum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    return abs(mean) > max(_MORE, float(stdtrit(n - 1, (1 + _LEVEL) / 2)) * se)


def _disturbed(start: Start) -> float:
    return sum(not is_quiet(s) for s in start.samples) / len(start.samples) if start.samples else 0.0


def _quiet(start: Start) -> Start:
    return Start(start.generation, [s for s in start.samples if is_quiet(s)])
