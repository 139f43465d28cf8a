"""Reading: limits the number of starts that one judgement reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from infercanary.judge.policy import LIVE
from infercanary.store.base import GONE_SECONDS

FIRST_STARTS, LATEST_STARTS, OWN_STARTS = 2, 56, LIVE.pool.history
"""Numbers of starts of each image that a judgement reads. These limits save CPU time after many restarts or new pod
names.

- FIRST_STARTS: first starts of the image, which date the upgrade. The first start may be unreadable, so two are read.
- LATEST_STARTS: latest starts of ended containers.
- OWN_STARTS: latest starts of each running container.
"""
_IMAGES = 8  # latest images and models with separate limits; random weights make each start a new model


def to_judge(starts: Sequence[Any]) -> list[Any]:
    """Choose the starts of each image and model that a judgement needs.

    Starts with too few runs have a separate limit, and cannot displace longer starts.

    Args:
        starts: Rows of :data:`.queries.SERIES_OF_CANARY` of one service and canary, in order of time.
    """
    last_at = {start.container: start.last_at for start in starts}  # of each container's newest start
    running_since = max(last_at.values(), default=0.0) - GONE_SECONDS
    recent = [*dict.fromkeys(start.image_key for start in reversed(starts))][:_IMAGES]
    owned: Counter[Any] = Counter()
    chosen = set[int]()
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for start in reversed(starts):
        own = start.container, start.image_key
        is_short = start.taken < LIVE.pool.fewest_new_runs
        is_running = last_at[start.container] >= running_since and not is_short
        owned[own] += is_running
        if is_running and owned[own] <= OWN_STARTS:
            chosen.add(start.id)
        else:
            groups[start.image_key in recent and start.image_key, is_short, is_running].append(start.id)
    for (_, _, is_running), ids in groups.items():  # newest first
        chosen.update(ids[: 0 if is_running else LATEST_STARTS], ids[-FIRST_STARTS:])
    return [start for start in starts if start.id in chosen]
