"""Upgrade: selects the last upgrade of a service, with the starts of the old and the new image.

In this module, "image" means image and model: the same image with new weights is another image
(:attr:`~.model.Start.identity`).
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
    """Starts of a service in order of time, and the service's last upgrade."""

    starts: Sequence[Start]
    upgrade: Upgrade | None
    """The last upgrade; None if there was none."""
    live: Sequence[Start]
    """Live starts of the new image, or of the service if there was no upgrade."""
    rolled_back_image: str = ""
    """Name of the last new image, if it was rolled back."""
    settings_changed_at: float | None = None
    """Unix time of the last change of the canary's settings; None if there was none."""


def select(starts: Sequence[Start]) -> Selection:
    """Select the last change of image or model in any replica.

    Starts with other settings of the canary are left out. A new image was rolled back if all its containers are gone
    while other containers of the service still run. Then the change before this image is selected. An image is ignored
    if its containers are gone and none had enough runs.

    Args:
        starts: Starts of one service and canary, in order of time.
    """
    starts = identified(starts)
    live = live_starts(starts)
    starts, settings_changed_at = comparable(starts, live)
    left = {start.identity for start in live}
    known = left | {start.identity for start in starts if len(start.samples) >= LIVE.pool.fewest_runs}
    # The first start counts even with few runs, because there is no earlier image.
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
    # The old image is the image that most containers ran. If one container tried another image in between, that image
    # is not the old image.
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

    The judge has no clock, so a container counts as running if its last run is recent compared with those of other
    containers. A start that is known to have ended counts only if all starts have ended.

    Args:
        starts: Starts of one service, in order of time.
    """
    newest = {start.generation.container: start for start in starts}.values()
    left = [start for start in newest if not start.generation.ended_at] or newest
    # If the host's clock is slow, a start may seem to have ended before its last run.
    now = max((min(_last_run(start), _runs_until(start)) for start in left), default=0.0)
    live = (start for start in left if _runs_until(start) >= now)
    return sorted(live, key=lambda start: start.generation.started_at)


def _replaced(starts: Sequence[Start]) -> dict[int, str]:
    """Return the identity of the replaced image, by the index of the start that replaced it."""
    found = {}
    newest: dict[str, str] = {}  # identity of each container's last start
    until: dict[str, float] = {}  # end of the starts of each identity; the newest identity is last
    for place, start in enumerate(starts):
        image, container = start.identity, start.generation.container
        replaced = newest.get(container, image)
        running = [name for name, end in until.items() if end >= start.generation.started_at]
        if container not in newest and until and image not in running:
            # A container with a new name is an upgrade only if no running start has its image.
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
