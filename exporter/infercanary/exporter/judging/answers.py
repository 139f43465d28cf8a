"""The verdicts on earlier upgrades: the store keeps each, and the last one on each upgrade is what counts."""

from __future__ import annotations

from collections.abc import Mapping
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
_MOST = (
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
    """What it is on; empty for the latency."""
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
    """Keep ``judgement`` if it is a new verdict on its upgrade, and those on its measures that changed.

    Args:
        store: Where its verdicts so far are kept.
        service: The canary's.
        canary: Its name.
        judgement: The last one.
        sentence: The same in words.
        now: A Unix time.
        measures: The last verdict on each measure. Of those only a change is kept, and what takes it back.
        over: The judgement before and its sentence, where it was of another upgrade: its numbers are the last ones.

    Returns:
        The last verdict on each of the last upgrades, in order of time, followed by those on its measures.
    """
    answers: dict[tuple[float, str], PastVerdict] = {}
    for document in store.history(service, canary, _KIND):
        try:
            answer = _decoder.decode(document.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning(
                "an earlier verdict cannot be read", service=str(service), canary=canary, error=str(error)
            )
        else:
            answers[answer.upgraded_at, answer.measure] = answer
    if over is not None and over[0].upgraded_at is not None and over[0].state not in _OPEN:
        before, words = over
        _keep(store, service, canary, answers, _answer(before, before.state, words, now))
    of_latency = [answer for answer in answers.values() if not answer.measure]
    last = max(of_latency, key=lambda answer: answer.upgraded_at, default=None)
    if (
        last is not None
        and judgement.rolled_back_image
        and last.candidate_image == judgement.rolled_back_image
        and last.upgraded_at != judgement.upgraded_at
        and not last.rolled_back
    ):
        _keep(
            store, service, canary, answers, msgspec.structs.replace(last, answered_at=now, rolled_back=True)
        )
    if judgement.upgraded_at is None:
        return _in_order(answers)
    new = {"": (judgement.state, sentence)} | {
        name: (verdict.state, measure_words(name, verdict))
        for name, verdict in measures.items()
        if verdict.state in CHANGED or (judgement.upgraded_at, name) in answers
    }
    for measure, (state, words) in new.items():
        known = answers.get((judgement.upgraded_at, measure))
        if state not in _OPEN and (known is None or known.state != state or known.rolled_back):
            _keep(store, service, canary, answers, _answer(judgement, state, words, now, measure))
    return _in_order(answers)


def _answer(judgement: Result, state: State, words: str, now: float, measure: str = "") -> PastVerdict:
    return PastVerdict(
        answered_at=now,
        upgraded_at=judgement.upgraded_at or 0.0,
        state=state,
        sentence=words,
        baseline_image=judgement.baseline_image,
        candidate_image=judgement.candidate_image,
        measure=measure,
    )


def _keep(
    store: Store,
    service: ServiceKey,
    canary: str,
    answers: dict[tuple[float, str], PastVerdict],
    answer: PastVerdict,
) -> None:
    answers[answer.upgraded_at, answer.measure] = answer
    store.save(service, canary, _KIND, answer.answered_at, msgspec.json.encode(answer))


def _in_order(answers: Mapping[tuple[float, str], PastVerdict]) -> tuple[PastVerdict, ...]:
    return tuple(answer for _, answer in sorted(answers.items())[-_MOST:])


def changed_calls(before: Mapping[str, MeasureVerdict], after: Mapping[str, MeasureVerdict]) -> list[str]:
    """The measures that are called a change now, and were not before, or the other way round.

    Args:
        before: The last verdict on each measure.
        after: The new ones.

    Returns:
        Their names.
    """

    def called(known: Mapping[str, MeasureVerdict]) -> dict[str, State]:
        return {name: v.state for name, v in known.items() if v.state in CHANGED}

    old, new = called(before), called(after)
    return [name for name in after if old.get(name) != new.get(name)]
