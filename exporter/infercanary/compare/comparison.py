"""Compares two recordings of one canary: the verdict, its observed, and the causes. Pure.

The exporter's judge looks several times while runs come in; here all runs are there, and it looks once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT
from infercanary.command.settings import UsageError
from infercanary.compare import claim, failures, measured, parts
from infercanary.compare.claim import OF_CLAIM, Claim
from infercanary.compare.measured import Gate, MeasureShift
from infercanary.compare.outlook import Observed, outlook
from infercanary.compare.parts import PartShift
from infercanary.compare.recording import Attempts, RecordedRuns, shown
from infercanary.compare.units import count, finite, short
from infercanary.contract.vocabulary import SETTINGS
from infercanary.judge.causes import Attribution
from infercanary.judge.identity import identified
from infercanary.judge.measures import Measures, MeasureVerdict
from infercanary.judge.model import Pair
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.result import Causes, Result
from infercanary.judge.samples import compare_starts
from infercanary.judge.sentence import interval, sentence
from infercanary.judge.shift import Comparison, Verdict
from infercanary.judge.statistics import Points


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


class ComparisonResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result on one canary. Shifts are ratios (0.05 is 5 % slower); None if there are too few runs."""

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
    """How much starts of one image differ (SD), as a ratio."""
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
        restart_sd: How much starts of one image differ, as a ratio (SD); None to estimate it from the starts, or for
            two files of numbers, which are one series before and after.
        policy: The numbers that decide.
        gate: Whether the exit code counts measures that regressed.
        subject: What the two sides differ in, as the sentence names it.

    Returns:
        The verdict with its evidence; ``inconclusive`` where there are too few runs.

    Raises:
        UsageError: Both sides have a start in common: it would be equivalent to itself.
    """
    boots = [{start.generation.boot_id for start in side.starts} for side in (baseline, candidate)]
    if boots[0] & boots[1]:
        raise UsageError(
            "compare: both sides hold the same starts; pick environments or boots out of them with --baseline-id and "
            "--candidate-id"
        )
    notes = _notes(baseline, candidate, policy, subject)
    old, new = judged(baseline, policy), judged(candidate, policy)
    # Weights that are the same but for their last bits are one model.
    starts = identified([*old.starts, *new.starts])
    old, new = old._replace(starts=starts[: len(old.starts)]), new._replace(starts=starts[len(old.starts) :])
    replica = cast("tuple[list[Points], list[Points]]", (old.points, new.points))
    # As in the judge's own `compare`: two files of numbers are one series before and after, starts are named as such.
    is_series = restart_sd is None and all(
        len(side.points) == 1 and not side.starts for side in (baseline, candidate)
    )
    seen, shift, restarts = compare_starts(
        *replica, restart_sd=0.0 if is_series else restart_sd, policy=policy
    )
    source: Literal["given", "none", "estimated", "assumed"]
    if restart_sd is not None:
        source = "given"
    elif is_series:
        source = "none"
    else:
        source = "estimated" if restarts.df > policy.pool.restart_df else "assumed"
    known = math.isfinite(shift.se)
    journal = bool(old.starts and new.starts)
    pair = Pair(old.starts, new.starts)
    causes = Attribution(policy).explain(shift, [pair], canary) if journal and known else None
    observed = Observed(
        shift=shift if seen.verdict != "inconclusive" else shift_of_starts(*replica, pool=policy.pool),
        restarts=restarts,
        runs=(old.runs, new.runs),
        starts=(len(old.points), len(new.points)),
        policy=policy,
    )
    # Numbers that say nothing of failures are all of runs that ended well.
    before = baseline.attempts or Attempts(baseline.runs, 0)
    failing = failures.rose(before, candidate.attempts)
    failed = failures.shares(before, candidate.attempts)
    if failed and not failing:
        notes.append(f"candidate: {failed}: no clear rise")
    # The runs that ended well say nothing about those that failed, however fast they were.
    verdict: Verdict = "inconclusive" if failing and seen.verdict != "regressed" else seen.verdict
    text = (
        _sentence(seen, shift.resolution.only, causes, subject)
        if known
        else _too_few(observed, baseline, candidate)
    )
    following = outlook(observed, assumed=source == "assumed") if seen.verdict == "inconclusive" else []
    verdicts = Measures(policy).compare(old.starts, new.starts)
    shown_shift, low, high = map(finite, (seen.shift, seen.low, seen.high) if known else (None,) * 3)
    result = ComparisonResult(
        canary=shown(canary) or None,
        verdict=verdict,
        exit_code=OF_VERDICT[verdict],
        sentence=_with_failures(text, failed) if failing else text,
        shift=shown_shift,
        low=low,
        high=high,
        level=policy.decide.confidence,
        smallest_effect=policy.decide.smallest_effect,
        restart_sd=restarts.sd,
        restart_sd_from=source,
        restarts_seen=round(restarts.df - policy.pool.restart_df) if source == "estimated" else 0,
        runs=old.runs + new.runs,
        starts=len(old.points) + len(new.points),
        unit="s" if baseline.starts or candidate.starts or (old.in_seconds and new.in_seconds) else None,
        baseline=_side(files[0], baseline, old),
        candidate=_side(files[1], candidate, new),
        phases=parts.phases(old, new, policy) if journal else {},
        controls=parts.pieces(old, new, "controls", policy) if journal else {},
        causes=causes,
        failures_rose=failing,
        next=[*_reasons(candidate, failing), *following] if verdict == "inconclusive" else (),
        notes=notes,
    )
    return with_measures(result, verdicts, gate)


def judged(series: RecordedRuns, policy: Policy = FILES) -> RecordedRuns:
    """Return ``series`` with the starts that count: the latest ones that have enough runs.

    Args:
        series: All of its starts, in order of time.
        policy: How many runs a start needs, and how many starts count.

    Returns:
        A part of ``series``; without starts where none counts.
    """
    kept = [i for i, points in enumerate(series.points) if points.size >= policy.pool.fewest_runs][
        -policy.pool.history :
    ]
    return series._replace(
        points=[series.points[i] for i in kept],
        starts=[series.starts[i] for i in kept if series.starts],
        environments=[series.environments[i] for i in kept if series.environments],
    )


def with_measures(
    result: ComparisonResult, verdicts: Mapping[str, MeasureVerdict], gate: Gate = "all"
) -> ComparisonResult:
    """Return a result with the verdicts on what is judged beside the latency, in place of any that it has.

    Args:
        result: On the latency of one canary: its verdict and its sentence.
        verdicts: Measure → verdict.
        gate: Whether the exit code counts measures that regressed.

    Returns:
        The result, whose sentence and exit code have those that regressed.
    """
    worse = measured.regressed(verdicts)
    return msgspec.structs.replace(
        result,
        measures=measured.shifts(verdicts),
        regressed=worse,
        sentence=measured.with_regressed(result.sentence, verdicts),
        exit_code=measured.exit_code(OF_VERDICT[result.verdict], worse, gate),
    )


def with_claim(result: ComparisonResult, claimed: float | None, policy: Policy = FILES) -> ComparisonResult:
    """Hold a claim against a result: its exit code becomes that of the claim.

    Args:
        result: On one canary.
        claimed: A shift, as a ratio; None where nothing is claimed.
        policy: How far above the claim the interval may reach.

    Returns:
        The same result where nothing is claimed. A claim about a canary whose runs fail more often, or whose change is
        not confirmed yet, is not known to hold.
    """
    if claimed is None:
        return result
    known = None
    if result.shift is not None and not result.failures_rose and result.verdict != "unconfirmed":
        low, high = (math.inf if end is None else end for end in (result.low, result.high))
        known = (result.shift, low, high)
    found = claim.check(claimed, known, policy)
    more = ["--expect: more starts on both sides narrow the interval"] if found.state == "unknown" else []
    return msgspec.structs.replace(
        result, claim=found, exit_code=OF_CLAIM[found.state], next=[*result.next, *more]
    )


def _notes(baseline: RecordedRuns, candidate: RecordedRuns, policy: Policy, subject: str) -> list[str]:
    notes = []
    for what, side in (("baseline", baseline), ("candidate", candidate)):
        few = [points.size for points in side.points if points.size < policy.pool.fewest_runs]
        if few and len(few) < len(side.points):
            notes.append(
                f"{what}: {count(len(few), 'start')} with fewer than {policy.pool.fewest_runs} runs left out"
            )
        if (kept := len(side.points) - len(few)) > policy.pool.history:
            notes.append(f"{what}: the latest {policy.pool.history} of {kept} starts are judged")
        ids = _ids(side)
        if len(ids) > 1:
            notes.append(
                f"{what}: {len(ids)} environments ({', '.join(ids[:4])}); where they are not one image, "
                f"pick with --{what}-id"
            )
    settings = [sorted({start.settings for start in side.starts} - {""}) for side in (baseline, candidate)]
    if all(settings) and settings[0] != settings[1]:
        before, after = map(" and ".join, settings)
        notes.append(
            f"the canary's settings differ ({before} → {after}): both sides do not measure the same, and the {subject} "
            "alone is not to blame"
        )
    return notes


def _side(files: Sequence[str], whole: RecordedRuns, kept: RecordedRuns) -> SideSummary:
    every = kept.every
    return SideSummary(
        files=files,
        runs=kept.runs,
        starts=len(kept.points),
        median=float(np.median(every)) if every.size else None,
        environments=_ids(kept),
        left_out=whole.left_out,
        attempts=whole.attempts,
    )


def _ids(series: RecordedRuns) -> list[str]:
    return list(dict.fromkeys(shown(id_, 16) for start in series.environments for _, id_ in start))


def _sentence(seen: Comparison, only: float | None, causes: Causes | None, subject: str) -> str:
    """Return the exporter's sentence if causes are known, else the verdict and its interval."""
    if causes is not None:
        result = Result(
            state=seen.verdict,
            shift=seen.shift,
            low=seen.low,
            high=seen.high,
            causes=causes,
            only=only,
        )
        edited = any(change.component.partition(":")[0] == SETTINGS for change in causes.changes)
        return sentence(result, subject=f"{subject} or settings" if edited else subject)
    if only is not None:
        return f"{seen.verdict}: all values are {short(only, 12)}"
    return f"{seen.verdict} {interval(seen.shift, seen.low, seen.high)}"


def _too_few(observed: Observed, baseline: RecordedRuns, candidate: RecordedRuns) -> str:
    sides = {"baseline": baseline, "candidate": candidate}
    if none := [what for what, side in sides.items() if not side.points]:
        words = (f"no runs{' that count' * bool(sides[what].left_out)} in the {what}" for what in none)
        return f"inconclusive: {' and '.join(words)}"
    longest = {what: max(points.size for points in side.points) for what, side in sides.items()}
    fewest = observed.policy.pool.fewest_runs
    few = " and ".join(f"the {what} has {size}" for what, size in longest.items() if size < fewest)
    return f"inconclusive: too few runs: a start needs {fewest}, and {few}"


def _with_failures(text: str, failed: str) -> str:
    """Return the sentence on the runs that ended well, with the failures."""
    if text.startswith("regressed"):
        return f"{text}; {failed}"
    return f"inconclusive: {failed}; the others: {text.removeprefix('inconclusive: ')}"


def _reasons(candidate: RecordedRuns, failing: bool | None) -> list[str]:
    """Return next actions for what more runs would not answer."""
    if failing or (candidate.failure and not candidate.points):
        last = f"; of the last one it says: {candidate.failure}" if candidate.failure else ""
        if not candidate.starts and candidate.left_out.keys() == {"failed"}:
            return [f"find out why its runs fail; the last one: {candidate.failure}"]
        return [
            f"find out why its runs fail: see the log of the candidate's probe, and `detail` in its journal{last}"
        ]
    if not candidate.points and not candidate.left_out:
        return [
            "find out why it never ran or never opened: see the log of the candidate's probe; if it was removed "
            "on purpose, name another with --canary"
        ]
    return []
