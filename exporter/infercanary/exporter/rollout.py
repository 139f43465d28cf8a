"""Answer to a rollout: the judge's verdict on the current upgrade.

A rollout asks at any moment: before new pods report, while a second upgrade overtakes the first, after a rollback.
The verdict at that moment may be about an earlier upgrade, and must then neither promote nor abort the current
upgrade. So a verdict counts only if all of these conditions hold; otherwise the answer is `unknown`:

- A container of the new image reports now.
- If the question names an image, this image is the new image.
- A container of the old image also reports now: the rollout is in progress. After a replacement of all old containers
  at once, the question must give `since=` instead. The verdict then counts unless the upgrade is older than `since`.
- The judge has seen every running container. An unseen container may run a still newer image. A verdict `regressed` on
  the named image does not need this condition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec

from infercanary.contract.vocabulary import Cause
from infercanary.exporter.judging.findings import Finding, Findings
from infercanary.judge.identity import reference_of
from infercanary.judge.model import Generation
from infercanary.judge.result import State
from infercanary.judge.shift import CHANGED

SCHEMA_VERSION: Final = 1

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
"""Verdicts from worst to best. For a question about several canaries, the worst verdict counts."""
PROMOTES: frozenset[Verdict] = frozenset({"equivalent", "improved"})
ABORTS: frozenset[Verdict] = frozenset({"regressed"})


Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{0,256}$")]
"""Name of a service, namespace or canary."""


class Question(msgspec.Struct, frozen=True):
    """Parameters of a question."""

    service: Name
    namespace: Name = ""
    canary: Name = ""
    """Empty for all canaries of the service; the worst verdict then counts."""
    image: Annotated[str, msgspec.Meta(pattern=r"^[^\s\x00-\x1f\x7f]{0,512}$")] = ""
    """Image of the rollout, by reference, digest or id; empty if the question names no image."""
    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The verdict counts unless its upgrade is older than this time. None: the verdict counts while the rollout is in
    progress.
    """


class ServiceState(NamedTuple):
    """Facts about a service in the exporter's memory."""

    findings: Findings
    running: Sequence[Generation]
    """Start of each container that reports now."""
    silent: Collection[str] = ()
    """Running containers that have never reported."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a question. Shifts are ratios: 0.05 is 5 % slower."""

    schema_version: int = SCHEMA_VERSION
    namespace: str
    service: str
    canary: str | None = None
    """Canary that the verdict is about."""
    verdict: Verdict = "unknown"
    sentence: str
    """The verdict in words, or the reason why it is unknown."""
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    cause: Cause | None = None
    """Cause of a change; None without a change."""
    runs: int = 0
    """Counted runs of the new image; without an upgrade, of the only image."""
    since: datetime | None = None
    """Start of the first container with the new image."""
    baseline_image: str | None = None
    candidate_image: str | None = None
    canaries: dict[str, Verdict] = {}
    """Verdict on each canary of the question."""


def answer(question: Question, state: ServiceState) -> Answer:
    """Return the verdict that counts for a rollout; ``unknown`` with the reason if no verdict counts."""
    canaries = [name for name in sorted(state.findings) if question.canary in ("", name)]
    if not canaries:
        return _unknown(question, _why_not_judged(question, state))
    answers = {name: _of_canary(question, name, state) for name in canaries}
    worst = min(answers.values(), key=lambda answer: WORST_FIRST.index(answer.verdict))
    verdicts = {name: answer.verdict for name, answer in answers.items()}
    return msgspec.structs.replace(worst, canaries=verdicts)


def _of_canary(question: Question, canary: str, state: ServiceState) -> Answer:
    finding = state.findings[canary]
    result = finding.result
    since = result.upgraded_at
    if since is not None and (reason := _why_not(question, finding, state, since)):
        about = f"the last verdict ({result.state}) is about {result.candidate_image}"
        return _unknown(question, f"{about}, and {reason}", canary)
    return Answer(
        namespace=question.namespace,
        service=question.service,
        canary=canary,
        verdict=result.state,
        sentence=finding.sentence,
        shift=result.shift,
        low=result.low,
        high=result.high,
        cause=result.causes.cause if result.state in CHANGED else None,
        runs=result.runs,
        since=None if since is None else datetime.fromtimestamp(since, timezone.utc),
        baseline_image=result.baseline_image or None,
        candidate_image=result.candidate_image or None,
    )


def _why_not(question: Question, finding: Finding, state: ServiceState, upgraded_at: float) -> str:
    """Return the reason why a verdict on an upgrade does not count; "" if the verdict counts."""
    sides, image = finding.sides, question.image
    running = {(start.container, start.boot_id): start for start in state.running}
    new = [running[boot] for boot in sides.new & running.keys()]
    if image and new and not any(start.is_known for start in new):
        return "the image of the service's containers is unknown; ask without image="
    if not new or (image and not any(is_named(start, image) for start in new)):
        return f"no reporting container runs {image or 'the new image'}, as far as is known"
    if question.since is not None:
        if upgraded_at < question.since.timestamp():
            return "the last upgrade is older than since="
    elif not sides.old & running.keys():
        return (
            "no container of the old image reports now, so no rollout is in progress; "
            "to ask after a rollout, add since="
        )
    if image and finding.result.state in ABORTS:
        return ""
    # Containers of a service may run different canaries.
    seen = {boot for each in state.findings.values() for side in each.sides for boot in side}
    unseen = [*state.silent, *(container for container, _ in running.keys() - seen)]
    return f"{min(unseen)} has not run its canaries yet" if unseen else ""


def _why_not_judged(question: Question, state: ServiceState) -> str:
    if state.findings:
        return f"the service has no canary {question.canary}; it has {', '.join(sorted(state.findings))}"
    if state.running or state.silent:
        return "the service has not been judged yet"
    return "the service is unknown; see the labels `namespace` and `service` of infercanary_up"


def _unknown(question: Question, reason: str, canary: str | None = None) -> Answer:
    return Answer(
        namespace=question.namespace, service=question.service, canary=canary, sentence=f"unknown: {reason}"
    )


def is_named(generation: Generation, image: str) -> bool:
    """True if a start ran the image.

    Args:
        image: Reference, digest or id (``sha256:…``). With a digest, the tag is ignored.
    """
    digest = image.rpartition("@")[2]
    if digest.startswith("sha256:"):
        return any(
            name.endswith(digest) for name in (generation.image_id, generation.image_digest, generation.image)
        )
    return reference_of(image) == reference_of(generation.image).partition("@")[0]
