"""The judge's own A/A test: tried on restarts of one image, where nothing changed and each call is a false alarm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import msgspec

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
    earlier: dict[tuple[str, ...], Start] = {}
    for place, start in enumerate(starts):
        container = start.generation.container, *start.work
        before, earlier[container] = earlier.get(container), start
        trial = known.get(start.boot)
        looks = sum(runs <= len(start.samples) for runs in policy.decide.looks)
        is_open = trial is None or trial.looks < looks
        if is_open and most > 0 and before and min(len(before.samples), len(start.samples)) >= fewest:
            most -= 1
            trial = Trial(looks, _is_called(starts[:place], start, policy))
        if trial is not None:
            found[start.boot] = trial
    return found


def _is_called(past: Sequence[Start], start: Start, policy: Policy) -> bool:
    """Whether ``start`` would be called a change if its image were another one."""
    generation = start.generation
    image = f"{generation.image_key}, tried"
    after = replace(start, generation=msgspec.structs.replace(generation, image_id=image))
    upgrade = Upgrade(
        generation.started_at, [earlier for earlier in past if earlier.work == start.work], [after], []
    )
    return Finder(policy).find(Selection([*past, after], upgrade, [after])).state in CHANGED
