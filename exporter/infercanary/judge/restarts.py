"""How much starts of one image differ: what a restart alone may do, learned from those that there were."""

from __future__ import annotations

from collections.abc import Iterable

from infercanary.judge import statistics
from infercanary.judge.causes import Start
from infercanary.judge.statistics import FEWEST, Restarts


def restarts_of(starts: Iterable[Start]) -> Restarts:
    """As far as the last runs of ``starts`` tell, each of which may be a baseline."""
    return statistics.learn([[s.latest.medians for s in group] for group in _by_image(starts)])


def restarts_before(last: Start, starts: Iterable[Start]) -> Restarts:
    """As far as was known when ``last`` began, by how the other ``starts`` began.

    A drift within a start is nothing that restarts do: learned from, it would excuse itself.
    """
    others = (start for start in starts if start is not last)
    return statistics.learn([[s.opening.medians for s in group] for group in _by_image(others)])


def _by_image(starts: Iterable[Start]) -> list[list[Start]]:
    """Those with enough runs, of each image of each container, in order of time."""
    groups: dict[tuple[str, str], list[Start]] = {}
    for start in starts:
        if len(start.samples) >= FEWEST:
            groups.setdefault((start.generation.container, start.generation.image_key), []).append(start)
    return [*groups.values()]
