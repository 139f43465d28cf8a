"""Retention: limits for the number of stored rows. Runs are merged into block medians, and these into hourly medians.

Each tier is kept for a purpose:

- OPENING, the first runs of a start: for the looks (which each judgement replays), and to compare memory at the same
  age.
- RAW, the newest runs of an image: for the baseline, and for the latest blocks of a drift.
- FIRST, block medians of an image's first runs: for the frozen baseline of a drift.
- BLOCKS, block medians of a week: for concurrent baselines if an upgrade is judged again days later. All looks take
  only half an hour, so hourly medians would be too coarse.
- HOURS, hourly medians: for the onset of a drift, and for ``infercanary scan``.
- FAILED, failed runs: they show that a container still runs, and ``infercanary report`` lists them.

The status page reads no stored runs. A clock that jumps must not drop a baseline, so limits are counts and not ages.
The few limits on ages use the age of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from infercanary.judge.policy import LIVE

BLOCK = LIVE.drift.block_runs
"""Number of runs in a block median."""

HOUR = 30
"""Number of block medians in an hourly median, which spans an hour with a run every 10 s."""

DAY_SECONDS = 86_400.0

OPENING, RAW, FAILED, FIRST, BLOCKS, HOURS = range(6)
TIERS = ("opening", "raw", "failed", "first", "blocks", "hours")
"""Names of the tiers. For each tier, a series has a column with the number of its rows."""

_SEEN_SECONDS = 7_200.0  # smaller differences of `seen` do not count, because `seen` is written once an hour
# A container seen within this time counts as running. One day would be too short, because the store's age may jump by
# one day.
_RUNS_SECONDS = 2 * DAY_SECONDS


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one canary of one container, in rows. Times in parentheses are for a run every 10 s.

    With the defaults a canary has at most 24,144 rows, 8.3 MB in SQLite. For each of 8 images these are 288 first runs,
    1,080 later runs and 720 blocks. For all images together there are 5,040 blocks, 2,160 hours and 240 failed runs.
    With eight starts of each image there are at most 40,272 rows, 13.4 MB. A canary with one image has 0.6 MB after a
    day and 3 MB after three months. If an image has several models, the size at most doubles.
    """

    opening: int = 3 * LIVE.decide.looks[-1] // 2
    """First runs of a start, unmerged, for an image's last ``opening_starts`` starts. 1.5 times the runs that the last
    look needs, because some runs do not count.
    """
    opening_starts: int = 8
    """Number of an image's last starts whose first runs are kept unmerged."""
    raw: int = 960
    """Newest runs of each image, unmerged, in addition to the first runs of starts."""
    slack: int = 120
    """Number of runs beyond ``raw`` that are merged at once, to save writes. A multiple of ``BLOCK``."""
    first: int = 8_640
    """First runs of each image (a day), whose block medians stay as long as the image."""
    blocks: int = 5_040
    """Block medians of later runs; one limit for all images together (a week)."""
    hours: int = 2_160
    """Hourly medians, merged from block medians beyond ``blocks``; one limit for all images together (90 days)."""
    failed: int = 240
    """Failed runs; one limit for all images together."""
    starts: int = 64
    """Starts of each image: the first ``first_starts``, and the newest. For starts without runs, a separate limit of
    the same size applies.
    """
    first_starts: int = 8
    """Number of first starts of each image that are kept."""
    images: int = 8
    """Number of images of each service. Running images are kept beyond this limit. Also the number of an image's models
    with separate limits in a container.
    """
    image_seconds: float = 90 * DAY_SECONDS
    """Seconds for which an image is kept after it was last seen. The newest two images are kept longer."""
    containers: int = 4_000
    """Number of most recently seen containers that are kept. Containers that still run are always kept."""


IN_MEMORY = Retention(opening_starts=2, raw=240, blocks=240, hours=240, failed=120, starts=16, images=3)
"""Limits of a store in memory: 0.4 MB for a canary of a container after a day."""


def image_of(key: str) -> str:
    """Return the image of a :attr:`~infercanary.judge.model.Generation.work_key`."""
    return key.partition(" ")[0]


def expired(starts: Iterable[Any], age: float, keep: Retention) -> list[int]:
    """Return the ids of expired starts.

    Args:
        starts: Rows of :data:`.queries.RECORDS`, oldest first.
        age: Age of the store in seconds.
        keep: Limits of the rows that are kept.
    """
    containers: dict[object, bool] = {}  # True if the container stays
    ranks: defaultdict[object, dict[object, int]] = defaultdict(dict)  # images of a service, newest first
    kept: set[object] = set()  # images that stay
    groups: defaultdict[tuple[object, object, bool], list[int]] = defaultdict(list)
    newest_first = [*starts][::-1]  # also for starts seen at about the same time
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
