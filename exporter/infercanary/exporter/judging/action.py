"""What is to be done about a canary now: it is judged at its looks and when something new is known, not at each run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from infercanary.judge.model import ServiceKey, Start
from infercanary.judge.policy import Policy
from infercanary.judge.result import Result
from infercanary.judge.upgrade import live_starts
from infercanary.store.reading import StartSummary, to_judge
from infercanary.store.store import Store

Boot = tuple[str, str]  # container, boot id

_BLOCKS = 10  # of a start between two looks at the drift
_WATCHED_LOOKS = 2  # first looks' worth of runs; a start that never gets steady is not watched for ever


class NextAction(Enum):
    """What is to be done, the most expensive first."""

    JUDGE = auto()
    """The upgrade is to be judged, and the drift with it."""
    DRIFT = auto()
    """The drift alone: the verdict stands, unless the new image was rolled back meanwhile."""
    COUNT = auto()
    """How many runs a new image has before its first look: people watch it, and it costs no judging."""
    NOTHING = auto()


class SeenStart(NamedTuple):
    """A start when its canary was judged last."""

    taken: int
    """Its runs in the store."""
    counted: int
    """Those of them that counted."""
    had_stopped: bool
    """As far as its runs showed."""
    reported: int | None
    """What it reported of itself, by number; None where a later start of the container had reported since."""


class View(NamedTuple):
    """What is known of a canary before it is decided what to do about it."""

    seen: Mapping[Boot, SeenStart]
    """Its starts when it was judged last."""
    taken: Mapping[Boot, int]
    """Runs that each start has in the store now. All those since the last judgement are assumed to count."""
    reported: Mapping[Boot, int]
    """What the newest start of each container reports of itself: a number, and another one when that changed."""
    judgement: Result | None
    """The last one."""


def next_action(view: View, policy: Policy) -> NextAction:
    """What is to be done about a canary.

    Args:
        view: What is known of the canary.
        policy: The numbers that decide.

    Returns:
        The most expensive of the actions that are due.
    """
    new_start = not view.taken.keys() <= view.seen.keys()
    known = [
        (was, count)
        for boot, count in view.taken.items()
        if (was := view.seen.get(boot)) is not None and was.taken != count
    ]
    counts = [(was.counted, was.counted + count - was.taken) for was, count in known]
    new_look = any(
        bisect_right(policy.decide.looks, was) != bisect_right(policy.decide.looks, now)
        for was, now in counts
    )
    # Docker may name its image late, and a probe its output: these wait for no look.
    new_facts = any(
        view.seen[boot].reported != now for boot, now in view.reported.items() if boot in view.seen
    )
    # A late container, not a removed one: its image may have been taken for rolled back.
    is_back = any(was.had_stopped and count > was.taken for was, count in known)
    if new_start or new_look or new_facts or is_back:
        return NextAction.JUDGE
    every = _BLOCKS * policy.drift.block_runs
    if any(was // every != now // every for was, now in counts):
        return NextAction.DRIFT
    judgement, first_look = view.judgement, policy.decide.looks[0]
    watched = any(was.taken < count <= _WATCHED_LOOKS * first_look for was, count in known)
    if judgement is not None and judgement.runs < first_look and watched:
        return NextAction.JUDGE if judgement.upgraded_at is None else NextAction.COUNT
    return NextAction.NOTHING


def seen_now(starts: Sequence[Start], view: View) -> dict[Boot, SeenStart]:
    """What to remember of a canary that is judged now on ``starts``: the next :attr:`View.seen`.

    Args:
        starts: Each start of the canary, with its runs that count.
        view: What is known of the canary.

    Returns:
        Start → what was seen of it, for each one with runs in the store.
    """
    counted = {start.boot: len(start.samples) for start in starts}
    live = {start.boot for start in live_starts(starts)}

    def seen(boot: Boot, count: int) -> SeenStart:
        was, reported = view.seen.get(boot), view.reported.get(boot)
        if was is not None and boot not in counted and (was.taken, was.reported) == (count, reported):
            return was  # most starts ended long ago, and are not read
        return SeenStart(count, counted.get(boot, 0), boot not in live, reported)

    return {boot: seen(boot, count) for boot, count in view.taken.items()}


def counting_starts(starts: Sequence[Start], policy: Policy) -> list[Start]:
    """Leave out what no judgement needs, as the store does, by what it does not know: runs that do not count, and ends.

    Args:
        starts: Of one canary, in order of time.
        policy: How many runs a start of a new image needs, and when a container is not live any more.
    """
    live = {start.generation.container for start in live_starts(starts)}
    seen = [
        StartSummary(
            start.generation.container,
            start.identity,
            len(start.samples) < policy.pool.fewest_new_runs,
            start.generation.container in live,
        )
        for start in starts
    ]
    return [starts[place] for place in to_judge(seen)]


def runs_of_new_image(store: Store, service: ServiceKey, canary: str, view: View, most_bytes: int) -> int:
    """How many runs that count the start of the last image has that has most.

    Args:
        store: Where they are.
        service: The canary's.
        canary: Its name.
        view: With a judgement of an upgrade.
        most_bytes: That are read, as :meth:`Store.generations` counts them.

    Returns:
        Runs; those of the last judgement where the image has none.
    """
    assert view.judgement is not None
    assert view.judgement.upgraded_at is not None
    since = view.judgement.upgraded_at
    read = store.generations(service, canary, since=since, most_bytes=most_bytes)
    new = [Start.of(g, samples) for g, samples in read]
    counts = (len(start.samples) for start in new if start.identity == new[-1].identity)
    return max(counts, default=view.judgement.runs)
