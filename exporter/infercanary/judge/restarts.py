"""The restart variance: by how much starts of one image differ, learned from those that there were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infercanary.judge.host import undisturbed
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import learn


def restarts_of(starts: Iterable[Start], policy: Policy = LIVE) -> Restarts:
    """As far as the last runs of ``starts`` show, each of which may be a baseline.

    Args:
        starts: Of one service, with the runs of one canary.
        policy: The prior, and which runs of a start are a baseline.

    Returns:
        The prior with what they add; the prior alone where no image was started again.
    """
    groups = _by_image(starts, policy)
    return learn([[s.latest(policy.baseline_runs).series(policy) for s in group] for group in groups], policy)


def restarts_before(last: Start, starts: Sequence[Start], policy: Policy = LIVE) -> Restarts:
    """As far as was known when ``last`` began, by how the other ``starts`` began.

    A drift within a start is not what restarts do: learned from, it would excuse itself.

    Args:
        last: The start that does not count.
        starts: Of its service, with the runs of one canary.
        policy: The prior, and how many runs are the beginning of a start.

    Returns:
        The prior with what they add.
    """
    groups = _by_image((start for start in undisturbed(starts, [], policy) if start is not last), policy)
    return learn([[s.first(policy.opening_runs).series(policy) for s in group] for group in groups], policy)


def _by_image(starts: Iterable[Start], policy: Policy) -> list[list[Start]]:
    """Those with enough runs, of each image of each container, in order of time."""
    groups: dict[tuple[str, ...], list[Start]] = {}
    for start in starts:
        if len(start.samples) >= policy.fewest_runs:
            groups.setdefault((start.generation.container, *start.work), []).append(start)
    return [*groups.values()]
