"""The arguments of a :class:`~infercanary.probe.loop.Probe`, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import Resizable, Target


def check(
    targets: Iterable[str],
    interval_seconds: float,
    timeout_seconds: float,
    open_timeout_seconds: float,
    duty_cap: float,
) -> None:
    """Refuse what cannot be meant.

    Args:
        targets: The names of the canaries.
        interval_seconds: Between runs.
        timeout_seconds: For a run.
        open_timeout_seconds: For loading.
        duty_cap: A share of the time.

    Raises:
        UsageError: With the argument's name and what it must be.
    """
    for name in targets:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise UsageError(
                f"canaries: `{name}` is not a name of letters, digits, `_`, `.` and `-` (64 at most)"
            )
    for key, seconds in {
        "interval_seconds": interval_seconds,
        "timeout_seconds": timeout_seconds,
        "open_timeout_seconds": open_timeout_seconds,
    }.items():
        if not 0 < seconds < math.inf:
            raise UsageError(f"{key}: {seconds:g} is not a time; give seconds above 0")
    if not 0 < duty_cap <= 1:
        raise UsageError(f"duty_cap: {duty_cap:g} is not a share; give a number above 0, at most 1")


def check_reserves(**reserves: int | None) -> None:
    """Refuse sizes that cannot be meant.

    Args:
        reserves: Name of the argument → bytes; None for the default.

    Raises:
        UsageError: With the argument's name and what it must be.
    """
    for key, size in reserves.items():
        if size is not None and size < 0:
            raise UsageError(f"{key}: {size} is not a size; give bytes, or leave it out")


def checked(name: str, sweep: Sweep, targets: Mapping[str, Target]) -> Sweep:
    """Check a sweep, also one that was made in code.

    Args:
        name: The canary's.
        sweep: What to sweep of it.
        targets: Of all canaries.

    Returns:
        The sweep, with its numbers converted to their types.

    Raises:
        UsageError: There is no such canary, it cannot be swept, or a value is out of range.
    """
    if (target := targets.get(name)) is None:
        raise UsageError(f"sweeps: no canary `{name}`; there are {', '.join(targets)}")
    place = f"canaries.{name}.sweep"
    if not isinstance(sweep, Sweep):
        raise UsageError(f"{place}: give a Sweep(batches=…, concurrency=…)")
    if not isinstance(target, Resizable):
        raise UsageError(
            f"{place}: {type(target).__name__} cannot be swept: it has no method `sized`; leave the sweep out"
        )
    return convert(msgspec.to_builtins(sweep), Sweep, place)
