"""Schedule of judging: a canary is judged at its looks and when something new is known, not at each run."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from infercanary.judge.model import ServiceKey, Start
from infercanary.judge.policy import Policy
from infercanary.judge.result import Result
from infercanary.judge.upgrade import live_starts

Canary = tuple[ServiceKey, str]  # and its name
Boot = tuple[str, str]  # container, boot id

REMOVED_SECONDS, REMOVED_TURNS = 7200.0, 12  # both: a canary may be slow, and a host may stand still
_BLOCKS = 10  # of a start between two looks at the drift
_RESTART_LOOKS = (24, 192)
"""Looks at a start of the old image beside a new one: it is one more restart, or more of one."""
_WATCHED_LOOKS = 2  # first looks' worth of runs; a start that never gets steady is not watched for ever


class NextAction(Enum):
    """Next action for a canary, the most expensive first."""

    BOTH = auto()
    """Judge the upgrade and the drift."""
    JUDGE = auto()
    """Judge the upgrade; the drift stands."""
    DRIFT = auto()
    """Judge the drift; the verdict stands, unless the new image was rolled back meanwhile."""
    COUNT = auto()
    """Count the runs of a new image before its first look: people watch them."""
    NOTHING = auto()


class SeenStart(NamedTuple):
    """State of a start when its canary was judged last."""

    taken: int
    """Runs in the store."""
    counted: int
    """Runs that counted."""
    had_stopped: bool
    """True if its runs had ended."""
    reported: int | None
    """Number of its report about itself; None where a later start of the container had reported since."""


class View(NamedTuple):
    """State of a canary now, and when it was judged last."""

    seen: Mapping[Boot, SeenStart]
    taken: Mapping[Boot, int]
    """Runs of each start in the store now. All those since the last judgement are assumed to count."""
    reported: Mapping[Boot, int]
    """Number of the report of each container's newest start about itself: another one when the report changed."""
    judgement: Result | None
    """The last judgement."""
    new: Collection[Boot] = ()
    """Starts of the image that it is about; none without an upgrade."""

    def counted(self, boot: Boot) -> int:
        """Runs of a start that count, as far as that is known before they are judged."""
        taken, was = self.taken.get(boot, 0), self.seen.get(boot)
        return taken if was is None else was.counted + taken - was.taken


def next_action(view: View, policy: Policy) -> NextAction:
    """The most expensive action that is due for a canary."""
    if not view.taken.keys() <= view.seen.keys():
        return NextAction.BOTH  # a new start
    grown = [boot for boot, count in view.taken.items() if view.seen[boot].taken != count]
    looks = policy.decide.looks

    def has_reached(boot: Boot, marks: Sequence[int]) -> bool:
        return bisect_right(marks, view.seen[boot].counted) != bisect_right(marks, view.counted(boot))

    new_look = any(
        has_reached(boot, _RESTART_LOOKS if view.new and boot not in view.new else looks) for boot in grown
    )
    every = _BLOCKS * policy.drift.block_runs
    new_block = any(view.seen[boot].counted // every != view.counted(boot) // every for boot in grown)
    # Docker may name its image late, and a probe its output: these wait for no look.
    new_facts = any(boot in view.seen and view.seen[boot].reported != n for boot, n in view.reported.items())
    # A late container, not a removed one: its image may have been taken for rolled back.
    is_back = any(view.seen[boot].had_stopped and view.taken[boot] > view.seen[boot].taken for boot in grown)
    if new_facts or is_back or (new_look and new_block):
        return NextAction.BOTH
    if new_look or new_block:
        return NextAction.JUDGE if new_look else NextAction.DRIFT
    watched = any(view.taken[boot] <= _WATCHED_LOOKS * looks[0] for boot in grown)
    if view.judgement is not None and view.judgement.runs < looks[0] and watched:
        return NextAction.JUDGE if view.judgement.upgraded_at is None else NextAction.COUNT
    return NextAction.NOTHING


def seen_now(starts: Sequence[Start], view: View) -> dict[Boot, SeenStart]:
    """The next :attr:`View.seen` of a canary that is judged now on ``starts``, each with its runs that count."""
    counted = {start.boot: len(start.samples) for start in starts}
    live = {start.boot for start in live_starts(starts)}

    def seen(boot: Boot, count: int) -> SeenStart:
        was, reported = view.seen.get(boot), view.reported.get(boot)
        if was is not None and boot not in counted and (was.taken, was.reported) == (count, reported):
            return was  # most starts ended long ago, and are not read
        return SeenStart(count, counted.get(boot, 0), boot not in live, reported)

    return {boot: seen(boot, count) for boot, count in view.taken.items()}


class RemovedCanaries:
    """Canaries that were removed from their service: they do not run, while others of it do."""

    def __init__(self) -> None:
        self._silent: dict[
            Canary, tuple[float, int]
        ] = {}  # since when, and for how many turns of its service

    def note(self, ran: Collection[Canary], judged: Mapping[ServiceKey, Collection[str]]) -> None:
        """Note the canaries that ran since the last turn, of those that are ``judged`` (service → names)."""
        now = time.monotonic()
        for service in {service for service, _ in ran}:
            for name in judged.get(service, ()):
                since, turns = self._silent.get((service, name), (now, 0))
                self._silent[service, name] = since, turns + 1
        for canary in ran:
            self._silent.pop(canary, None)

    def all(self) -> set[Canary]:
        """Canaries that have not run for long."""
        now = time.monotonic()
        return {
            canary
            for canary, (since, turns) in self._silent.items()
            if turns >= REMOVED_TURNS and now - since >= REMOVED_SECONDS
        }

    def forget(self, known: Mapping[ServiceKey, Collection[str]]) -> None:
        """Forget all but the canaries that are known (service → names)."""
        self._silent = {
            key: silent for key, silent in self._silent.items() if key[1] in known.get(key[0], ())
        }
