"""The judge's own A/A test: tried on restarts of one image, where nothing changed and each call is a false alarm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
    siblings: Sequence[Start] = (),
    known: Trials = MappingProxyType({}),
    most: float = math.inf,
    policy: Policy = LIVE,
) -> Trials:
    """The judge tried on each start of an image whose container had started it before.

    Each is tried with what was known then: an unusual restart that already counts in the restart variance would excuse
    itself. What was known then does not change, and so a trial is made anew only where its start reached another look.

    Args:
        starts: Of a service, in order of time.
        siblings: Starts of other services on the host.
        known: Earlier trials.
        most: New trials in one call, because each costs as much as a judgement.
        policy: The numbers that decide.

    Returns:
        All trials so far.
    """
    left = most
    found: dict[tuple[str, str], Trial] = {}
    earlier: dict[tuple[str, ...], list[Start]] = {}
    for place, start in enumerate(starts):
        before = earlier.setdefault((start.generation.container, *start.work), [])
        looks = sum(runs <= len(start.samples) for runs in policy.decide.looks)
        is_open = start.boot not in known or known[start.boot].looks < looks
        least = min(policy.pool.trial_runs, policy.decide.looks[-1])
        if is_open and left > 0 and before and min(len(before[-1].samples), len(start.samples)) >= least:
            left -= 1
            is_called = _is_called(starts[:place], start, siblings, policy)
            found[start.boot] = Trial(looks, is_called)
        elif start.boot in known:
            found[start.boot] = known[start.boot]
        before.append(start)
    return found


def _is_called(past: Sequence[Start], start: Start, siblings: Sequence[Start], policy: Policy) -> bool:
    """Whether ``start`` would be called a change if its image were another one."""
    g = start.generation
    after = Start(msgspec.structs.replace(g, image_id=f"{g.image_key}, tried"), start.samples)
    before = [earlier for earlier in past if earlier.work == start.work]
    upgrade = Upgrade(g.started_at, before, [after], [])
    return Finder(policy).find(Selection([*past, after], upgrade, [after])).state in CHANGED
