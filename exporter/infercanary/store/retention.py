"""Which rows of the store are kept: at first every run, later block medians, then hours.

Each tier has a reader:

- OPENING, the first runs of a start: the looks, which are replayed at each judgement, and memory at the same age.
- RAW, the newest runs of an image: the baseline, and the last blocks in which a drift is looked for.
- FIRST, blocks of an image's first runs: the frozen baseline of a drift.
- BLOCKS, a week of blocks after that: replicas that stayed on the old image, where an upgrade is judged again days
  later. Hours are too coarse for the half hour that the looks take.
- HOURS: the onset of a drift, and ``infercanary scan``.
- FAILED: a container whose runs all fail still runs; ``infercanary report`` shows them.

The status page reads no runs of the store. Counts decide and not ages, since a clock that jumps must not cost a
baseline. The few things that do need an age use that of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from infercanary.judge.policy import LIVE

BLOCK = LIVE.drift.block_runs
"""Runs in a block median."""

HOUR = 30
"""Block medians in an hour's median, at a run every 10 s."""

DAY_SECONDS = 86_400.0

OPENING, RAW, FAILED, FIRST, BLOCKS, HOURS = range(6)
TIERS = ("opening", "raw", "failed", "first", "blocks", "hours")
"""Names of the tiers. A series has a column of each name: its number of rows in that tier."""

_SEEN_SECONDS = 7_200.0  # `seen` is written once an hour: smaller differences are the same time
_RUNS_SECONDS = 2 * DAY_SECONDS  # seconds since it was seen; the store's age may grow by one in a step


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of one canary of one container, in rows. Times in brackets hold at a run in 10 s.

    By the defaults a canary has at most, of each of 8 images, 288 runs of the opening, 1,080 later ones and 720 blocks,
    and of all images 5,040 blocks, 2,160 hours and 240 failed runs: 24,144 rows, 8.3 MB in SQLite. With eight starts of
    each image that is 40,272 rows, 13.4 MB. One image has 0.6 MB after a day and 3 MB after three months. More models
    than images at most double it.
    """

    opening: int = (
        3 * LIVE.decide.looks[-1] // 2
    )  # half as many more than the last look, because some runs do not count
    """First runs of each of an image's last ``opening_starts`` starts, unmerged."""
    opening_starts: int = 8
    raw: int = 960
    """Newest runs of each image after those, unmerged."""
    slack: int = 120
    """Additional raw runs before they are merged at once, a multiple of ``BLOCK``: few large writes cost less."""
    first: int = 8_640
    """First runs of each image (a day), whose block medians stay as long as the image."""
    blocks: int = 5_040
    """Block medians after the first, of all images (a week)."""
    hours: int = 2_160
    """Medians of hours before these, of all images (90 days)."""
    failed: int = 240
    """Failed runs of all images."""
    starts: int = 64
    """Starts of each image: the first ``first_starts`` and the newest; as many without runs."""
    first_starts: int = 8
    images: int = 8
    """Images of each service, unless more run at the same time. Also models with windows of their own in each
    container.
    """
    image_seconds: float = 90 * DAY_SECONDS
    """Seconds since an image was seen after which it is dropped, unless it is one of the newest two."""
    containers: int = 4_000
    """Containers in all: the ones seen last, and those that run."""


IN_MEMORY = Retention(opening_starts=2, raw=240, blocks=240, hours=240, failed=120, starts=16, images=3)
"""For a store that is lost at exit: .4 MB for a canary of a container after a day."""


def image_of(key: str) -> str:
    """Return the image of a :attr:`~infercanary.judge.model.Generation.work_key`."""
    return key.partition(" ")[0]


def expired(starts: Iterable[Any], age: float, keep: Retention) -> list[int]:
    """Return the ids of expired starts.

    Args:
        starts: Rows of :func:`.queries.records`, oldest first.
        age: Age of the store in seconds.
    """
    containers: dict[object, bool] = {}  # whether it stays
    ranks: defaultdict[object, dict[object, int]] = defaultdict(dict)  # images of a service, newest first
    kept: set[object] = set()  # images
    groups: defaultdict[tuple[object, object, bool], list[int]] = defaultdict(list)
    newest_first = [*starts][::-1]  # includes images seen at the same time
    newest_first.sort(key=lambda start: min(start.seen, age - _SEEN_SECONDS), reverse=True)
    for start in newest_first:
        service = start.namespace, start.service
        container, image = (service, start.container), (service, image_of(start.image_key))
        unseen = age - start.seen
        runs = unseen < _RUNS_SECONDS and container not in containers
        containers.setdefault(container, runs or len(containers) < keep.containers)
        rank = ranks[service].setdefault(image, len(ranks[service]))
        if runs or rank < 2 or (rank < keep.images and unseen <= keep.image_seconds):
            kept.add(image)
        groups[container, image, start.canaries > 0].append(start.id)
    newest = keep.starts - keep.first_starts
    stay = {
        start
        for (container, image, _), group in groups.items()
        if containers[container] and image in kept
        for start in (*group[:newest], *group[newest:][-keep.first_starts :])
    }
    return [start.id for start in newest_first if start.id not in stay]
