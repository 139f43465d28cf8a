"""Schedule of judging: a canary is judged at its looks and at new facts about its starts, not at each run."""

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
MEASURE_LOOKS = (8, 96, 192)
"""Numbers of runs of a start after which measures are judged. Measures take more CPU time than latency, and have fewer
looks: memory is known after 8 runs, throughput (every tenth run) after 96. Spread is judged at each look at the
latency.
"""
FIRST_LEVEL = 12
"""Number of runs of a start after which a canary without an upgrade is judged again, to publish its level. The next
judgement comes with a complete baseline.
"""
REMOVED_SECONDS = 7200.0
"""Seconds without a run after which a canary counts as removed, if other canaries of its service ran."""
CANARIES = 64
"""Largest number of canaries of a service. Without this limit, a probe with ever-changing canary names could fill the
memory.
"""


class SeenStart(NamedTuple):
    """State of a start at the last judgement of its canary."""

    taken: int
    """Number of stored runs."""
    counted: int
    """Number of runs that counted for the verdict."""


def due(
    seen: Mapping[Boot, SeenStart], taken: Mapping[Boot, int], policy: Policy, *, has_upgrade: bool
) -> Due:
    """Return the judgements of a canary that are due.

    Args:
        seen: The canary's starts at the last judgement.
        taken: Number of runs that the store has now, by start. Runs since the last judgement are assumed valid.
        policy: Policy with the looks: the numbers of runs after which the judge compares.
        has_upgrade: True if the last judgement found an upgrade.
    """
    if not taken.keys() <= seen.keys():
        return EVERYTHING  # a new start
    has_look = has_measure_look = has_block = False
    looks = policy.decide.looks if has_upgrade else (FIRST_LEVEL, policy.pool.full_baseline_runs)
    # Drift is judged three times in each drift window. By default, drift is judged every 96 runs: 96 and 192 are also
    # looks.
    every = policy.drift.block_runs * policy.drift.blocks // 3
    for boot, runs in taken.items():
        was = seen[boot]
        counted = was.counted + runs - was.taken
        has_look |= bisect_right(looks, was.counted) < bisect_right(looks, counted)
        has_measure_look |= bisect_right(MEASURE_LOOKS, was.counted) < bisect_right(MEASURE_LOOKS, counted)
        has_block |= was.counted // every < counted // every
    return Due(has_look, has_measure_look and has_upgrade, has_block)


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
    """Monotonic time of each canary's last run."""
    seen: dict[str, Mapping[Boot, SeenStart]] = field(default_factory=dict)
    """Starts at the last judgement by canary."""
    reported: dict[str, dict[Boot, int]] = field(default_factory=dict)
    """Number of reported runs by canary and start. The store may have fewer runs."""

    def may_be_due(self, canary: str, boot: Boot, runs: int, policy: Policy, *, has_upgrade: bool) -> bool:
        """Count new runs of a start. Return True if a judgement may be due.

        Most runs cause no judgement. For these runs, this check saves a query of the store, which takes longer than
        storing the runs.
        """
        seen, reported = self.seen.get(canary, {}), self.reported.get(canary, {})
        if boot not in seen or boot not in reported:
            return True
        reported[boot] += runs
        return any(due({boot: seen[boot]}, {boot: reported[boot]}, policy, has_upgrade=has_upgrade))

    def note(self, start: Generation) -> None:
        """Record a start with its latest image, environment and outputs."""
        known = self.newest.get(start.container, start)
        self.newest[start.container] = start
        # Docker may report an image late, and a probe may report an output late. In both cases, judge the canary at
        # once and not only at the next look.
        if known.boot_id == start.boot_id and known != start:
            self.seen.clear()

    def forget(self, service: ServiceKey, stored: Collection[tuple[ServiceKey, str]]) -> None:
        """Forget ended starts, canaries without stored runs, and canaries that were removed from the service."""
        self.newest = {name: start for name, start in self.newest.items() if not start.ended_at}
        last = max(self.ran_at.values(), default=0.0)
        for canary, ran_at in [*self.ran_at.items()]:
            if (service, canary) not in stored or last - ran_at > REMOVED_SECONDS:
                del self.ran_at[canary]
                self.seen.pop(canary, None)
                self.reported.pop(canary, None)
