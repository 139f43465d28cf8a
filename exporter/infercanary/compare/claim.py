"""A claim about a shift, such as "40 % faster", held against the interval of one. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.judge.policy import Policy
from infercanary.render.units import interval, percent

SLACK = 0.5
"""Share of a claimed shift by which the interval may reach above the claim. At 1 a claim of 40 % would hold for any
gain that is not known well; near 0 no claim that is just true would ever hold."""

ClaimState = Literal["held", "refuted", "unknown"]
CLAIM_STATES: tuple[ClaimState, ...] = get_args(ClaimState)

OF_CLAIM: Mapping[ClaimState, ExitCode] = {
    "held": ExitCode.FINE,
    "refuted": ExitCode.REGRESSED,
    "unknown": ExitCode.INCONCLUSIVE,
}
"""State → the exit code of a command that was given a claim."""

_SHIFT = re.compile(r"([+-]\d{1,5}(?:\.\d+)?|0(?:\.0+)?) ?%?")


class Claim(msgspec.Struct, frozen=True):
    """A claim and what the interval says of it. Shifts are ratios: -0.4 is 40 % faster."""

    shift: float
    """What was claimed: at most this much slower, or at least this much faster."""
    reach: float
    """Below this the whole interval must lie: half of the claim above it."""
    state: ClaimState
    sentence: str


def parse(text: str) -> float | None:
    """Read ``--expect``.

    Args:
        text: Such as ``-40%`` (faster) or ``+5%`` (slower); empty where the option was left out.

    Returns:
        A ratio; None where the option was left out.

    Raises:
        UsageError: It is no shift, or has no sign.
    """
    if not text:
        return None
    given = text.strip().replace("\N{MINUS SIGN}", "-")
    found = _SHIFT.fullmatch(given)
    shift = float(found[1]) / 100 if found else math.nan
    if not shift > -1:
        raise UsageError(
            f"--expect {text[:40]}: give a shift of latency with its sign: -40% is 40 % faster, +5% is 5 % slower"
        )
    return shift


def check(shift: float, seen: tuple[float | None, float | None, float | None], policy: Policy) -> Claim:
    """Hold a claim against an interval.

    It holds where the interval reaches the claimed shift or less, and lies wholly below half of the claim above it:
    with ``-40%`` below -20 %, with ``+10%`` below +15 %. So a claimed gain holds only where there is one beyond doubt.
    It is refuted where the whole interval lies above the claimed shift.

    Args:
        shift: What is claimed, as a ratio.
        seen: The estimate and its interval, as ratios; None if not known.
        policy: How far above the claim the interval may reach (:data:`SLACK`, and for a claim that it is no slower
            ``smallest_effect``).

    Returns:
        The claim, with whether it holds.
    """
    reach = shift + SLACK * abs(shift)
    if shift >= 0:
        reach = max(reach, shift + policy.decide.smallest_effect)
    claimed = percent(shift)
    estimate, low, high = seen
    state: ClaimState = "unknown"
    if estimate is None or low is None or high is None:
        return Claim(shift, reach, state, f"not known whether {claimed} holds")
    words = interval(estimate, low, high)
    text = f"not known whether {claimed} holds: {words} reaches it, and also {percent(reach)}"
    if low > shift:
        state, text = "refuted", f"{claimed} is refuted: all of {words} is slower"
    elif high < reach:
        state, text = "held", f"{claimed} holds: {words} reaches it, and lies below {percent(reach)}"
    return Claim(shift, reach, state, text)
