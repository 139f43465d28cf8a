"""The answer of an experiment: the verdict on each canary, its evidence and causes, and the cost of a start. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

import msgspec
import numpy as np

from infercanary.ab import estimate, measures, neighbours, sides
from infercanary.ab.conditions import INTERVAL_SECONDS
from infercanary.ab.estimate import PairDecision
from infercanary.ab.experiment import Ended, Result, TurnPair
from infercanary.command.exit_codes import OF_VERDICT
from infercanary.command.settings import UsageError
from infercanary.compare import claim
from infercanary.compare.comparison import ComparisonResult, Gate, compare_runs, with_claim, with_measures
from infercanary.compare.recording import RecordedRuns, listed
from infercanary.compare.units import count, finite, short
from infercanary.contract.vocabulary import COLD_START
from infercanary.judge.causes import Attribution
from infercanary.judge.model import Pair, Start
from infercanary.judge.origin import NOWHERE, Origin
from infercanary.judge.policy import EXPERIMENT, FILES, Policy
from infercanary.judge.result import Result as JudgeResult
from infercanary.judge.samples import compare_starts
from infercanary.judge.sentence import sentence
from infercanary.judge.shift import Shift

STEPS = ("pull", "start", "first_answer", *COLD_START)
"""Steps of a deployment: the pull of a missing image; the start of a container; from the request for that until the
first inference was answered; of this, load and the first inference alone; and until steady."""

_SLOW_PACE = 4.0  # times the interval that was asked for; beyond it the probe keeps its own pace


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its starts and the runs that count, in seconds."""

    name: str
    image_id: str = ""
    image_bytes: int | None = None
    origin: Origin = NOWHERE
    settings: dict[str, str] = {}
    """The settings in which it differs from the other arm: key of `--a` and `--b` → value."""
    starts: int
    failed_starts: int
    runs: int
    mean: float | None = None
    sd: float | None = None
    start_sd: float | None = None
    """How much the levels of its starts differ (SD), as a ratio."""
    cold_start: dict[str, float] = {}
    """Step → its median, in seconds."""
    swing: dict[str, float] = {}
    """Step → half of its range over its median: 0.05 is ± 5 %."""


class PairShift(msgspec.Struct, frozen=True):
    """One pair of starts: how much slower B was than A, as a ratio, and which came first."""

    shift: float
    first: str
    a: float
    b: float
    """Medians of the two starts, in seconds."""


class CanaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on one canary."""

    compared: ComparisonResult
    a: ArmSummary
    b: ArmSummary
    pairs: Sequence[PairShift]
    ended: Ended
    seconds: float


class Picked(NamedTuple):
    """The runs of one canary that count."""

    starts: Sequence[tuple[Start, Start]]
    shifts: Sequence[Shift]
    a_first: Sequence[bool]
    note: str


def common(pairs: Sequence[TurnPair]) -> list[str]:
    """Return the canaries that every start had.

    Args:
        pairs: One or more.

    Returns:
        Names, in the order of the first start's report.

    Raises:
        UsageError: There is none.
    """
    turns = [turn for pair in pairs for turn in (pair.a, pair.b)]
    names = [name for name in turns[0].starts if all(name in turn.starts for turn in turns)]
    if not names:
        a, b = (listed(turn.starts) for turn in (pairs[0].a, pairs[0].b))
        raise UsageError(f"no canary is in both images; A has {a}; B has {b}; give both the same --config")
    return names


def picked(pairs: Sequence[TurnPair], canary: str) -> Picked:
    """Return the runs of ``canary`` that count, with the shift of each pair.

    Args:
        pairs: All of them, in order of time.
        canary: A name that every start has.

    Returns:
        Pairs that count: their starts, shifts (B over A) and order, and a note on those that do not; empty without one.
    """
    both = [(pair.a.starts[canary], pair.b.starts[canary]) for pair in pairs]
    kept = neighbours.counted(both)
    firsts = {id(pair.a.starts[canary].generation): pair.a_first for pair in pairs}
    shifts = [compare_starts([_points(a)], [_points(b)], restart_sd=0.0)[1] for a, b in kept.pairs]
    return Picked(kept.pairs, shifts, [firsts[id(a.generation)] for a, _ in kept.pairs], kept.note)


def decisions(
    pairs: Sequence[TurnPair],
    most: int,
    policy: Policy = EXPERIMENT,
    claimed: float | None = None,
    gate: Gate = "all",
) -> dict[str, PairDecision]:
    """Return the decision on each canary after these pairs.

    Args:
        pairs: The pairs so far.
        most: Pairs that are planned.
        policy: The numbers that decide.
        claimed: The shift of `--expect`, as a ratio; where there is one, the experiment goes on until that is known.
        gate: Whether measures decide too; then it goes on while one looks worse and is not known, unless the latency
            regressed: that is the answer already.

    Returns:
        Canary → decision.

    Raises:
        UsageError: No canary is in all of them.
    """
    found = {}
    for name in common(pairs):
        of = picked(pairs, name)
        shifts = of.shifts
        decision = estimate.decide(shifts, most, policy)
        if claimed is not None:
            is_known = _is_known(decision, claimed, policy)
            is_last = decision.done and len(shifts) >= max(most, estimate.FEWEST_PAIRS)
            decision = decision._replace(clear=is_known, done=is_known or is_last)
        elif decision.done and gate == "all" and decision.verdict != "regressed":
            beside = measures.decide(of.starts, most, policy)
            decision = decision._replace(done=not any(each.is_open for each in beside))
        # Pairs that do not count are still tried pairs: an experiment must end.
        found[name] = decision._replace(done=decision.done or len(pairs) > most)
    return found


def summarize(
    canary: str,
    result: Result,
    a: ArmSummary,
    b: ArmSummary,
    most: int,
    policy: Policy = EXPERIMENT,
    claimed: float | None = None,
    gate: Gate = "all",
) -> CanaryAnswer:
    """Return the answer on ``canary``; ``a`` and ``b`` name the arms.

    Args:
        canary: A name that every start has.
        result: Of the experiment.
        a: The first arm: its name and image; the rest is filled in.
        b: The second arm, likewise.
        most: Pairs that were planned.
        policy: The numbers that decide.
        claimed: The shift of `--expect`, as a ratio; None without it.
        gate: Whether the exit code counts measures that regressed.

    Returns:
        The verdict with its evidence, both arms, and each pair.
    """
    of = picked(result.pairs, canary)
    decision = estimate.decide(of.shifts, most, policy)
    arms = [
        _arm(arm, side, result, [pair[i] for pair in of.starts], canary)
        for i, (arm, side) in enumerate(((a, "A"), (b, "B")))
    ]
    compared = _compared(canary, of, decision, result, (a, b), policy)
    beside = {each.measure.name: measures.verdict(each) for each in measures.decide(of.starts, most, policy)}
    compared = with_measures(compared, beside, gate)
    return CanaryAnswer(
        compared=with_claim(compared, claimed, policy),
        a=arms[0],
        b=arms[1],
        pairs=[
            PairShift(math.expm1(shift.log), "A" if first else "B", median(_points(x)), median(_points(y)))
            for shift, first, (x, y) in zip(of.shifts, of.a_first, of.starts, strict=True)
        ],
        ended=result.ended,
        seconds=result.seconds,
    )


def series(pairs: Sequence[TurnPair], canary: str) -> tuple[RecordedRuns, RecordedRuns]:
    """Return the runs that count of both arms, for pictures.

    Args:
        pairs: All of them, in order of time.
        canary: A name that every start has.

    Returns:
        A's and B's, each with its starts in order of time.
    """
    a, b = ([pair[i] for pair in picked(pairs, canary).starts] for i in (0, 1))
    return _series(a), _series(b)


def _is_known(decision: PairDecision, claimed: float, policy: Policy) -> bool:
    """Whether a claim is held or refuted by the last look."""
    if not decision.looks or decision.verdict == "unconfirmed":
        return False
    seen = decision.looks[-1].seen
    return claim.check(claimed, (seen.shift, seen.low, seen.high), policy).state != "unknown"


def _compared(
    canary: str,
    of: Picked,
    decision: PairDecision,
    result: Result,
    arms: tuple[ArmSummary, ArmSummary],
    policy: Policy,
) -> ComparisonResult:
    """Return the result of `infercanary compare`, with the experiment's own verdict, interval and causes."""
    a, b = ([pair[i] for pair in of.starts] for i in (0, 1))
    one_look = FILES.but(smallest_effect=policy.decide.smallest_effect, clear_zone=policy.decide.clear_zone)
    plain = compare_runs(
        canary, _series(a), _series(b), files=((arms[0].name,), (arms[1].name,)), policy=one_look
    )
    look = decision.looks[-1] if decision.looks else None
    compared = [Pair([x], [y]) for x, y in of.starts]
    why = Attribution(policy).explain(look.shift, compared, canary) if look is not None else None
    pairs = count(len(of.shifts), "pair")
    text = f"{decision.verdict}: {pairs} of starts, and at least {estimate.FEWEST_PAIRS} are needed"
    shift = low = high = None
    if look is not None and why is not None:
        shift, low, high = look.seen.shift, finite(look.seen.low), finite(look.seen.high)
        found = JudgeResult(
            state=decision.verdict,
            origins=(arms[0].origin, arms[1].origin),
            shift=look.seen.shift,
            low=look.seen.low,
            high=look.seen.high,
            causes=why,
            only=look.shift.resolution.only,
        )
        text = sentence(found, policy, _own(*arms))
    differ = [
        f"; {side}: {sides.words(arm.settings)}"
        for side, arm in zip("BA", reversed(arms), strict=True)
        if arm.settings
    ]
    sd = estimate.restart_sd(of.shifts)
    unknown = decision.verdict in ("inconclusive", "unconfirmed")
    return msgspec.structs.replace(
        plain,
        verdict=decision.verdict,
        exit_code=OF_VERDICT[decision.verdict],
        sentence=text + "".join(differ[:1]),
        shift=shift,
        low=low,
        high=high,
        level=round(look.level, 4) if look is not None else plain.level,
        restart_sd=math.expm1(sd) if math.isfinite(sd) else plain.restart_sd,
        restart_sd_from="measured" if math.isfinite(sd) else plain.restart_sd_from,
        restarts_seen=2 * len(of.shifts),
        causes=why,
        next=_next(of, decision, result, policy) if unknown else (),
        notes=_notes(of, result),
    )


def _own(a: ArmSummary, b: ArmSummary) -> str:
    """What the arms differ in, besides the host at the time."""
    if not (a.settings or b.settings):
        return "image"
    return "settings" if (a.image_id or a.name) == (b.image_id or b.name) else "image or settings"


def _next(of: Picked, decision: PairDecision, result: Result, policy: Policy) -> list[str]:
    """Return next actions that would settle it."""
    each = result.seconds / max(1, len(result.pairs))
    needed = estimate.pairs_needed(of.shifts, FILES.pool.history, policy)
    found = []
    if result.ended == "budget":
        found.append("the time was up (--budget): give it more")
    if needed is not None:
        found.append(
            f"about {needed} starts a side would settle it, if they continue like this (--restarts {needed}, "
            f"{_minutes(each * needed)})"
        )
    elif len(of.shifts) >= estimate.FEWEST_PAIRS:
        found.append(
            "more of the same will hardly settle it: the shift is at the edge of what counts as one "
            f"({short(100 * policy.decide.smallest_effect)} %), or starts "
            f"differ too much ({short(100 * math.expm1(estimate.restart_sd(of.shifts)))} %); give the containers CPUs "
            "of their own (--both cpuset=…), and keep other work off them"
        )
    return found


def _notes(of: Picked, result: Result) -> list[str]:
    notes = [of.note] if of.note else []
    for side in ("A", "B"):
        failed = [failure.why for failure in result.failures if failure.side == side]
        if failed:
            notes.append(
                f"{side} failed to start {count(len(failed), 'time')} and was started again: {failed[-1]}"
            )
    slow = max((turn.interval for pair in result.pairs for turn in (pair.a, pair.b)), default=0.0)
    if slow > _SLOW_PACE * INTERVAL_SECONDS:
        notes.append(
            f"a run came every {short(slow)} s only: the model is slow, or the probe in the image is older than this "
            "experiment and keeps its own pace; install the present one"
        )
    return notes


def _arm(arm: ArmSummary, side: str, result: Result, starts: Sequence[Start], canary: str) -> ArmSummary:
    points = [x for start in starts for x in _points(start)]
    levels = [median(_points(start)) for start in starts]
    turns = [pair.a if side == "A" else pair.b for pair in result.pairs]
    cold: dict[str, list[float]] = {step: [] for step in STEPS}
    for turn in turns:
        known = turn.starts[canary].generation.cold_start.get(canary, {})
        answered = {"first_answer": turn.answered[canary]} if canary in turn.answered else {}
        for step, seconds in {**known, **answered, "start": turn.start}.items():
            cold[step].append(seconds)
    swings = {step: estimate.swing(seconds) for step, seconds in cold.items()}
    return msgspec.structs.replace(
        arm,
        starts=len(turns),
        failed_starts=sum(failure.side == side for failure in result.failures),
        runs=len(points),
        mean=fmean(points) if points else None,
        sd=stdev(points) if len(points) > 1 else None,
        start_sd=stdev(np.log(levels).tolist()) if len(levels) > 1 else None,
        cold_start=arm.cold_start | {step: median(seconds) for step, seconds in cold.items() if seconds},
        swing={step: swing for step, swing in swings.items() if swing is not None},
    )


def _series(starts: Sequence[Start]) -> RecordedRuns:
    return RecordedRuns(
        [np.array(_points(start), dtype=np.float64) for start in starts], starts, [[] for _ in starts]
    )


def _points(start: Start) -> list[float]:
    return [s.median for s in start.samples if s.median]


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min" if seconds >= 60 else f"{max(1, round(seconds))} s"
