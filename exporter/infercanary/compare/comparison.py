"""Compares two recordings of one canary: the verdict, its evidence, and the causes. Pure functions.

All runs are present, so a comparison has only one look. The exporter's judge has several looks while runs arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT, ExitCode
from infercanary.command.settings import UsageError
from infercanary.compare.actions import settling_actions
from infercanary.compare.claim import OF_CLAIM, Claim, check
from infercanary.compare.failures import rise
from infercanary.compare.recording import Answer, Attempts, RecordedRuns, shown
from infercanary.contract.vocabulary import SETTINGS
from infercanary.judge.causes import Attribution
from infercanary.judge.identity import identified
from infercanary.judge.measures import Measures, MeasureVerdict
from infercanary.judge.model import Pair
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.result import Causes, Result
from infercanary.judge.samples import compare_starts
from infercanary.judge.shift import Verdict
from infercanary.pages.sentence import measure_words, sentence
from infercanary.render.units import count

Gate = Literal["all", "latency"]
_NO_RESTART = "no restart assumed: two files of numbers count as one series, unless --restart-sd is given"
_ASSUMED = "restart variance assumed: no restart observed yet"
GATES: tuple[Gate, ...] = get_args(Gate)


class SideSummary(msgspec.Struct, frozen=True):
    """The runs of one side."""

    runs: int
    starts: int
    median: float | None
    """Median of the counted runs."""
    environments: Sequence[str] = ()
    left_out: Mapping[str, int] = {}
    """Number of excluded runs, by reason."""
    attempts: Attempts | None = None
    """Numbers of begun and of failed runs; None for a file of numbers without information on failures."""


class ComparisonResult(Answer, frozen=True, kw_only=True):
    """Result on one canary. The ends of its interval are None if there are too few runs."""

    verdict: Verdict
    low: float | None
    high: float | None
    level: float
    smallest_effect: float
    """Smallest effect of the policy, as a ratio; a smaller shift does not count as a change."""
    restart_sd: float
    """Restart SD, as a ratio."""
    restart_sd_from: str
    """Source of the restart SD, as text."""
    baseline: SideSummary
    candidate: SideSummary
    causes: Causes = Causes()
    """Causes of the shift; empty for files of numbers."""
    measures: Mapping[str, MeasureVerdict] = {}
    """Verdicts on measures that both sides have: memory, energy, and the throughput of each load."""
    regressed: Sequence[str] = ()
    """Names of the regressed measures, which affect the exit code, but not the verdict on the latency."""
    claim: Claim | None = None
    """Claim of `--expect`; if given, the claim decides the exit code."""
    failures_rose: bool = False
    """True if clearly more of the candidate's runs failed. The verdict is then inconclusive, unless it is regressed."""
    next: Sequence[str] = ()
    """Next actions for an inconclusive verdict."""


R = TypeVar("R", bound=ComparisonResult)


def compare_runs(
    canary: str,
    baseline: RecordedRuns,
    candidate: RecordedRuns,
    *,
    restart_sd: float | None = None,
    policy: Policy = FILES,
    gate: Gate = "all",
    claimed: float | None = None,
    subject: str = "image",
) -> ComparisonResult:
    """Compare ``candidate`` with ``baseline``. Every start is one replicate.

    Args:
        canary: Name of the canary; empty for files of numbers.
        restart_sd: Restart SD of one image as a ratio; None to estimate it from the starts. With None, two single
            files of numbers count as one series before and after a change, without restart variance.
        policy: Thresholds of the decision.
        gate: See :func:`concluded`.
        claimed: See :func:`concluded`.
        subject: Word for the difference between the sides in the sentence, such as "image".

    Returns:
        The verdict with its evidence. The verdict is ``inconclusive`` with too few runs, or if clearly more runs of
        the candidate fail while its successful runs are not slower.

    Raises:
        UsageError: Both sides have a common start, which would be compared with itself.
    """
    if {start.boot for start in baseline.starts} & {start.boot for start in candidate.starts}:
        raise UsageError(
            "compare: both sides have the same starts; select environments or boots with --baseline-id and "
            "--candidate-id"
        )
    old, new = judged(baseline), judged(candidate)
    before, after = _side(baseline, old), _side(candidate, new)
    # Models with weights that differ only in the last bits count as the same.
    starts = identified([*old.starts, *new.starts])
    pair = Pair(starts[: len(old.starts)], starts[len(old.starts) :])
    is_series = restart_sd is None and not starts and len(baseline.points) == len(candidate.points) == 1
    seen, shift, restarts = compare_starts(
        old.points, new.points, restart_sd=0.0 if is_series else restart_sd, policy=policy
    )
    source = _NO_RESTART if is_series else "as given"
    if math.isfinite(restarts.df):
        restarts_seen = round(restarts.df - policy.pool.restart_df)
        source = (
            f"estimated from {count(restarts_seen, 'restart')} and the prior" if restarts_seen else _ASSUMED
        )
    # Without information on failures, all runs count as successful.
    failures = rise(before.attempts or Attempts(before.runs, 0), after.attempts)
    # Latencies come only from successful runs, so a result means nothing if many runs failed.
    verdict = "inconclusive" if failures and seen.verdict != "regressed" else seen.verdict
    is_known = math.isfinite(shift.se)
    ratio, low, high = seen[1:] if is_known else (None, None, None)
    unit: Literal["s"] | None = "s" if starts or (old.in_seconds and new.in_seconds) else None
    causes = Attribution(policy).explain(shift, [pair], canary) if starts and is_known else Causes()
    measures = Measures(policy).compare(pair.before, pair.after)
    result = Result(
        state=verdict,
        shift=ratio,
        low=low,
        high=high,
        restart=restarts,
        causes=causes,
        # The sentence has times, so only values in seconds are used.
        only=shift.resolution.only if unit else None,
        baseline=before.median if unit else None,
        current=after.median if unit else None,
    )
    also = [*filter(None, [failures]), *regressions(measures)]
    text = "; ".join([f"{verdict}: too few runs", *also])
    if is_known:
        if any(change.component.startswith(f"{SETTINGS}:") for change in causes.changes):
            subject = f"{subject} or settings"
        text = sentence(result, subject if starts else "", also)
    actions: Sequence[str] = ()
    if verdict == "inconclusive" and (failures or not candidate.points):
        last = f"; last failure: {candidate.failure}" if candidate.failure else ""
        actions = [f"find out why runs of the candidate fail or are missing{last}"]
    elif verdict == "inconclusive":
        scatter = shift_of_starts(old.points, new.points, pool=policy.pool)
        runs, numbers = min(before.runs, after.runs), (before.starts, after.starts)
        actions = settling_actions(scatter, restarts, runs, numbers, policy)
    return concluded(
        ComparisonResult(
            canary=shown(canary) or None,
            verdict=verdict,
            exit_code=OF_VERDICT[verdict],
            sentence=text,
            shift=ratio,
            low=low,
            high=high,
            level=policy.decide.confidence,
            smallest_effect=policy.decide.smallest_effect,
            restart_sd=restarts.sd,
            restart_sd_from=source,
            runs=before.runs + after.runs,
            starts=before.starts + after.starts,
            unit=unit,
            baseline=before,
            candidate=after,
            causes=causes,
            failures_rose=bool(failures),
            next=actions,
        ),
        measures,
        gate,
        claimed,
        policy,
    )


def judged(series: RecordedRuns) -> RecordedRuns:
    """Return ``series`` with only the counted starts: the latest starts with enough runs."""
    counting = [i for i, points in enumerate(series.points) if points.size >= FILES.pool.fewest_runs]
    kept = counting[-FILES.pool.history :]
    parts = zip(series._fields, series[:3], strict=False)
    fields: dict[str, Any] = {name: [values[i] for i in kept] for name, values in parts if values}
    return series._replace(**fields)


def regressions(measures: Mapping[str, MeasureVerdict]) -> list[str]:
    """Return the measures that regressed, in words for :func:`~infercanary.pages.sentence.sentence`."""
    return [
        measure_words(name, verdict) for name, verdict in measures.items() if verdict.state == "regressed"
    ]


def concluded(
    result: R,
    measures: Mapping[str, MeasureVerdict],
    gate: Gate = "all",
    claimed: float | None = None,
    policy: Policy = FILES,
) -> R:
    """Complete a result on the latency with measures, claim and exit code.

    Args:
        result: Verdict, interval and sentence on one canary.
        measures: Verdict by measure.
        gate: With "all", measures that regressed set the exit code. A measure without a verdict has no effect: energy
            and sweeps often have too few values, and a pipeline would never pass.
        claimed: Shift of `--expect`, as a ratio; the claim then decides the exit code. The claim stays open if more
            runs of the canary fail, or if the change is unconfirmed.
        policy: Thresholds for the check of the claim.
    """
    worse = [name for name, verdict in measures.items() if verdict.state == "regressed"]
    code = ExitCode.REGRESSED if worse and gate == "all" else OF_VERDICT[result.verdict]
    claim = None
    if claimed is not None:
        is_known = not result.failures_rose and result.verdict != "unconfirmed"
        claim = check(claimed, (result.shift if is_known else None, result.low, result.high), policy)
        code = OF_CLAIM[claim.state]
    return msgspec.structs.replace(result, measures=measures, regressed=worse, claim=claim, exit_code=code)


def _side(whole: RecordedRuns, kept: RecordedRuns) -> SideSummary:
    ids = dict.fromkeys(shown(id_, 16) for start in kept.environments for _, id_ in start)
    rest = whole.runs - kept.runs
    return SideSummary(
        runs=kept.runs,
        starts=len(kept.points),
        median=float(np.median(kept.every)) if kept.runs else None,
        environments=[*ids],
        left_out={**whole.left_out, **({"in starts that are too short or too old": rest} if rest else {})},
        attempts=whole.attempts,
    )
