"""``probe.yaml``: which canaries to run, how often, and what to sample around them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError, load
from infercanary.probe.access import ServerTls
from infercanary.probe.arguments import address
from infercanary.probe.loop import Probe
from infercanary.probe.pace import bursts, pace
from infercanary.probe.serve import parse
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import make

Positive = Annotated[float, Meta(gt=0)]


class CanaryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One canary."""

    target: str
    """Built in, or ``package.module:attribute``."""
    options: dict[str, Any] = {}
    """The target's arguments."""
    sweep: Sweep | None = None


class ProbeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Every key but ``canaries`` has a safe default."""

    canaries: Annotated[dict[str, CanaryConfig], Meta(min_length=1)]
    listen: str | int = "[::]:9798"
    tls: ServerTls | None = None
    """Certificate and key to answer with; without, plain HTTP."""
    token_file: str | None = None
    """Whose text the exporter must show (its ``probe_token_file``); without, everybody may ask."""
    interval_seconds: Annotated[float, Meta(ge=0.1)] = 10.0
    duty_cap: Annotated[float, Meta(gt=0, le=1)] = 0.01
    burst: bool | None = None
    """Whether runs may come more often in the first 15 minutes, from the duty of the first hour; by default where the
    models are the probe's own, and on the CPU."""
    timeout_seconds: Positive = 30.0
    open_timeout_seconds: Positive = 600.0
    controls: bool = True
    samplers: dict[str, bool] = {}
    """Name → whether it is on, where that is not its default."""
    journal: str | None = None
    journal_bytes: Annotated[int, Meta(ge=65536)] = 16777216
    profile: bool = True
    """Whether repeats are profiled now and then, where the engine has a profiler."""
    memory_reserve: Annotated[int, Meta(ge=0)] | None = None
    """Bytes of host memory that are left alone; by default 64 MiB, or 5 % of the limit where that is more."""
    device_memory_reserve: Annotated[int, Meta(ge=0)] | None = None
    """The same of a GPU's memory; by default 256 MiB, or 2 % of it where that is more."""


_LARGE_DUTY = 0.2


def remarks(path: str | os.PathLike[str]) -> list[str]:
    """Say what is allowed in the settings and seldom meant.

    Args:
        path: Of a file that :func:`read` takes.

    Returns:
        Sentences without a capital and a full stop.
    """
    duty = load(path, ProbeConfig).duty_cap
    if duty < _LARGE_DUTY:
        return []
    return [f"duty_cap: {duty:g} lets runs take {100 * duty:g} % of the time; 1 % is 0.01"]


def read(path: str | os.PathLike[str]) -> Probe:
    """Read the settings.

    Args:
        path: Of the file.

    Returns:
        The probe that it describes, not started.

    Raises:
        UsageError: A mistake in it, in one line.
    """
    config = load(path, ProbeConfig)
    pace(config.interval_seconds, config.duty_cap)  # a mistake in the environment is not one of the file
    bursts(config.burst)
    try:
        parse(address(config.listen))
        targets = {}
        for name, canary in config.canaries.items():
            try:
                targets[name] = make(canary.target, canary.options)
            except UsageError as error:
                raise UsageError(f"canaries.{name}.{error}") from None
        return Probe(
            targets,
            listen=config.listen,
            tls=config.tls,
            token_file=config.token_file,
            interval_seconds=config.interval_seconds,
            duty_cap=config.duty_cap,
            burst=config.burst,
            timeout_seconds=config.timeout_seconds,
            open_timeout_seconds=config.open_timeout_seconds,
            controls=config.controls,
            samplers=config.samplers,
            journal=config.journal,
            journal_bytes=config.journal_bytes,
            memory_reserve=config.memory_reserve,
            device_memory_reserve=config.device_memory_reserve,
            profile=config.profile,
            sweeps={
                name: canary.sweep for name, canary in config.canaries.items() if canary.sweep is not None
            },
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
