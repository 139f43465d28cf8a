"""The one sentence of a result, built from parts. Parts that do not fit into it are facts of the document."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple

from infercanary.contract.measures import SPREAD, measure_of
from infercanary.contract.text import REPLACEMENT, printable, shortened
from infercanary.contract.vocabulary import known_component
from infercanary.judge import origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Changed
from infercanary.judge.operators import Operators, OperatorShift, short_name
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Causes, Change, Part, Result
from infercanary.judge.sentence import interval, percent
from infercanary.judge.shift import CHANGED

SENTENCE_BYTES = 300
"""Length of a sentence in UTF-8 at most: it is a label's value, and is read on a phone."""
_COMPONENTS = 4  # of the environment are named in a sentence; the rest is counted
_OPERATORS, _OPERATOR_SHARE = 2, 0.1  # are named in a sentence, and the smallest share of the change of one
_VALUE = 40  # characters of a setting or of an operator's name
_UPGRADED: dict[Changed, str] = {"image": "image", "model": "model", "both": "image and model"}
_SINCE: dict[Changed, str] = {
    "image": "",  # the usual upgrade needs no words
    "model": " since the new model in the same image",
    "both": " since the new image with another model",
}


class Phrase(NamedTuple):
    """A part of a sentence; it is there as a whole or not at all."""

    label: str
    """Of its fact."""
    texts: Sequence[str]
    """Wordings, the longest first. Without any, it is a fact alone."""
    rank: int = 0
    """Order of importance. A phrase of rank 0 is in the sentence, if only in its shortest wording."""
    fact: str = ""
    """Its fact, if that says more than the longest wording."""


def sentence(result: Result, policy: Policy = LIVE, subject: str = "image", also: Sequence[str] = ()) -> str:
    """Say what the judge found: ``regressed +178 % [+116, +259] (57.5 → 160 ms): image; torch 2.7.0 → 2.13.0``.

    It changes with the finding alone; :func:`progress` says how far the judge has come.

    Args:
        result: Of an upgrade, of two files or of an experiment.
        policy: Siblings and the clock are mentioned from its thresholds on.
        subject: Difference of the two sides besides the host.
        also: Other findings on the same canary, such as :func:`measure_words`.

    Returns:
        One line of at most :data:`SENTENCE_BYTES` bytes without a full stop. The least important phrases are left out.
    """
    lead = _lead(result)
    others = [Phrase("", (text,), 2) for text in also]
    if result.shift is None:
        return _fitted([lead, *alarms(result.causes, result.changed), *weights(result), *others])
    subject = _UPGRADED[result.changed] if subject == "image" else subject
    versions, variables = _changes(result.causes.changes)
    causes: list[Phrase] = []
    if result.state in CHANGED:
        causes = [Phrase("cause", (_cause(result.causes, subject),), 1)]
    phrases = [lead, *causes, *alarms(result.causes, result.changed), *weights(result), *others, versions]
    if result.state in CHANGED:
        phrases += explanations(result.causes, policy)
    phrases += [*conditions(result, policy), variables]
    if result.state in CHANGED and result.causes.cause not in ("host", "load"):
        phrases.append(_commits(result))
    return _fitted(phrases)


def progress(result: Result) -> str:
    """Say how far the judge has come on an upgrade that is still open; empty if it has answered."""
    if result.looks.next is None or result.state not in ("settling", "inconclusive", "unconfirmed"):
        return ""
    if result.shift is None:
        return f"collecting: {result.runs} of {result.looks.next} runs"
    return f"next look at {result.looks.next} runs"


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Say what a measure did: ``host memory regressed +31.0 % [+28.0, +34.0]``."""
    measure = measure_of(name)
    start = f"{measure.words if measure is not None else shortened(name, _VALUE)} {verdict.state}"
    shift, low, high = verdict.shift, verdict.low, verdict.high
    if shift is None or low is None or high is None:
        return start
    if not (low > -1 and high < math.inf):  # the noise of few values may have no bound
        return start
    if measure == SPREAD:
        return f"{start} ×{1 + shift:.2g} [{1 + low:.2g}, {1 + high:.2g}]"
    return f"{start} {interval(shift, low, high)}"


def listed(changes: Sequence[Change], most: int = _COMPONENTS) -> str:
    """Name changed components: ``torch 2.7.0 → 2.13.0, CPU quota 4 → 2, 3 more components``; empty for none.

    Args:
        changes: Components of the environment, by interest.
        most: Number of components that are named; the rest is counted. Variables come last.
    """
    ordered = sorted(changes, key=_is_variable)
    named = [f"{_title(c.component)} {' → '.join(distinct(c.before, c.after))}" for c in ordered[:most]]
    rest = len(ordered) - len(named)
    more = [f"{rest} more component{'s' * (rest > 1)}"] if rest else []
    return ", ".join([*named, *more])


def distinct(before: str | None, after: str | None) -> tuple[str, str]:
    """Shorten both values of a component; of two long lists that begin alike, to what comes after that."""
    if before is not None and after is not None and max(len(before), len(after)) > _VALUE:
        sides = before.split(", "), after.split(", ")
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False)))
        before, after = (", ".join(["…", *side[same:]] if same else side) for side in sides)
    old, new = ("none" if text is None else shortened(text, _VALUE) for text in (before, after))
    return old, new


def explanations(causes: Causes, policy: Policy = LIVE) -> Iterator[Phrase]:
    """Yield what explains a change: bottleneck, phases, operators, other processes, controls, siblings, clock, tags."""
    yield from _bottlenecks(causes)
    if causes.operators is not None:
        yield Phrase(
            "operators", (operators_words(causes.operators),), 5, operators_summary(causes.operators)
        )
    if causes.inside is not None:
        before, after = causes.inside
        words = f"other processes in its container used {before:.2f} → {after:.2f} cores"
        yield Phrase("in its container", (words,), 5)
    if causes.controls:
        moved = ", ".join(f"{name} {percent(shift)}" for name, shift in causes.controls.items())
        yield Phrase("controls", (f"controls {moved}", "controls moved"), 7, moved)
    elif causes.has_controls:
        yield Phrase("controls", ("controls flat",), 7, "flat")
    for label, part, least in (
        ("siblings", causes.siblings, policy.decide.smallest_effect),
        ("SM clock", causes.clock, policy.decide.clear_zone),
    ):
        if part is not None:
            verb = " explains" if part is causes.clock else ""
            words = f"{label}{verb} {percent(part.shift)}"
            yield Phrase(label, (words,) if abs(part.shift) >= least else (), 8, _interval(part))
    for tag, (before, after) in causes.tags.items():
        share = f"in {100 * before:.0f} → {100 * after:.0f} % of runs"
        yield Phrase(tag, (f"{tag} {share}",), 9, share)


def conditions(result: Result, policy: Policy = LIVE) -> Iterator[Phrase]:
    """Yield the conditions of a verdict: restart variance, concurrent baseline, excluded starts, adjustments, hosts."""
    if result.state == "unconfirmed":
        direction = "slower" if (result.shift or 0.0) > 0 else "faster"
        needs = ", needs more restarts or replicas" if result.looks.needs_starts else ""
        yield Phrase("unconfirmed", (f"{direction}{needs}",), 2)
    if result.rollback:
        own = f", compared with its own history {_interval(result.own)}" if result.own is not None else ""
        text = "an image that ran before"
        yield Phrase("rollback", (f"{text}{own}", text), 2)
    if result.doubts.is_by_reference:
        yield Phrase("images", ("images compared by name: their digests are not comparable",), 8)
    if result.concurrent:
        yield Phrase("concurrent baseline", (_concurrent(result, policy.decide.log_effect),), 8)
    if result.is_unwaited:
        yield Phrase("CPU wait", ("after subtracting CPU wait",), 9)
    if result.restart.df <= policy.pool.restart_df:
        known = "estimated from other services" if policy.pool.prior else "assumed: no restart observed yet"
        is_open = result.state in ("inconclusive", "unconfirmed")
        yield Phrase("restart variance", (f"restart variance {known}",) if is_open else (), 10, known)
    if result.contended:
        starts = _count(result.contended, "contended start")
        yield Phrase("contended", (f"{starts} excluded",), 11)
    if result.hosts:
        hosts = _count(result.hosts, "host")
        yield Phrase("hosts", (f"on {hosts}",), 12, hosts)


def alarms(causes: Causes, changed: Changed = "image") -> Iterator[Phrase]:
    """Yield what matters whatever the latency does: memory kills, CPU fallback, another output, a slower cold start."""
    old_kills, new_kills = causes.memory_kills
    if new_kills > old_kills:
        old = f", the old one {_times(old_kills)}" if old_kills else ""
        new = "model" if changed == "model" else "image"
        words = f"server with the new {new} killed for memory {_times(new_kills)}{old}"
        yield Phrase("memory kills", (words, "killed for memory"), fact=f"{old_kills} → {new_kills}")
    if causes.cpu_fallback:
        yield Phrase("device", ("CPU fallback: it ran on a GPU before", "CPU fallback"))
    if causes.output_changed and causes.output_error is not None:
        error = f"relative error {causes.output_error:.2g}"
        yield Phrase("output", (f"output changed for the same input ({error})", "output changed"))
    if causes.output_tokens is not None:
        before, after = (f"{tokens:g}" for tokens in causes.output_tokens)
        yield Phrase("output tokens", (f"output tokens {before} → {after}",), fact=f"{before} → {after}")
    for step, (start, end) in causes.cold_start.items():
        seconds = f"{step.replace('_', ' ')} {start:.1f} s → {end:.1f} s"
        yield Phrase("cold start", (f"cold start: {seconds}",), 4, seconds)


def operators_words(found: Operators) -> str:
    """Name the largest operators of a change: ``conv2d 9.8 → 31.2 ms (84 % of the change), 3 more new``."""
    if found.state == "outside":
        return f"no operator explains it: {100 * (1 - found.share):.0f} % of the change is outside of them"
    if found.state == "unexplained":
        return "the profile does not explain it"
    named = [shift for shift in found.shifts if shift.share >= _OPERATOR_SHARE][:_OPERATORS]
    words = [_operator(shift, " of the change" if not i else "") for i, shift in enumerate(named)]
    others = [shift.change for shift in found.shifts if shift not in named]
    return ", ".join([*words, *(f"{others.count(x)} more {x}" for x in ("new", "gone") if x in others)])


def operators_summary(found: Operators) -> str:
    """Say how much of a change the operators explain."""
    if found.state == "unexplained":
        return "the profile does not explain it"
    return f"{100 * found.share:.0f} % of the change is in operators, {100 * (1 - found.share):.0f} % outside"


def milliseconds(*seconds: float) -> str:
    """Write times in one unit: ``9.8 → 31.2 ms``."""
    return " → ".join(f"{1e3 * each:.3g}" for each in seconds) + " ms"


def _fitted(phrases: Sequence[Phrase]) -> str:
    """Join a lead and its phrases; by importance, each in its longest wording that leaves room for the next alarms."""
    chosen = {i: phrase.texts[-1] for i, phrase in enumerate(phrases) if not phrase.rank}
    text = _joined(chosen)
    for i in sorted(range(len(phrases)), key=lambda i: phrases[i].rank):
        for wording in phrases[i].texts:
            longer = _joined({**chosen, i: wording})
            if wording and len(longer.encode()) <= SENTENCE_BYTES:
                chosen[i], text = wording, longer
                break
    return text


def _joined(chosen: dict[int, str]) -> str:
    lead, *rest = (text for _, text in sorted(chosen.items()))
    return printable(f"{lead}: {'; '.join(rest)}" if rest else lead, replacement=REPLACEMENT)


def _lead(result: Result) -> Phrase:
    """Verdict, size, and both medians."""
    if result.state == "no_baseline":
        return Phrase("", _no_baseline(result))
    if result.shift is None or result.low is None or result.high is None:
        what = _UPGRADED[result.changed] if result.rollback else f"new {_UPGRADED[result.changed]}"
        return Phrase(
            "", (f"settling: the {what} {'have' if result.changed == 'both' else 'has'} too few runs yet",)
        )
    if result.only is not None:
        return Phrase("", (f"{result.state}: all values are {1e3 * result.only:.12g} ms", result.state))
    size = f"{result.state} {interval(result.shift, result.low, result.high)}"
    if result.baseline is not None and result.current is not None:
        both = f"{size} ({milliseconds(result.baseline, result.current)})"
        return Phrase("", (both + _SINCE[result.changed], both, size, result.state))
    return Phrase("", (size + _SINCE[result.changed], size, result.state))


def _no_baseline(result: Result) -> Sequence[str]:
    """Wordings of why there is nothing to compare with."""
    if result.settings_changed_at is not None:
        when = _utc(result.settings_changed_at)
        return (f"no baseline yet: the canary's settings changed{when}, and runs before are not comparable",)
    if result.upgraded_at is None and result.rolled_back_image:
        is_model = result.rolled_back_image == result.candidate_image
        new = "the new model" if is_model else "the new image"
        what = f"{new} in {result.rolled_back_image}" if is_model else result.rolled_back_image
        return f"nothing to judge: {what} was stopped", f"nothing to judge: {new} was stopped"
    if result.upgraded_at is None:
        return ("no upgrade yet: no earlier image has enough runs",)
    hardware = " on this hardware" if result.hosts else ""
    return (f"no upgrade yet: the image before has too few runs{hardware}",)


def _utc(at: float) -> str:
    """Write a time; empty if a probe's clock shows none that there is."""
    try:
        return time.strftime(" at %Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return ""


def weights(result: Result) -> Iterator[Phrase]:
    """Yield the warning of weights that are drawn at each start."""
    if redrawn := result.doubts.redrawn:
        words = f"other weights in each of {redrawn} starts (random initialization)"
        yield Phrase("weights", (words, "other weights in each start"))


def _changes(changes: Sequence[Change]) -> Iterator[Phrase]:
    """Yield two phrases: versions and limits, and variables with their technical names."""
    for label, rank, is_variable in (("changed", 3, False), ("variables", 6, True)):
        kind = [change for change in changes if _is_variable(change) == is_variable]
        yield Phrase(label, tuple(listed(kind, most) for most in range(_COMPONENTS, 0, -1)), rank)


def _is_variable(change: Change) -> bool:
    return change.component.startswith("env_")


def _commits(result: Result) -> Phrase:
    """Labels of both images, with the link to the commits between them if there is room."""
    words, address = origin.changed(*result.origins), origin.link(*result.origins)
    return Phrase("commits", (f"{words} {address}".rstrip(), words) if words else (), 13)


def _concurrent(result: Result, effect: float) -> str:
    moved = result.concurrent_shift or 0.0
    replicas = "a replica" if result.concurrent == 1 else f"{result.concurrent} replicas"
    how = f" ({percent(moved)})" if abs(math.log1p(moved)) >= effect else ""
    old = "model" if result.changed == "model" else "image"
    return f"compared with {replicas} on the old {old} over the same period{how}"


def _cause(causes: Causes, subject: str) -> str:
    host, image = causes.host, causes.image
    if causes.cause == "both" and host is not None and image is not None:
        return f"host {_interval(host)}, {subject} {_interval(image)}"
    if causes.cause == "image":
        return subject
    if causes.cause != "unknown":
        return "load: more or fewer requests than before" if causes.cause == "load" else causes.cause
    if causes.unknown_siblings:
        return f"host or {subject}: siblings not compared yet"
    if causes.unknown_waiting:
        return "unknown: CPU wait caused by other processes in its container or on the host"
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


def _bottlenecks(causes: Causes) -> Iterator[Phrase]:
    """Yield the resources and the phases that took more time."""
    least = LIVE.attribute.phase_share
    named = {limit: share for limit, share in causes.bottlenecks.items() if share >= least}
    phases = [*causes.phases]
    if named.keys() - {"unknown"}:
        # Sums are rounded, not shares, and where another resource took less now they may be above all: never 101 %.
        sums = [0, *(min(100, round(100 * total)) for total in accumulate(named.values()))]
        parts = [f"{limit} {new - old} %" for limit, (old, new) in zip(named, pairwise(sums), strict=True)]
        shares = ", ".join(f"{limit} {100 * share:.0f} %" for limit, share in causes.bottlenecks.items())
        words = next(iter(named)) if len(named) == 1 else f"{' and '.join(parts)} of the change"
        yield Phrase("bottleneck", (words,), 4, f"{shares} of the change")
        if phases == ["compute"]:  # the one phase of a CPU says less than the resource
            return
    if phases:
        yield Phrase("phases", (f"{' and '.join(phases)} phase{'s' * (len(phases) > 1)}",), 5)


def _operator(shift: OperatorShift, of: str) -> str:
    name = shortened(short_name(shift.operator), _VALUE)
    share = f"{100 * shift.share:.0f} %{of}"
    if shift.change in ("new", "gone"):
        return f"{name} {shift.change} ({milliseconds(max(shift.before, shift.after))}, {share})"
    detail = f", {shortened(shift.detail, 80)}" if shift.detail else ""
    return f"{name} {milliseconds(shift.before, shift.after)} ({share}{detail})"


def _title(component: str) -> str:
    known = known_component(component)
    return known.title if known is not None else shortened(component, _VALUE)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
