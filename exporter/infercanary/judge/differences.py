"""Differences between starts other than latency: components, outputs, devices, cold starts and memory kills."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

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
    """Return the differences between old and new starts that do not depend on latencies.

    Outputs and devices are compared for each container, because a single replica may have lost its GPU. The newest
    live start of a container is compared with the container's last start on the old image. For a container with a new
    name, the last start of any container on the old image is taken. A memory kill recorded with two starts of a
    container counts once.

    Args:
        before: Starts of the old image, in order of time.
        after: Starts of the new image, in order of time.
        live: New starts that still run, in order of time.
        rules: Thresholds of a slower cold start.

    Returns:
        Causes with only these fields set: changed components, the largest output error, output tokens, CPU fallback,
        memory kills, and slower steps of the cold start.
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
    """Return the changed components of the environment that may concern a canary, the most interesting first.

    All canaries of a probe share one environment, so components of other canaries are left out. Components that
    depend on settings are left out if this canary's settings are the same. A limit or environment variable that only
    one side reports is left out, because the other side's probe may be older.

    Args:
        before: Value by component, in the old image.
        after: Value by component, in the new image.
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
    """Return the steps of the cold start that took much longer than in every earlier start, after subtracting CPU wait.

    One start is not enough: files of a new image are not cached yet, and other upgrades may start at the same time.
    Starts on hardware that is new to the service do not count.

    Returns:
        Median seconds before and after, by step.
    """
    after = [s for s in after if any(s.is_comparable(earlier.hardware) for earlier in before)]
    earlier, later = ([s.generation.cold_start.get(canary, {}) for s in side] for side in (before, after))
    # Assume that the cold start had the same share of CPU wait as the first runs.
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
    known = [s.measures[OUTPUT] for start in starts for s in start.samples if OUTPUT in s.measures]
    return median(known) if known else 0.0


def _devices(generation: Generation) -> set[str]:
    """Return the kinds of device that the canaries of a start ran on, such as `cpu` and `cuda`."""
    reported = ",".join(generation.environment.get(component, "") for component in DEVICE_COMPONENTS)
    return {device.strip().partition(":")[0] for device in reported.split(",")} - {""}
