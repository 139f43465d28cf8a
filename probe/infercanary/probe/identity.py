"""Identity of a canary's measurement: its model and its settings, as components of the environment."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from infercanary.contract.vocabulary import MODEL, SETTINGS, of_canary
from infercanary.probe.deadline import one_line
from infercanary.probe.targets import Target

log = logging.getLogger("infercanary.probe")

_DIGITS = 16
# Hash longer identities: components are cut to 200 bytes, and the paths of two models may differ only at the end.
_MOST_BYTES = 160
_BEGINNING = 30  # number of characters at the beginning that a longer identity keeps


def components(canary: str, target: Target, sweep: object = None) -> dict[str, str]:
    """Return the components of the environment that identify a canary's measurement.

    Args:
        canary: Name of the canary.
        target: An open and warm target.
        sweep: Points of the canary's sweep; None without a sweep.

    Returns:
        Component → value; unknown components are missing.
    """
    values = {}
    for component, identify in ((MODEL, _model), (SETTINGS, _settings)):
        try:
            values[of_canary(component, canary)] = identify(target, sweep)
        except Exception as error:  # an error in a model's own code must not stop the canary
            log.info("canary %s: the %s cannot be identified: %s", canary, component, one_line(error))
    return {component: value for component, value in values.items() if value}


def digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of settings (plain values and structs). Order, empty values and zeros are ignored."""
    plain = msgspec.to_builtins(settings, str_keys=True)
    return _digest(json.dumps(_without_empty(plain), sort_keys=True).encode())


def _digest(text: bytes) -> str:
    return sha256(text).hexdigest()[:_DIGITS]


def _model(target: Target, _: object) -> str:
    identity = str(target.identity() or "")
    encoded = identity.encode(errors="backslashreplace")
    return identity if len(encoded) <= _MOST_BYTES else f"{identity[:_BEGINNING]}… sha256:{_digest(encoded)}"


def _settings(target: Target, sweep: object) -> str:
    settings = target.settings()
    return "" if settings is None else digest({"target": target.kind, "sweep": sweep, **settings})


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, False, 0, "", [], {})}
    return [_without_empty(item) for item in value] if isinstance(value, (list, tuple)) else value
