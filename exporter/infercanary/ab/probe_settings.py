"""Settings of an experiment's probe: a ``probe.yaml`` of the user, at the pace of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from infercanary.command.settings import UsageError, load

PACE = {"INFERCANARY_INTERVAL_SECONDS": "0.5", "INFERCANARY_DUTY_CAP": "1"}
"""Variables that give a probe the pace of an experiment: nothing else competes, so runs may be frequent."""

_SWEEP_SECONDS = 10.0  # a sweep's own, where its settings name none


def load_settings(path: str) -> dict[str, Any]:
    """Read the ``probe.yaml`` at ``path``. The probe itself checks its canaries when it starts.

    Raises:
        UsageError: It cannot be read, or has no canaries.
    """
    document = load(path, dict[str, Any])
    if not isinstance(document.get("canaries"), Mapping) or not document["canaries"]:
        raise UsageError(f"{path}: has no canaries; add `canaries:` as for `infercanary probe`")
    return document


def settings_text(settings: Mapping[str, Any], listen: int | str) -> str:
    """Return settings as YAML, with the address and the sweeps of an experiment, and without a journal.

    A sweep comes as soon as it may: half of the time is for sweeps, and the first comes an interval after the start.

    Args:
        settings: A ``probe.yaml`` as a document.
        listen: Port or address of the probe.
    """
    changes = {
        "canaries": {name: _swept_soon(canary) for name, canary in settings["canaries"].items()},
        "listen": listen,
        "journal": None,
    }
    return yaml.safe_dump({**settings, **changes}, sort_keys=False, allow_unicode=True)


def _swept_soon(canary: Any) -> Any:
    """Give a canary's sweep the pace of an experiment; the probe itself finds what is wrong with it."""
    sweep: Any = canary.get("sweep") if isinstance(canary, Mapping) else None
    seconds = sweep.get("seconds", _SWEEP_SECONDS) if isinstance(sweep, Mapping) else None
    if not isinstance(seconds, (int, float)):
        return canary
    return {**canary, "sweep": {**sweep, "every_seconds": max(1.0, 2.0 * seconds)}}
