"""Which rows of the store are kept: at first every run, later block medians, then hours.

The judge looks at the first runs of a start, at the last ones, and, where a latency drifts, at the first day of an
image: these stay.

Counts decide and not ages, since a clock that jumps must not cost a baseline. The few things that do need an age use
that of the store: how long exporters have watched, whatever the clock showed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from infercanary.judge.model import ServiceKey
from infercanary.judge.policy import LIVE, Policy

BLOCK = LIVE.drift.block_runs
"""Runs in a block median."""

HOUR = 30
"""Block medians in an hour's: at a run in 10 s it is one."""

DAY_SECONDS = 86_400.0

# What a row is: a run of the first or of the later ones of its start, a failed one, or a median of an image's first
# runs, of a block or of an hour.
OPENING, RAW, FAILED, FIRST, BLOCKS, HOURS = range(6)
TIERS = ("opening", "raw", "failed", "first", "blocks", "hours")
"""Tier → the column of a series with the number of its rows."""

_SEEN_SECONDS = 7_200.0  # `seen` is written each hour only: what differs by less was seen at the same time
_RUNS_SECONDS = 2 * DAY_SECONDS  # since it was seen; the store's age may grow by one in a step


def opening_for(policy: Policy) -> int:
    """Runs at the beginning of a start that are kept for a policy's looks: more, since some of them do not count.

    Args:
        policy: Its last look decides.

    Returns:
        Runs: one and a half times those of the last look.
    """
    return 3 * policy.decide.looks[-1] // 2


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept: windows of one canary of one container, in rows. Times in brackets hold at a run in 10 s."""

    opening: int = opening_for(LIVE)
    """The first runs of each of an image's last ``opening_starts`` starts, as they were: the judge looks at them."""
    opening_starts: int = 8
    raw: int = 960
    """Of each image: the newest runs after those, as they were."""
    slack: int = 120
    """So many more before they are merged: a few large writes cost less than many small ones."""
    first: int = 8_640
    """Of each image: the first runs (a day), of which block medians stay as long as the image does."""
    first_most: int = 86_400
    """So many instead, if that many started within the first 24 hours."""
    blocks: int = 5_040
    """Of all images: block medians that are not among the first (a week)."""
    hours: int = 2_160
    """Of all images: the medians of hours before (90 days)."""
    failed: int = 960
    """Of all images: failed runs."""
    starts: int = 64
    """Of each image: the first ``first_starts`` starts, and the newest."""
    first_starts: int = 8
    images: int = 8
    """Of each service. More only where they run at the same time. So many models of an image have windows of their own;
    those before them share one."""
    image_seconds: float = 90 * DAY_SECONDS
    """Since it was seen; an image goes then, unless it is one of the newest two."""
    containers: int = 4_000
    """In all: those seen last, and those that run."""

    def reaching(self, policy: Policy) -> Retention:
        """The same, with all runs that this policy looks at.

        Args:
            policy: Its last look decides.

        Returns:
            A copy that differs in ``opening``.
        """
        return msgspec.structs.replace(self, opening=opening_for(policy))


IN_MEMORY = Retention(
    opening_starts=2, raw=240, first_most=8_640, blocks=240, hours=240, failed=120, starts=16, images=3
)
"""For a store that is lost at exit anyway: 0.4 MB for a canary of a container after a day."""


class StartRecord(NamedTuple):
    """One start of a container, as far as it matters for how long it is kept. ``seen`` is an age of the store."""

    service: ServiceKey
    id: Any
    """As the store names it."""
    container: str
    image: str
    seen: float


def image_of(key: str) -> str:
    """The image alone, of a start's key.

    Args:
        key: As :attr:`~infercanary.judge.model.Generation.work_key` makes it; also an image's alone.
    """
    return key.partition(" ")[0]


def expired(starts: Iterable[StartRecord], age: float, keep: Retention) -> list[Any]:
    """The ids of the starts whose time is over.

    Args:
        starts: All there are, the oldest first.
        age: The store's, in seconds.
        keep: How much is kept.

    Returns:
        Their ids, in the order of ``starts``.
    """
    # New weights are no reason to forget a canary beside them, whose model stayed.
    starts = [start._replace(image=image_of(start.image)) for start in starts]
    # When each container, and each image of each service, was seen, and the place of its last start.
    latest: dict[tuple[ServiceKey, str], tuple[float, int]] = {}
    images: dict[ServiceKey, dict[str, tuple[float, int]]] = {}
    for place, start in enumerate(starts):
        seen = min(start.seen, age - _SEEN_SECONDS)
        latest[start.service, start.container] = (seen, place)
        of_service = images.setdefault(start.service, {})
        of_service[start.image] = max((seen, place), of_service.get(start.image, (seen, place)))
    running = {
        (starts[place].service, starts[place].image)
        for seen, place in latest.values()
        if age - seen < _RUNS_SECONDS
    }
    gone: set[tuple[ServiceKey, str]] = set()
    for service, of_service in images.items():
        for rank, image in enumerate(sorted(of_service, key=lambda name: of_service[name], reverse=True)):
            old = age - of_service[image][0] > keep.image_seconds
            if rank >= 2 and (rank >= keep.images or old) and (service, image) not in running:
                gone.add((service, image))
    forgotten = {
        container
        for container in sorted(latest, key=lambda name: latest[name], reverse=True)[keep.containers :]
        if age - latest[container][0] >= _RUNS_SECONDS
    }
    return [
        start.id
        for start in starts
        if (start.service, start.image) in gone or (start.service, start.container) in forgotten
    ]
