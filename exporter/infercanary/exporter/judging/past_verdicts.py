"""Verdicts on earlier upgrades: the store keeps each, and the last one on each upgrade counts."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType

import msgspec
import structlog

from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import ServiceKey
from infercanary.judge.result import Result, State
from infercanary.judge.shift import CHANGED
from infercanary.pages.sentence import measure_words
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

_KIND = "verdict"
_SHOWN = (
    16  # the page shows eight upgrades and the last one, which may have measures; each takes 2 KB and more
)
_OPEN: frozenset[State] = frozenset({"settling", "no_baseline"})


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
    """True if all containers of the new image are gone, and others of the service go on."""


_decoder = msgspec.json.Decoder(PastVerdict)


def record(
    store: Store,
    service: ServiceKey,
    canary: str,
    judgement: Result,
    sentence: str,
    now: float,
    measures: Mapping[str, MeasureVerdict] = MappingProxyType({}),
    over: tuple[Result, str] | None = None,
) -> tuple[PastVerdict, ...]:
    """Keep ``judgement`` if it is a new verdict on its upgrade, and the verdicts on its measures that changed.

    Args:
        store: Keeps the verdicts.
        service: The canary's service.
        canary: Its name.
        judgement: The last judgement.
        sentence: The same in words.
        now: A Unix time.
        measures: The last verdict on each measure. Only a change is kept, and what takes it back.
        over: The judgement before with its sentence, if it was of another upgrade: its numbers are the last ones.

    Returns:
        The last verdict on each of the last upgrades, in order of time, each followed by those on its measures.
    """
    known: dict[tuple[float, str], PastVerdict] = {}
    for document in store.history(service, canary, _KIND):
        try:
            past = _decoder.decode(document.body)
            known[past.upgraded_at, past.measure] = past
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning(
                "an earlier verdict cannot be read", service=str(service), canary=canary, error=str(error)
            )

    def keep(past: PastVerdict) -> None:
        known[past.upgraded_at, past.measure] = past
        store.save(service, canary, _KIND, now, msgspec.json.encode(past))

    def keep_verdict(result: Result, state: State, words: str, measure: str = "") -> None:
        before = known.get((result.upgraded_at or 0.0, measure))
        is_new = before is None or before.state != state or before.rolled_back or result is not judgement
        if result.upgraded_at is not None and state not in _OPEN and is_new:
            past = PastVerdict(
                answered_at=now,
                upgraded_at=result.upgraded_at,
                state=state,
                sentence=words,
                baseline_image=result.baseline_image,
                candidate_image=result.candidate_image,
                measure=measure,
            )
            keep(past)

    if over is not None:
        keep_verdict(over[0], over[0].state, over[1])
    last = max(
        (past for past in known.values() if not past.measure), key=attrgetter("upgraded_at"), default=None
    )
    is_over = last is not None and last.candidate_image == judgement.rolled_back_image != ""
    if last is not None and is_over and not last.rolled_back and last.upgraded_at != judgement.upgraded_at:
        keep(msgspec.structs.replace(last, answered_at=now, rolled_back=True))
    keep_verdict(judgement, judgement.state, sentence)
    for name, found in measures.items():
        if found.state in CHANGED or (judgement.upgraded_at, name) in known:
            keep_verdict(judgement, found.state, measure_words(name, found), name)
    return tuple(past for _, past in sorted(known.items())[-_SHOWN:])
