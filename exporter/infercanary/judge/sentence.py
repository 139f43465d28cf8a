"""The one sentence of a result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, takewhile

from infercanary.contract.measures import SPREAD, measure_of
from infercanary.contract.vocabulary import known_component
from infercanary.judge import operator_words, origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Changed
from infercanary.judge.policy import LIVE, Decide, Policy
from infercanary.judge.result import Causes, Change, Part, Result
from infercanary.judge.shift import CHANGED

SENTENCE_BYTES = 400
"""Of UTF-8 that a metric's label has of a sentence."""
_COMPONENTS = 4  # of the environment are named; the rest is counted
_VALUE = 40  # characters of a setting
_FACTORS, _ROUNDED = (
    10.0,
    999.0,
)  # ratios from which on a shift is a factor, and one without digits after the point
_UPGRADED: dict[Changed, str] = {"image": "image", "model": "model", "both": "image and model"}
_SINCE: dict[Changed, str] = {
    "image": "",  # what people expect: it needs no words
    "model": " since the new model in the same image",
    "both": " since the new image with another model",
}


def sentence(result: Result, policy: Policy = LIVE, subject: str = "image") -> str:
    """Such as ``regressed +12.4 % [+10.9, +13.8]: image; torch 2.7.0 → 2.13.0; compute phase; controls flat``.

    It changes with the finding alone: how far the judge has come is :func:`progress`.

    Args:
        result: Of an upgrade, of two files or of an experiment.
        policy: From which shift on siblings and the clock are mentioned.
        subject: What the two sides differ in, besides the host.

    Returns:
        One line without a full stop.
    """
    subject = _UPGRADED[result.changed] if subject == "image" else subject
    if result.state == "no_baseline":
        return "; ".join([_no_baseline(result), *_alarming(result)])
    if result.shift is None or result.low is None or result.high is None:
        what = _UPGRADED[result.changed] if result.rollback else f"new {_UPGRADED[result.changed]}"
        start = f"settling: the {what} {'have' if result.changed == 'both' else 'has'} too few runs yet"
        return "; ".join([start, *_alarming(result)])
    start = f"{result.state} {interval(result.shift, result.low, result.high)}"
    if result.only is not None:
        start = f"{result.state}: all values are {1e3 * result.only:.12g} ms"
    start += _SINCE[result.changed]
    found = [*_alarming(result)]
    if result.state == "unconfirmed":
        found = [_unconfirmed(result), *found]
    if result.state in CHANGED:
        found = [_share(result.causes, subject), *found, *_explanations(result.causes, policy.decide)]
    elif result.causes.changes:
        found.append(listed(result.causes.changes))
    is_assumed = result.restart.df <= policy.pool.restart_df
    if is_assumed and result.state in ("inconclusive", "unconfirmed"):
        found.append(
            "how much starts differ is known from other services alone"
            if policy.pool.prior
            else "how much starts differ is assumed, since no restart was seen"
        )
    if result.doubts.is_by_reference:
        found.append("the images differ by reference: their digests are of different content")
    if result.doubts.redrawn:
        found.append(f"each of {result.doubts.redrawn} starts has other weights, as if drawn without a seed")
    if result.hosts:
        hosts = "a host" if result.hosts == 1 else f"{result.hosts} hosts"
        found.append(f"on {hosts}")
    if result.contended:
        starts = "start" if result.contended == 1 else "starts"
        found.append(f"{result.contended} contended {starts} excluded")
    if result.concurrent:
        found.append(_beside(result, policy.decide.log_effect))
    if result.is_unwaited:
        found.append("without what each run waited for CPUs that others had")
    if result.rollback:
        own = f", against its own history {_interval(result.own)}" if result.own is not None else ""
        found.append(f"an image that ran before{own}")
    text = start + (": " + "; ".join(found) if found else "")
    if result.state not in CHANGED or result.causes.cause in ("host", "load"):
        return text
    return text + _origin(result, len(text.encode(errors="replace")))


def progress(result: Result) -> str:
    """How far the judge has come on an upgrade that is still open; empty where it has answered.

    Args:
        result: Of an upgrade.
    """
    if result.looks.next is None or result.state not in ("settling", "inconclusive", "unconfirmed"):
        return ""
    if result.shift is None:
        return f"collecting: {result.runs} of {result.looks.next} runs"
    return f"next look at {result.looks.next} runs"


def percent(ratio: float) -> str:
    """With a sign and one digit after the point; more would claim what no interval holds.

    Args:
        ratio: 0.05 is 5 %.

    Returns:
        Such as ``+12.4 %``; from ten times more on a factor, such as ``×11``.
    """
    return f"{100 * ratio:+.1f} %" if abs(ratio) < _FACTORS else _factor(ratio)


def interval(shift: float, low: float, high: float) -> str:
    """Such as ``+12.4 % [+10.9, +13.8]``; all are factors where one is so high, such as ``×9.2 [×7.5, ×11.3]``.

    Args:
        shift: A ratio: 0.05 is 5 % slower.
        low: The lower end of its interval, a ratio too.
        high: The upper end.

    Returns:
        Each as :func:`percent` writes it.
    """
    write = percent if max(shift, low, high) < _FACTORS else _factor
    return f"{write(shift)} [{write(low).removesuffix(' %')}, {write(high).removesuffix(' %')}]"


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Such as ``host memory regressed +31.0 % [+28.0, +34.0]`` or ``run-to-run spread regressed ×2.1 [1.7, 2.6]``.

    Args:
        name: The measure's.
        verdict: The one on it.

    Returns:
        One line without a full stop.
    """
    measure = measure_of(name)
    start = f"{measure.words if measure is not None else name} {verdict.state}"
    shift, low, high = verdict.shift, verdict.low, verdict.high
    if shift is None or low is None or high is None:
        return start
    if not (low > -1 and high < math.inf):  # the noise of few values may have no bound
        return start
    if measure == SPREAD:
        return f"{start} ×{1 + shift:.2g} [{1 + low:.2g}, {1 + high:.2g}]"
    return f"{start} {interval(shift, low, high)}"


def _factor(ratio: float) -> str:
    if ratio == math.inf:
        return "×∞"
    return f"×{1 + ratio:.3g}" if ratio < _ROUNDED else f"×{1 + ratio:,.0f}"


def _origin(result: Result, taken: int) -> str:
    """What the images' labels say of the change, with the link where there is room for it."""
    words, address = origin.changed(*result.origins), origin.link(*result.origins)
    if not words:
        return ""
    whole = f"; {words} {address}".rstrip()
    return whole if taken + len(whole.encode()) <= SENTENCE_BYTES else f"; {words}"


def _beside(result: Result, effect: float) -> str:
    """What it was compared with, and by how much that moved."""
    moved = result.concurrent_shift or 0.0
    against = "a replica" if result.concurrent == 1 else f"{result.concurrent} replicas"
    how = f", which moved {percent(moved)}" if abs(math.log1p(moved)) >= effect else ""
    old = "model" if result.changed == "model" else "image"
    return f"against {against} on the old {old} in the same minutes{how}"


def _no_baseline(result: Result) -> str:
    """Why there is nothing to compare with."""
    if result.settings_changed_at is None:
        if result.upgraded_at is None and result.rolled_back_image:
            is_model = result.rolled_back_image == result.candidate_image
            what = f"the new model in {result.rolled_back_image}" if is_model else result.rolled_back_image
            return f"nothing to judge: {what} was stopped"
        if result.upgraded_at is None:
            return "no upgrade yet: no earlier image has enough runs"
        text = "no upgrade yet: the image before has too few runs"
        return f"{text} on this hardware" if result.hosts else text
    when = _utc(result.settings_changed_at)
    return f"no baseline yet: the canary's settings changed{when}, and runs before are not comparable"


def _utc(at: float) -> str:
    """Such as `` at 2026-11-24 03:05 UTC``; empty where a probe's clock shows no time that there is."""
    try:
        return time.strftime(" at %Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return ""


def _unconfirmed(result: Result) -> str:
    """Direction of a change that is clear of the dead band, and the evidence that it still needs."""
    how = "slower" if (result.shift or 0.0) > 0 else "faster"
    return f"{how}, unconfirmed{': needs more restarts or replicas' if result.looks.needs_starts else ''}"


def _share(causes: Causes, subject: str) -> str:
    host, image = causes.host, causes.image
    if causes.cause == "both" and host is not None and image is not None:
        return f"host {_interval(host)}, {subject} {_interval(image)}"
    if causes.cause == "image":
        return subject
    if causes.cause != "unknown":
        return "load, with more or fewer requests than before" if causes.cause == "load" else causes.cause
    if causes.unknown_siblings:
        return f"host or {subject}: siblings not compared yet"
    if causes.unknown_waiting:
        return "it waited for a CPU that others had, in its container or on the host, not known which"
    if causes.unknown_load or causes.load is not None:
        return f"load or {subject}, not known which"
    # In logarithms, as parts add up.
    if host is not None and image is not None and host.low * host.high > 0 and host.shift * image.shift > -1:
        parts = math.log1p(host.shift), math.log1p(image.shift)
        if abs(parts[0]) > abs(parts[1]):
            return f"mostly host; {subject} {_interval(image)} not excluded"
    return f"host or {subject}, not known which"


def _interval(part: Part) -> str:
    return interval(part.shift, part.low, part.high)


def _alarming(result: Result) -> Iterator[str]:
    """What matters whatever the latency does."""
    causes = result.causes
    old_kills, new_kills = causes.memory_kills
    if new_kills > old_kills:
        new = "model" if result.changed == "model" else "image"
        old = f", the old one's {_times(old_kills)}" if old_kills else ""
        yield f"the new {new}'s server was ended {_times(new_kills)} for memory{old}"
    if causes.cpu_fallback:
        yield "it runs on the CPU now, and ran on a GPU before"
    if causes.output_changed and causes.output_error is not None:
        yield f"the same input gives another output (relative error {causes.output_error:.2g})"
    if causes.output_tokens is not None:
        before, after = causes.output_tokens
        yield f"output tokens {before:g} → {after:g}"
    for step, (before, after) in causes.cold_start.items():
        yield f"cold start: {step.replace('_', ' ')} {before:.1f} s → {after:.1f} s"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _explanations(causes: Causes, decide: Decide) -> Iterator[str]:
    if causes.changes:
        yield listed(causes.changes)
    what, where = _bottlenecks(causes), _phases(causes)
    if what and where:
        # The one phase of a CPU says less than the resource.
        yield what if [*causes.phases] == ["compute"] else f"{what} ({where})"
    elif what or where:
        yield what or where
    if causes.operators is not None and (text := operator_words.part(causes.operators)):
        yield text
    if causes.inside is not None:
        before, after = causes.inside
        yield f"others in its container took {before:.2f} → {after:.2f} cores meanwhile"
    if causes.controls:
        yield "controls " + ", ".join(f"{name} {percent(shift)}" for name, shift in causes.controls.items())
    elif causes.has_controls:
        yield "controls flat"
    if causes.siblings is not None and abs(causes.siblings.shift) >= decide.smallest_effect:
        yield f"siblings {percent(causes.siblings.shift)}"
    if causes.clock is not None and abs(causes.clock.shift) >= decide.clear_zone:
        yield f"the SM clock explains {percent(causes.clock.shift)}"
    for tag, (before, after) in causes.tags.items():
        yield f"{tag} in {100 * before:.0f} → {100 * after:.0f} % of runs"


def _bottlenecks(causes: Causes) -> str:
    """Such as ``compute 92 % of the change``; empty where no resource can be named."""
    named = {
        limit: share for limit, share in causes.bottlenecks.items() if share >= LIVE.attribute.phase_share
    }
    if not named.keys() - {"unknown"}:
        return ""
    # Sums are rounded, not shares, and where another resource took less now they may be above all: never 101 %.
    sums = [0, *(min(100, round(100 * total)) for total in accumulate(named.values()))]
    parts = (
        f"{limit} {after - before} %" for limit, (before, after) in zip(named, pairwise(sums), strict=True)
    )
    return " and ".join(parts) + " of the change"


def _phases(causes: Causes) -> str:
    """The phases that grew."""
    if not causes.phases:
        return ""
    return " and ".join(causes.phases) + (" phase" if len(causes.phases) == 1 else " phases")


def listed(changes: Sequence[Change]) -> str:
    """Such as ``torch 2.7.0 → 2.13.0, CPU quota 4 → 2``.

    Args:
        changes: Components of the environment, those first that people ask for first.

    Returns:
        The first few, and how many more there are; empty for none.
    """
    named = [f"{_title(c.component)} {' → '.join(distinct(c.before, c.after))}" for c in changes]
    more = len(named) - _COMPONENTS
    rest = [f"{more} more component{'s' * (more > 1)}"] if more > 0 else []
    return ", ".join([*named[:_COMPONENTS], *rest])


def _title(component: str) -> str:
    known = known_component(component)
    return known.title if known is not None else component


def distinct(before: str | None, after: str | None) -> tuple[str, str]:
    """Both values of a component as they are shown; of two long lists that begin alike, what comes after that."""
    if before is not None and after is not None and max(len(before), len(after)) > _VALUE:
        sides = before.split(", "), after.split(", ")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False)))
        before, after = (", ".join(["…", *side[same:]] if same else side) for side in sides)
    return _value(before), _value(after)


def _value(text: str | None) -> str:
    if text is None:
        return "none"
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"
