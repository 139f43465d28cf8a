"""What was said of earlier upgrades: the store keeps each answer, and the last one on each upgrade is what stands."""

from __future__ import annotations

import msgspec
import structlog

from infercanary.judge.model import Judgement, State
from infercanary.judge.sentence import sentence
from infercanary.store.base import Store

log = structlog.get_logger(__name__)

_KIND = "verdict"
_UNANSWERED: frozenset[State] = frozenset({"settling", "no_baseline"})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The last verdict on one upgrade. Times are Unix seconds."""

    answered_at: float
    upgraded_at: float
    state: State
    sentence: str
    baseline_image: str
    candidate_image: str


_decoder = msgspec.json.Decoder(Answer)


def remember(store: Store, service: str, canary: str, told: Judgement, now: float) -> tuple[Answer, ...]:
    """Keep ``told`` if it is a new answer; the last one on each upgrade that is known of, in order of time."""
    answers: dict[float, Answer] = {}
    for document in store.history(service, canary, _KIND):
        try:
            answer = _decoder.decode(document.body)
        except msgspec.DecodeError as error:
            log.warning("an earlier verdict cannot be read", service=service, canary=canary, error=str(error))
        else:
            answers[answer.upgraded_at] = answer
    if told.upgraded_at is not None and told.state not in _UNANSWERED:
        known = answers.get(told.upgraded_at)
        if known is None or known.state != told.state:
            answer = answers[told.upgraded_at] = Answer(
                answered_at=now,
                upgraded_at=told.upgraded_at,
                state=told.state,
                sentence=sentence(told),
                baseline_image=told.baseline_image,
                candidate_image=told.candidate_image,
            )
            store.save(service, canary, _KIND, now, msgspec.json.encode(answer))
    return tuple(sorted(answers.values(), key=lambda answer: answer.upgraded_at))
