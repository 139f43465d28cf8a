"""Stage 6: word: the judgement that people and metrics read, and its one sentence."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from statistics import median

import msgspec

from infercanary.contract.vocabulary import CONTROLS, known_component
from infercanary.judge import operator_words, origin
from infercanary.judge.finding import Finding
from infercanary.judge.identity import by_reference, image_name, redrawn
from infercanary.judge.model import Causes, Change, Changed, Judgement, Pair, Part, Start, Upgrade
from infercanary.judge.origin import NOWHERE
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import CHANGED, Shift, ratio

SENTENCE_BYTES = 400
"""Of UTF-8 that a metric's label has of a sentence."""
_COMPONENTS = 4  # of the environment are named; the rest is counted
_VALUE = 40  # characters of a setting
_FACTORS, _ROUNDED = (
    10.0,
    999.0,
)  # ratios from which on a shift is a factor, and one without digits after the point
_SHOWN = 120  # points a side in a picture
_UPGRADED: dict[Changed, str] = {"image": "image", "model": "model", "both": "image and model"}
_SINCE: dict[Changed, str] = {
    "image": "",  # what people expect: it needs no words
    "model": " since the new model in the same image",
    "both": " since the new image with another model",
}


def word(finding: Finding, causes: Causes, policy: Policy) -> Judgement:
    """The finding as a value without the runs that it rests on.

    Args:
        decision: The state, and what it rests on.
        causes: Why, as far as that is known.
        policy: The looks, and the prior of the restart variance.

    Returns:
        A judgement whose shift is None where nothing can be compared.
    """
    selection, restarts = finding.selection, finding.restarts
    upgrade, live = selection.upgrade, selection.live
    rolled_back = selection.rolled_back
    reached = max((len(start.samples) for start in upgrade.after), default=0) if upgrade else 0
    gone = image_name(rolled_back.generation if rolled_back else None)
    edited_at = selection.settings_changed_at if finding.state == "no_baseline" else None
    if upgrade is None:
        last = next(reversed(live), None)
        # Of one that was rolled back they are no part of the next baseline.
        same = [each for each in selection.starts if last and each.identity == last.identity]
        return Judgement(
            state=finding.state,
            candidate_image=image_name(last.generation if last else None),
            rolled_back_image=gone,
            restart_sd=restarts.sd,
            prior=policy.pool.prior,
            runs=_count(same),
            until=max((each.samples[-1].started_at for each in same if each.samples), default=None),
            current_seconds=_level(same),
            control_seconds=_control_levels(same),
            settings_changed_at=edited_at,
        )
    old, new = (side[-1].generation if side else None for side in (upgrade.before, upgrade.after))
    judgement = Judgement(
        state=finding.state,
        upgraded_at=upgrade.at,
        rolled_back_image=gone,
        newest_at=max(start.generation.started_at for start in upgrade.after),
        changed=upgrade.changed,
        by_reference=old is not None and new is not None and by_reference(old, new),
        redrawn=redrawn(selection.starts) if upgrade.changed != "image" else 0,
        baseline_image=image_name(old),
        candidate_image=image_name(new),
        baseline_origin=old.origin if old else NOWHERE,
        candidate_origin=new.origin if new else NOWHERE,
        causes=causes,
        rollback=bool(upgrade.own),
        restart_sd=restarts.sd,
        prior=policy.pool.prior,
        is_assumed=restarts.df <= policy.pool.restart_df,
        runs=reached,
        starts=len(upgrade.before) + len(upgrade.after),
        hardware=_classes(upgrade.after),
        contended=finding.contended,
        next_look=next((look for look in policy.decide.looks if look > reached), None),
        settings_changed_at=edited_at,
    )
    look = finding.unwaited or finding.look
    if look is None or finding.look is None:
        return msgspec.structs.replace(judgement, control_seconds=_control_levels(upgrade.before))
    measured = finding.look.pairs  # people are shown the runs as they are
    before, after = ([start for pair in measured for start in getattr(pair, s)] for s in ("old", "after"))
    compared = [start for pair in look.pairs for start in _starts(pair)]
    return msgspec.structs.replace(
        judgement,
        look=look.runs,
        confirmed_at=look.confirmed_at,
        starts_needed=look.starts_needed,
        shift=look.seen.shift,
        low=look.seen.low,
        high=look.seen.high,
        only=look.shift.resolution.only,
        baseline_seconds=_level(before),
        current_seconds=_level(after),
        control_seconds=_control_levels(before),
        restart_sd=look.restarts.sd,
        runs=_count(start for pair in look.pairs for start in pair.after),
        starts=len({start.boot for start in compared}),
        hosts=len({start.generation.host for start in compared} - {""}),
        hardware=_classes(compared),
        concurrent=len({each.during.generation.container for pair in look.pairs for each in pair.concurrent}),
        concurrent_shift=ratio(look.moved) if look.moved is not None else None,
        is_unwaited=finding.unwaited is not None,
        own=_own(finding.own, policy),
        medians=_pictures(measured, upgrade),
    )


def _pictures(measured: Sequence[Pair], upgrade: Upgrade) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The last runs before and the first ones after; where both are of the same minutes, the first ones of both."""
    old = _picture(start for pair in measured for start in pair.old)
    if any(pair.stayed for pair in measured):
        return old[:_SHOWN], _picture(start for pair in measured for start in pair.after)[:_SHOWN]
    return old[-_SHOWN:], _picture(upgrade.after)[:_SHOWN]


def sentence(judgement: Judgement, policy: Policy = LIVE, subject: str = "image") -> str:
    """Such as ``regressed +12.4 % [+10.9, +13.8]: image; torch 2.7.0 → 2.13.0; compute phase; controls flat``.

    It changes with the finding alone: how far the judge has come is :func:`progress`.

    Args:
        judgement: Of an upgrade, of two files or of an experiment.
        policy: From which shift on siblings and the clock are mentioned.
        subject: What the two sides differ in, besides the host.

    Returns:
        One line without a full stop.
    """
    subject = _UPGRADED[judgement.changed] if subject == "image" else subject
    if judgement.state == "no_baseline":
        return "; ".join([_no_baseline(judgement), *_alarming(judgement)])
    if judgement.shift is None or judgement.low is None or judgement.high is None:
        what = _UPGRADED[judgement.changed] if judgement.rollback else f"new {_UPGRADED[judgement.changed]}"
        start = f"settling: the {what} {'have' if judgement.changed == 'both' else 'has'} too few runs yet"
        return "; ".join([start, *_alarming(judgement)])
    start = f"{judgement.state} {interval(judgement.shift, judgement.low, judgement.high)}"
    if judgement.only is not None:
        start = f"{judgement.state}: all values are {1e3 * judgement.only:.12g} ms"
    start += _SINCE[judgement.changed]
    found = [*_alarming(judgement)]
    if judgement.state == "unconfirmed":
        found = [_unconfirmed(judgement), *found]
    if judgement.state in CHANGED:
        found = [_share(judgement.causes, subject), *found, *_explanations(judgement.causes, policy)]
    elif judgement.causes.changes:
        found.append(listed(judgement.causes.changes))
    if judgement.is_assumed and judgement.state in ("inconclusive", "unconfirmed"):
        found.append(
            "how much starts differ is known from other services alone"
            if judgement.prior
            else "how much starts differ is assumed, since no restart was seen"
        )
    if judgement.by_reference:
        found.append("the images differ by reference: their digests are of different content")
    if judgement.redrawn:
        found.append(f"each of {judgement.redrawn} starts has other weights, as if drawn without a seed")
    if judgement.hosts:
        hosts = "a host" if judgement.hosts == 1 else f"{judgement.hosts} hosts"
        classes = f" ({', '.join(judgement.hardware)})" if judgement.hardware else ""
        each = ", within each class" if len(judgement.hardware) > 1 else ""
        found.append(f"on {hosts}{classes}{each}")
    if judgement.contended:
        starts = "start" if judgement.contended == 1 else "starts"
        found.append(f"{judgement.contended} contended {starts} excluded")
    if judgement.concurrent:
        found.append(_beside(judgement, policy))
    if judgement.is_unwaited:
        found.append("without what each run waited for CPUs that others had")
    if judgement.siblings:
        felt = "a sibling" if judgement.siblings == 1 else f"{judgement.siblings} siblings"
        found.append(f"without what {felt} felt of the host")
    if judgement.rollback:
        own = f", against its own history {_interval(judgement.own)}" if judgement.own is not None else ""
        found.append(f"an image that ran before{own}")
    text = start + (": " + "; ".join(found) if found else "")
    if judgement.state not in CHANGED or judgement.causes.cause in ("host", "load"):
        return text
    return text + _origin(judgement, len(text.encode(errors="replace")))


def progress(judgement: Judgement) -> str:
    """How far the judge has come on an upgrade that is still open; empty where it has answered.

    Args:
        judgement: Of an upgrade.
    """
    if judgement.next_look is None or judgement.state not in ("settling", "inconclusive", "unconfirmed"):
        return ""
    if judgement.shift is None:
        return f"collecting: {judgement.runs} of {judgement.next_look} runs"
    return f"next look at {judgement.next_look} runs"


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


def _factor(ratio: float) -> str:
    if ratio == math.inf:
        return "×∞"
    return f"×{1 + ratio:.3g}" if ratio < _ROUNDED else f"×{1 + ratio:,.0f}"


def _origin(judgement: Judgement, taken: int) -> str:
    """What the images' labels say of the change, with the link where there is room for it."""
    both = judgement.baseline_origin, judgement.candidate_origin
    words, address = origin.changed(*both), origin.link(*both)
    if not words:
        return ""
    whole = f"; {words} {address}".rstrip()
    return whole if taken + len(whole.encode()) <= SENTENCE_BYTES else f"; {words}"


def _starts(pair: Pair) -> Iterator[Start]:
    yield from (*pair.before, *pair.after, *(each.during for each in pair.concurrent))


def _beside(judgement: Judgement, policy: Policy) -> str:
    """What it was compared with, and by how much that moved."""
    count, moved = judgement.concurrent, judgement.concurrent_shift or 0.0
    against = "a replica" if count == 1 else f"{count} replicas"
    how = f", which moved {percent(moved)}" if abs(math.log1p(moved)) >= policy.decide.log_effect else ""
    old = "model" if judgement.changed == "model" else "image"
    return f"against {against} on the old {old} in the same minutes{how}"


def _no_baseline(judgement: Judgement) -> str:
    """Why there is nothing to compare with."""
    if judgement.settings_changed_at is None:
        if judgement.upgraded_at is None and judgement.rolled_back_image:
            is_model = judgement.rolled_back_image == judgement.candidate_image
            what = (
                f"the new model in {judgement.rolled_back_image}" if is_model else judgement.rolled_back_image
            )
            return f"nothing to judge: {what} was stopped"
        if judgement.upgraded_at is None:
            return "no upgrade yet: no earlier image has enough runs"
        text = "no upgrade yet: the image before has too few runs"
        return f"{text} on {judgement.hardware[0]}" if len(judgement.hardware) == 1 else text
    when = _utc(judgement.settings_changed_at)
    return f"no baseline yet: the canary's settings changed{when}, and runs before are not comparable"


def _utc(at: float) -> str:
    """Such as `` at 2026-11-24 03:05 UTC``; empty where a probe's clock shows no time that there is."""
    try:
        return time.strftime(" at %Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return ""


def _unconfirmed(judgement: Judgement) -> str:
    """Direction of a change that is clear of the dead band, and the evidence that it still needs."""
    how = "slower" if (judgement.shift or 0.0) > 0 else "faster"
    if judgement.confirmed_at is not None:
        return f"{how}, unconfirmed ({judgement.look} of {judgement.confirmed_at} runs)"
    if not judgement.look:
        return f"{how}, unconfirmed"
    more = judgement.starts_needed
    starts = "another restart or replica" if more == 1 else "more restarts or replicas"
    if more is not None and more > 1:
        starts = f"about {more} {starts}"
    return f"{how}, unconfirmed: needs {starts}"


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


def _alarming(judgement: Judgement) -> Iterator[str]:
    """What matters whatever the latency does."""
    causes = judgement.causes
    old_kills, new_kills = causes.memory_kills
    if new_kills > old_kills:
        new = "model" if judgement.changed == "model" else "image"
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


def _explanations(causes: Causes, policy: Policy) -> Iterator[str]:
    if causes.changes:
        yield listed(causes.changes)
    what, where = _bottlenecks(causes, policy), _phases(causes)
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
    if causes.siblings is not None and abs(causes.siblings.shift) >= policy.decide.smallest_effect:
        yield f"siblings {percent(causes.siblings.shift)}"
    if causes.clock is not None and abs(causes.clock.shift) >= policy.decide.clear_zone:
        yield f"the SM clock explains {percent(causes.clock.shift)}"
    for tag, (before, after) in causes.tags.items():
        yield f"{tag} in {100 * before:.0f} → {100 * after:.0f} % of runs"


def _bottlenecks(causes: Causes, policy: Policy) -> str:
    """Such as ``compute 92 % of the change``; empty where no resource can be named."""
    named = {
        limit: share for limit, share in causes.bottlenecks.items() if share >= policy.attribute.phase_share
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


def _classes(starts: Iterable[Start]) -> tuple[str, ...]:
    """What the hardware of these starts is called: by the GPU or, without one, by the CPU."""
    known = {start.hardware for start in starts}
    return tuple(sorted({gpu or cpu for cpu, gpu in known} - {""}))


def _own(shift: Shift | None, policy: Policy) -> Part | None:
    if shift is None or not math.isfinite(shift.se):
        return None
    return Part.of(shift, policy.attribute.history_confidence)


def _picture(starts: Iterable[Start]) -> tuple[float, ...]:
    """The medians of all, in order of time."""
    ordered = sorted((s.started_at, s.median) for start in starts for s in start.samples if s.median)
    return tuple(value for _, value in ordered)


def _level(starts: Iterable[Start]) -> float | None:
    values = [s.median for start in starts for s in start.samples if s.median]
    return median(values) if values else None


def _control_levels(starts: Iterable[Start]) -> dict[str, float]:
    controls = [sample.controls for start in starts for sample in start.samples]
    return {
        name: median(seconds)
        for name in CONTROLS
        if (seconds := [each[name] for each in controls if name in each])
    }


def _count(starts: Iterable[Start]) -> int:
    return sum(sample.runs for start in starts for sample in start.samples)
