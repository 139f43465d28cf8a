"""Two recordings of one canary compared: the verdict, what it rests on, and why. Pure.

The judge of the exporter looks again and again while runs come in; here all are there, and it looks once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import msgspec
import numpy as np

from infercanary.command.exit_codes import OF_VERDICT
from infercanary.command.settings import UsageError
from infercanary.compare import failures
from infercanary.compare.outlook import Evidence, outlook
from infercanary.compare.recording import Attempts, RecordedRuns, shown
from infercanary.compare.units import count
from infercanary.judge.causes import explain
from infercanary.judge.decide import verdict_after
from infercanary.judge.model import Causes, Judgement, Pair, Sample, Start
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.sentence import interval, sentence
from infercanary.judge.shift import Comparison, Restarts, Shift, Verdict
from infercanary.judge.statistics import Points, assess, learn, pool

_KNOWN = 1e9  # degrees of freedom of what is no estimate
_NO_RESTART = Restarts(0.0, _KNOWN)


class SideSummary(msgspec.Struct, frozen=True):
    """What one side brought. ``median`` is that of the runs that counted; ``left_out`` says why the others do not.

    ``attempts`` is None of numbers: they do not tell of runs that failed.
    """

    files: Sequence[str]
    runs: int
    starts: int
    median: float | None
    environments: Sequence[str] = ()
    left_out: Mapping[str, int] = {}
    attempts: Attempts | None = None


class PartShift(msgspec.Struct, frozen=True):
    """How far a phase or a control moved, as ratios."""

    shift: float
    low: float
    high: float
    moved: bool
    """By 3 % or more, and clear of none."""
    share: float | None = None
    """Of a phase: what it adds to the change, as a share of the whole."""


class ComparisonResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on one canary. Shifts are ratios (0.05 is 5 % slower); None where too few runs can tell."""

    canary: str | None
    verdict: Verdict
    exit_code: int
    sentence: str
    shift: float | None
    low: float | None
    high: float | None
    level: float
    restart_sd: float
    """By how much starts of one image differ, as a ratio."""
    restart_sd_from: Literal["given", "learnt", "assumed", "measured"]
    restarts_seen: int
    runs: int
    starts: int
    unit: Literal["s"] | None
    baseline: SideSummary
    candidate: SideSummary
    phases: dict[str, PartShift] = {}
    controls: dict[str, PartShift] = {}
    causes: Causes | None = None
    failures_rose: bool | None = None
    """Whether clearly more of the candidate's runs failed: then it is inconclusive, unless it regressed. None where
    nothing tells of runs that failed."""
    next: Sequence[str] = ()
    """What to do where it is inconclusive."""
    notes: Sequence[str] = ()


def compare_runs(
    canary: str,
    baseline: RecordedRuns,
    candidate: RecordedRuns,
    *,
    files: tuple[Sequence[str], Sequence[str]] = ((), ()),
    restart_sd: float | None = None,
    policy: Policy = FILES,
) -> ComparisonResult:
    """The verdict on ``candidate`` against ``baseline``. Every start of theirs is one replicate.

    Raises :class:`UsageError` where they have a start in common: it would be called equivalent to itself.
    """
    boots = [{start.generation.boot_id for start in side.starts} for side in (baseline, candidate)]
    if boots[0] & boots[1]:
        raise UsageError(
            "compare: both sides hold the same starts; pick environments or boots out of them with --baseline-id and "
            "--candidate-id"
        )
    notes = _notes(baseline, candidate, policy)
    old, new = judged(baseline, policy), judged(candidate, policy)
    replica = (_points(old), _points(new))
    source: Literal["given", "learnt", "assumed"]
    if restart_sd is not None:
        restarts, source = Restarts(restart_sd, _KNOWN), "given"
    else:
        restarts = learn(replica, policy)
        source = "learnt" if restarts.df > policy.prior_restart_df else "assumed"
    shift = pool([replica], restarts, policy)
    seen = assess(shift, policy.confidence, restart_sd=restarts.sd, policy=policy)
    decided = verdict_after([seen], policy) or "inconclusive"
    known = math.isfinite(shift.se)
    journal = bool(old.starts and new.starts)
    pair = Pair(old.starts, new.starts)
    causes = explain(shift, [pair], canary, policy=policy) if journal and known else None
    evidence = Evidence(
        shift=shift if seen.verdict != "inconclusive" else pool([replica], _NO_RESTART, policy),
        restarts=restarts,
        runs=(old.runs, new.runs),
        starts=(len(old.points), len(new.points)),
        policy=policy,
    )
    failing = failures.rose(baseline.attempts, candidate.attempts)
    failed = failures.shares(baseline.attempts, candidate.attempts)
    if failed and not failing:
        notes.append(f"candidate: {failed}: no clear rise")
    # The runs that are left are those that something spared: how fast they were does not clear the image.
    verdict: Verdict = "inconclusive" if failing and decided != "regressed" else decided
    said = _sentence(seen, causes) if known else _too_few(evidence, baseline, candidate)
    following = outlook(evidence, assumed=source == "assumed") if seen.verdict == "inconclusive" else []
    return ComparisonResult(
        canary=shown(canary) or None,
        verdict=verdict,
        exit_code=OF_VERDICT[verdict],
        sentence=_with_failures(said, failed) if failing else said,
        shift=_finite(seen.shift) if known else None,
        low=_finite(seen.low) if known else None,
        high=_finite(seen.high) if known else None,
        level=policy.confidence,
        restart_sd=restarts.sd,
        restart_sd_from=source,
        restarts_seen=round(restarts.df - policy.prior_restart_df) if source == "learnt" else 0,
        runs=old.runs + new.runs,
        starts=len(old.points) + len(new.points),
        unit="s" if baseline.starts or candidate.starts else None,
        baseline=_side(files[0], baseline, old),
        candidate=_side(files[1], candidate, new),
        phases=_phases(old, new, policy) if journal else {},
        controls=_pieces(old, new, lambda sample: sample.controls, policy) if journal else {},
        causes=causes,
        failures_rose=failing,
        next=[*_reasons(candidate, failing), *following] if verdict == "inconclusive" else (),
        notes=notes,
    )


def judged(series: RecordedRuns, policy: Policy = FILES) -> RecordedRuns:
    """The starts that count: with enough runs, and the latest of too many."""
    kept = [i for i, points in enumerate(series.points) if points.size >= policy.fewest_runs][
        -policy.history :
    ]
    return series._replace(
        points=[series.points[i] for i in kept],
        starts=[series.starts[i] for i in kept if series.starts],
        environments=[series.environments[i] for i in kept if series.environments],
    )


def _notes(baseline: RecordedRuns, candidate: RecordedRuns, policy: Policy) -> list[str]:
    notes = []
    for what, side in (("baseline", baseline), ("candidate", candidate)):
        few = [points.size for points in side.points if points.size < policy.fewest_runs]
        if few and len(few) < len(side.points):
            notes.append(
                f"{what}: {count(len(few), 'start')} with fewer than {policy.fewest_runs} runs left out"
            )
        if (kept := len(side.points) - len(few)) > policy.history:
            notes.append(f"{what}: the latest {policy.history} of {kept} starts are judged")
        ids = _ids(side)
        if len(ids) > 1:
            notes.append(
                f"{what}: {len(ids)} environments ({', '.join(ids[:4])}); where they are not one image, "
                f"pick with --{what}-id"
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


def _sentence(seen: Comparison, causes: Causes | None) -> str:
    """The same words as the exporter's, where there is as much to say."""
    if causes is not None:
        judgement = Judgement(
            state=seen.verdict, shift=seen.shift, low=seen.low, high=seen.high, causes=causes
        )
        return sentence(judgement)
    return f"{seen.verdict} {interval(seen.shift, seen.low, seen.high)}"


def _too_few(evidence: Evidence, baseline: RecordedRuns, candidate: RecordedRuns) -> str:
    none = [
        f"no runs{' that count' * bool(side.left_out)} in the {what}"
        for what, side in (("baseline", baseline), ("candidate", candidate))
        if not side.points
    ]
    before, after = evidence.runs
    why = " and ".join(none) or "too few runs"
    return f"inconclusive: {why} ({before} and {after} in starts of {evidence.policy.fewest_runs} or more)"


def _with_failures(said: str, failed: str) -> str:
    """What is said of the runs that ended well, and that many did not."""
    if said.startswith("regressed"):
        return f"{said}; {failed}"
    return f"inconclusive: {failed}; the others: {said.removeprefix('inconclusive: ')}"


def _reasons(candidate: RecordedRuns, failing: bool | None) -> list[str]:
    """Where to look for what more runs would not tell."""
    if failing:
        return [
            "find out why its runs fail: the log of the candidate's probe says it, and `detail` in its journal"
        ]
    if not candidate.points and not candidate.left_out:
        return [
            "find out why it never ran or never opened: the log of the candidate's probe says it; where it was taken "
            "out on purpose, name another with --canary"
        ]
    return []


def _points(series: RecordedRuns) -> list[Points]:
    return [cast("Points", points) for points in series.points]


def _pair(old: RecordedRuns, new: RecordedRuns) -> Pair:
    return Pair(old.starts, new.starts)


def _phases(old: RecordedRuns, new: RecordedRuns, policy: Policy) -> dict[str, PartShift]:
    """With each phase's share of the change, where there is one to share."""
    pieces = _pieces(old, new, lambda sample: sample.phases, policy)
    whole = float(np.median(new.every) - np.median(old.every)) if pieces else 0.0
    if not whole or abs(whole) < policy.clear_zone * float(np.median(old.every)):
        return pieces
    return {
        name: msgspec.structs.replace(
            piece, share=(_level(new.starts, name) - _level(old.starts, name)) / whole
        )
        for name, piece in pieces.items()
    }


def _pieces(
    old: RecordedRuns, new: RecordedRuns, of: Callable[[Sample], Mapping[str, float]], policy: Policy
) -> dict[str, PartShift]:
    """The shift of each that both sides have. Restarts are not in it: what they move, it shows."""
    sides = (old.starts, new.starts)
    names = [dict.fromkeys(name for start in side for s in start.samples for name in of(s)) for side in sides]
    found = {}
    for name in names[0]:
        before, after = ([_values(start, of, name) for start in side] for side in sides)
        shift = pool([(before, after)], _NO_RESTART, policy)
        if math.isfinite(shift.se):
            found[shown(name)] = _piece(shift, policy)
    return found


def _values(start: Start, of: Callable[[Sample], Mapping[str, float]], name: str) -> list[float]:
    return [x for sample in start.samples if 0 < (x := of(sample).get(name, 0.0)) < math.inf]


def _piece(shift: Shift, policy: Policy) -> PartShift:
    low, high = shift.interval(policy.confidence)
    moved = abs(shift.log) >= policy.log_same and (low > 0 or high < 0)
    return PartShift(_ratio(shift.log), _ratio(low), _ratio(high), moved)


def _level(starts: Sequence[Start], name: str) -> float:
    values = [x for start in starts for sample in start.samples if (x := sample.phases.get(name)) is not None]
    return float(np.median(values)) if values else 0.0


def _ratio(log: float) -> float:
    return math.expm1(min(log, 700.0))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
