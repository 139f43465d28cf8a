"""How long each change of level survives when changes cost more and more: robust segmentation of one series. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from infercanary.judge.policy import Policy
from infercanary.judge.resolution import Floats

_BLOCK = 1024  # steps whose costs are in memory at a time; of those before only a bit a level remains


def persistence(logs: Floats, scale: float, policy: Policy) -> Floats:
    """The largest penalty at which the best segmentation still has a change near each point.

    A segmentation costs the sum over its points of the squared distance to their segment's level, in units of
    ``scale`` and at most the square of ``scan_loss_cap``, and a penalty for each change: the biweight loss of Fearnhead
    and Rigaill ("Changepoint Detection in the Presence of Outliers", JASA 2019). An outlier costs no more than a change
    of level that it is not worth. Theirs prunes functions; here levels lie on a grid, so that the exact optimum on it
    is a few operations on an array for every few points, for all penalties beside each other.

    Args:
        logs: The series, as logarithms.
        scale: SD of its noise as far as neighbours differ, in the same unit and above zero.
        policy: The grid, the stride, the cap, the penalties, and what is near.

    Returns:
        For each point the penalty in units of ln(number of points); 0 where even the smallest leaves no change near.
    """
    penalties = policy.drift.scan_penalties
    lasting = np.zeros(logs.size)
    for penalty, cuts in zip(penalties, _segmented(logs, scale, penalties, policy), strict=True):
        for cut in cuts:
            lasting[max(0, cut - policy.drift.scan_near) : cut + policy.drift.scan_near + 1] = penalty
    return lasting


def _segmented(logs: Floats, scale: float, penalties: Sequence[float], policy: Policy) -> list[list[int]]:
    """Where segments begin, but for the first; for each penalty."""
    stride = policy.drift.scan_stride
    grid = _levels(logs, scale, policy)
    y, levels = (logs / scale).astype(np.float32), (grid / scale).astype(np.float32)
    cap = np.float32(policy.drift.scan_loss_cap**2)
    most = np.array([[penalty * math.log(logs.size)] for penalty in penalties], dtype=np.float32)
    steps = -(-logs.size // stride)
    best = np.empty((steps, len(penalties)), dtype=np.int32)
    left = np.empty((steps, len(penalties), -(-grid.size // 8)), dtype=np.uint8)
    # What a level costs beyond the cheapest one, before each step: a penalty at most, as one may change to it.
    beyond = np.empty((min(_BLOCK, steps), len(penalties), grid.size), dtype=np.float32)
    costs = np.zeros(beyond.shape[1:], dtype=np.float32)
    least = np.empty((len(penalties), 1), dtype=np.float32)
    for begin in range(0, steps, _BLOCK):
        part = y[begin * stride : (begin + _BLOCK) * stride]
        each = np.minimum((part[:, None] - levels) ** 2, cap)
        losses = np.add.reduceat(each, np.arange(0, part.size, stride), axis=0)
        for row, loss in zip(beyond, losses, strict=False):
            np.minimum.reduce(costs, axis=1, out=least, keepdims=True)
            np.subtract(costs, least, out=costs)
            np.minimum(costs, most, out=row)
            np.add(row, loss, out=costs)
        filled = beyond[: len(losses)]
        best[begin : begin + len(losses)] = filled.argmin(axis=2)
        left[begin : begin + len(losses)] = np.packbits(filled >= most, axis=2)
    last = costs.argmin(axis=1)
    traced = (_traced(best[:, i], left[:, i], int(last[i])) for i in range(len(penalties)))
    return [[stride * cut for cut in cuts] for cuts in traced]


def _traced(best: NDArray[np.int32], left: NDArray[np.uint8], level: int) -> list[int]:
    """The changes of the cheapest segmentation, from its last level back."""
    cuts: list[int] = []
    end = len(best)
    while end > 1:
        begin = max(1, end - _BLOCK)
        byte, bit = divmod(level, 8)
        changed = np.flatnonzero(left[begin:end, byte] & (128 >> bit))
        if changed.size:
            end = begin + int(changed[-1])
            cuts.append(end)
            level = int(best[end])
        else:
            end = begin
    return cuts[::-1]


def _levels(logs: Floats, scale: float, policy: Policy) -> Floats:
    """Evenly spaced, a part of the noise apart; where those are too many, most of them lie where the points do."""
    low, high = float(logs.min()), float(logs.max())
    count = int((high - low) / (scale * policy.drift.scan_level_step)) + 2
    most = policy.drift.scan_levels
    if count <= most:
        return np.linspace(low, high, count)
    return np.unique(
        np.concatenate(
            (
                np.linspace(low, high, most // 4),
                np.quantile(logs, np.linspace(0, 1, most - most // 4)),
            )
        )
    )
