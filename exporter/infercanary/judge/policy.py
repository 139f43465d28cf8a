"""Policy: all thresholds of the judge, in four groups. Thresholds of alerts are in prometheus/rules.

There are three policies: ``LIVE`` judges upgrades in the exporter, ``FILES`` compares two files at one look, and
``EXPERIMENT`` decides ``infercanary ab``. The smallest effect is the same in all three.

This module gives shifts as ratios (0.03 is 3 %, slower or faster). The judge computes with logarithms of ratios.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Decide:
    """Limits that decide whether a shift is a change. Users set ``smallest_effect`` and ``false_calls``."""

    smallest_effect: float = 0.03
    """Ratio. A smaller shift is no change. If the whole interval is within this limit, the verdict is `equivalent`.
    Code layout and memory allocation alone can change speed by almost 3 % (Mytkowicz et al., "Producing Wrong Data
    Without Doing Anything Obviously Wrong!", 2009).
    """

    clear_zone: float = 0.01
    """Ratio. Dead band: a shift is a change only if its confidence interval lies outside this band. A tiny shift does
    not matter, even if the shift is certain.
    """

    confidence: float = 0.95
    """Confidence of the displayed interval, over all looks at one upgrade together. Whether a change is called
    depends on ``false_calls``, not on this confidence.
    """

    false_calls: float = 0.002
    """Error probability of the interval that calls a change, over all looks at one upgrade and both directions. With
    a restart variance learned from eight earlier starts, about .5 % of the restarts of an unchanged image are called
    a change. With the prior alone, fewer than 1 % are called if the restart SD is at most 3 %, and 2 % if it is 5 %
    (``benchmarks/verdicts.py``).
    """

    looks: tuple[int, ...] = (5, 8, 12, 16, 24, 36, 48, 96, 192)
    """Run counts of a new start at which the judge looks. The interval holds for all looks together, so additional
    looks add no false calls. Most looks are at small run counts, to call a large change early.
    """

    @cached_property
    def log_effect(self) -> float:
        """Smallest effect as a logarithm.

        The logarithm is symmetric: if the new side is 3 % slower, the old side is 2.9 % faster.
        """
        return math.log1p(self.smallest_effect)

    @cached_property
    def log_clear(self) -> float:
        """Edge of the dead band as a logarithm."""
        return math.log1p(self.clear_zone)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Limits that select starts and runs, and priors for pooling shifts."""

    history: int = 8
    """Number of latest baseline starts that count for each container. Eight are enough to learn the restart variance.
    """

    fewest_runs: int = 8
    """A start counts if it has at least this number of runs. With fewer, scatter and autocorrelation are guesses."""

    fewest_new_runs: int = 5
    """A new start counts in the live judge if it has at least this number of runs. A new start needs fewer runs than a
    baseline start, because the baseline helps to estimate the noise.
    """

    full_baseline_runs: int = 24
    """Number of runs after which the status page and the demo call a baseline complete. A shorter baseline also counts,
    but its noise is a guess. A slow image was called slower after 5 minutes with 24 baseline runs, and not yet after 11
    minutes with 12 (``benchmarks/results/2026-11-22-stack.md``).
    """

    concurrent_runs: int = 4
    """A replica on the old image is a concurrent baseline if it has at least this number of runs during the new
    image's runs. Fewer runs are too few to estimate scatter. The judge waits until one such replica has enough runs.
    """

    concurrent_starts: int = 16
    """Largest number of replicas on the old image that a new start is compared with. Replicas with the most runs
    during the new start are taken. The standard error of their median shift is a third of a single replica's. Without
    this limit, a judgement with 150 replicas took 11 s.
    """

    noise_df: float = 5.0
    """Weight of the baseline's noise in the noise estimate of a new start, in degrees of freedom. With a larger weight,
    a new image that is noisier than the baseline is judged too early. With a smaller weight, a doubled latency is
    called only after more than a minute.
    """

    restart_sd: float = 0.012
    """SD of logarithms. Assumed restart SD before any restart was observed."""

    restart_df: float = 3.0
    """Degrees of freedom of :attr:`restart_sd`. The number is small, so the prior has a heavy tail, and a service's own
    restarts soon outweigh the prior.
    """

    prior: int = 0
    """Number of the stored prior of the restart variance, learned from all services; 0 for the assumed prior."""

    baseline_runs: int = 240
    """Number of latest runs of a start that are its baseline."""

    reads_clock: bool = True
    """True if equal values are attributed to a coarse clock. False for measures, because memory values are exact."""

    measure_effect: float = 0.05
    """Ratio. :attr:`smallest_effect` for memory, throughput and energy. The effect is larger than for latency, because
    allocators and clock rates change these measures by a few percent between starts.
    """

    load_restart_sd: float = 0.025
    """SD of logarithms. :attr:`restart_sd` for throughput and energy. Both measures come from loads of one second,
    whose speed depends on the clock rate of a start. This prior has eight degrees of freedom. With fewer, its tail is
    so heavy that a verdict would need more starts than happen in a week
    (``benchmarks/results/2026-11-24-measures.md``).
    """

    spread_restart_sd: float = 0.15
    """SD of logarithms. :attr:`restart_sd` for the spread of runs. A spread estimated from 48 runs has about this
    error. The prior has four degrees of freedom.
    """

    contended: float = 0.1
    """Ratio. A start is contended if other processes on the host slowed it down by more than this limit, through CPU
    wait, compared with the image's other starts. A contended start is no baseline, and does not count for the restart
    variance.
    """

    gone_seconds: float = 600.0
    """Seconds without a run after which a container is no longer live, if ``gone_runs`` is exceeded as well."""

    gone_runs: float = 3.0
    """Number of run intervals without a run after which a container is no longer live, if ``gone_seconds`` is exceeded
    as well.
    """


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """Thresholds for naming a cause."""

    cause_confidence: float = 0.95
    """Confidence for the interval of a part (host, image or load)."""

    history_confidence: float = 0.9995
    """Confidence of the intervals of two shifts: after a rollback, from earlier runs of the same image; in a scan, at a
    change point.
    """

    moved_sigmas: float = 2.6
    """A control or sibling has moved if its shift is at least this number of standard errors, and at least the
    smallest effect. With normal noise, one in a hundred unchanged controls exceeds 2.6 standard errors.
    """

    whole_share: float = 0.75
    """An explanation covering at least this share of the shift is reported as its only cause."""

    waiting_factor: float = 2.0
    """Upper limit of the shift that the host explains, in seconds per second of CPU wait. After a wait the caches are
    cold, which costs from microseconds to more than a millisecond (Li, Ding, Shen, "Quantifying the cost of context
    switch", ExpCS 2007). A time slice of the scheduler lasts a few milliseconds, so cold caches at most double the
    wait.
    """

    phase_share: float = 0.25
    """A phase or a resource is named if it explains at least this share of the change."""

    tag_share: float = 0.2
    """A tag is named if the share of runs with this tag rose by at least this value."""

    cold_start_ratio: float = 1.25
    """A step of the cold start is slower only if it takes more than this multiple of its longest earlier time."""

    cold_start_seconds: float = 1.0
    """A step of the cold start is slower only if it also takes this many seconds more than its longest earlier time."""

    cold_starts: int = 2
    """Smallest number of starts in which a step must be slower. One start is not enough, because the first start reads
    the new image's files from the disk.
    """


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Thresholds of a container's drift without an upgrade."""

    block_runs: int = 12
    """Number of runs in a block. Medians of blocks are compared, so a disturbance of one minute has no effect."""

    first_seconds: float = 86_400.0
    """Length of the frozen baseline, from an image's first run. The baseline is longer if it has too few blocks."""

    blocks: int = 24
    """Number of latest blocks that are compared with the baseline, and smallest number of blocks of a baseline. 24
    blocks take about five hours with a run every minute, and 48 minutes with a run every 10 s.
    """

    drift_confidence: float = 0.99999
    """Confidence of the interval, high because the test is repeated for years."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """All thresholds of the judge, in groups."""

    decide: Decide = Decide()
    pool: Pool = Pool()
    attribute: Attribute = Attribute()
    drift: Drift = Drift()

    def but(self, **changes: Any) -> Policy:
        """Return a copy of the policy with some fields changed.

        Args:
            changes: New value by field name; the field may be in any group.

        Raises:
            KeyError: No group has a field of that name.
        """
        group_of = {f.name: group.name for group in fields(self) for f in fields(getattr(self, group.name))}
        policy = self
        for name, value in changes.items():
            group = group_of[name]
            policy = replace(policy, **{group: replace(getattr(policy, group), **{name: value})})
        return policy

    def for_measures(self, *, loads: bool = False) -> Policy:
        """Return the policy for memory, or for throughput and energy if ``loads`` is true.

        The restart SD learned from latencies does not apply to measures. Memory has no concurrent baseline: the host
        does not affect memory use, and an older process of another replica uses more.
        """
        pool = self.pool
        known = Pool.restart_sd if pool.prior else pool.restart_sd
        changes = {"concurrent_starts": 0, "restart_sd": known}
        if loads:
            changes = {"restart_sd": pool.load_restart_sd, "restart_df": 8.0}
        effect = max(self.decide.smallest_effect, pool.measure_effect)
        return self.but(reads_clock=False, smallest_effect=effect, **changes)


LIVE = Policy()
"""Policy of the exporter, which judges an upgrade several times (looks) while runs arrive."""

FILES = LIVE.but(confidence=0.995, history=16, cold_starts=1, fewest_new_runs=8, noise_df=0.0)
"""Policy for comparing files or samples at one look. All runs exist already, so the displayed interval also calls a
change. At this confidence .09 % of the places without a change in labelled series were called
(``benchmarks/verdicts.py``).
"""

EXPERIMENT = LIVE.but(restart_sd=0.05, cold_starts=1)
"""Policy of an experiment with pairs of starts, with a look after each pair. The interval is computed from the
observed starts. The assumed restart SD is used only to stop early, at changes that would be certain even if starts
differed by 15 %.
"""
