"""The verdicts on earlier upgrades: the store keeps each, and the last one on each upgrade is what counts."""

from __future__ import annotations

import msgspec
import structlog

from infercanary.judge.model import Judgement, State
from infercanary.store.base import Store

log = structlog.get_logger(__name__)

_KIND = "verdict"
_OPEN: frozenset[State] = frozenset({"settling", "no_baseline"})


class PastVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The last verdict on one upgrade. Times are Unix seconds."""

    answered_at: float
    upgraded_at: float
    state: State
    sentence: str
    baseline_image: str
    candidate_image: str
    prior: int = 0
    """The number of the prior of the restart variance that it used; 0 for the policy's own."""


_decoder = msgspec.json.Decoder(PastVerdict)


def record(
    store: Store, service: str, canary: str, judgement: Judgement, sentence: str, now: float
) -> tuple[PastVerdict, ...]:
    """Keep ``judgement`` if it is a new verdict on its upgrade.

    Args:
        store: Where its verdicts so far are kept.
        service: The canary's.
        canary: Its name.
        judgement: The last one.
        sentence: The same in words.
        now: A Unix time.

    Returns:
        The last verdict on each upgrade, in order of time.
    """
    answers: dict[float, PastVerdict] = {}
    for document in store.history(service, canary, _KIND):
        try:
            answer = _decoder.decode(document.body)
        except msgspec.DecodeError as error:
            log.warning("an earlier verdict cannot be read", service=service, canary=canary, error=str(error))
        else:
            answers[answer.upgraded_at] = answer
    if judgement.upgraded_at is not None and judgement.state not in _OPEN:
        known = answers.get(judgement.upgraded_at)
        if known is None or known.state != judgement.state:
            answer = answers[judgement.upgraded_at] = PastVerdict(
                answered_at=now,
                upgraded_at=judgement.upgraded_at,
                state=judgement.state,
                sentence=sentence,
                baseline_image=judgement.baseline_image,
                candidate_image=judgement.candidate_image,
                prior=judgement.prior,
            )
            store.save(service, canary, _KIND, now, msgspec.json.encode(answer))
    return tuple(sorted(answers.values(), key=lambda answer: answer.upgraded_at))
