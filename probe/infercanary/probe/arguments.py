"""The arguments of a :class:`~infercanary.probe.loop.Probe`, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from infercanary.command.settings import UsageError, convert
from infercanary.contract.address import EVERY_ADDRESS
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import Target

_METHODS = ("open", "run", "values", "environment", "close")


def address(listen: str | int) -> str:
    """Where to listen, of which a port alone means every address, IPv4 and IPv6.

    Args:
        listen: ``host:port``, a port, or ``unix:///path``.

    Raises:
        UsageError: It is neither text nor a whole number.
    """
    if isinstance(listen, bool) or not isinstance(listen, (str, int)):
        raise UsageError(f"listen: `{listen}` is neither host:port ([::]:9798) nor unix:///path")
    return f"[{EVERY_ADDRESS}]:{listen}" if str(listen).isdigit() else str(listen)


def check(
    targets: Mapping[str, Target],
    interval_seconds: float,
    timeout_seconds: float,
    open_timeout_seconds: float,
    duty_cap: float,
) -> None:
    """Refuse what cannot be meant.

    Args:
        targets: The canaries, by name.
        interval_seconds: Between runs.
        timeout_seconds: For a run.
        open_timeout_seconds: For loading.
        duty_cap: A share of the time.

    Raises:
        UsageError: With the argument's name and what it must be.
    """
    if not isinstance(targets, Mapping):
        raise UsageError('canaries: give a mapping, such as {"resnet18": TorchTarget(model, inputs)}')
    if not targets:
        raise UsageError("canaries: there are none; give one at least, such as a TorchTarget")
    for name, target in targets.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise UsageError(
                f"canaries: `{name}` is not a name of letters, digits, `_`, `.` and `-` (64 at most)"
            )
        lacking = [method for method in _METHODS if not callable(getattr(target, method, None))]
        if lacking:
            kind = type(target).__name__
            if callable(target):
                raise UsageError(
                    f"canaries.{name}: {kind} is a model, not a target; wrap it: TorchTarget(model, inputs)"
                )
            raise UsageError(
                f"canaries.{name}: {kind} is no target: it lacks the methods {', '.join(lacking)}"
            )
    for key, seconds in {
        "interval_seconds": interval_seconds,
        "timeout_seconds": timeout_seconds,
        "open_timeout_seconds": open_timeout_seconds,
    }.items():
        if not _is_number(seconds):
            raise UsageError(f"{key}: `{seconds}` is not a number; give seconds, such as 10")
        if not 0 < seconds < math.inf:
            raise UsageError(f"{key}: {seconds:g} is not a time; give seconds above 0")
    if not _is_number(duty_cap):
        raise UsageError(f"duty_cap: `{duty_cap}` is not a number; give a share, such as 0.05 for 5 %")
    if not 0 < duty_cap <= 1:
        raise UsageError(f"duty_cap: {duty_cap:g} is not a share; give a number above 0, at most 1")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_others(executor: object, on_hang: object, controls: object, samplers: object) -> None:
    """Refuse what is no pool, what cannot be called, what is no switch, and names in place of samplers.

    Args:
        executor: The server's own pool; None without one.
        on_hang: What makes another one; None without it.
        controls: Whether they are measured.
        samplers: Name → whether it is on, or samplers.

    Raises:
        UsageError: With the argument's name and what it must be.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise UsageError(
            f"executor: `{executor}` is no pool; give the server's own, such as ThreadPoolExecutor(4), or leave it out"
        )
    if on_hang is not None and not callable(on_hang):
        raise UsageError(
            f"on_hang: `{on_hang}` cannot be called; give a function that returns a pool or None"
        )
    if not isinstance(controls, bool):
        raise UsageError(f"controls: `{controls}` is neither True nor False")
    listed = isinstance(samplers, (list, tuple, set)) and any(isinstance(each, str) for each in samplers)
    if listed or isinstance(samplers, str):
        raise UsageError(
            'samplers: give a mapping, such as {"nvml": False}; those not named keep their default'
        )


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
    if not target.is_sweepable:
        raise UsageError(f"{place}: {target.kind} cannot be swept; leave the sweep out")
    return convert(msgspec.to_builtins(sweep), Sweep, place)
