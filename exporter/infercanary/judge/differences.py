"""Differences between starts that need no comparison of latencies: components, outputs, devices, cold starts, kills."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from infercanary.contract.measures import OUTPUT
from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import (
    DEVICE_COMPONENTS,
    MODEL,
    SETTINGS,
    is_given,
    is_of_canary,
    is_setting,
    of_canary,
    order_of_interest,
)
from infercanary.judge.crowding import level
from infercanary.judge.model import Generation, Start, medians
from infercanary.judge.policy import Attribute
from infercanary.judge.result import Causes, Change


def differences(
    before: Sequence[Start], after: Sequence[Start], live: Sequence[Start], canary: str, rules: Attribute
) -> Causes:
    """What needs no look: whatever the runs will say, these starts differ already.

    Of each container that is ``live`` its newest start counts, against its last one ``before`` or, where that had
    another name, the last of all: one replica alone may have come back without its GPU. A memory kill that is noted
    with two starts of a container, as after a restart of the exporter, is one.

    Args:
        before: Starts of the old image, in order of time.
        after: Starts of the new one, in order of time.
        live: Those of the new one that still run, in order of time.
        canary: Its name.
        rules: From when on a cold start is slower.

    Returns:
        Changes, the largest error of an output, its tokens, whether one runs on the CPU now, memory kills and slower
        cold starts.
    """
    last = before[-1].generation
    own, newest = ({s.generation.container: s.generation for s in side} for side in (before, live))
    both = [(own.get(name, last), new) for name, new in newest.items()]
    errors = [
        relative_error(new.outputs[canary], old.outputs[canary])
        for old, new in both
        if new.outputs.get(canary) and old.outputs.get(canary)
    ]
    old_tokens, new_tokens = _tokens(before), _tokens(live)
    return Causes(
        changes=changes(last.environment, live[-1].generation.environment, canary),
        output_error=max(errors, default=None),
        output_tokens=(old_tokens, new_tokens) if 0 < old_tokens != new_tokens > 0 else None,
        cpu_fallback=any("cuda" in _devices(old) and _devices(new) == {"cpu"} for old, new in both),
        memory_kills=(_kills(before), _kills(after)),
        cold_start=_slower_starts(before, after, canary, rules),
    )


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
    own = of_canary(MODEL, canary), (settings := of_canary(SETTINGS, canary))
    are_same = settings in before and before[settings] == after.get(settings)
    return tuple(
        Change(name, before.get(name), after.get(name))
        for name in sorted({**before, **after}, key=order_of_interest)
        if before.get(name) != after.get(name)
        and (name in own or not is_of_canary(name))
        and ((name in before and name in after) or not is_given(name))
        and not (are_same and is_setting(name))
    )


def _slower_starts(
    before: Sequence[Start], after: Sequence[Start], canary: str, rules: Attribute
) -> dict[str, tuple[float, float]]:
    """Steps of the cold start that took much longer than ever before, by more than waiting for a CPU explains.

    One start says little: the files of a new image are in no cache yet, and what was upgraded with it starts beside it.
    Hardware that the old image never ran on says nothing.

    Returns:
        Step → medians of the starts before and after, in seconds.
    """
    after = [s for s in after if any(s.is_comparable(earlier.hardware) for earlier in before)]
    earlier, later = ([s.generation.cold_start.get(canary, {}) for s in side] for side in (before, after))
    # As it waited in its first runs it will have waited as it started.
    waited = max(
        (
            level(s.samples[:5], lambda run: run.waited and run.waited / (run.median or math.inf))
            for s in after
        ),
        default=0.0,
    )
    old, new = medians(earlier), medians(later)
    found = {}
    for step in sorted(old.keys() & new.keys()):
        most = max(steps.get(step, 0.0) for steps in earlier)
        seconds = [steps[step] * (1 - waited) for steps in later if step in steps]
        is_slower = min(seconds) > max(rules.cold_start_ratio * most, most + rules.cold_start_seconds)
        if is_slower and len(seconds) >= rules.cold_starts:
            found[step] = old[step], new[step]
    return found


def _kills(starts: Sequence[Start]) -> int:
    return len({(start.generation.container, at) for start in starts for at in start.generation.memory_kills})


def _tokens(starts: Sequence[Start]) -> float:
    return level([s for start in starts for s in start.samples], lambda s: s.measures.get(OUTPUT))


def _devices(generation: Generation) -> set[str]:
    """The kinds of device that its canaries ran on; several are reported as `cpu, cuda:0`."""
    reported = ",".join(generation.environment.get(component, "") for component in DEVICE_COMPONENTS)
    return {device.strip().partition(":")[0] for device in reported.split(",")} - {""}
