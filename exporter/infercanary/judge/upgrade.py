"""Upgrade: selects the last upgrade of a service, with the starts of the new image and of the one before.

New weights in the same image are another image here (:attr:`~.model.Start.identity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from infercanary.judge.identity import comparable, identified, image_name
from infercanary.judge.model import Start, Upgrade
from infercanary.judge.policy import LIVE


class Selection(NamedTuple):
    """Starts of a service in order of time, and its last upgrade; None if there was none."""

    starts: Sequence[Start]
    upgrade: Upgrade | None
    live: Sequence[Start]
    """Live starts of the new image; without an upgrade, of the service."""
    rolled_back_image: str = ""
    """Name of the last new image, if it was rolled back."""
    settings_changed_at: float | None = None
    """Unix time of the last change of the canary's settings; None if there was none."""


def select(starts: Sequence[Start]) -> Selection:
    """Select the last change of image or model, in whichever replica it came first.

    Starts with other settings of the canary are left out. A new image whose containers are all gone, while others of
    the service go on, was rolled back: then the change before it is selected. An image that is gone and never had
    enough runs is skipped.

    Args:
        starts: Starts of one service and canary, in order of time.
    """
    starts = identified(starts)
    live = live_starts(starts)
    starts, settings_changed_at = comparable(starts, live)
    left = {start.identity for start in live}
    known = left | {start.identity for start in starts if len(start.samples) >= LIVE.pool.fewest_runs}
    # Nothing was before the first start, so it counts even if it is short.
    judged = [start for place, start in enumerate(starts) if not place or start.identity in known]
    replaced = _replaced(judged)
    places = [*replaced]
    rolled_back = ""
    while places and judged[places[-1]].identity not in left:
        gone = judged[places.pop()].generation
        rolled_back = rolled_back or image_name(gone)
    selection = Selection(starts, None, live, rolled_back, settings_changed_at)
    if not places:
        return selection
    new = judged[places[-1]].identity
    places = [*takewhile(lambda place: judged[place].identity == new, reversed(places))]
    # The image that most containers ran: one that tried another image in between is compared with its image before.
    containers = Counter(replaced[place] for place in places)
    old = max(
        containers,
        key=lambda image: (containers[image], sum(len(s.samples) for s in judged if s.identity == image)),
    )
    first = places[-1]
    upgrade = Upgrade(
        judged[first].generation.started_at,
        [start for start in judged if start.identity == old],
        [start for start in judged[first:] if start.identity == new],
        [start for start in judged[:first] if start.identity == new],
    )
    return selection._replace(upgrade=upgrade, live=[start for start in live if start.identity == new])


def live_starts(starts: Sequence[Start]) -> list[Start]:
    """Return the newest start of each container that still runs, in order of time.

    There is no clock here: a running container keeps up with the others, and if all stand still, all count. A start
    that is known to have ended counts only if all have.

    Args:
        starts: Starts of one service, in order of time.
    """
    newest = {start.generation.container: start for start in starts}.values()
    left = [start for start in newest if not start.generation.ended_at] or newest
    # With a slow host clock, a start may have ended before its last run.
    now = max((min(_last_run(start), _runs_until(start)) for start in left), default=0.0)
    live = (start for start in left if _runs_until(start) >= now)
    return sorted(live, key=lambda start: start.generation.started_at)


def _replaced(starts: Sequence[Start]) -> dict[int, str]:
    """Return the replaced image's identity for each start that replaced another image, by its place."""
    found = {}
    newest: dict[str, str] = {}  # identity of each container's last start
    until: dict[str, float] = {}  # end of the starts of each identity; the newest identity is last
    for place, start in enumerate(starts):
        image, container = start.identity, start.generation.container
        replaced = newest.get(container, image)
        running = [name for name, end in until.items() if end >= start.generation.started_at]
        if container not in newest and until and image not in running:
            # A new container name: an upgrade only if no running start has its image.
            replaced = (running or sorted(until, key=until.__getitem__))[-1]
        if replaced != image:
            found[place] = replaced
        newest[container] = image
        until[image] = max(until.pop(image, 0.0), _runs_until(start))
    return found


def _last_run(start: Start) -> float:
    return (start.last_run or start.generation).started_at


def _runs_until(start: Start) -> float:
    return start.generation.ended_at or _last_run(start) + max(
        LIVE.pool.gone_seconds, LIVE.pool.gone_runs * start.pace
    )
