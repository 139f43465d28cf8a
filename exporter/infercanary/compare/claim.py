"""A claim about a shift, such as "40 % faster", compared with the shift's interval. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from infercanary.command.exit_codes import ExitCode
from infercanary.command.settings import UsageError
from infercanary.judge.policy import Policy
from infercanary.render.units import interval, percent

SLACK = 0.5
"""Share of the claimed shift by which the upper end of the interval may exceed the claim. At 1, a claim of 40 % would
hold for any gain, even a tiny one. Near 0, even an exact claim would rarely hold.
"""

ClaimState = Literal["held", "refuted", "unknown"]

OF_CLAIM: Mapping[ClaimState, ExitCode] = {
    "held": ExitCode.FINE,
    "refuted": ExitCode.REGRESSED,
    "unknown": ExitCode.INCONCLUSIVE,
}
"""Exit code of the command, by state of the claim."""

_WORDS: Mapping[ClaimState, tuple[str, str]] = {
    "held": ("holds", "all below"),
    "refuted": ("is refuted", "all above"),
    "unknown": ("is not known to hold", "not all below"),
}
_SHIFT = re.compile(r"(-\d{1,2}(?:\.\d+)?|\+\d{1,5}(?:\.\d+)?|0(?:\.0+)?) ?%?")


class Claim(msgspec.Struct, frozen=True):
    """A claim, and its state after a comparison with the interval. Shifts are ratios: -0.4 is 40 % faster."""

    shift: float
    """Claimed shift: at most this much slower, or at least this much faster."""
    state: ClaimState
    sentence: str


def parse(text: str) -> float | None:
    """Return ``--expect`` as a ratio: ``-40%`` (faster) or ``+5%`` (slower); None if the option is empty.

    Raises:
        UsageError: The text is not a shift, or has no sign.
    """
    given = _SHIFT.fullmatch(text.strip().replace("\N{MINUS SIGN}", "-"))
    if text and not given:
        raise UsageError(
            f"--expect {text[:40]}: give a shift of latency with its sign: -40% is 40 % faster, +5% is 5 % slower"
        )
    return float(given[1]) / 100 if given else None


def check(shift: float, seen: Sequence[float | None], policy: Policy) -> Claim:
    """Compare a claim with an interval.

    The claim holds if the lower end of the interval is at or below the claimed shift, and the upper end is below a
    limit. The limit is the claim plus half of its size: -20 % for ``-40%``, +15 % for ``+10%``. So a claimed gain
    holds only if the whole interval is a gain. The claim is refuted if the whole interval lies above the claimed
    shift.

    Args:
        shift: Claimed shift, as a ratio.
        seen: The estimate and both ends of its interval, as ratios; None if unknown.
        policy: For a claim that is not a gain, the limit is at least ``smallest_effect`` above the claim.
    """
    least = policy.decide.smallest_effect if shift >= 0 else 0.0
    reach = shift + max(SLACK * abs(shift), least)
    estimate, low, high = seen
    if estimate is None or low is None or high is None:
        return Claim(shift, "unknown", f"{percent(shift)} is not known to hold: too few runs")
    state: ClaimState = "refuted" if low > shift else "held" if high < reach else "unknown"
    verb, where = _WORDS[state]
    end = percent(shift if state == "refuted" else reach)
    return Claim(shift, state, f"{percent(shift)} {verb}: {interval(estimate, low, high)}, {where} {end}")
