"""Environment variables that override how often a probe runs, at first and later, and how much of the time it takes.

``infercanary ab`` starts containers that do nothing else, with settings made for a server in production: a run every
10 s, at 1 % of the time, would take hours.
"""

from __future__ import annotations

import os

from infercanary.command.settings import UsageError

INTERVAL = "INFERCANARY_INTERVAL_SECONDS"
DUTY_CAP = "INFERCANARY_DUTY_CAP"
BURST = "INFERCANARY_BURST"

_LEAST_SECONDS, _MOST_SECONDS = 0.1, 86_400.0


def pace(interval_seconds: float, duty_cap: float) -> tuple[float, float]:
    """Apply the environment.

    Args:
        interval_seconds: As configured.
        duty_cap: As configured, a share of the time.

    Returns:
        Both, as the environment has them, else as given.

    Raises:
        UsageError: A variable is no number, or out of range.
    """
    interval = _number(INTERVAL)
    if interval is not None and not _LEAST_SECONDS <= interval <= _MOST_SECONDS:
        raise _mistake(INTERVAL, f"give seconds from {_LEAST_SECONDS:g} to {_MOST_SECONDS:.0f}")
    cap = _number(DUTY_CAP)
    if cap is not None and not 0 < cap <= 1:
        raise _mistake(DUTY_CAP, "give a share above 0, at most 1")
    return interval_seconds if interval is None else interval, duty_cap if cap is None else cap


def bursts(configured: bool | None) -> bool | None:
    """Whether a probe may run more often after its start.

    Args:
        configured: Without the environment; None where the probe decides.

    Returns:
        As the environment has it, else as given.

    Raises:
        UsageError: The variable is neither true nor false.
    """
    text = os.environ.get(BURST, "").lower()
    if text not in ("", "true", "false"):
        raise _mistake(BURST, "give true or false")
    return text == "true" if text else configured


def _number(name: str) -> float | None:
    text = os.environ.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        form = "a share, such as 0.05 for 5 %" if name == DUTY_CAP else "seconds, such as 10"
        raise _mistake(name, f"give {form}, or leave it out") from None


def _mistake(name: str, remedy: str) -> UsageError:
    return UsageError(f"environment: {name}={os.environ[name][:60]}: {remedy}")
