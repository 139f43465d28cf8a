"""What a rollout learns of a service: the judge's verdict, as long as it is about what is being rolled out now.

A rollout asks at moments that the judge does not choose: when new pods were created and have not reported yet, when one
upgrade overtakes another, after a rollback. What is known then may be a verdict on an earlier upgrade, and that must
neither promote nor abort this one. So a verdict counts only if all of this is true, and is `unknown` otherwise:

- a container of the new image reports now;
- that is the image that is asked about, where one is named;
- a container of the old image reports now, too: the rollout is under way. Who asks when it is over, because the old
  containers were replaced at once, says since when a verdict counts instead;
- every container that runs was seen by the judge: one that was not may be of a still newer image. A `regressed` on the
  image that is named needs no such wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from infercanary.contract.vocabulary import Cause
from infercanary.exporter.judging.findings import Findings
from infercanary.exporter.judging.sides import Sides
from infercanary.judge.identity import reference_of
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.result import Result, State
from infercanary.judge.shift import CHANGED

SCHEMA_VERSION: Final = 1
_NAMED = 5  # names in a sentence that lists what there is

Verdict: TypeAlias = State | Literal["unknown"]
WORST_FIRST: tuple[Verdict, ...] = (
    "regressed",
    "unknown",
    "no_baseline",
    "settling",
    "inconclusive",
    "unconfirmed",
    "equivalent",
    "improved",
)
"""Of several canaries the first of these counts."""
PROMOTES: frozenset[Verdict] = frozenset({"equivalent", "improved"})
ABORTS: frozenset[Verdict] = frozenset({"regressed"})


class Question(NamedTuple):
    """What a rollout asks about."""

    service: ServiceKey
    canary: str = ""
    """Empty for all canaries of the service, of which the worst counts."""
    image: str = ""
    """The image that is rolled out, by reference, digest or id; empty where it is not named."""
    since: float | None = None
    """A Unix time: the verdict is on an upgrade since then. None: it is on one that is under way."""


class ServiceState(NamedTuple):
    """What is known of a service now."""

    findings: Findings
    running: Sequence[Generation]
    """The start of each container that reports now."""
    silent: Collection[str] = ()
    """Containers that run and never reported."""


class Verdicts(Protocol):
    """Where answers come from. It is asked by the event loop: it may look nothing up elsewhere."""

    def known(self, service: ServiceKey) -> ServiceState:
        """What is known of a service.

        Args:
            service: Any key.

        Returns:
            Empty findings, where it was not judged.
        """

    def services(self) -> Collection[ServiceKey]:
        """All services that are known.

        Returns:
            Their keys.
        """


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout reads. Shifts are ratios (0.05 is 5 % slower); None is what is not known."""

    schema_version: int = SCHEMA_VERSION
    namespace: str
    service: str
    canary: str | None = None
    """The one whose verdict it is."""
    verdict: Verdict = "unknown"
    sentence: str
    """The verdict in words, or why it is unknown."""
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    cause: Cause | None = None
    """Only of a change."""
    runs: int = 0
    starts: int = 0
    hosts: int = 0
    since: datetime | None = None
    """When the first container of the new image started."""
    baseline_image: str | None = None
    candidate_image: str | None = None
    canaries: dict[str, Verdict] = {}
    """The verdict on each canary that was asked about."""


def answer(question: Question, verdicts: Verdicts) -> Answer:
    """The verdict that counts for a rollout.

    Args:
        question: What it asks about.
        verdicts: What is known.

    Returns:
        `unknown` wherever a verdict does not count, with the reason as its sentence.
    """
    service = question.service
    known = verdicts.known(service)
    judged = known.findings.judgements
    canaries = sorted(judged) if not question.canary else [c for c in (question.canary,) if c in judged]
    if not canaries:
        return _unknown(service, _nothing(question, judged, verdicts.services(), known))
    answers = [_of_canary(question, canary, known) for canary in canaries]
    worst = min(answers, key=lambda each: WORST_FIRST.index(each.verdict))
    return msgspec.structs.replace(worst, canaries={str(each.canary): each.verdict for each in answers})


def _of_canary(question: Question, canary: str, known: ServiceState) -> Answer:
    judgement = known.findings.judgements[canary]
    reason = _why_not(question, judgement, known.findings.sides.get(canary, Sides()), known)
    if reason:
        return _unknown(question.service, reason, canary)
    changed = judgement.state in CHANGED
    since = judgement.upgraded_at
    return Answer(
        namespace=question.service.namespace,
        service=question.service.name,
        canary=canary,
        verdict=judgement.state,
        sentence=known.findings.sentences[canary],
        shift=judgement.shift,
        low=judgement.low,
        high=judgement.high,
        cause=judgement.causes.cause if changed else None,
        runs=judgement.runs,
        starts=judgement.starts,
        hosts=judgement.hosts or (1 if judgement.starts else 0),
        since=None if since is None else _utc(since),
        baseline_image=judgement.baseline_image or None,
        candidate_image=judgement.candidate_image or None,
    )


def _why_not(question: Question, judgement: Result, sides: Sides, known: ServiceState) -> str:
    """Why a verdict does not count; empty where it does."""
    since = judgement.upgraded_at
    if since is None:
        return ""  # no upgrade was seen, and the verdict says that
    about = f"the last verdict ({judgement.state}) is about {judgement.candidate_image}"
    running = {(start.container, start.boot_id): start for start in known.running}
    new = [running[boot] for boot in sides.new & running.keys()]
    if question.image and not any(is_named(start, question.image) for start in new):
        if new and not any(start.image or start.is_known for start in new):
            return "which image its containers run is not known here; ask without image="
        return f"{about}, of which no container that reports now is {question.image}"
    if not new:
        return f"{about}, and no container that reports now has that"
    if question.since is not None:
        if since < question.since:
            return f"{about}, and that upgrade was before since="
    elif not sides.old & running.keys():
        return (
            f"{about}, and no container of the image before it reports now: no rollout is under way; "
            "to ask once it is over, say since="
        )
    if question.image and judgement.state in ABORTS:
        return ""
    # Containers of a service may run different canaries.
    seen = {boot for each in known.findings.sides.values() for side in each for boot in side}
    unseen = sorted(known.silent) or sorted(container for container, _ in running.keys() - seen)
    return f"{about}, and {_listed(unseen)} did not run its canaries yet" if unseen else ""


def _nothing(
    question: Question, judged: Mapping[str, Result], services: Collection[ServiceKey], known: ServiceState
) -> str:
    """Why there is no verdict at all."""
    service = question.service
    if judged:
        return f"the service has no canary {question.canary}; it has {_listed(sorted(judged))}"
    if known.running or known.silent or service in services:
        return "the service was not judged yet"
    elsewhere = sorted(key.namespace for key in services if key.name == service.name)
    if elsewhere and not service.namespace:
        return f"the service is in a namespace: say namespace={' or namespace='.join(elsewhere[:_NAMED])}"
    others = f"{len(services)} others are" if len(services) > 1 else "one other is" if services else "none is"
    return f"no such service is known here, and {others}; see the labels `namespace` and `service` of infercanary_up"


def _unknown(service: ServiceKey, reason: str, canary: str | None = None) -> Answer:
    return Answer(
        namespace=service.namespace, service=service.name, canary=canary, sentence=f"unknown: {reason}"
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _utc(at: float) -> datetime | None:
    """None for a time that no calendar has: it is the probe's word."""
    try:
        return datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, ValueError):
        return None


def is_named(generation: Generation, image: str) -> bool:
    """Whether a start ran the image that somebody names.

    Args:
        generation: The start.
        image: A reference, or a digest or an id (``sha256:…``). Where it has a digest, that decides, and no tag does.
    """
    digest = image.rpartition("@")[2]
    if digest.startswith("sha256:"):
        return any(
            name.endswith(digest) for name in (generation.image_id, generation.image_digest, generation.image)
        )
    return reference_of(image) == reference_of(generation.image).partition("@")[0]
