"""The judge's own A/A test: tried on restarts of one image, where nothing changed and each call is a false alarm."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from infercanary.judge.finding import Finder
from infercanary.judge.model import Start, Upgrade
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import CHANGED
from infercanary.judge.upgrade import Selection


class Trial(NamedTuple):
    """The judge was tried on a restart of one image, after so many looks, and called a change or did not."""

    looks: int
    called: bool


Trials: TypeAlias = Mapping[tuple[str, str], Trial]
"""By the container and the boot id of the start that was tried."""


def trials(
    starts: Sequence[Start],
    known: Mapping[tuple[str, str], Trial] = {},
    most: float = math.inf,
    policy: Policy = LIVE,
) -> Trials:
    """The judge tried on each start of an image whose container had started it before.

    Each is tried with what was known then: an unusual restart that already counts in the restart variance would excuse
    itself. What was known then does not change, and so a trial is made anew only where its start reached another look.

    Args:
        starts: Of a service, in order of time.
        known: Earlier trials.
        most: New trials in one call, because each costs as much as a judgement.
        policy: The numbers that decide.

    Returns:
        All trials so far.
    """
    fewest = 24  # runs of both starts: a trial of fewer seldom calls anything
    found: dict[tuple[str, str], Trial] = {}
    earlier: dict[tuple[str, ...], int] = {}
    for place, start in enumerate(starts):
        container, runs = (start.generation.container, *start.work), len(start.samples)
        before, earlier[container] = earlier.get(container, 0), runs
        trial = known.get(start.boot, Trial(0, False))
        looks = bisect_right(policy.decide.looks, runs)
        if trial.looks < looks and most > 0 and min(before, runs) >= fewest:
            most -= 1
            past, after = starts[:place], start.reporting(image_id="tried")
            same = [other for other in past if other.work == start.work]
            upgrade = Upgrade(start.generation.started_at, same, [after], [])
            tried = Finder(policy).find(Selection([*past, after], upgrade, [after]))
            trial = Trial(looks, tried.state in CHANGED)
        if trial.looks:
            found[start.boot] = trial
    return found
