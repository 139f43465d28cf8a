"""Stage 3: estimate the shift at each look, with and without the host's variation.

The statistics are used here and in :mod:`.evidence` alone: later stages decide on these numbers and make none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from infercanary.judge.align import Runs, looks_of, pairs, teaching
from infercanary.judge.evidence import Evidence, evidence, moved_with_controls, threads
from infercanary.judge.host import Adjustment, adjust, left_waiting, ranked
from infercanary.judge.model import Concurrent, Pair, Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import moved, pool_parts
from infercanary.judge.restarts import restarts_of
from infercanary.judge.sequential import assess_look, confirmed_at, starts_needed
from infercanary.judge.shift import CHANGED, UNKNOWN, Comparison, Pooled, Restarts, Shift


class Look(NamedTuple):
    """The shift after so many runs of a start, and what it is by itself."""

    shift: Shift
    seen: Comparison
    runs: int
    confirmed_at: int | None = None
    """Of a change that is not called yet: the look that would call it if it stays as it is; None if none would."""
    starts_needed: int | None = None
    """Of a change that no look would call: how many more starts would; None where that is not known."""
    concurrent: int = 0
    """Replicas that stayed on the old image while the new one's starts ran."""
    moved: float | None = None
    """What these moved by (a logarithm), which is taken off; None where nothing is."""
    pairs: Sequence[Pair] = ()
    """What it compared."""


class Adjusted(NamedTuple):
    """The same without the host's variation: what each run waited for CPUs, or what siblings felt."""

    pairs: Sequence[Pair]
    """Of the last look."""
    looks: Sequence[Look]
    restarts: Restarts
    siblings: int
    """How many were used; 0 where it is without each run's own waiting."""
    own: Shift | None
    alone: Sequence[float] = ()
    """The shift (a logarithm) at the last look by each sibling alone."""


class Estimate(NamedTuple):
    """What is known of the shift."""

    runs: Runs
    restarts: Restarts
    looks: Sequence[Look] = ()
    """Up to the last one, from the one on that what it says depends on."""
    shift: Shift = UNKNOWN
    """At the last look."""
    own: Shift | None = None
    """After a rollback: the shift against what the same image did before."""
    adjusted: Adjusted | None = None
    evidence: Evidence | None = None
    """None where nothing can be compared."""


def estimate(runs: Runs, policy: Policy) -> Estimate:
    """The shift at each look of ``runs``, and what else moved between the runs of the last look.

    Args:
        runs: What is compared.
        policy: What counts, and the prior of the restart variance.

    Returns:
        Of a shift whose error is infinite, without evidence, where nothing can be compared.
    """
    found = shifts(runs, policy)
    if not math.isfinite(found.shift.se):
        return found
    return found._replace(evidence=evidence(found.looks[-1].pairs, runs.beside, policy))


def shifts(runs: Runs, policy: Policy) -> Estimate:
    """The shift alone, without what else moved: what a trial of the judge takes.

    Args:
        runs: What is compared.
        policy: What counts, and the prior of the restart variance.

    Returns:
        Without evidence; adjusted only where the last look is no answer, and the runs' own waiting makes it one or
        siblings explain something.
    """
    starts, upgrade = runs.selection.starts, runs.selection.upgrade
    restarts = restarts_of(runs.taught, policy.pool)
    if upgrade is None:
        return Estimate(runs, restarts)
    looks = _looks(runs.looks, restarts, policy)
    shift = looks[-1].shift if looks else UNKNOWN
    own = _pooled(runs.own, restarts, policy) if runs.own else None
    found = Estimate(runs, restarts, looks, shift, own)
    if math.isfinite(found.shift.se) and looks[-1].seen.verdict not in (*CHANGED, "equivalent"):
        unwaited = _unwaited(starts, upgrade, policy)
        is_answer = unwaited is not None and unwaited.looks and unwaited.looks[-1].seen.verdict in CHANGED
        found = found._replace(
            adjusted=unwaited if is_answer else _adjusted(starts, runs.siblings, upgrade, policy)
        )
    return found


def _looks(
    looks: Sequence[Sequence[Pair]], restarts: Restarts, policy: Policy, slope_error: float = 0.0
) -> list[Look]:
    """The last look, and those before it that decide what it says; ``slope_error`` widens their intervals.

    What a look says depends on earlier ones only where it is `unconfirmed`: then a change may have been called before.
    So most judgements take one look, however many were reached.
    """
    found: list[Look] = []
    for reached, runs in reversed([*zip(looks, policy.decide.looks, strict=False)]):
        whole = _parts(reached, restarts, policy)
        compared, parts = _surer(reached, whole, restarts, policy)
        if parts is None:
            break
        parts = parts._replace(runs_se=math.hypot(parts.runs_se, slope_error))
        seen = assess_look(parts, runs, policy)
        confirmed = needed = None
        if not (
            _is_seen_as_it_is(seen, parts, compared, restarts, policy)
            and _is_seen_by_all(seen, parts, compared, whole, reached, policy)
        ):
            seen = seen._replace(verdict="unconfirmed" if seen.verdict in CHANGED else "inconclusive")
        elif seen.verdict == "unconfirmed":
            confirmed = confirmed_at(parts, runs, policy)
            if confirmed is None and not found:  # of the last look alone: it takes time
                needed = starts_needed(parts, runs, _starts(compared), policy)
        beside = len(_by_container(compared))
        found.append(Look(parts.shift, seen, runs, confirmed, needed, beside, parts.moved, compared))
        is_open = found[-1].seen.verdict == "unconfirmed"
        if not is_open:
            break
    return found[::-1]


def _starts(compared: Sequence[Pair]) -> tuple[int, int]:
    """How many are compared, before and after."""
    return sum(len(pair.old) for pair in compared), sum(len(pair.after) for pair in compared)


def _surer(
    reached: Sequence[Pair], whole: Pooled | None, restarts: Restarts, policy: Policy
) -> tuple[Sequence[Pair], Pooled | None]:
    """All runs, or those of the same minutes alone where each pair has some, whichever have the smaller error.

    All are of more starts, and their error has what the host did before. The choice does not see the shift.
    """
    alone = [pair.meanwhile for pair in reached if pair.meanwhile is not None]
    if alone and len(alone) == len(reached):
        parts = _parts(alone, restarts, policy)
        if parts is not None and (whole is None or parts.shift.se < whole.shift.se):
            return alone, parts
    return reached, whole


def _is_seen_by_all(
    seen: Comparison,
    parts: Pooled,
    compared: Sequence[Pair],
    whole: Pooled | None,
    reached: Sequence[Pair],
    policy: Policy,
) -> bool:
    """Whether a few new starts, which alone have runs of the same minutes, may answer for all.

    They are never enough for `equivalent`; and all of them must have moved about as far.
    """
    few = 2 * sum(len(pair.after) for pair in compared) < sum(len(pair.after) for pair in reached)
    if not few or seen.verdict not in (*CHANGED, "equivalent"):
        return True
    return (
        seen.verdict in CHANGED
        and whole is not None
        and whole.log / parts.log >= policy.pool.concurrent_alone
    )


def _unwaited(starts: Sequence[Start], upgrade: Upgrade, policy: Policy) -> Adjusted | None:
    """Without the waiting that each run measured itself; None where it is not known of a start that counts."""
    if any(threads(start.generation) != "1" for start in (*upgrade.before, *upgrade.after)):
        return None
    left = left_waiting(starts, policy)
    quiet = _same(upgrade, left, policy)
    if quiet is None or _scatter(quiet, policy) > policy.pool.waiting_explains * _scatter(upgrade, policy):
        return None
    return _anew(left, quiet, 0, policy)


def _anew(
    left: Sequence[Start], upgrade: Upgrade, siblings: int, policy: Policy, slope_error: float = 0.0
) -> Adjusted:
    """The looks at an ``upgrade`` of which only ``left`` is left of the service's starts."""
    restarts = restarts_of(teaching(left, upgrade, policy), policy.pool)
    looks = _looks(looks_of(upgrade, policy), restarts, policy, slope_error)
    own = pairs(upgrade.own, upgrade.after, policy)
    return Adjusted(
        looks[-1].pairs if looks else (),
        looks,
        restarts,
        siblings,
        _pooled(own, restarts, policy) if own else None,
    )


def _scatter(upgrade: Upgrade, policy: Policy) -> float:
    """Of the starts that count, that of the one whose runs scatter most (an SD of logarithms)."""
    several = (*upgrade.before, *upgrade.after)
    return max(
        (s.series(policy).scatter for s in several if len(s.samples) >= policy.pool.fewest_runs),
        default=math.inf,
    )


def _same(upgrade: Upgrade, left: Sequence[Start], policy: Policy) -> Upgrade | None:
    """The upgrade of those starts that are left; None where too few are.

    A start that ended before it had enough runs does not count either way.
    """
    known = {start.boot: start for start in left}

    def same(several: Sequence[Start]) -> list[Start]:
        return [known[start.boot] for start in several if start.boot in known]

    before, after = same(upgrade.before), same(upgrade.after)
    judged = sum(len(start.samples) >= policy.pool.fewest_runs for start in upgrade.after)
    return Upgrade(upgrade.at, before, after, same(upgrade.own)) if before and len(after) >= judged else None


def _adjusted(
    starts: Sequence[Start], siblings: Sequence[Start], upgrade: Upgrade, policy: Policy
) -> Adjusted | None:
    ranks = ranked(siblings, policy.pool.covariates)
    together = _without(adjust(starts, [s for rank in ranks for s in rank], policy), upgrade, policy)
    if together is None:
        return None
    adjustment, steady, slope_error = together
    found = _anew(adjustment.starts, steady, adjustment.siblings, policy, slope_error)
    if not found.looks or found.looks[-1].seen.verdict in ("inconclusive", "unconfirmed"):
        return found  # no answer, so nobody asks whether siblings agree on it
    alone = []
    for rank in ranks:
        single = _without(adjust(starts, rank, policy), upgrade, policy)
        if single is not None:
            last = looks_of(single[1], policy)[-1:]
            known = restarts_of(teaching(single[0].starts, single[1], policy), policy.pool)
            parts = _surer(last[0], _parts(last[0], known, policy), known, policy)[1] if last else None
            alone.append(math.nan if parts is None else parts.log)
    return found._replace(alone=alone)


def _without(
    adjustment: Adjustment | None, upgrade: Upgrade, policy: Policy
) -> tuple[Adjustment, Upgrade, float] | None:
    """The upgrade without what siblings felt, and the error that the slope adds; None where they miss a new start."""
    if adjustment is None:
        return None
    steady = _same(upgrade, adjustment.starts, policy)
    if steady is None:
        return None
    before, after = (
        mean(adjustment.levels[s.generation.boot_id] for s in side) for side in (steady.before, steady.after)
    )
    return adjustment, steady, abs(after - before) * adjustment.slope_se


def _is_seen_as_it_is(
    seen: Comparison, parts: Pooled, compared: Sequence[Pair], restarts: Restarts, policy: Policy
) -> bool:
    """Whether an answer needs no second replica on the old image to confirm it.

    A replica alone may have changed by itself, which would be attributed to the new image with the opposite sign. So
    the change must be seen in the runs as they are, too, or a control must have moved as that replica did.
    """
    if seen.verdict not in (*CHANGED, "equivalent") or not _is_alone(compared, policy):
        return True
    alone = [pair._replace(concurrent=(), stayed={}) for pair in compared]
    raw = _parts(alone, restarts, policy)
    if raw is None:
        return False
    felt = raw.log - parts.log
    if seen.verdict == "equivalent":
        is_seen = abs(felt) <= policy.decide.log_effect
    else:
        is_seen = raw.log / parts.log >= policy.pool.concurrent_alone
    return is_seen or moved_with_controls(felt, alone, policy)


def _is_alone(compared: Sequence[Pair], policy: Policy) -> bool:
    """Whether what moved beside rests on one replica: there is no other, or the other's noise says little.

    Of the same minutes, that is so where most new starts have one beside them.
    """
    columns = [
        sum(column == number for _, column in pair.stayed)
        for pair in compared
        for number in range(len(pair.after) if pair.stayed else 0)
    ]
    if 2 * sum(count < 2 for count in columns) > len(columns):
        return True
    count = len(_by_container(compared))
    if count != 2:
        return count == 1
    errors = [
        min(
            moved(each.before.series(policy), each.during.series(policy), policy, policy.pool.noise_df).se
            for each in several
        )
        for several in _by_container(compared)
    ]
    return min(errors) < policy.pool.concurrent_alone * max(errors)


def _by_container(compared: Sequence[Pair]) -> list[list[Concurrent]]:
    found: dict[str, list[Concurrent]] = {}
    for pair in compared:
        for each in pair.concurrent:
            found.setdefault(each.during.generation.container, []).append(each)
    return [*found.values()]


def _pooled(compared: Iterable[Pair], restarts: Restarts, policy: Policy) -> Shift:
    parts = _parts([*compared], restarts, policy)
    return UNKNOWN if parts is None else parts.shift


def _parts(compared: Sequence[Pair], restarts: Restarts, policy: Policy) -> Pooled | None:
    replicas = [
        ([s.series(policy) for s in pair.before], [s.series(policy) for s in pair.after]) for pair in compared
    ]
    concurrent = [
        [(each.before.series(policy), each.during.series(policy)) for each in pair.concurrent]
        for pair in compared
    ]
    stayed = [{places: s.series(policy) for places, s in pair.stayed.items()} for pair in compared]
    return pool_parts(replicas, restarts, policy, concurrent, stayed)
