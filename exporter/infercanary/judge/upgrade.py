"""Stage 1: select the last upgrade of a service, that is which starts had the new image and which the one before.

An image stands for what runs: new weights in the same image are another one (:attr:`~.model.Start.identity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from infercanary.judge.identity import SettingsChange, comparable, identified
from infercanary.judge.model import ENVIRONMENT, Generation, Start, Upgrade
from infercanary.judge.policy import LIVE, Policy


class Selection(NamedTuple):
    """The starts of a service in order of time, and its last upgrade; None where there was none."""

    starts: Sequence[Start]
    upgrade: Upgrade | None
    live: Sequence[Start]
    """The live starts of the new image; without an upgrade, of the service."""
    rolled_back: Start | None = None
    """A start of the last new image, if that was rolled back."""
    settings: SettingsChange | None = None
    """Since when the canary has the settings of today; None where it had no others."""


def select(starts: Sequence[Start], policy: Policy) -> Selection:
    """The last upgrade of a service, and which of its starts are live.

    Args:
        starts: Of one service and canary, in order of time.
        policy: When a start counts, and when a container is not live any more.

    Returns:
        Live are starts of the new image; without an upgrade, of any.
    """
    starts = identified(starts)
    starts, settings = comparable(starts, live_starts(starts, policy))
    upgrade, rolled_back = _last(starts, policy)
    live = live_starts(upgrade.after if upgrade else starts, policy)
    return Selection(starts, upgrade, live, rolled_back, settings)


def live_starts(starts: Sequence[Start], policy: Policy = LIVE) -> list[Start]:
    """The newest start of each container that still runs, in order of time as ``starts`` are.

    There is no clock here: a container that still runs does not fall behind the others. Where all stand still, all of
    them count. One that is known to have ended does not, unless all have.

    Args:
        starts: Of one service, in order of time.
        policy: When a container is not live any more.

    Returns:
        At most one start a container; none only where there are no starts.
    """
    newest: dict[str, Start] = {}
    for start in reversed(starts):
        newest.setdefault(start.generation.container, start)
    left = [start for start in newest.values() if not start.generation.ended_at] or [*newest.values()]
    now = max(map(_last_run, left), default=0.0)
    return [start for start in reversed(left) if _runs_until(start, policy) >= now]


def last_upgrade(starts: Sequence[Start], policy: Policy = LIVE) -> Upgrade | None:
    """The last change of image or model among ``starts`` (in order of time), whichever replica came first.

    New weights in the same image are an upgrade as a new image is. Starts with other settings of the canary than those
    of today are left out.

    A new image was rolled back if its containers are all gone, and others of the service go on: then it is the change
    before that one. One that is over and never had enough runs to be compared is skipped: what came after it is
    compared with what was before.

    Args:
        starts: Of one service and canary.
        policy: When a start counts, and when a container is not live any more.

    Returns:
        The starts of both images; None where no image that is live replaced another one.
    """
    return select(starts, policy).upgrade


def _last(starts: Sequence[Start], policy: Policy) -> tuple[Upgrade | None, Start | None]:
    """The last upgrade, and a start of the last new image if that was rolled back since."""
    fewest = policy.pool.fewest_runs
    left = {start.identity for start in live_starts(starts, policy)}
    first = next((i for i, start in enumerate(starts) if len(start.samples) >= fewest), len(starts))
    known = left | {start.identity for start in starts if len(start.samples) >= fewest}
    starts = [*starts[:first], *(start for start in starts[first:] if start.identity in known)]
    newest: dict[str, Start] = {}
    until: dict[str, float] = {}  # when those of the newest stop that still ran when the last one began
    ends: list[tuple[float, str]] = []  # the same as a heap, with what was since replaced
    running: Counter[str] = Counter()  # by identity
    events: list[tuple[int, str, str]] = []
    for index, start in enumerate(starts):
        g = start.generation
        before = newest.get(g.container)
        if before is not None:
            replaced = before.identity
        else:  # another name for a replica: new only where no live start has its image
            while ends and ends[0][0] < g.started_at:
                end, name = heappop(ends)
                if until.get(name) == end:
                    del until[name]
                    running[newest[name].identity] -= 1
            if running[start.identity] or not newest:
                replaced = start.identity
            elif until:
                replaced = next(s.identity for name, s in reversed(newest.items()) if name in until)
            else:
                replaced = sorted(newest.values(), key=_last_run)[-1].identity
        if replaced != start.identity:
            events.append((index, replaced, start.identity))
        if before is not None and g.container in until:
            running[before.identity] -= 1
        newest[g.container] = start
        until[g.container] = _runs_until(start, policy)
        running[start.identity] += 1
        heappush(ends, (until[g.container], g.container))
    rolled_back = None
    while events and events[-1][2] not in left:
        rolled_back = rolled_back or starts[events[-1][0]]
        events.pop()
    if not events:
        return None, rolled_back
    image = events[-1][2]
    last = [*takewhile(lambda event: event[2] == image, reversed(events))]
    first = last[-1][0]
    # What most containers ran: one that tried another image in between is compared with what it ran before that.
    containers = Counter(replaced for _, replaced, _ in last)
    runs = {name: sum(len(s.samples) for s in starts if s.identity == name) for name in containers}
    replaced = max(containers, key=lambda name: (containers[name], runs[name]))
    upgrade = Upgrade(
        starts[first].generation.started_at,
        [s for s in starts if s.identity == replaced],
        [s for s in starts[first:] if s.identity == image],
        [s for s in starts[:first] if s.identity == image],
    )
    return upgrade, rolled_back


def image_name(generation: Generation | None) -> str:
    """What people call the image: its reference, and enough of the id to distinguish two of one tag.

    Args:
        generation: A start of it; None gives an empty text.
    """
    if generation is None:
        return ""
    kind, _, rest = generation.image_key.partition(":")
    if kind == ENVIRONMENT:
        return f"{kind} {rest[:12]}"
    short = generation.image_key.removeprefix("sha256:")[:12]
    named = generation.image and not generation.image.startswith("sha256:")
    return f"{generation.image} ({short})" if named else short


def _last_run(start: Start) -> float:
    if start.last_at is not None:
        return start.last_at
    return start.samples[-1].started_at if start.samples else start.generation.started_at


def _runs_until(start: Start, policy: Policy) -> float:
    if start.generation.ended_at:
        return start.generation.ended_at
    recent = start.samples[-policy.pool.pace_runs :]
    pace = (recent[-1].started_at - recent[0].started_at) / (len(recent) - 1) if len(recent) > 1 else 0.0
    return _last_run(start) + max(policy.pool.gone_seconds, policy.pool.gone_runs * pace)
