"""Bounds on the starts that one judgement reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from infercanary.judge.policy import LIVE
from infercanary.store.base import GONE_SECONDS

FIRST_STARTS, LATEST_STARTS, OWN_STARTS = 8, 56, 8
"""Starts of each image that a judgement reads: the first and the latest ones, as many as are kept of one container;
and the latest ones of each container that runs. So its work grows neither with restarts nor with pods' new names."""
_IMAGES = 8  # with so many models each have starts of their own; weights may be drawn anew at each start


def to_judge(starts: Sequence[Any]) -> list[Any]:
    """Choose the starts that a judgement needs: of each image and model the latest ones of each container that runs,
    and of the others the first ones, which say when an upgrade began, and the latest.

    Starts with too few runs have places of their own, wherever they run: they take none of those that count.

    Args:
        starts: Rows of :data:`.queries.SERIES_OF_CANARY` of one service and canary, in order of time.

    Returns:
        Those rows, in the same order.
    """
    last_at = {start.container: start.last_at for start in starts}  # of the newest start
    running_since = max(last_at.values(), default=0.0) - GONE_SECONDS
    recent = [*dict.fromkeys(start.image_key for start in reversed(starts))][:_IMAGES]
    owned: Counter[tuple[str, str]] = Counter()
    chosen: set[int] = set()
    groups: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    for start in reversed(starts):
        own = start.container, start.image_key
        is_short = start.taken < LIVE.pool.fewest_new_runs
        if last_at[start.container] >= running_since and not is_short and owned[own] < OWN_STARTS:
            owned[own] += 1
            chosen.add(start.id)
        else:
            groups[start.image_key if start.image_key in recent else "", is_short].append(start.id)
    for ids in groups.values():  # the newest first
        chosen.update(ids[:LATEST_STARTS], ids[LATEST_STARTS:][-FIRST_STARTS:])
    return [start for start in starts if start.id in chosen]
