"""When a canary is judged again: at its looks, and when something new was said of it; not at each run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from infercanary.judge.model import Generation, Judgement, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.upgrade import live_starts

Boot: TypeAlias = tuple[str, str]  # container, boot id

_DRIFT_EVERY = 10 * LIVE.block_runs  # runs of a start
_WATCHED = 2 * LIVE.looks[0]  # runs of a start; one that never gets steady is not watched for ever


class Due(Enum):
    """What is to be done about a canary now, dearest first."""

    VERDICT = auto()
    """The upgrade is to be judged, and the drift with it."""
    DRIFT = auto()
    """The drift alone: the verdict stands, unless the new image was withdrawn meanwhile."""
    COUNT = auto()
    """How many runs a new image has before its first look: people watch it, and it takes no judging."""
    NOTHING = auto()


class Seen(NamedTuple):
    """A start when its canary was judged last."""

    taken: int
    """Its runs in the store."""
    counted: int
    """Those of them that counted."""
    is_silent: bool
    """It had stopped, as far as its runs showed."""
    said: Generation | None
    """What it said of itself; None where a later start of the container had reported since."""


def seen(
    starts: Sequence[Start], taken: Mapping[Boot, int], said: Mapping[Boot, Generation]
) -> dict[Boot, Seen]:
    """To remember of a canary that is judged now, from ``starts``; the rest as for :func:`due`."""
    counted = {_boot(start): len(start.samples) for start in starts}
    spoke = {*map(_boot, live_starts(starts))}
    return {
        boot: Seen(count, counted.get(boot, 0), boot not in spoke, said.get(boot))
        for boot, count in taken.items()
    }


def _boot(start: Start) -> Boot:
    return start.generation.container, start.generation.boot_id


def due(
    known: Mapping[Boot, Seen],
    taken: Mapping[Boot, int],
    said: Mapping[Boot, Generation],
    told: Judgement | None,
) -> Due:
    """What is due of a canary whose starts were ``known`` at its last judgement, which ``told`` this.

    ``taken`` are the runs that each start has in the store now, ``said`` is what the newest start of each container
    says of itself. Of the runs since then all are reckoned to count.
    """
    more = [(known[boot], count) for boot, count in taken.items() if boot in known]
    counts = [(was.counted, was.counted + count - was.taken) for was, count in more]
    is_looked_at = any(bisect_right(LIVE.looks, was) != bisect_right(LIVE.looks, now) for was, now in counts)
    # Docker may tell its image late, and a probe its output: what needs no look waits for none.
    is_told_more = any(known[boot].said != now for boot, now in said.items() if boot in known)
    # It was late, not gone: its image may have been taken for withdrawn.
    is_back = any(was.is_silent and count > was.taken for was, count in more)
    if len(more) < len(taken) or is_looked_at or is_told_more or is_back:
        return Due.VERDICT
    if any(was // _DRIFT_EVERY != now // _DRIFT_EVERY for was, now in counts):
        return Due.DRIFT
    if told and told.runs < LIVE.looks[0] and any(was.taken < count <= _WATCHED for was, count in more):
        return Due.VERDICT if told.upgraded_at is None else Due.COUNT
    return Due.NOTHING
