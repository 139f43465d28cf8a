"""Stage 4: decide: what the looks so far amount to, with or without the host's variation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infercanary.judge.estimate import Adjusted, Estimate, Look
from infercanary.judge.model import Pair, State
from infercanary.judge.policy import Policy
from infercanary.judge.shift import CHANGED, Comparison, Shift, Verdict


class Decision(NamedTuple):
    """The state, and the look that it rests on."""

    estimate: Estimate
    state: State
    look: Look | None = None
    """None where nothing can be compared yet."""
    adjusted: Adjusted | None = None
    """What the decision rests on where the runs as they are give no answer; else None."""
    pairs: Sequence[Pair] = ()
    """What the look compared."""


def decide(estimate: Estimate, policy: Policy) -> Decision:
    """What the looks amount to.

    Without an upgrade, or where the image before has too few runs on hardware of the same class, there is no baseline.
    Where the runs as they are are inconclusive, those without the host's variation decide: without what each run
    waited, or if siblings agree.

    Args:
        estimate: The shift at each look.
        policy: When a start counts, and when siblings agree.

    Returns:
        The state, with a look of None where nothing can be compared.
    """
    upgrade = estimate.runs.selection.upgrade
    classes = {start.hardware for start in upgrade.after} if upgrade is not None else set()
    if upgrade is None or not any(
        len(start.samples) >= policy.pool.fewest_runs and any(map(start.is_comparable, classes))
        for start in upgrade.before
    ):
        return Decision(estimate, "no_baseline")
    verdict = verdict_after(look.seen for look in estimate.looks)
    state: State = verdict or "settling"
    if not math.isfinite(estimate.shift.se):
        return Decision(estimate, state)
    if state in ("inconclusive", "unconfirmed") and estimate.adjusted is not None:
        adjusted = verdict_after(look.seen for look in estimate.adjusted.looks)
        if adjusted is not None and _is_agreed(estimate.adjusted, adjusted, estimate.shift, policy):
            found = estimate.adjusted
            return Decision(estimate, adjusted, found.looks[-1], found, found.pairs)
    return Decision(estimate, state, estimate.looks[-1], None, estimate.looks[-1].pairs)


def verdict_after(looks: Iterable[Comparison]) -> Verdict | None:
    """The verdict after ``looks``, in order: the one sequential rule of the live judge and of experiments.

    Each look says what its own interval says. But a change that was called stays for as long as the interval lies
    beyond the clear zone on the same side, where a look alone would be `unconfirmed`: so an alert does not come and go.

    Args:
        looks: Those before the last one that is not `unconfirmed` do not matter.

    Returns:
        None where there was no look.
    """
    verdict: Verdict | None = None
    for seen in looks:
        is_same = verdict == ("regressed" if seen.shift > 0 else "improved")
        if not (seen.verdict == "unconfirmed" and is_same):
            verdict = seen.verdict
    return verdict


def _is_agreed(adjusted: Adjusted, verdict: Verdict, raw: Shift, policy: Policy) -> bool:
    """Whether what is left without the host's variation is an answer.

    A sibling may change by itself, which would be attributed to this canary with the opposite sign: so it takes two,
    each of which alone shows about the same, and what is called must be seen in the runs as they are, too.
    """
    if verdict not in (*CHANGED, "equivalent"):
        return False
    log = adjusted.looks[-1].shift.log
    if verdict in CHANGED and abs(raw.log - log) > policy.pool.most_adjusted * abs(log):
        return False
    if not adjusted.siblings:
        return verdict in CHANGED  # each run measured what it waited itself
    apart = max(policy.pool.covariates_apart, policy.pool.covariates_apart_share * abs(log))
    return len(adjusted.alone) > 1 and all(abs(alone - log) <= apart for alone in adjusted.alone)
