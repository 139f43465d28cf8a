"""Settings of an experiment's probe: the user's ``probe.yaml`` with the pace of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from infercanary.command.settings import UsageError, load

PACE = {"INFERCANARY_INTERVAL_SECONDS": "0.5", "INFERCANARY_DUTY_CAP": "1"}
"""Environment variables for the pace of a probe in an experiment. Runs may be frequent, because no production traffic
competes with them.
"""

_SWEEP_SECONDS = 10.0  # duration of a sweep without `seconds` in its settings


def load_settings(path: str) -> dict[str, Any]:
    """Read the ``probe.yaml`` at ``path``. The probe itself checks the canaries at its start.

    Raises:
        UsageError: The file cannot be read, or has no canaries.
    """
    document = load(path, dict[str, Any])
    if not isinstance(document.get("canaries"), Mapping) or not document["canaries"]:
        raise UsageError(f"{path}: has no canaries; add `canaries:` as for `infercanary probe`")
    return document


def settings_text(settings: Mapping[str, Any], listen: int | str) -> str:
    """Return settings as YAML, with the address and sweep interval of an experiment, and without a journal.

    Sweeps are as frequent as the probe allows (half of the time). The first sweep comes one interval after the start.

    Args:
        settings: Content of a ``probe.yaml``.
        listen: Port or address of the probe.
    """
    changes = {
        "canaries": {name: _swept_soon(canary) for name, canary in settings["canaries"].items()},
        "listen": listen,
        "journal": None,
    }
    return yaml.safe_dump({**settings, **changes}, sort_keys=False, allow_unicode=True)


def _swept_soon(canary: Any) -> Any:
    """Set a canary's sweep interval to the pace of an experiment; the probe itself reports mistakes in the settings."""
    sweep: Any = canary.get("sweep") if isinstance(canary, Mapping) else None
    seconds = sweep.get("seconds", _SWEEP_SECONDS) if isinstance(sweep, Mapping) else None
    if not isinstance(seconds, (int, float)):
        return canary
    return {**canary, "sweep": {**sweep, "every_seconds": max(1.0, 2.0 * seconds)}}
