"""Records new verdicts in the store, and finds the last verdict on each past upgrade."""

from __future__ import annotations

import time
from operator import attrgetter

import msgspec
import structlog

from infercanary.exporter.judging.documents import read
from infercanary.exporter.judging.findings import Finding, PastVerdict
from infercanary.judge.model import ServiceKey
from infercanary.judge.result import State
from infercanary.judge.shift import CHANGED
from infercanary.pages.sentence import measure_words
from infercanary.store.store import Store

log = structlog.get_logger(__name__)

_KIND = "verdict"
_SHOWN = 16  # number of past verdicts in a finding; a verdict may take 2 KB or more
_OPEN: frozenset[State] = frozenset({"settling", "no_baseline"})  # states that are not recorded


def record(store: Store, service: ServiceKey, canary: str, before: Finding | None, after: Finding) -> Finding:
    """Log new verdicts and keep them in the store.

    Args:
        service: Service of the canary.
        before: Last finding, about the same upgrade or the previous upgrade.
        after: Current finding.

    Returns:
        The current finding with the most recent verdict for each of the latest upgrades, oldest upgrade first. Within
        an upgrade, latency comes before other measures.
    """
    result = after.result
    same = before if before is not None and before.result.upgraded_at == result.upgraded_at else None
    calls, last_calls = _calls(after), _calls(same) if same is not None else {}
    new = [name for name in ("", *after.measures) if calls.get(name) != last_calls.get(name)]
    for name in new:
        log.info("verdict", service=str(service), canary=canary, verdict=_words(after, name))
    if not new:
        return after
    documents = read(store, service, canary, _KIND, PastVerdict)
    known = {(past.upgraded_at, past.measure): past for _, past in documents}

    def keep(past: PastVerdict) -> None:
        known[past.upgraded_at, past.measure] = past
        store.save(service, canary, _KIND, past.answered_at, msgspec.json.encode(past))

    over = [_past(before, "")] if before is not None and same is None else []
    for past in over + [_past(after, name) for name in ("", *after.measures)]:
        last = known.get((past.upgraded_at, past.measure))
        is_new = last is None or last.state != past.state or last.rolled_back or past in over
        is_shown = not past.measure or past.state in CHANGED or last is not None
        if past.state not in _OPEN and is_new and is_shown:
            keep(past)
    upgrades = [past for (at, name), past in known.items() if not name and at != result.upgraded_at]
    last = max(upgrades, key=attrgetter("upgraded_at"), default=None)
    if last is not None and last.candidate_image == result.rolled_back_image and not last.rolled_back:
        keep(msgspec.structs.replace(last, answered_at=time.time(), rolled_back=True))
    answers = tuple(past for _, past in sorted(known.items())[-_SHOWN:])
    return msgspec.structs.replace(after, answers=answers)


def _past(finding: Finding, measure: str) -> PastVerdict:
    result = finding.result
    return PastVerdict(
        answered_at=time.time(),
        upgraded_at=result.upgraded_at or 0.0,
        state=finding.measures[measure].state if measure else result.state,
        sentence=_words(finding, measure),
        baseline_image=result.baseline_image,
        candidate_image=result.candidate_image,
        measure=measure,
    )


def _calls(finding: Finding) -> dict[str, str]:
    """Return a text for each measure ("" is the latency). A changed text is logged.

    The latency's text includes the cause, so a changed cause is also logged. Unchanged other measures have no text.
    """
    changes = {name: v.state for name, v in finding.measures.items() if v.state in CHANGED}
    return {"": f"{finding.result.state} {finding.result.causes.cause}", **changes}


def _words(finding: Finding, measure: str) -> str:
    return measure_words(measure, finding.measures[measure]) if measure else finding.sentence
