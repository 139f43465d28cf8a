"""What a canary measures: which model, by which settings. Both are components of the environment, of each canary."""

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
# A component is cut to 200, and what tells two models apart may be at the end of their paths.
_MOST_BYTES = 160
_BEGINNING = 30  # characters


def components(canary: str, target: Target, sweep: object = None) -> dict[str, str]:
    """The components of the environment that say what a canary measures.

    Args:
        canary: Its name.
        target: Open and warm.
        sweep: What of its sweep changes what that measures; None without one.

    Returns:
        Component → value; one that is not known is missing.
    """
    found = {}
    for component, known in ((MODEL, _model), (SETTINGS, _settings)):
        try:
            if value := known(target, sweep):
                found[of_canary(component, canary)] = value
        except Exception as error:  # whatever a model's own code does: it must not cost the canary
            log.info("canary %s: its %s cannot be identified: %s", canary, component, one_line(error))
    return found


def digest(settings: Mapping[str, Any]) -> str:
    """Digest settings; those that are empty or zero are left out.

    Args:
        settings: Plain values and structs.

    Returns:
        The same for the same settings, whatever their order.
    """
    plain = msgspec.to_builtins(settings, str_keys=True)
    return sha256(json.dumps(_kept(plain), sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _model(target: Target, _: object) -> str:
    found = str(target.identity() or "")
    encoded = found.encode(errors="backslashreplace")
    if len(encoded) <= _MOST_BYTES:
        return found
    return f"{found[:_BEGINNING]}… sha256:{sha256(encoded).hexdigest()[:_DIGITS]}"


def _settings(target: Target, sweep: object) -> str:
    settings = target.settings()
    return "" if settings is None else digest({"target": target.kind, "sweep": sweep, **settings})


def _kept(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _kept(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, False, 0, "", [], {})}
    if isinstance(value, (list, tuple)):
        return [_kept(each) for each in value]
    return value
