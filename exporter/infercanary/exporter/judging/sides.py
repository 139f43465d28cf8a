"""Which of a service's starts a verdict is about: by that one knows whether it is about what runs now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infercanary.exporter.judging.action import Boot
from infercanary.judge.model import Start
from infercanary.judge.upgrade import select


class Sides(NamedTuple):
    """The newest start of each container that is not known to have ended, by container and boot id."""

    new: frozenset[Boot] = frozenset()
    """Of the image that the verdict is about."""
    old: frozenset[Boot] = frozenset()
    """Of the image that it is compared with."""
    others: frozenset[Boot] = frozenset()
    """Of any other one; without an upgrade, all of them."""


def sides(starts: Sequence[Start]) -> Sides:
    """The newest starts of a canary by side of its last upgrade.

    One that made no run for long is among them: it may be busy, and whether it runs is for others to say.

    Args:
        starts: Of one service and canary, identified, in order of time.

    Returns:
        At most one start a container.
    """
    newest = {start.generation.container: start for start in starts}
    left = [start for start in newest.values() if not start.generation.ended_at]
    upgrade = select(starts).upgrade
    if upgrade is None:
        return Sides(others=frozenset(start.boot for start in left))
    new, old = ({start.identity for start in side} for side in (upgrade.after, upgrade.before))
    return Sides(
        new=frozenset(start.boot for start in left if start.identity in new),
        old=frozenset(start.boot for start in left if start.identity in old),
        others=frozenset(start.boot for start in left if start.identity not in new | old),
    )
