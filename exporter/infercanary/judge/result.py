"""Result of the judge: one flat value with its evidence. Frozen, without I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from infercanary.contract.bottleneck import Limit
from infercanary.contract.bounds import Moment
from infercanary.contract.report import OUTPUT_TOLERANCE
from infercanary.contract.vocabulary import Cause
from infercanary.judge.model import Changed
from infercanary.judge.operators import Operators
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import Restarts, Shift

State = Literal[
    "settling", "no_baseline", "inconclusive", "equivalent", "unconfirmed", "regressed", "improved"
]
STATES: tuple[State, ...] = get_args(State)


class Part(msgspec.Struct, frozen=True):
    """Part of a shift with its confidence interval, as ratios."""

    shift: float
    low: float
    high: float

    @classmethod
    def of(cls, shift: Shift, level: float) -> Part:
        """Make a part from logarithms.

        Args:
            shift: The part with its error.
            level: Two-sided confidence of the interval, between 0 and 1.

        Returns:
            Ratios; an infinite error gives the bounds -1 and e^700 - 1.
        """
        low, high = shift.interval(level)
        return cls(*(math.expm1(min(x, 700.0)) for x in (shift.log, low, high)))


class Change(msgspec.Struct, frozen=True):
    """A component of the environment that differs between two images."""

    component: str
    before: str | None
    """Value with the old image; None if the old image does not have this component."""
    after: str | None
    """Value with the new image; None if the new image does not have this component."""


class Causes(msgspec.Struct, frozen=True):
    """Known causes of a shift, with their evidence."""

    host: Part | None = None
    """Host's part of the shift; None without controls and siblings."""
    image: Part | None = None
    """Image's part of the shift; None if unknown."""
    load: Part | None = None
    """Part of the shift that is CPU wait caused by more (or fewer) requests; None if zero or unknown."""
    cause: Cause = "unknown"
    phases: dict[str, float] = {}
    """Share of the change by phase, the largest first. Shares below a quarter are left out."""
    bottlenecks: dict[Limit, float] = {}
    """Share of the change by resource, the largest first. Shares sum to about 1. Empty if nothing changed."""
    controls: dict[str, float] = {}
    """Shift (a ratio) by control, for controls that moved."""
    has_controls: bool = False
    """True if at least one control ran both before and after."""
    siblings: Part | None = None
    """Median shift of the siblings, which are containers whose image did not change."""
    clock: Part | None = None
    """Part of the shift that the SM clock explains."""
    changes: tuple[Change, ...] = ()
    tags: dict[str, tuple[float, float]] = {}
    """Share of runs before and after, by tag, for tags that became more frequent."""
    cold_start: dict[str, tuple[float, float]] = {}
    """Seconds before and after, by step of the cold start, for steps that became slower."""
    output_error: float | None = None
    """Relative error of the new image's first steady output against the old image's; None if either is unknown."""
    output_tokens: tuple[float, float] | None = None
    """Tokens of a completion before and after; None if both are equal. Fewer tokens take less time."""
    cpu_fallback: bool = False
    """True if the canary ran on a GPU before and runs on the CPU now."""
    memory_kills: tuple[int, int] = (0, 0)
    """Number of server processes that the kernel killed for lack of memory, before and after the upgrade."""
    inside: tuple[float, float] | None = None
    """Cores that other processes in the container used during the canary, before and after; None if the canary did
    not wait because of them.
    """
    operators: Operators | None = None
    """Explanation by profiled repeats; None if either side has no profile."""
    unknown_siblings: bool = False
    """True if siblings or replicas on the old image do not have enough runs yet."""
    unknown_waiting: bool = False
    """True if the canary waited for CPUs, and it is unknown whether its container or the host caused the wait."""
    unknown_load: bool = False
    """True if other processes in the container used more CPU, perhaps because of requests."""

    @property
    def output_changed(self) -> bool:
        """True if the new image gives another output for the same input."""
        return (self.output_error or 0.0) > OUTPUT_TOLERANCE


class Looks(msgspec.Struct, frozen=True):
    """Looks of the judge, given as run counts of a new start."""

    last: int = 0
    """Run count of the last look; 0 before the first look."""
    next: int | None = None
    """Run count of the next look; None after the final look."""
    needs_starts: bool = False
    """True if only more starts or replicas, not more runs, can confirm an unconfirmed change."""


class Doubts(msgspec.Struct, frozen=True):
    """Reasons to doubt that there was an upgrade."""

    is_by_reference: bool = False
    """True if the images are compared by name, because their digests are not comparable."""
    redrawn: int = 0
    """Number of starts if all have different weights (random initialization); 0 if any two have the same weights."""


class Benchmarked(msgspec.Struct, frozen=True):
    """Last recorded benchmark of the running image. Verdicts do not depend on these facts."""

    command: str = ""
    """Command that recorded the benchmark; empty if no benchmark of the image is recorded."""
    at: Moment = 0.0
    """Unix time of its last run."""
    verdict: str = ""
    """Verdict against its baseline; empty without a comparison."""
    shift: float | None = None
    is_other_host: bool = False
    """True if it ran on another host; False if either host is unknown."""
    is_other_hardware: bool = False
    """True if it ran on another class of hardware, where its verdict says little."""
    changes: tuple[Change, ...] = ()
    """Components that differ between the benchmark and the newest start of the image."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with its evidence. Shifts are ratios (0.05 is 5 % slower), times are Unix seconds."""

    state: State
    """The verdict."""
    upgraded_at: float | None = None
    """Time of the upgrade: the first start of the new image."""
    newest_at: float | None = None
    """Time of the last start of the new image, later than ``upgraded_at`` if the rollout is gradual."""
    shift: float | None = None
    """Shift of the latency; None if nothing can be compared."""
    low: float | None = None
    """Lower end of the interval of ``shift``."""
    high: float | None = None
    """Upper end of the interval of ``shift``."""
    own: Part | None = None
    """After a rollback: shift from earlier runs of the same image; None otherwise."""
    rollback: bool = False
    """True if the new image already ran before the old image."""
    changed: Changed = "image"
    """Part that the upgrade replaced. New weights in the same image are also an upgrade."""
    baseline_image: str = ""
    """Name of the old image."""
    candidate_image: str = ""
    """Name of the new image, or of the only image if there was no upgrade."""
    rolled_back_image: str = ""
    """Name of the last new image, if it was rolled back."""
    origins: tuple[Origin, Origin] = (NOWHERE, NOWHERE)
    """Origins of the old and of the new image, by their labels."""
    doubts: Doubts = Doubts()
    """Reasons to doubt that there was an upgrade."""
    settings_changed_at: float | None = None
    """Time of the last change of the canary's settings, which excludes earlier runs; None if no run is excluded."""
    baseline: float | None = None
    """Median latency of the old image in seconds."""
    current: float | None = None
    """Median latency in seconds of the new image, or of the only image if there was no upgrade."""
    controls: dict[str, float] = {}
    """Median seconds by control, with the old image, or with the only image if there was no upgrade."""
    only: float | None = None
    """Latency in seconds if a coarse clock shows the same value for all runs of both images; None if runs differ."""
    looks: Looks = Looks()
    """The last look and the next look."""
    restart: Restarts = Restarts(LIVE.pool.restart_sd, math.inf)
    """Restart variance included in the interval; assumed if its degrees of freedom are the policy's."""
    concurrent: int = 0
    """Concurrent baseline: number of replicas that stayed on the old image over the same period."""
    concurrent_shift: float | None = None
    """Shift of the concurrent baseline (a ratio), which was subtracted from ``shift``; None if none was subtracted."""
    contended: int = 0
    """Number of starts excluded because they were contended."""
    is_unwaited: bool = False
    """True if ``shift`` and ``state`` were computed after subtracting CPU wait."""
    causes: Causes = Causes()
    """Causes of the shift."""
    benchmark: Benchmarked | None = None
    """Benchmark of the new image, or of the only image; None if the image is unknown."""
    runs: int = 0
    """Number of the new image's runs at the last look; before the first look, the runs of the longest start."""
    starts: int = 0
    """Number of compared starts of both images."""
    hosts: int = 0
    """Number of hosts of the compared starts; 0 if the store is for one host only."""
    medians: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Latencies before and after in seconds, in order of time, for a chart: at most 120 runs of each side."""
