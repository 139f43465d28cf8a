"""How much of what is kept is read at once: a judgement is to fit into memory, whatever a probe reported."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class StartSize(NamedTuple):
    """Bytes of a start, as it is kept."""

    own: int
    environment: Hashable
    """Which one it is: starts that share it have it once."""
    environment_bytes: int


def fair(wanted: Iterable[int], total: int) -> int:
    """The most that each may have, so that all together have no more than ``total`` (max-min fairness).

    Args:
        wanted: What each wants.
        total: What there is.

    Returns:
        A bound: who wants less has what it wants.
    """
    sizes = [*wanted]
    if sum(sizes) <= total:
        return total
    sizes.sort()
    left = total
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return total


def first_that_fits(starts: Sequence[StartSize], total: int) -> int:
    """From which start on all fit, the last one in any case.

    Args:
        starts: In order of time.
        total: Bytes.

    Returns:
        An index; that of the first start where all fit.
    """
    known: set[Hashable] = set()
    for place in range(len(starts) - 1, -1, -1):
        one = starts[place]
        total -= one.own + (0 if one.environment in known else one.environment_bytes)
        known.add(one.environment)
        if total < 0:
            return min(place + 1, len(starts) - 1)
    return 0


def ends(count: int, size: int, share: int) -> tuple[int, int]:
    """How many of the first and of the last runs of a start fit into a share: what it began with and what it came to.

    Args:
        count: Of its runs.
        size: Bytes of all.
        share: Bytes that it may have.

    Returns:
        Two numbers of runs, which make all where those fit.
    """
    fitting = count if size <= share else count * share // size
    return fitting // 2, fitting - fitting // 2
