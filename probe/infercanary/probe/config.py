"""``probe.yaml``: the canaries, and the settings of their probe."""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infercanary.command.settings import UsageError, load
from infercanary.probe.loop import Probe
from infercanary.probe.settings import Settings
from infercanary.probe.sweep import Sweep
from infercanary.probe.targets import make

_LARGE_DUTY = 0.2


class CanaryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one canary."""

    target: str
    """Name of a built-in target, or ``package.module:attribute``."""
    options: dict[str, Any] = {}
    """The target's arguments."""
    sweep: Sweep | None = None


class ProbeConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of ``probe.yaml``."""

    canaries: Annotated[dict[str, CanaryConfig], Meta(min_length=1)]


def remarks(path: str | os.PathLike[str]) -> list[str]:
    """Return remarks on permitted but unusual settings in this file, as sentences without a full stop."""
    duty = load(path, ProbeConfig).duty_cap
    if duty < _LARGE_DUTY:
        return []
    return [f"duty_cap: {duty:g} allows runs {100 * duty:g} % of the time; write 0.01 for 1 %"]


def read(path: str | os.PathLike[str]) -> Probe:
    """Make a probe with the settings of a file, but do not start it.

    Raises:
        UsageError: A mistake in the file, described in one line.
    """
    config = load(path, ProbeConfig)
    try:
        targets = {}
        for name, canary in config.canaries.items():
            try:
                targets[name] = make(canary.target, canary.options)
            except UsageError as error:
                raise UsageError(f"canaries.{name}.{error}") from None
        fields = {name: getattr(config, name) for name in Settings.__struct_fields__}
        settings = Settings(**{**fields, "profile": config.profile is not False})
        sweeps = {name: canary.sweep for name, canary in config.canaries.items() if canary.sweep is not None}
        return Probe(targets, settings, sweeps=sweeps)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
