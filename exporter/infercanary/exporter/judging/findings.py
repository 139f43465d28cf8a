"""Findings on a canary: the verdict on the latency, with drifts, A/A trials and measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from infercanary.contract.measures import SPREAD
from infercanary.exporter.judging.schedule import EVERYTHING, Boot, Due
from infercanary.judge import drift
from infercanary.judge.align import grouped
from infercanary.judge.drift import Drift
from infercanary.judge.measures import Measures, MeasureVerdict
from infercanary.judge.model import Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import NO_RESTART
from infercanary.judge.restarts import restarts_before, taught_by
from infercanary.judge.result import Result, State
from infercanary.judge.shift import CHANGED, Restarts
from infercanary.judge.upgrade import Selection, select
from infercanary.judge.verdict import Judge, Trials
from infercanary.pages.sentence import measure_words, sentence

_TRIALS = 2  # limit of A/A trials in one judgement; all trials are due after a restart of the exporter


class PastVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The last verdict on one upgrade. Times are Unix seconds."""

    answered_at: float
    upgraded_at: float
    state: State
    sentence: str
    baseline_image: str
    candidate_image: str
    measure: str = ""
    """Name of the measure; "" is the latency."""
    rolled_back: bool = False
    """True if all containers of the new image are gone while other containers of the service still run."""


class Sides(NamedTuple):
    """Newest start of each container by side of the last upgrade. Starts that are known to have ended are left out."""

    new: frozenset[Boot] = frozenset()
    """Starts of the new image, which the verdict is about."""
    old: frozenset[Boot] = frozenset()
    """Starts of the old image, the baseline."""
    others: frozenset[Boot] = frozenset()
    """Starts of any other image; all starts if there was no upgrade."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Finding on one canary, in the form that is stored.

    Stored findings must stay readable: a new field needs a default, and a field of another type needs another name.
    """

    result: Result
    sentence: str
    """The verdict in words, for the log, the status page and the metrics."""
    drifts: Mapping[str, Drift] = {}
    """Drift by container."""
    answers: tuple[PastVerdict, ...] = ()
    """Most recent verdict for each of the latest upgrades, on latency and then on other measures. Oldest upgrade first;
    at most 16 verdicts.
    """
    trials: Trials = {}
    """A/A tests of the judge on restarts of the same image."""
    measures: Mapping[str, MeasureVerdict] = {}
    """Verdict by measure (memory, energy, throughput of a load, spread)."""
    sides: Sides = Sides()
    taught: Restarts | None = None
    """Restart variance of the service, learned without a prior; None if no image was restarted."""


Findings = Mapping[str, Finding]
"""Findings on a service by canary. The mapping is replaced as a whole, never changed in parts."""
NOTHING: Final[Findings] = MappingProxyType({})

_decoder = msgspec.msgpack.Decoder(Finding)
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item())  # encodes numbers of numpy


def encode(finding: Finding) -> bytes:
    return _encoder.encode(finding)


def decode(body: bytes) -> Finding | None:
    """Decode a finding from the store; None if another version wrote it."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def judge_canary(
    canary: str,
    before: Finding | None,
    starts: Sequence[Start],
    siblings: Sequence[Start],
    policy: Policy,
    due: Due = EVERYTHING,
    selection: Selection | None = None,
) -> Finding:
    """Judge a canary on all its stored runs.

    Args:
        before: Previous finding.
        starts: Starts of the canary's service with the canary's runs, in order of time.
        siblings: Starts of other services on the same hosts.
        policy: Thresholds of the judge.
        due: Judgements that are due. If ``before`` is about the same upgrade, other verdicts are copied from it.
        selection: Result of :func:`~infercanary.judge.upgrade.select` for ``starts``, if already computed.
    """
    judge, selection = Judge(policy), selection or select(starts)
    upgrade = selection.upgrade
    upgraded_at = upgrade.at if upgrade else None
    is_same = before is not None and before.result.upgraded_at == upgraded_at
    if before is not None and is_same and not due.upgrade:
        result = before.result
    else:
        result = judge.verdict(starts, siblings, canary, selection)
    rules = Measures(policy)
    if before is None or not is_same or due.measures:
        measures = rules.judge(starts, siblings, selection)
    else:
        measures = {**before.measures}
        if upgrade and due.upgrade:
            measures[SPREAD.name] = rules.spread(upgrade, siblings)
    spread = measures.get(SPREAD.name)
    also = [measure_words(SPREAD.name, spread)] if spread and spread.state in CHANGED else []
    last = before or Finding(result=result, sentence="")
    if before is None or due.drift:
        drifts = _drifts(canary, starts, siblings, policy)
        last = msgspec.structs.replace(last, drifts=drifts, taught=taught_by(starts, policy.pool))
    return msgspec.structs.replace(
        last,
        result=result,
        sentence=sentence(result, also=also),
        trials=judge.trials(starts, last.trials, _TRIALS),
        measures=measures,
        sides=_sides(starts, upgrade),
    )


def _drifts(
    canary: str, starts: Sequence[Start], siblings: Sequence[Start], policy: Policy
) -> dict[str, Drift]:
    drifts = {}
    for container, own in grouped(starts, attrgetter("generation.container")).items():
        same = [s for s in own if s.work == own[-1].work]
        # A single start has no restart variance.
        restarts = restarts_before(own[-1], starts, policy.pool) if len(same) > 1 else NO_RESTART
        beside = [s for s in siblings if s.generation.host == own[-1].generation.host]
        drifts[container] = drift.detect(same, beside, canary, restarts, policy)
    return drifts


def _sides(starts: Sequence[Start], upgrade: Upgrade | None) -> Sides:
    """Return the starts on each side of the upgrade. Starts without recent runs may be busy, and are included."""
    boots: defaultdict[str, set[Boot]] = defaultdict(set)
    for start in {start.generation.container: start for start in starts}.values():
        if not start.generation.ended_at:
            boots[start.identity].add(start.boot)
    new, old = (upgrade.after[-1].identity, upgrade.before[-1].identity) if upgrade else ("", "")
    return Sides(
        frozenset(boots.pop(new, ())), frozenset(boots.pop(old, ())), frozenset(chain(*boots.values()))
    )
