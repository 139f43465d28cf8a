"""Compares two recordings of one canary: the verdict, its evidence, and the causes. Pure.

The exporter's judge looks several times while runs come in; here all runs are there, and it looks once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT, ExitCode
from infercanary.command.settings import UsageError
from infercanary.compare import failures
from infercanary.compare.actions import settling_actions
from infercanary.compare.claim import OF_CLAIM, Claim, check
from infercanary.compare.parts import PartShift, part_shifts
from infercanary.compare.recording import Attempts, RecordedRuns, shown
from infercanary.contract.measures import measure_of
from infercanary.contract.vocabulary import SETTINGS
from infercanary.judge.causes import Attribution
from infercanary.judge.identity import identified
from infercanary.judge.measures import Measures, MeasureVerdict
from infercanary.judge.model import Pair
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.result import Causes, Result, State
from infercanary.judge.samples import compare_starts
from infercanary.judge.shift import Verdict
from infercanary.pages.sentence import SENTENCE_BYTES, measure_words, sentence
from infercanary.render.units import count, interval, short, value

Gate = Literal["all", "latency"]
GATES: tuple[Gate, ...] = get_args(Gate)

_COUNTED = len("; 99 more measures regressed")


class SideSummary(msgspec.Struct, frozen=True):
    """The runs of one side."""

    files: Sequence[str]
    runs: int
    starts: int
    median: float | None
    """Of the runs that count."""
    environments: Sequence[str] = ()
    left_out: Mapping[str, int] = {}
    """Reason → the number of runs that do not count for it."""
    attempts: Attempts | None = None
    """None of numbers that do not say how runs ended."""


class MeasureShift(MeasureVerdict, frozen=True, rename={"state": "verdict"}):
    """The verdict on one measure that both sides have."""

    state: State
    words: str = ""
    unit: str = ""
    """Base unit; empty for a ratio."""


class ComparisonResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result on one canary. Shifts are ratios (0.05 is 5 % slower); None if there are too few runs.

    In JSON a number that is not finite is null.
    """

    canary: str | None
    verdict: Verdict
    exit_code: int
    sentence: str
    shift: float | None
    low: float | None
    high: float | None
    level: float
    smallest_effect: float
    """The policy's, as a ratio: a smaller shift is no change."""
    restart_sd: float
    """Restart SD, as a ratio."""
    restart_sd_from: Literal["given", "none", "estimated", "assumed", "measured"]
    """`none`: two files of numbers, between which no restart is thought to lie."""
    restarts_seen: int
    runs: int
    starts: int
    unit: Literal["s"] | None
    baseline: SideSummary
    candidate: SideSummary
    phases: dict[str, PartShift] = {}
    controls: dict[str, PartShift] = {}
    causes: Causes | None = None
    measures: dict[str, MeasureShift] = {}
    """Memory, energy and the throughput of each load that both sides have."""
    regressed: Sequence[str] = ()
    """Those of them that regressed. The exit code counts them, the verdict is on the latency alone."""
    claim: Claim | None = None
    """Of `--expect`; the exit code is then that of the claim."""
    failures_rose: bool | None = None
    """Whether clearly more of the candidate's runs failed; then it is inconclusive, unless it regressed. None if the
    input does not record failed runs."""
    next: Sequence[str] = ()
    """Next actions, if it is inconclusive."""
    notes: Sequence[str] = ()


def compare_runs(
    canary: str,
    baseline: RecordedRuns,
    candidate: RecordedRuns,
    *,
    files: tuple[Sequence[str], Sequence[str]] = ((), ()),
    restart_sd: float | None = None,
    policy: Policy = FILES,
    gate: Gate = "all",
    subject: str = "image",
) -> ComparisonResult:
    """Judge ``candidate`` against ``baseline``. Every start is one replicate.

    Args:
        canary: Its name; empty for numbers.
        baseline: Its runs before.
        candidate: Its runs after.
        files: Names of the files of both sides, for the result.
        restart_sd: Restart SD of one image as a ratio; None to estimate it from the starts, or for two files of
            numbers, which are one series before and after.
        policy: The numbers that decide.
        gate: Whether the exit code counts measures that regressed.
        subject: What the two sides differ in, as the sentence names it.

    Returns:
        The verdict with its evidence; ``inconclusive`` where there are too few runs.

    Raises:
        UsageError: Both sides have a start in common: it would be equivalent to itself.
    """
    old, new = judged(baseline, policy), judged(candidate, policy)
    starts = identified(
        [*old.starts, *new.starts]
    )  # weights that differ in their last bits alone are one model
    pair = Pair(starts[: len(old.starts)], starts[len(old.starts) :])
    if {start.boot for start in baseline.starts} & {start.boot for start in candidate.starts}:
        raise UsageError(
            "compare: both sides hold the same starts; pick environments or boots out of them with --baseline-id and "
            "--candidate-id"
        )
    is_series = restart_sd is None and not starts and len(baseline.points) == len(candidate.points) == 1
    seen, shift, restarts = compare_starts(
        old.points, new.points, restart_sd=0.0 if is_series else restart_sd, policy=policy
    )
    source: Literal["given", "none", "estimated", "assumed"] = "none" if is_series else "given"
    if restart_sd is None and not is_series:
        source = "estimated" if restarts.df > policy.pool.restart_df else "assumed"
    is_known, has_both = math.isfinite(shift.se), bool(pair.before and pair.after)
    causes = Attribution(policy).explain(shift, [pair], canary) if has_both and is_known else None
    before, after = _side(files[0], baseline, old), _side(files[1], candidate, new)
    actions: list[str] = []
    if seen.verdict == "inconclusive":
        scatter = shift_of_starts(old.points, new.points, pool=policy.pool)
        sides = (before.runs, after.runs), (before.starts, after.starts)
        actions = settling_actions(scatter, restarts, *sides, policy)
    unit: Literal["s"] | None = "s" if starts or (old.in_seconds and new.in_seconds) else None
    judge_result = Result(
        state=seen.verdict,
        shift=seen.shift,
        low=seen.low,
        high=seen.high,
        only=shift.resolution.only,
        restart=restarts,
        causes=causes or Causes(),
        baseline=before.median,
        current=after.median,
    )
    result = ComparisonResult(
        canary=shown(canary) or None,
        verdict=seen.verdict,
        exit_code=OF_VERDICT[seen.verdict],
        sentence=_sentence(judge_result, policy, subject, unit, has_both)
        if is_known
        else f"inconclusive: too few runs: a start needs {policy.pool.fewest_runs}; {before.runs} of the baseline and "
        f"{after.runs} of the candidate count",
        shift=seen.shift if is_known else None,
        low=seen.low if is_known else None,
        high=seen.high if is_known else None,
        level=policy.decide.confidence,
        smallest_effect=policy.decide.smallest_effect,
        restart_sd=restarts.sd,
        restart_sd_from=source,
        restarts_seen=round(restarts.df - policy.pool.restart_df) if source == "estimated" else 0,
        runs=before.runs + after.runs,
        starts=before.starts + after.starts,
        unit=unit,
        baseline=before,
        candidate=after,
        phases=part_shifts(pair, "phases", policy) if has_both else {},
        controls=part_shifts(pair, "controls", policy) if has_both else {},
        causes=causes,
        next=actions,
        notes=[
            f"{name}: {len(side.environments)} environments ({', '.join(side.environments[:4])}); if they are not one "
            f"image, pick with --{name}-id"
            for name, side in (("baseline", before), ("candidate", after))
            if len(side.environments) > 1
        ],
    )
    result = _with_failures(result, candidate)
    return with_measures(result, Measures(policy).compare(pair.before, pair.after), gate)


def judged(series: RecordedRuns, policy: Policy = FILES) -> RecordedRuns:
    """Return ``series`` with the starts that count: the latest ones that have enough runs.

    Args:
        series: All of its starts, in order of time.
        policy: How many runs a start needs, and how many starts count.

    Returns:
        A part of ``series``; without starts where none counts.
    """
    kept = [i for i, points in enumerate(series.points) if points.size >= policy.pool.fewest_runs]
    kept = kept[-policy.pool.history :]
    return series._replace(
        points=[series.points[i] for i in kept],
        starts=[series.starts[i] for i in kept if series.starts],
        environments=[series.environments[i] for i in kept if series.environments],
    )


def with_measures(
    result: ComparisonResult, verdicts: Mapping[str, MeasureVerdict], gate: Gate = "all"
) -> ComparisonResult:
    """Return a result on the latency with the verdicts on what is judged beside it, in place of any that it has.

    Args:
        result: On the latency of one canary: its verdict and its sentence.
        verdicts: Measure → verdict.
        gate: Whether the exit code counts measures that regressed. A measure without a verdict changes nothing: energy
            and sweeps are often too few, and a pipeline would never pass.
    """
    shifts = {}
    for name, verdict in verdicts.items():
        measure = measure_of(name)
        words, unit = (measure.words, measure.unit) if measure else (name, "")
        shifts[name] = MeasureShift(**msgspec.structs.asdict(verdict), words=words, unit=unit)
    worse = [name for name, verdict in verdicts.items() if verdict.state == "regressed"]
    text = result.sentence
    for place, name in enumerate(worse):
        longer = f"{text}; {measure_words(name, verdicts[name])}"
        if len(longer.encode()) > SENTENCE_BYTES - _COUNTED:
            text += f"; {count(len(worse) - place, 'more measure')} regressed"
            break
        text = longer
    is_worse = bool(worse) and gate == "all"
    return msgspec.structs.replace(
        result,
        measures=shifts,
        regressed=worse,
        sentence=text,
        exit_code=ExitCode.REGRESSED if is_worse else OF_VERDICT[result.verdict],
    )


def with_claim(result: ComparisonResult, claimed: float | None, policy: Policy = FILES) -> ComparisonResult:
    """Hold a claim against a result: its exit code becomes that of the claim.

    Args:
        result: On one canary.
        claimed: A shift, as a ratio; None where nothing is claimed.
        policy: How far above the claim the interval may reach.

    Returns:
        The same result where nothing is claimed. A claim about a canary whose runs fail more often, or whose change is
        unconfirmed, is not known to hold.
    """
    if claimed is None:
        return result
    is_known = not result.failures_rose and result.verdict != "unconfirmed"
    claim = check(claimed, (result.shift, result.low, result.high) if is_known else (None,) * 3, policy)
    return msgspec.structs.replace(result, claim=claim, exit_code=OF_CLAIM[claim.state])


def _with_failures(result: ComparisonResult, candidate: RecordedRuns) -> ComparisonResult:
    """Return a result that does not pass where clearly more runs fail than before, or none ran at all."""
    rose, shares = failures.rise(
        # Numbers that say nothing of failures are all of runs that ended well.
        result.baseline.attempts or Attempts(result.baseline.runs, 0),
        candidate.attempts,
    )
    changes: dict[str, Any] = {"failures_rose": rose}
    if rose and result.verdict == "regressed":
        changes["sentence"] = f"{result.sentence}; {shares}"
    elif rose:  # the runs that ended well say nothing about those that failed, however fast they were
        others = result.sentence.removeprefix("inconclusive: ")
        changes |= {"verdict": "inconclusive", "sentence": f"inconclusive: {shares}; the others: {others}"}
    elif shares:
        changes["notes"] = [*result.notes, f"candidate: {shares}: no clear rise"]
    if (rose and result.verdict != "regressed") or not candidate.points:
        last = f"; the last one: {candidate.failure}" if candidate.failure else ""
        changes["next"] = [f"find out why its runs fail or are missing in the candidate{last}"]
    return msgspec.structs.replace(result, **changes)


def _side(files: Sequence[str], whole: RecordedRuns, kept: RecordedRuns) -> SideSummary:
    ids = dict.fromkeys(shown(id_, 16) for start in kept.environments for _, id_ in start)
    rest = {"in starts that are too short or too old": whole.runs - kept.runs}
    return SideSummary(
        files=files,
        runs=kept.runs,
        starts=len(kept.points),
        median=float(np.median(kept.every)) if kept.runs else None,
        environments=[*ids],
        left_out={**whole.left_out, **rest} if kept.runs < whole.runs else whole.left_out,
        attempts=whole.attempts,
    )


def _sentence(result: Result, policy: Policy, subject: str, unit: str | None, are_journals: bool) -> str:
    """Return the exporter's sentence on journals; of numbers, whose causes are not known, its beginning."""
    if are_journals:
        is_edited = any(change.component.partition(":")[0] == SETTINGS for change in result.causes.changes)
        return sentence(result, policy, f"{subject} or settings" if is_edited else subject)
    if result.only is not None:
        return f"{result.state}: all values are {short(result.only, 12)}"
    old, new = (value(median, unit) for median in (result.baseline, result.current))
    shift, low, high = (number or 0.0 for number in (result.shift, result.low, result.high))
    return f"{result.state} {interval(shift, low, high)} ({old} → {new})"
