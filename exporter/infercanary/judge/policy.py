"""Every number that the judge decides by, in four groups. Thresholds of alerts are in prometheus/rules alone.

Three policies are named: ``LIVE`` judges upgrades in the exporter, ``FILES`` compares two files of runs at one look,
and ``EXPERIMENT`` decides ``infercanary ab``. What counts as a change is the same for each.

Shifts are ratios here (0.03 is 3 %), in either direction alike; the judge works on their logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Decide:
    """When a shift is a change, and when it is none. Users set the first five."""

    smallest_effect: float = 0.03
    """Ratio. A smaller shift is no change, and an interval within it is `equivalent`. Below 3 % layout and allocation
    alone move programs (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", 2009)."""

    clear_zone: float = 0.01
    """Ratio. A change's confidence interval lies beyond it: what is merely not zero wakes nobody."""

    confidence: float = 0.95
    """Of the interval that is shown, over all looks at one upgrade together. A change is called by ``false_calls``."""

    false_calls: float = 0.002
    """Error of the interval that calls a change, over all looks at one upgrade and both directions. Where the restart
    variance is known from eight earlier starts, about .5 % of restarts of an unchanged image are called. Where all that
    is known is the prior, it is below 1 % for restart SDs up to 3 %, and 2 % at 5 % (``benchmarks/verdicts.py``)."""

    looks: tuple[int, ...] = (5, 8, 12, 16, 24, 36, 48, 96, 192)
    """Runs of a start of the candidate at which the judge looks. The interval holds however often one looks, so they
    cost CPU time alone; they are closest where a large change is called."""

    # As logarithms, such that a verdict holds in ratios of either direction.

    @cached_property
    def log_effect(self) -> float:
        """The smallest effect: of a change at least so much, and within it both are equivalent, or have not moved.

        Alike in both directions: one side is 3 % slower than the other, so that it is faster by 2.9 % of it.
        """
        return math.log1p(self.smallest_effect)

    @cached_property
    def log_clear(self) -> float:
        """The edge of the clear zone."""
        return math.log1p(self.clear_zone)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Which starts and runs count, and how their shifts are pooled. Users set ``history``."""

    history: int = 8
    """Starts of the baseline that count, of each container: the latest. As many as teach the restart variance well
    without a search through an image's whole past."""

    fewest_runs: int = 8
    """Runs of a start without which it does not count: with fewer, a scatter and an autocorrelation are guesses."""

    fewest_new_runs: int = 5
    """Runs of a start of the candidate from which on the live judge compares it: what the baseline shows of the noise
    counts for it, too."""

    full_baseline_runs: int = 24
    """Runs that the status page and the demo wait for before they call a baseline complete. Fewer are compared, too,
    but their noise is a guess: with 12, a slow image was not called within 11 minutes, with 24 it was in 5
    (``benchmarks/results/2026-11-22-stack.md``)."""

    concurrent_runs: int = 4
    """Runs of a replica on the old image, while those of the candidate ran, from which on it is compared with: with
    fewer, they have no scatter. Until one has so many, the judge waits."""

    concurrent_starts: int = 16
    """Of replicas that stay on the old image, as many as a new start is compared with: those that ran on for longest.
    What the one in the middle of 16 moved by is known three times as well as what one moved by, and 150 took 11 s."""

    noise_df: float = 5.0
    """Degrees of freedom that the baseline's noise counts for in the candidate's. With more, a candidate that is
    noisier than the baseline is trusted too early; with fewer, a slowdown to double takes more than a minute."""

    restart_sd: float = 0.012
    """SD of logarithms. How much starts of one image are assumed to differ before any restart was seen."""

    restart_df: float = 3.0
    """Degrees of freedom of that: few, so that its tail is heavy and a service's own restarts soon outweigh it."""

    prior: int = 0
    """Number of the stored prior that was learned from the services of a store; 0 where the prior is assumed."""

    baseline_runs: int = 240
    """Runs of a start that are its baseline: the latest."""

    reads_clock: bool = True
    """Whether equal values may be those of a coarse clock. Memory is exact: each start may have the same bytes."""

    measure_effect: float = 0.05
    """Ratio. As :attr:`smallest_effect`, of memory, throughput and energy: allocators and clocks move these by a few
    percent from start to start."""

    load_restart_sd: float = 0.025
    """SD of logarithms. As :attr:`restart_sd`, of throughput and energy: a second's load, at clocks that differ from
    start to start. It is known on eight degrees of freedom: the heavy tail of fewer would ask for more starts than come
    in a week (``benchmarks/results/2026-11-24-measures.md``)."""

    spread_restart_sd: float = 0.15
    """SD of logarithms. As :attr:`restart_sd`, of the run-to-run spread, which 48 runs show no better. It is known on
    eight degrees of freedom."""

    contended: float = 0.1
    """Ratio by which waiting for others on the host made a start's runs longer than those of the image's other starts:
    such a start teaches nothing, and is no baseline."""

    gone_seconds: float = 600.0
    """Without a run for so long, and"""

    gone_runs: float = 3.0
    """for so many of its own intervals, a container is not live any more."""


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """When a cause is named."""

    cause_confidence: float = 0.95
    """Of the interval of a part of a shift."""

    history_confidence: float = 0.9995
    """Of the interval of a shift against the same image's own history, and of the shift at a change point."""

    moved_sigmas: float = 2.6
    """Standard errors by which a control or a sibling has moved, and by the smallest effect: one in a hundred that
    stood still passes (normal noise)."""

    whole_share: float = 0.75
    """Share of a shift: what made so much of it made it."""

    waiting_factor: float = 2.0
    """What may be the host's at most for each second of waiting for a CPU. Cold caches follow a switch, which costs
    from microseconds to more than a millisecond (Li, Ding, Shen, "Quantifying the cost of context switch", ExpCS
    2007), where a turn of the scheduler lasts a few: as much again at most."""

    phase_share: float = 0.25
    """Share of a change from which on a phase or a resource is named."""

    tag_share: float = 0.2
    """By which the share of runs with a tag must rise to be named."""

    cold_start_ratio: float = 1.25
    """A step of the cold start is slower if it takes so many times as long as ever before,"""

    cold_start_seconds: float = 1.0
    """and so many seconds longer,"""

    cold_starts: int = 2
    """in each of so many starts at least: the first one reads a new image's files from the disk."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """When a container has drifted without an upgrade."""

    block_runs: int = 12
    """Runs in a block, whose medians are compared: a block evens out what lasts a minute."""

    first_seconds: float = 86_400.0
    """How long the frozen baseline lasts from an image's first run; longer where that is too few blocks."""

    blocks: int = 24
    """Blocks of now, and of a baseline at least: four hours where a run is due every minute, 48 minutes where one is
    every 10 s."""

    drift_confidence: float = 0.99999
    """Of the interval: it is asked again and again, for years."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The numbers that decide, by what they are for."""

    decide: Decide = Decide()
    pool: Pool = Pool()
    attribute: Attribute = Attribute()
    drift: Drift = Drift()

    def but(self, **changes: Any) -> Policy:
        """Return the policy with some numbers changed.

        Args:
            changes: Name of a number, in whichever group → its value.

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
        """The same numbers for memory or, with ``loads``, for throughput and energy.

        Returns:
            Of an effect that counts there, without what a store's latencies taught of restarts. Memory is not compared
            with what other replicas had in the same minutes: the host does not change it, and theirs is older.
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
"""Compares files or samples, at one look: all runs are there, and so the interval that is shown also calls. Of places
in labelled series where people saw no change, .09 % were called at this confidence (benchmarks/verdicts.py)."""

EXPERIMENT = LIVE.but(restart_sd=0.05, cold_starts=1)
"""Decides on pairs of starts, at a look after each pair. The number of starts is what its interval rests on; what is
assumed of restarts counts only for what is beyond doubt, on a machine where starts may differ by 15 %."""
