"""A claim with its measured value, and the decision whether the claim holds."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Verdict = Literal["held", "refuted", "not shown"]

# Student's t, 97.5 %, by degrees of freedom; beyond the table, the normal distribution's 1.96 is close
# enough.
_T = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)
_RESAMPLES = 1000


class Measured(NamedTuple):
    """One row of the table: a claim, its bound, and the value with its 95 % interval."""

    claim: str
    bound: str
    """Bound in words, such as ``≤ 1.005``."""
    value: float
    low: float
    high: float
    least: float = -math.inf
    """Lower bound, in the value's unit."""
    most: float = math.inf
    """Upper bound, in the value's unit."""
    unit: str = ""
    note: str = ""
    decided: bool = True
    """False if the measurement used a CPU or a stand-in instead of the claim's device. The claim is then left
    undecided.
    """

    @property
    def verdict(self) -> Verdict:
        """Return "held" if the whole interval is within the bounds, "refuted" if the whole interval is outside."""
        if not self.decided or math.isnan(self.value):
            return "not shown"
        if self.least <= self.low and self.high <= self.most:
            return "held"
        if self.high < self.least or self.low > self.most:
            return "refuted"
        return "not shown"

    def as_json(self) -> dict[str, Any]:
        """Return the values for the state file; numbers that are not finite become text."""
        return {
            name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
            for name, value in self._asdict().items()
        }


def from_json(found: dict[str, Any]) -> Measured:
    numbers = ("value", "low", "high", "least", "most")
    values: dict[str, Any] = {name: float(v) if name in numbers else v for name, v in found.items()}
    return Measured(**values)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of independent values and its 95 % interval, by Student's t.

    With one value, the interval is infinite.
    """
    middle = statistics.fmean(values)
    if len(values) < 2:
        return middle, -math.inf, math.inf
    freedom = len(values) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else 1.96
    error = t * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - error, middle + error


def share(successes: int, trials: int) -> tuple[float, float, float]:
    """Return a share and its 95 % Wilson interval; with 0 trials, the interval is from 0 to 1."""
    if not trials:
        return math.nan, 0.0, 1.0
    z, p = 1.96, successes / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return p, max(0.0, middle - half), min(1.0, middle + half)


def paired_ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    of: Callable[[Sequence[float]], float],
) -> tuple[float, float, float]:
    """Return the ratio of a statistic, first sides to second sides, with its 95 % bootstrap interval.

    The bootstrap resamples whole pairs, because requests in a block are correlated.
    """

    def ratio(chosen: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        first, second = ([value for pair in chosen for value in pair[side]] for side in (0, 1))
        return of(first) / of(second)

    rng = random.Random(1)
    drawn = sorted(ratio(rng.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    return ratio(pairs), drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES)]


def quantile(values: Sequence[float], percent: int) -> float:
    """Return a quantile of a sample, by linear interpolation."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def row(measured: Measured, step: str) -> str:
    """Return a line of the table."""
    numbers = f"{measured.value:.4g}{measured.unit} [{measured.low:.4g}, {measured.high:.4g}]"
    cells = (measured.claim, measured.bound, numbers, measured.verdict, step, measured.note)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
