"""Stage 5: attribute a shift: to host or image, to phases, controls and versions.

The control of an experiment is what the treatment cannot touch (difference in differences; Angrist and Pischke,
"Mostly Harmless Econometrics", 2009, chapter 5). Here the treatment is the new image, and two things it cannot touch:

- the controls, tiny work that is the same in every image, run in the same container after each canary run;
- sibling containers of the same host whose image did not change.

What they share with the canary is the host's part of a shift; the rest is the image's. A control depends on one
resource alone, and a canary on several: so a control's shift bounds the host's part, it is not multiplied by anything.

Args:
    canary: Its name.
    compared: For each replica its starts before and after.
    policy: What counts as moved, and by how much to be named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from infercanary.contract.measures import OUTPUT
from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import (
    CONTROLS,
    CPU_WAIT_INSIDE,
    CPU_WAIT_OUTSIDE,
    DEVICE_COMPONENTS,
    GPU_BUSY,
    IN_STEP,
    MODEL,
    SETTINGS,
    THROTTLED,
    Cause,
    is_given,
    is_of_canary,
    is_setting,
    of_canary,
    order_of_interest,
)
from infercanary.judge.evidence import Evidence, evidence, in_time, resources
from infercanary.judge.finding import Finding
from infercanary.judge.model import Generation, Pair, Start
from infercanary.judge.operators import Operators, compare_operators
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.profiles import unpacked
from infercanary.judge.result import Causes, Change, Part
from infercanary.judge.shift import CHANGED, Shift


def attribute(finding: Finding, beside: Sequence[Pair], canary: str, policy: Policy) -> Causes:
    upgrade, live = finding.selection.upgrade, finding.selection.live
    if upgrade is None:
        return Causes()
    known = msgspec.structs.replace(
        immediate(upgrade.before, live, canary),
        memory_kills=(memory_kills(upgrade.before), memory_kills(upgrade.after)),
    )
    if finding.look is None:
        return known
    compared, shift = finding.look.pairs, finding.look.shift
    moved_with = evidence(compared, beside, policy)
    known = msgspec.structs.replace(known, cold_start=slower_starts(compared, canary, policy))
    of_others = _of_others(moved_with, known.changes, policy)
    found = _explained(shift, moved_with, of_others, compared, canary, known, policy)
    if finding.unwaited is not None:
        found = _without_host(found, of_others.controls, finding, shift, policy)
        found = msgspec.structs.replace(
            found, bottlenecks=resources(finding.unwaited.pairs, of_others, policy)
        )
    return _beside_gpu_users(found, shift, moved_with, policy)


def explain(
    shift: Shift, compared: Sequence[Pair], canary: str, *, beside: Sequence[Pair] = (), policy: Policy = LIVE
) -> Causes:
    """The causes of a shift that no upgrade made: of a drift, of two files, of an experiment.

    Args:
        shift: Of ``canary``, between the starts of ``compared``.
        beside: As ``compared``, of siblings, whose image did not change.

    Returns:
        All that the runs show; parts are None, and the cause is `unknown`, where nothing can tell.
    """
    before, after = (in_time(compared, side) for side in ("old", "after"))
    known = msgspec.structs.replace(
        immediate(before, after, canary),
        memory_kills=(memory_kills(before), memory_kills(after)),
        cold_start=slower_starts(compared, canary, policy),
    )
    moved_with = evidence(compared, beside, policy)
    of_others = _of_others(moved_with, known.changes, policy)
    found = _explained(shift, moved_with, of_others, compared, canary, known, policy)
    return _beside_gpu_users(found, shift, moved_with, policy)


def _operators(shift: Shift, compared: Sequence[Pair], canary: str, policy: Policy) -> Operators | None:
    """What profiled repeats of both sides say; None where there is no change to explain."""
    if abs(shift.log) < policy.decide.log_effect:
        return None
    sides = [[start for pair in compared for start in getattr(pair, side)] for side in ("old", "after")]
    boots = [{start.boot for start in side} for side in sides]
    if not boots[0].isdisjoint(boots[1]):
        return None  # of one start that drifted: drift.py takes its profiles by their times
    levels = [[s.median for start in side for s in start.samples if s.median] for side in sides]
    if not all(levels):
        return None
    profiles = [
        sorted(
            (p for start in side for p in unpacked(start.generation.profiles.get(canary, ()))),
            key=lambda p: p.taken_at,
        )
        for side in sides
    ]
    return compare_operators(profiles[0], profiles[1], (median(levels[0]), median(levels[1])), policy)


def immediate(before: Sequence[Start], after: Sequence[Start], canary: str) -> Causes:
    """What needs no look: whatever the runs will say, these starts differ already.

    Of each container ``after`` its newest start counts, against its last one ``before`` or, where that had another
    name, the last of all: one replica alone may have come back without its GPU.

    Args:
        before: Starts of the old image, in order of time.
        after: Starts of the new one, in order of time.

    Returns:
        Changes, the largest error of an output, its tokens, and whether one runs on the CPU now; nothing where a side
        is empty.
    """
    if not before or not after:
        return Causes()
    own = {start.generation.container: start.generation for start in before}
    newest = {start.generation.container: start.generation for start in after}
    both = [(own.get(name, before[-1].generation), new) for name, new in newest.items()]
    errors = [error for old, new in both if (error := _output_error(old, new, canary)) is not None]
    return Causes(
        changes=changes(before[-1].generation.environment, after[-1].generation.environment, canary),
        output_error=max(errors, default=None),
        output_tokens=_output_tokens(before, after),
        cpu_fallback=any(fell_back(old, new) for old, new in both),
    )


def memory_kills(starts: Iterable[Start]) -> int:
    """How often the kernel ended the server of one of these starts for memory.

    Args:
        starts: In any order.

    Returns:
        A number of ends: one that is noted with two starts of a container, as after a restart of the exporter, is one.
    """
    return len({(start.generation.container, at) for start in starts for at in start.generation.memory_kills})


def host_part(
    shift: Shift,
    controls: Mapping[str, Shift],
    siblings: Shift | None,
    *,
    waits: bool = False,
    policy: Policy = LIVE,
) -> Shift | None:
    """The part of ``shift`` that what the image cannot touch has moved by too.

    Siblings do such work as the canary, and so what they agree on is the host's part. Controls that stood still say
    that the host did not change; where one moved the same way as the canary, the host's part is what it moved by, or
    what siblings did, which depend on more than one resource: the larger, at most all.

    Where the canary now ``waits`` for CPUs and anything else slowed too, all of it is the host's: how long one waits
    depends on its threads and on how long it runs, and no other's wait measures it.

    Args:
        shift: Of the canary.
        controls: Control → its shift, of those that move in step with a canary.
        siblings: How far siblings moved; None where there is none.
        waits: Whether more runs than before waited for a CPU.

    Returns:
        The host's part; None where nothing can tell.
    """
    known = [s for s in controls.values() if math.isfinite(s.se)]
    others = [] if siblings is None else [siblings]
    moved, beside = (
        [s for s in each if s.has_moved(policy) and s.log * shift.log > 0] for each in (known, others)
    )
    if waits and shift.log > 0 and (moved or beside):
        return shift
    if moved:
        most = max((*moved, *beside), key=lambda s: abs(s.log))
        return most if abs(most.log) < abs(shift.log) else Shift(shift.log, most.se, most.df)
    if siblings is not None and siblings.has_moved(policy):
        return siblings
    flat = [*known, *others]
    return min(flat, key=lambda s: s.se)._replace(log=0.0) if flat else None


def in_step(changed: Iterable[Change]) -> frozenset[str]:
    """The controls whose shift is the host's, between images that differ by ``changed``: not those made of these.

    Args:
        changed: Components of the environment.

    Returns:
        Their names.
    """
    components = {change.component for change in changed}
    return IN_STEP - {control.name for control in CONTROLS.values() if control.made_of in components}


def joined(starts: Iterable[Start]) -> list[Start]:
    """The starts of one container, of each image as one: what a sibling is.

    Args:
        starts: In order of time.

    Returns:
        One for each image, with all its runs and the latest start's generation.
    """
    images: dict[str, list[Start]] = {}
    for start in starts:
        images.setdefault(start.identity, []).append(start)
    return [
        Start(group[-1].generation, [sample for start in group for sample in start.samples])
        for group in images.values()
    ]


def changes(before: Mapping[str, str], after: Mapping[str, str], canary: str) -> tuple[Change, ...]:
    """The components that differ and may have to do with a canary, those first that people ask for first.

    A probe has one environment for all of its canaries. What another canary measures is left out, and what follows from
    settings alone where this canary's are the same. So is what is given to a container where a side does not say it: an
    older probe does not report that, and what is not known is no change.

    Args:
        before: Component → its value.
        after: The same of the new image.
        canary: Its name.

    Returns:
        A value is None on the side that does not have the component.
    """
    own = {of_canary(component, canary) for component in (MODEL, SETTINGS)}
    settings = of_canary(SETTINGS, canary)
    are_same = settings in before and before[settings] == after.get(settings)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    names.sort(key=order_of_interest)
    return tuple(
        Change(name, before.get(name), after.get(name))
        for name in names
        if not (is_of_canary(name) and name not in own)
        and not (is_given(name) and None in (before.get(name), after.get(name)))
        and not (are_same and is_setting(name))
    )


def slower_starts(
    compared: Sequence[Pair], canary: str, policy: Policy = LIVE
) -> dict[str, tuple[float, float]]:
    """Steps of the cold start that took much longer than ever before, by more than waiting for a CPU explains.

    One start says little: the files of a new image are in no cache yet, and what was upgraded with it starts beside it.

    Returns:
        Step → medians of the starts before and after, in seconds.
    """
    found = {}
    old, new = (
        [
            (steps, _waited_share(start, policy))
            for pair in compared
            for start in getattr(pair, side)
            if (steps := start.generation.cold_start.get(canary))
        ]
        for side in ("before", "after")
    )
    for step in sorted({step for steps, _ in (*old, *new) for step in steps}):
        before = [steps[step] for steps, _ in old if step in steps]
        after = [(steps[step], share) for steps, share in new if step in steps]
        if before and len(after) >= policy.attribute.cold_starts:
            most, least = max(before), min(seconds * (1 - share) for seconds, share in after)
            if (
                least > policy.attribute.cold_start_ratio * most
                and least - most > policy.attribute.cold_start_seconds
            ):
                found[step] = (median(before), median(seconds for seconds, _ in after))
    return found


def _waited_share(start: Start, policy: Policy) -> float:
    """How much of its first runs was waiting for CPUs that others on the host had: so it will have been as it started.

    0 where too few of them say it.
    """
    first = start.first(policy.decide.looks[0]).samples
    known = [(s.waited, s.median) for s in first if s.waited is not None and s.median]
    if len(known) < policy.pool.waiting_known * policy.decide.looks[0]:
        return 0.0
    return min(1.0, sum(waited for waited, _ in known) / sum(latency for _, latency in known))


def attributed_to(share: float, policy: Policy = LIVE) -> Cause:
    """What made a shift of which this share is the host's.

    Args:
        share: The host's part over the shift, of logarithms; below 0 or above 1 if the parts have opposite signs.

    Returns:
        `host`, `image` or `both`.
    """
    whole = policy.attribute.whole_share
    return "host" if share >= whole else "image" if share <= 1 - whole else "both"


def fell_back(before: Generation, after: Generation) -> bool:
    """Whether something ran on a GPU before, and all runs on the CPU now.

    Args:
        before: A start of the old image.
        after: One of the new image.
    """
    old, new = _devices(before), _devices(after)
    return "cuda" in old and new == {"cpu"}


class _Parts(NamedTuple):
    """What a shift is made of."""

    host: Shift | None
    image: Shift | None
    load: Shift | None = None
    slack: float = 0.0
    """How much of the image's part (a logarithm) may be the host's: caches that are cold after waiting."""
    is_known: bool = True
    """Whether enough evidence supports the host's part that it may be blamed."""
    may_be_load: bool = False
    """Whether requests may have made what is left for the image."""


def _explained(
    shift: Shift,
    moved_with: Evidence,
    of_others: Evidence,
    compared: Sequence[Pair],
    canary: str,
    known: Causes,
    policy: Policy,
) -> Causes:
    """All causes; ``known`` is what needs no look, and ``of_others`` what the container did not do itself."""
    controls, crowd = moved_with.controls, moved_with.crowding
    tags = {
        tag: both for tag, both in moved_with.tags.items() if both[1] - both[0] >= policy.attribute.tag_share
    }
    parts = _parts(shift, of_others, in_step(known.changes), tags, policy)
    waits = _waits(shift, moved_with, policy)
    is_crowded = _is_crowded(moved_with, tags, waits, policy)
    named = {
        name: share for name, share in moved_with.phases.items() if share >= policy.attribute.phase_share
    }
    return msgspec.structs.replace(
        known,
        host=_part(parts.host, policy, math.copysign(parts.slack, shift.log)),
        image=_part(parts.image, policy, -math.copysign(parts.slack, shift.log)),
        load=_part(parts.load, policy),
        cause=_cause(shift, parts, policy),
        phases=dict(sorted(named.items(), key=lambda item: -item[1])),
        bottlenecks=dict(moved_with.bottlenecks),
        controls={name: math.expm1(s.log) for name, s in controls.items() if s.has_moved(policy)},
        has_controls=any(math.isfinite(s.se) for s in controls.values()),
        siblings=_part(moved_with.siblings, policy),
        clock=_part(moved_with.clock, policy),
        tags=tags,
        inside=crowd.cores if is_crowded and crowd is not None else None,
        operators=_operators(shift, compared, canary, policy),
        unknown_waiting=waits and crowd is None,
        unknown_load=parts.may_be_load,
    )


def _of_others(moved_with: Evidence, changed: Iterable[Change], policy: Policy) -> Evidence:
    """The evidence, in which those controls stand still that the container slowed itself.

    It reaches its quota more often, which nobody changed: a control runs right after the canary, and waits for the next
    period. A neighbour that makes a canary compute for longer brings it there, too; so others on the host must show
    that they are not slower, or clearly less than the control.
    """
    siblings = moved_with.siblings
    before, after = moved_with.tags.get(THROTTLED, (0.0, 0.0))
    is_lowered = any(each.component == "cpu_quota" for each in changed)
    if siblings is None or after - before < policy.attribute.tag_share or is_lowered:
        return moved_with
    most = max(0.0, siblings.log + policy.attribute.moved_sigmas * siblings.se)
    controls = {name: s._replace(log=0.0) if s.log > most else s for name, s in moved_with.controls.items()}
    return moved_with._replace(controls=controls)


def _parts(
    shift: Shift,
    moved_with: Evidence,
    of_host: frozenset[str],
    tags: Mapping[str, tuple[float, float]],
    policy: Policy,
) -> _Parts:
    """What controls, siblings and waiting say that a shift is made of; ``of_host`` names the controls that count."""
    waiting, crowd, siblings = moved_with.waiting, moved_with.crowding, moved_with.siblings
    waits = _waits(shift, moved_with, policy)
    controls = {name: s for name, s in moved_with.controls.items() if name in of_host and math.isfinite(s.se)}
    if _is_crowded(moved_with, tags, waits, policy):
        # They shared the container's CPU with others as the canary did: what moved them is not the host.
        controls = {name: s._replace(log=0.0) for name, s in controls.items()}
    is_queued = CPU_WAIT_OUTSIDE in tags and CPU_WAIT_INSIDE not in tags and waiting is None
    host = host_part(shift, controls, siblings, waits=is_queued, policy=policy)
    # One sibling may have changed by itself, or lie.
    alone = siblings is not None and siblings.has_moved(policy) and moved_with.felt_by < 2
    is_known = not alone or any(s.has_moved(policy) and s.log * shift.log > 0 for s in controls.values())
    load, error, slack = None, math.inf, 0.0
    if waiting is not None and waits:
        felt = math.copysign(min(abs(waiting.log), abs(shift.log)), shift.log)
        share = crowd.inside if crowd is not None else 0.0
        if crowd is not None and crowd.load:
            load = Shift(crowd.load * share * felt, waiting.se, waiting.df)
        rests = host is not None and is_known and attributed_to(host.log / shift.log, policy) == "host"
        if host is None or (abs((1 - share) * felt) > abs(host.log) and not (crowd is None and rests)):
            host, is_known = Shift((1 - share) * felt, waiting.se, waiting.df), crowd is not None
            most = min(policy.attribute.waiting_factor * abs(felt), abs(shift.log))
            slack = (1 - share) * (most - abs(felt))
            # Measured in the same runs, it takes their scatter with it; what restarts do stays.
            whole = moved_with.whole
            restarts = shift.se**2 - whole.se**2 if whole is not None else shift.se**2
            error = math.hypot(math.sqrt(max(0.0, restarts)), waiting.se)
    if host is None:
        return _Parts(None, None, load, is_known=False)
    left = shift.log - host.log - (load.log if load is not None else 0.0)
    image = Shift(left, min(error, math.hypot(shift.se, host.se)), shift.df)
    may_be_load = _may_be_load(shift, moved_with, waits, load, policy)
    return _Parts(host, image, load, slack, is_known, may_be_load)


def _waits(shift: Shift, moved_with: Evidence, policy: Policy) -> bool:
    """Whether some of the shift is waiting for CPUs that others had."""
    waiting = moved_with.waiting
    return waiting is not None and waiting.has_moved(policy) and waiting.log * shift.log > 0


def _is_crowded(moved_with: Evidence, tags: Collection[str], waits: bool, policy: Policy) -> bool:
    """Whether the canary shares the container's CPU with others inside."""
    crowd = moved_with.crowding
    return CPU_WAIT_INSIDE in tags or (
        waits and crowd is not None and crowd.inside > 1 - policy.attribute.whole_share
    )


def _may_be_load(shift: Shift, moved_with: Evidence, waits: bool, load: Shift | None, policy: Policy) -> bool:
    """Whether requests may have made more than a small share of a shift, beyond the ``load`` that is seen as waiting.

    A canary may also wait for a lock that requests hold, such as the interpreter's. In each second they can hold it for
    as long as they computed.
    """
    crowd, waiting = moved_with.crowding, moved_with.waiting
    if crowd is None:
        return False
    small = (1 - policy.attribute.whole_share) * abs(shift.log)
    if crowd.load is None:
        of_waiting = abs(waiting.log) if waiting is not None and waits else 0.0
        return policy.attribute.waiting_factor * crowd.inside * of_waiting > small
    more = crowd.cores[1] - crowd.cores[0]
    most = policy.attribute.waiting_factor * math.log1p(crowd.load * abs(more))
    seen = abs(load.log) if load is not None else 0.0
    return more * shift.log > 0 and min(most, abs(shift.log)) - seen > small


def _without_host(
    causes: Causes, controls: Mapping[str, Shift], decision: Finding, raw: Shift, policy: Policy
) -> Causes:
    """The causes where the host's variation was taken out: that is its part, and what is left is the image's.

    But for what a control of the container's own moved by beyond that: no sibling feels a quota, or other cores.
    """
    assert decision.unwaited is not None
    adjusted = decision.unwaited.shift
    left, felt = adjusted.log, raw.log - adjusted.log
    of_host = in_step(causes.changes) if causes.inside is None else frozenset()
    moved = [s.log for name, s in controls.items() if name in of_host and s.has_moved(policy)]
    # What a control shares with the siblings is the host's variation, all of it where they felt more.
    beyond = [
        math.copysign(max(0.0, abs(log) - (abs(felt) if log * felt > 0 else 0.0)), log) for log in moved
    ]
    share = min(1.0, max((log / left for log in beyond if log * left > 0), default=0.0))
    level = policy.attribute.history_confidence
    image = adjusted._replace(log=(1 - share) * left)
    parts = _Parts(
        adjusted._replace(log=share * left, se=0.0),
        image,
        may_be_load=causes.unknown_load or causes.load is not None,
    )
    return msgspec.structs.replace(
        causes,
        cause=_cause(adjusted, parts, policy) if decision.state in CHANGED else causes.cause,
        image=Part.of(image, level),
        host=Part.of(adjusted._replace(log=felt + share * left), level),
    )


def _beside_gpu_users(causes: Causes, shift: Shift, moved_with: Evidence, policy: Policy) -> Causes:
    """The causes, without blame or credit for the image if others on the GPU may have made the shift.

    That is: more runs than before met others there and took longer, or fewer did and took less. A GPU runs its
    processes in turns, and a control's repeat is shorter than a turn. So controls that did not move do not show that
    the image made the shift (docs/adr/0026). A shift that controls or siblings shared still counts for the host.
    """
    grown = moved_with.gpu_users
    if (
        abs(grown) < policy.attribute.tag_share
        or grown * shift.log <= 0
        or causes.cause not in ("image", "both")
    ):
        return causes
    shown = {tag: both for tag, both in moved_with.tags.items() if tag == GPU_BUSY}
    return msgspec.structs.replace(causes, cause="unknown", host=None, image=None, tags=causes.tags | shown)


def _cause(shift: Shift, parts: _Parts, policy: Policy) -> Cause:
    """What made the most of it; unknown where what should be flat varied too much to tell.

    Host or load are blamed alone only where what may be the image's is small: a regression must not hide behind a
    neighbour. With the host an image is blamed only where its part is clear of zero: a false alarm costs most.
    """
    host, image, load, slack, is_known, may_be_load = parts
    if (
        host is None
        or image is None
        or not shift.log
        or host.se > policy.attribute.restless_share * abs(shift.log)
    ):
        return "unknown"
    is_explained = _is_explained(shift, image, policy)
    if load is not None and load.log / shift.log > 1 - policy.attribute.whole_share:
        return "load" if is_explained and load.log / shift.log >= policy.attribute.whole_share else "unknown"
    share = host.log / shift.log
    if attributed_to(share + slack / abs(shift.log), policy) == "image":
        return "unknown" if may_be_load else "image"
    if attributed_to(share, policy) == "host" and is_known and is_explained:
        return "host"
    least = image._replace(log=image.log - math.copysign(slack, shift.log))
    is_clear = least.log * shift.log > 0 and _is_clear(least, policy)
    return "both" if is_known and is_clear and not may_be_load else "unknown"


def _is_explained(shift: Shift, image: Shift, policy: Policy) -> bool:
    """Whether at most a small share of a shift, or less than the smallest effect, can be the image's.

    One end of an interval is asked about: a one-sided test, as of equivalence (Schuirmann, "A comparison of the two
    one-sided tests procedure and the power approach", 1987).
    """
    low, high = image.interval(2 * policy.attribute.cause_confidence - 1)
    most = high if shift.log > 0 else -low
    return most <= max(policy.decide.log_effect, (1 - policy.attribute.whole_share) * abs(shift.log))


def _is_clear(part: Shift, policy: Policy) -> bool:
    low, high = part.interval(policy.attribute.cause_confidence)
    return low > 0 or high < 0


def _part(shift: Shift | None, policy: Policy, slack: float = 0.0) -> Part | None:
    """With an interval that reaches further by ``slack`` (a logarithm), to the side of its sign."""
    if shift is None:
        return None
    part = Part.of(shift, policy.attribute.cause_confidence)
    further = Part.of(shift._replace(log=shift.log + slack), policy.attribute.cause_confidence)
    return Part(part.shift, min(part.low, further.low), max(part.high, further.high))


def _output_error(before: Generation, after: Generation, canary: str) -> float | None:
    old, new = before.outputs.get(canary), after.outputs.get(canary)
    return relative_error(new, old) if old and new else None


def _output_tokens(before: Sequence[Start], after: Sequence[Start]) -> tuple[float, float] | None:
    """Median tokens of a completion on both sides; None where they are the same, or not known."""
    sides = [
        [sample.measures[OUTPUT] for start in side for sample in start.samples if OUTPUT in sample.measures]
        for side in (before, after)
    ]
    if not all(sides):
        return None
    old, new = map(median, sides)
    return None if old == new else (old, new)


def _devices(generation: Generation) -> set[str]:
    """The kinds of device that its canaries ran on; several are reported as `cpu, cuda:0`."""
    reported = ",".join(generation.environment.get(component, "") for component in DEVICE_COMPONENTS)
    return {kind for device in reported.split(",") if (kind := device.strip().partition(":")[0])}
