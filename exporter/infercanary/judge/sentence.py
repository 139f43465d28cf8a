"""A judgement in a plain sentence: what an engineer reads at 3 a.m."""

from __future__ import annotations

from collections.abc import Iterator

from infercanary.contract.vocabulary import COMPONENTS
from infercanary.judge.causes import Causes, Change
from infercanary.judge.stages import Judgement
from infercanary.judge.statistics import CHANGED

_COMPONENTS = 4  # of the environment are named; the rest is counted
_VALUE = 40  # characters of a setting


def sentence(told: Judgement) -> str:
    """Such as ``regressed +12.4 % [+10.9, +13.8]: image; torch 2.7.0 → 2.13.0; compute phase; controls flat``.

    It changes with the finding alone: how far the judge has come is :func:`progress`.
    """
    if told.state == "no_baseline":
        start = "no baseline yet: this is the only image that was seen, or the one before has too few runs"
        return "; ".join([start, *_amiss(told.causes)])
    if told.shift is None or told.low is None or told.high is None:
        start = "settling: the new image has too few runs yet"
        return "; ".join([start, *_amiss(told.causes)])
    start = f"{told.state} {interval(told.shift, told.low, told.high)}"
    found = [*_amiss(told.causes)]
    if told.state in CHANGED:
        found = [_share(told.causes), *found, *_explanations(told.causes)]
    elif told.causes.changes:
        found.append(_changes(told.causes.changes))
    if told.siblings:
        felt = "a sibling" if told.siblings == 1 else f"{told.siblings} siblings"
        found.append(f"without what {felt} felt of the host")
    if told.rollback:
        own = (
            f", against its own history {interval(told.own.shift, told.own.low, told.own.high)}"
            if told.own is not None
            else ""
        )
        found.append(f"a rollback{own}")
    return start + (": " + "; ".join(found) if found else "")


def progress(judgement: Judgement) -> str:
    """How far the judge has come on an upgrade that is still open; empty where it has answered."""
    if judgement.next_look is None or judgement.state not in ("settling", "inconclusive"):
        return ""
    if judgement.shift is None:
        return f"{judgement.runs} of the {judgement.next_look} runs that the first look takes"
    return f"it looks again at {judgement.next_look} runs"


def percent(ratio: float) -> str:
    """With a sign and one digit after the point; more would claim what no interval holds."""
    return f"{100 * ratio:+.1f} %" if abs(ratio) < 10 else f"×{1 + ratio:.3g}"


def interval(shift: float, low: float, high: float) -> str:
    """Such as ``+12.4 % [+10.9, +13.8]``."""
    return f"{percent(shift)} [{percent(low).removesuffix(' %')}, {percent(high).removesuffix(' %')}]"


def _share(causes: Causes) -> str:
    if causes.cause == "both" and causes.host is not None and causes.image is not None:
        host, image = (interval(part.shift, part.low, part.high) for part in (causes.host, causes.image))
        return f"host {host}, image {image}"
    return "host or image, not known which" if causes.cause == "unknown" else causes.cause


def _amiss(causes: Causes) -> Iterator[str]:
    """What matters whatever the latency does."""
    if causes.cpu_fallback:
        yield "it runs on the CPU now, and ran on a GPU before"
    if causes.output_changed and causes.output_error is not None:
        yield f"the same input gives another output (relative error {causes.output_error:.2g})"
    for step, (before, after) in causes.cold_start.items():
        yield f"cold start: {step.replace('_', ' ')} {before:.1f} s → {after:.1f} s"


def _explanations(causes: Causes) -> Iterator[str]:
    if causes.changes:
        yield _changes(causes.changes)
    if causes.phases:
        yield " and ".join(causes.phases) + (" phase" if len(causes.phases) == 1 else " phases")
    if causes.controls:
        yield "controls " + ", ".join(f"{name} {percent(shift)}" for name, shift in causes.controls.items())
    elif causes.has_controls:
        yield "controls flat"
    if causes.siblings is not None and abs(causes.siblings.shift) >= 0.03:
        yield f"siblings {percent(causes.siblings.shift)}"
    if causes.clock is not None and abs(causes.clock.shift) >= 0.01:
        yield f"the SM clock explains {percent(causes.clock.shift)}"
    for tag, (before, after) in causes.tags.items():
        yield f"{tag} in {before:.0%} → {after:.0%} of runs"


def _changes(changes: tuple[Change, ...]) -> str:
    named = [f"{_title(c.component)} {_value(c.before)} → {_value(c.after)}" for c in changes]
    more = [f"{len(named) - _COMPONENTS} more components"] if len(named) > _COMPONENTS else []
    return ", ".join([*named[:_COMPONENTS], *more])


def _title(component: str) -> str:
    known = COMPONENTS.get(component)
    return known.title if known is not None else component


def _value(text: str | None) -> str:
    if text is None:
        return "none"
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"
