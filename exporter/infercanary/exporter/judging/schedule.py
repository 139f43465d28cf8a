"""Schedule of judging: a canary is judged at its looks and when something new is known, not at each run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from infercanary.judge.model import Generation, ServiceKey, Start
from infercanary.judge.policy import Policy

Boot: TypeAlias = tuple[str, str]
"""Container and boot id."""


class Due(NamedTuple):
    """Judgements of a canary that are due."""

    upgrade: bool
    measures: bool
    drift: bool


EVERYTHING = Due(True, True, True)
MEASURE_LOOKS = (8, 48, 96, 192)
"""Run counts of a start at which measures are judged, and the runs of a service without an upgrade. Each costs as much
as a look at the latency, so there are fewer: memory shows in 8 runs, spread in 48, a load of every tenth run in 96.
"""
REMOVED_SECONDS = 7200.0
"""A canary without a run for so long, while others of its service ran, was removed."""
CANARIES = 64
"""Largest number of canaries of a service: changing names must not fill the memory with verdicts."""


class SeenStart(NamedTuple):
    """State of a start when its canary was judged last."""

    taken: int
    """Runs in the store."""
    counted: int
    """Runs that counted."""


def due(
    seen: Mapping[Boot, SeenStart], taken: Mapping[Boot, int], policy: Policy, *, has_upgrade: bool = True
) -> Due:
    """Return the judgements of a canary that are due.

    Args:
        seen: Its starts at the last judgement.
        taken: Runs of each start in the store now; new ones are assumed to count.
        policy: The looks.
        has_upgrade: True if the last judgement found an upgrade.
    """
    if not taken.keys() <= seen.keys():
        return EVERYTHING  # a new start
    has_look = has_measure_look = has_block = False
    looks, every = policy.decide.looks, policy.drift.block_runs * policy.drift.blocks // 2
    for boot, runs in taken.items():
        was = seen[boot]
        counted = was.counted + runs - was.taken
        has_look |= bisect_right(looks, was.counted) < bisect_right(looks, counted)
        has_measure_look |= bisect_right(MEASURE_LOOKS, was.counted) < bisect_right(MEASURE_LOOKS, counted)
        has_block |= was.counted // every < counted // every
    return Due(has_look if has_upgrade else has_measure_look, has_measure_look, has_block)


def seen_now(starts: Sequence[Start], taken: Mapping[Boot, int]) -> dict[Boot, SeenStart]:
    """Return the state of a canary's starts at a judgement."""
    counted = {start.boot: len(start.samples) for start in starts}
    return {boot: SeenStart(count, counted.get(boot, 0)) for boot, count in taken.items()}


@dataclass
class ServiceState:
    """State of a service."""

    newest: dict[str, Generation] = field(default_factory=dict)
    """Newest start of each container."""
    ran_at: dict[str, float] = field(default_factory=dict)
    """Canary → monotonic time of its last run."""
    seen: dict[str, Mapping[Boot, SeenStart]] = field(default_factory=dict)
    """Canary → its starts when it was judged last."""
    reported: dict[str, dict[Boot, int]] = field(default_factory=dict)
    """Canary → start → number of reported runs, which is at least the number of stored runs."""

    def may_be_due(self, canary: str, boot: Boot, runs: int, policy: Policy) -> bool:
        """Count new runs of a start, and return False if they cannot make a judgement due: most do not, and asking
        the store costs more than storing them.
        """
        seen, reported = self.seen.get(canary, {}), self.reported.get(canary, {})
        if boot not in seen or boot not in reported:
            return True
        reported[boot] += runs
        return any(due({boot: seen[boot]}, {boot: reported[boot]}, policy))

    def note(self, start: Generation) -> None:
        """Note what a start reports about itself: its image, environment and outputs."""
        known = self.newest.get(start.container, start)
        self.newest[start.container] = start
        # Docker may report the image late, and a probe its output: judge then without waiting for a look.
        if known.boot_id == start.boot_id and known != start:
            self.seen.clear()

    def forget(self, service: ServiceKey, stored: Collection[tuple[ServiceKey, str]]) -> None:
        """Forget ended starts, canaries that are not ``stored``, and canaries that were removed from the service."""
        self.newest = {name: start for name, start in self.newest.items() if not start.ended_at}
        last = max(self.ran_at.values(), default=0.0)
        for canary, ran_at in [*self.ran_at.items()]:
            if (service, canary) not in stored or last - ran_at > REMOVED_SECONDS:
                del self.ran_at[canary]
                self.seen.pop(canary, None)
                self.reported.pop(canary, None)
