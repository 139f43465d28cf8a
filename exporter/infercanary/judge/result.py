"""Result of the judge: one flat value with its evidence. Frozen, without I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from infercanary.contract.bottleneck import Limit
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
    """A component of the environment that differs; None on a side that does not have it."""

    component: str
    before: str | None
    after: str | None


class Causes(msgspec.Struct, frozen=True):
    """Causes of a shift, as far as they are known."""

    host: Part | None = None
    """Host's part; None without controls and siblings."""
    image: Part | None = None
    load: Part | None = None
    """CPU wait caused by more (or fewer) requests than before; None if there is none, or if it is unknown."""
    cause: Cause = "unknown"
    phases: dict[str, float] = {}
    """Phase → its share of the change, from a quarter on; the largest first."""
    bottlenecks: dict[Limit, float] = {}
    """Resource → its share of the change, the largest first; they sum to about 1. Empty if nothing changed."""
    controls: dict[str, float] = {}
    """Control → its shift; empty if all were flat, or none ran."""
    has_controls: bool = False
    """True if some control ran before and after."""
    siblings: Part | None = None
    """Shift of the containers whose image did not change."""
    clock: Part | None = None
    """Part of the shift that the SM clock explains."""
    changes: tuple[Change, ...] = ()
    tags: dict[str, tuple[float, float]] = {}
    """Tag → share of runs with it before and after, for tags that rose."""
    cold_start: dict[str, tuple[float, float]] = {}
    """Step → seconds before and after, for steps that became slower."""
    output_error: float | None = None
    """Relative error of the first steady output compared with the old image's; None if either is unknown."""
    output_tokens: tuple[float, float] | None = None
    """Tokens of a completion before and after, if they differ: fewer tokens take less time."""
    cpu_fallback: bool = False
    """True if it ran on a GPU before and runs on the CPU now."""
    memory_kills: tuple[int, int] = (0, 0)
    """Number of server processes that the kernel killed for memory, before and after the upgrade."""
    inside: tuple[float, float] | None = None
    """Cores that others in the container used beside the canary, before and after, if that made it wait."""
    operators: Operators | None = None
    """Explanation by profiled repeats; None if a side has none."""
    unknown_siblings: bool = False
    """True if siblings or replicas on the old image have too few runs yet."""
    unknown_waiting: bool = False
    """True if it waited for CPUs, and it is unknown whether inside its container or outside."""
    unknown_load: bool = False
    """True if others in the container used more CPU, and it is unknown whether for requests."""

    @property
    def output_changed(self) -> bool:
        """True if the same input gives another output now."""
        return (self.output_error or 0.0) > OUTPUT_TOLERANCE


class Looks(msgspec.Struct, frozen=True):
    """Looks of the judge, each at a number of runs of a start."""

    last: int = 0
    """The last look; 0 before the first one."""
    next: int | None = None
    """The next look; None after the last one."""
    needs_starts: bool = False
    """True if an unconfirmed change needs more starts or replicas: more runs alone do not confirm it."""


class Doubts(msgspec.Struct, frozen=True):
    """Reasons to doubt that there was an upgrade."""

    is_by_reference: bool = False
    """True if the images are compared by name, since their digests are not comparable."""
    redrawn: int = 0
    """Number of starts, each with weights of its own (random initialization); 0 where two starts have the same."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with its evidence. Shifts are ratios (0.05 is 5 % slower), times are Unix seconds."""

    state: State
    """The verdict."""
    upgraded_at: float | None = None
    """Time of the upgrade: the first start of the new image."""
    newest_at: float | None = None
    """Time of the last start of the new image: a rollout that was stopped may go on."""
    shift: float | None = None
    """Shift of the latency; None where nothing can be compared."""
    low: float | None = None
    """Lower end of the interval of ``shift``."""
    high: float | None = None
    """Upper end of the interval of ``shift``."""
    own: Part | None = None
    """After a rollback: shift compared with earlier runs of the same image."""
    rollback: bool = False
    """True if the new image ran before."""
    changed: Changed = "image"
    """The part that the upgrade exchanged: new weights in the same image are an upgrade, too."""
    baseline_image: str = ""
    """Name of the old image."""
    candidate_image: str = ""
    """Name of the new image; without an upgrade, of the only image."""
    rolled_back_image: str = ""
    """Name of the last new image, if it was rolled back."""
    origins: tuple[Origin, Origin] = (NOWHERE, NOWHERE)
    """Origins of the old and of the new image, by their labels."""
    doubts: Doubts = Doubts()
    """Reasons to doubt that there was an upgrade."""
    settings_changed_at: float | None = None
    """Time of the last change of the canary's settings; None where runs from before it are compared."""
    baseline: float | None = None
    """Median latency of the old image in seconds."""
    current: float | None = None
    """Median latency of the new image in seconds; without an upgrade, of the only image."""
    controls: dict[str, float] = {}
    """Control → its median time in seconds with the old image; without an upgrade, with the only image."""
    only: float | None = None
    """Latency of all runs of both sides in seconds, as a coarse clock shows it; None where runs differ."""
    looks: Looks = Looks()
    """The last look and the next one."""
    restart: Restarts = Restarts(LIVE.pool.restart_sd, math.inf)
    """Restart variance that the interval has. It is assumed if its degrees of freedom are the policy's."""
    concurrent: int = 0
    """Concurrent baseline: number of replicas that stayed on the old image over the same period."""
    concurrent_shift: float | None = None
    """Shift of these replicas, a ratio, which the shift of the upgrade is corrected for; None where it is not."""
    contended: int = 0
    """Number of starts excluded because they were contended."""
    is_unwaited: bool = False
    """True if the shift is the one after subtracting CPU wait."""
    causes: Causes = Causes()
    """Causes of the shift."""
    runs: int = 0
    """Runs of the new image that the last look counted; before the first look, those of the longest start."""
    starts: int = 0
    """Starts of both images that counted."""
    hosts: int = 0
    """Hosts of the compared starts; 0 where the store is of one host."""
    medians: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Latencies of the compared runs before and after in seconds, in order of time, thinned for a picture."""
