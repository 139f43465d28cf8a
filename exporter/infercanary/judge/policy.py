"""Policy: every number that the judge decides by, in four groups. Thresholds of alerts are in prometheus/rules alone.

Three policies have names: ``LIVE`` judges upgrades in the exporter, ``FILES`` compares two files at one look, and
``EXPERIMENT`` decides ``infercanary ab``. The size of a change is the same in all three.

Shifts are ratios here (0.03 is 3 %), in both directions; the judge works on their logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Decide:
    """When a shift is a change. Users set the first five."""

    smallest_effect: float = 0.03
    """Ratio. A smaller shift is no change, and an interval within it is `equivalent`. Below 3 %, code layout and
    memory allocation alone change speed (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously
    Wrong!", 2009).
    """

    clear_zone: float = 0.01
    """Ratio. Dead band: the confidence interval of a change lies outside it, because a tiny but certain shift matters
    to nobody.
    """

    confidence: float = 0.95
    """Confidence of the interval that is shown, over all looks at one upgrade together. A change is called by
    ``false_calls``.
    """

    false_calls: float = 0.002
    """Error of the interval that calls a change, over all looks at one upgrade and both directions. With a restart
    variance learned from eight earlier starts, about .5 % of restarts of an unchanged image are called. With the
    prior alone, it is below 1 % for restart SDs up to 3 %, and 2 % at 5 % (``benchmarks/verdicts.py``).
    """

    looks: tuple[int, ...] = (5, 8, 12, 16, 24, 36, 48, 96, 192)
    """Run counts of a candidate's start at which the judge looks. The interval holds at all looks together, so looks
    cost only CPU time. Looks are most frequent at the run counts at which a large change is called.
    """

    # Logarithms, so that a verdict holds for ratios in both directions.

    @cached_property
    def log_effect(self) -> float:
        """Smallest effect as a logarithm.

        It is symmetric: if one side is 3 % slower, the other one is 2.9 % faster.
        """
        return math.log1p(self.smallest_effect)

    @cached_property
    def log_clear(self) -> float:
        """Edge of the dead band as a logarithm."""
        return math.log1p(self.clear_zone)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Which starts and runs count, and how shifts are pooled. Users set ``history``."""

    history: int = 8
    """Latest baseline starts of each container that count: enough to learn the restart variance without reading an
    image's whole past.
    """

    fewest_runs: int = 8
    """Smallest number of runs of a start that counts: with fewer, scatter and autocorrelation are guesses."""

    fewest_new_runs: int = 5
    """Smallest number of runs of a candidate's start in the live judge. Less than for a baseline, because the
    baseline's noise counts for it, too.
    """

    full_baseline_runs: int = 24
    """Runs after which the status page and the demo call a baseline complete. Fewer are compared, too, but their
    noise is a guess: with 12, a slow image was not called within 11 minutes, with 24 it was in 5
    (``benchmarks/results/2026-11-22-stack.md``).
    """

    concurrent_runs: int = 4
    """Runs of a staying replica during the candidate's runs from which it is compared: fewer have no scatter. The
    judge waits until one replica has so many.
    """

    concurrent_starts: int = 16
    """Largest number of staying replicas that a new start is compared with: those that ran on longest. The median
    shift of 16 is known three times as well as a single one; 150 took 11 s.
    """

    noise_df: float = 5.0
    """Degrees of freedom of the baseline's noise in the candidate's. With more, a candidate noisier than the baseline
    is trusted too early; with fewer, calling a slowdown to double takes more than a minute.
    """

    restart_sd: float = 0.012
    """SD of logarithms. Assumed restart SD before any restart was observed."""

    restart_df: float = 3.0
    """Its degrees of freedom: few, so that its tail is heavy and a service's own restarts soon outweigh it."""

    prior: int = 0
    """Number of the stored prior that was learned from the services of a store; 0 for the assumed one."""

    baseline_runs: int = 240
    """Latest runs of a start that are its baseline."""

    reads_clock: bool = True
    """True if equal values may be due to a coarse clock. Memory is exact: each start may have the same bytes."""

    measure_effect: float = 0.05
    """Ratio. :attr:`smallest_effect` for memory, throughput and energy: allocators and clocks change these by a few
    percent between starts.
    """

    load_restart_sd: float = 0.025
    """SD of logarithms. :attr:`restart_sd` for throughput and energy: loads of a second at clocks that differ between
    starts. It has eight degrees of freedom: with fewer, its heavy tail would ask for more starts than come in a
    week (``benchmarks/results/2026-11-24-measures.md``).
    """

    spread_restart_sd: float = 0.15
    """SD of logarithms. :attr:`restart_sd` for the spread of runs, which 48 runs show no better. It has eight degrees
    of freedom.
    """

    contended: float = 0.1
    """Ratio. A start is contended if CPU wait caused by others on the host made its runs longer by so much than those
    of the image's other starts: it teaches no restart variance, and is no baseline.
    """

    gone_seconds: float = 600.0
    """A container is not live after so many seconds without a run, and"""

    gone_runs: float = 3.0
    """after so many of its own intervals."""


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """When a cause is named."""

    cause_confidence: float = 0.95
    """Confidence of the interval of a part of a shift."""

    history_confidence: float = 0.9995
    """Confidence of a shift from the same image's own history, and of the shift at a change point."""

    moved_sigmas: float = 2.6
    """Standard errors by which a control or sibling has moved (and by the smallest effect): one in a hundred that
    stood still passes, with normal noise.
    """

    whole_share: float = 0.75
    """An explanation of at least this share of the shift is its only cause."""

    waiting_factor: float = 2.0
    """Largest possible part of the host for each second of CPU wait. Cold caches follow a context switch, which costs
    from microseconds to more than a millisecond (Li, Ding, Shen, "Quantifying the cost of context switch", ExpCS
    2007), while a turn of the scheduler lasts a few: as much again at most.
    """

    phase_share: float = 0.25
    """Share of a change from which a phase or a resource is named."""

    tag_share: float = 0.2
    """Rise of the share of runs with a tag from which the tag is named."""

    cold_start_ratio: float = 1.25
    """A step of the cold start is slower if it takes so many times the longest time before,"""

    cold_start_seconds: float = 1.0
    """and so many seconds more,"""

    cold_starts: int = 2
    """in at least so many starts: the first start reads a new image's files from the disk."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """When a container has drifted without an upgrade."""

    block_runs: int = 12
    """Runs in a block, whose median is compared: it averages out disturbances of a minute."""

    first_seconds: float = 86_400.0
    """Length of the frozen baseline from an image's first run; longer if it holds too few blocks."""

    blocks: int = 24
    """Blocks now, and at least in a baseline: four hours with a run every minute, 48 minutes with a run every 10 s."""

    drift_confidence: float = 0.99999
    """Confidence of the interval: the test is repeated for years."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Numbers that decide, in groups."""

    decide: Decide = Decide()
    pool: Pool = Pool()
    attribute: Attribute = Attribute()
    drift: Drift = Drift()

    def but(self, **changes: Any) -> Policy:
        """Return the policy with some numbers changed.

        Args:
            changes: Name of a number in any group → its value.

        Raises:
            KeyError: No number has that name.
        """
        group_of = {f.name: group.name for group in fields(self) for f in fields(getattr(self, group.name))}
        policy = self
        for name, value in changes.items():
            group = group_of[name]
            policy = replace(policy, **{group: replace(getattr(policy, group), **{name: value})})
        return policy

    def for_measures(self, *, loads: bool = False) -> Policy:
        """Return the policy for memory or, with ``loads``, for throughput and energy.

        The restart SD learned from latencies does not apply. Memory is not compared with other replicas over the same
        period, because the host does not change it, and their processes are older.
        """
        pool = self.pool
        known = Pool.restart_sd if pool.prior else pool.restart_sd
        changes = {"concurrent_starts": 0, "restart_sd": known}
        if loads:
            changes = {"restart_sd": pool.load_restart_sd, "restart_df": 8.0}
        effect = max(self.decide.smallest_effect, pool.measure_effect)
        return self.but(reads_clock=False, smallest_effect=effect, **changes)


LIVE = Policy()
"""Judges upgrades in the exporter, at looks while runs come in."""

FILES = LIVE.but(confidence=0.995, history=16, cold_starts=1, fewest_new_runs=8, noise_df=0.0)
"""Compares files or samples at one look: all runs are there, so the interval that is shown also calls. At this
confidence .09 % of the places in labelled series without a change were called (benchmarks/verdicts.py).
"""

EXPERIMENT = LIVE.but(restart_sd=0.05, cold_starts=1)
"""Decides on pairs of starts, with a look after each pair. Its interval rests on the number of starts; the assumed
restart SD counts only for changes that are beyond doubt on a machine where starts differ by 15 %.
"""
