"""Settings of a probe. Each setting has a type, a range, a default and a meaning.

The same types check the YAML file and the keyword arguments. docs/probe.md is generated from these types.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError, convert
from infercanary.contract.address import listen_place
from infercanary.probe.access import ServerTls
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import Target

Share = Annotated[float, Meta(gt=0, le=1)]
Interval = Annotated[float, Meta(ge=0.1, le=86_400)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Bytes = Annotated[int, Meta(ge=0)]

_METHODS = ("open", "run", "values", "environment", "close")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a probe. Every setting has a safe default."""

    listen: str | int = "[::]:9798"
    """`host:port`, a port alone for every address of IPv4 and IPv6, or `unix:///path` on a volume shared with the
    exporter"""
    tls: ServerTls | None = None
    """`{cert_file: …, key_file: …}`: answer over TLS"""
    token_file: str | None = None
    """file with the token that the exporter sends (its `probe_token_file`); without it, anyone may read the report"""
    interval_seconds: Interval = 10.0
    """time between runs, ±20 %; longer if the duty cap requires it"""
    duty_cap: Share = 0.01
    """largest share of the time that runs may take"""
    timeout_seconds: Seconds = 30.0
    """a run that takes longer has failed"""
    open_timeout_seconds: Seconds = 600.0
    """a canary that takes longer to load and warm up has failed"""
    controls: bool = True
    """after each run, do tiny work that is the same in every image, to detect a slower host"""
    samplers: dict[str, bool] = {}
    """`{nvml: false}` switches a sampler off; by default, all samplers listed below are on"""
    profile: bool | None = None
    """sometimes measure the time of each operator ([profiles](profiles.md)); by default only in a separate process"""
    journal: str | None = None
    """file (no symbolic link) for each run as a line of JSON, kept after a crash; with `PATH.1`, the previous file,
    16 MiB at most"""
    memory_reserve: Bytes | None = None
    """bytes of host memory to keep free; by default 64 MiB, or 5 % of the limit if that is more"""
    device_memory_reserve: Bytes | None = None
    """bytes of each GPU's memory to keep free; by default 256 MiB, or 2 % of that memory if that is more"""


def make_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return checked settings with changes. Environment variables override both.

    Raises:
        UsageError: A value has the wrong type or is out of range.
    """
    given = {name: os.fspath(x) if isinstance(x, os.PathLike) else x for name, x in changes.items()}
    made = convert({**msgspec.structs.asdict(settings), **given}, Settings, "Probe")
    try:
        listen_place(str(made.listen))
    except ValueError as error:
        raise UsageError(f"listen: {error}") from None
    interval = _from_environment("INFERCANARY_INTERVAL_SECONDS", Interval)
    duty_cap = _from_environment("INFERCANARY_DUTY_CAP", Share)
    return msgspec.structs.replace(
        made, interval_seconds=interval or made.interval_seconds, duty_cap=duty_cap or made.duty_cap
    )


def burst_wanted() -> bool | None:
    """Return the value of ``INFERCANARY_BURST``; None if the probe may decide.

    Raises:
        UsageError: The variable is neither true nor false.
    """
    wanted: bool | None = _from_environment("INFERCANARY_BURST", bool)
    return wanted


def check_targets(targets: Mapping[str, Target]) -> None:
    """Refuse invalid names of canaries, and objects that are not targets.

    Raises:
        UsageError: A name or a target is invalid; the text names the canary and the fix.
    """
    if not isinstance(targets, Mapping) or not targets:
        raise UsageError(
            'canaries: give at least one canary, such as {"resnet18": TorchTarget(model, inputs)}'
        )
    for name, target in targets.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise UsageError(
                f"canaries: `{name}` is not a name of letters, digits, `_`, `.` and `-` (64 at most)"
            )
        lacking = [method for method in _METHODS if not callable(getattr(target, method, None))]
        if lacking:
            raise UsageError(
                f"canaries.{name}: {type(target).__name__} is not a target: {', '.join(lacking)} missing; wrap a model "
                "by TorchTarget(model, inputs) or OnnxTarget(file, inputs), or derive the class from Target"
            )


def check_sweep(name: str, sweep: Sweep, targets: Mapping[str, Target]) -> Sweep:
    """Check a sweep from a settings file or from code.

    Raises:
        UsageError: The canary does not exist or cannot be swept, or a value is out of range.
    """
    if (target := targets.get(name)) is None:
        raise UsageError(f"sweeps: no canary `{name}`; there are {', '.join(targets)}")
    place = f"canaries.{name}.sweep"
    if not isinstance(sweep, Sweep):
        raise UsageError(f"{place}: give a Sweep(batches=…, concurrency=…)")
    if not target.is_sweepable:
        raise UsageError(f"{place}: {target.kind} cannot be swept; remove the sweep")
    return convert(msgspec.to_builtins(sweep), Sweep, place)


def _from_environment(variable: str, kind: Any) -> Any:
    """Convert an environment variable to ``kind``; None if the variable is not set."""
    text = os.environ.get(variable)
    return convert(text, kind, f"environment: {variable}={text[:60]}", strict=False) if text else None
