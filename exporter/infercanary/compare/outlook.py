"""What would settle a question that is inconclusive: more runs, or more starts, and how many.

More runs shrink the runs' own part of the standard error with their square root. Only more starts shrink what restarts
leave; and each start teaches how much starts differ. The estimate takes it that the shift stays as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from infercanary.compare.units import short
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.shift import Restarts, Shift
from infercanary.judge.statistics import assess

_MOST_RUNS = 1000.0  # times as many
_MOST_STARTS = 64


class Evidence(NamedTuple):
    """What there is: the shift with the error of its runs alone, what restarts do, and how many there are of both."""

    shift: Shift
    restarts: Restarts
    runs: tuple[int, int]
    starts: tuple[int, int]
    policy: Policy = FILES


def outlook(evidence: Evidence, *, assumed: bool) -> list[str]:
    """What to do next, in plain sentences."""
    policy = evidence.policy
    fewest = policy.fewest_runs
    missing = [
        side for side, starts in zip(("baseline", "candidate"), evidence.starts, strict=True) if not starts
    ]
    if missing:
        return [
            f"the {' and the '.join(missing)} needs {fewest} runs of one start at least; {2 * fewest} show more"
        ]
    found = []
    effect = policy.smallest_effect
    sd = short(100 * evidence.restarts.sd)
    if (runs := more_runs(evidence)) is not None:
        found.append(f"about {_round(runs):,} more runs a side would settle it, if the shift stays as it is")
    elif (starts := more_starts(evidence)) is not None:
        high = _with(evidence, _MOST_RUNS, evidence.starts).interval(policy.confidence)[1]
        found.append(
            f"{starts} more start{'s' if starts > 1 else ''} a side would settle it, if the shift stays as it is; more "
            f"runs alone would not, since starts that differ by {sd} % leave "
            f"±{short(100 * math.expm1(high - evidence.shift.log))} %"
        )
    elif effect <= abs(evidence.shift.log) < policy.restart_sds * evidence.restarts.sd:
        found.append(
            "more of the same will not settle it: the shift is less than three times what restarts of one image do "
            f"({sd} %); find out what differs between starts"
        )
    elif abs(abs(evidence.shift.log) - effect) < policy.clear_zone:
        found.append(
            "more of the same will hardly settle it: the shift is at the edge of what counts as one "
            f"({short(100 * effect)} %)"
        )
    else:
        found.append(
            f"more of the same will hardly settle it: starts of one image differ by {sd} %, and runs scatter; find "
            "out why"
        )
    if assumed:
        found.append(
            "how much starts differ is a guess here: say it with --restart-sd (0 where no restart lies between), or "
            "give more starts of each image to learn it from"
        )
    return found


def more_runs(evidence: Evidence) -> int | None:
    """How many more runs a side would settle it, or None where no number of them would."""
    if not _settles(evidence, _MOST_RUNS, evidence.starts):
        return None
    low, high = 1.0, _MOST_RUNS
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _settles(evidence, middle, evidence.starts) else (middle, high)
    return math.ceil((high - 1) * min(evidence.runs))


def more_starts(evidence: Evidence) -> int | None:
    """How many more starts on each side, each with as many runs as those that are there."""
    for more in range(1, _MOST_STARTS):
        before, after = evidence.starts
        if _settles(evidence, 1 + more / max(before, after), (before + more, after + more)):
            return more
    return None


def _settles(evidence: Evidence, factor: float, starts: tuple[int, int]) -> bool:
    between = _with(evidence, factor, starts)
    policy = evidence.policy
    seen = assess(between, policy.confidence, restart_sd=evidence.restarts.sd, policy=policy)
    return seen.verdict != "inconclusive"


def _with(evidence: Evidence, factor: float, starts: tuple[int, int]) -> Shift:
    """The shift as it would be known from ``factor`` times the runs, over so many starts."""
    shift, restarts = evidence.shift, evidence.restarts
    runs = shift.se**2 / factor
    starting = restarts.sd**2 * (1 / starts[0] + 1 / starts[1])
    total = runs + starting
    if not total:
        return shift._replace(se=0.0)
    learnt = restarts.df + sum(starts) - sum(evidence.starts)
    # Welch and Satterthwaite.
    df = total**2 / (runs**2 / (shift.df * factor) + starting**2 / learnt)
    return Shift(shift.log, math.sqrt(total), df)


def _round(number: int) -> int:
    """Two digits, upwards: it is an estimate."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return math.ceil(number / step) * step
