"""What one probe may cost: so much a minute of each thing that costs, in one account.

Who is not in debt gets all that it asks for, and may be in debt then: a burst, as after an outage, loses nothing. Who
is in debt gets nothing more of that, and is polled again when the debt is paid, or a minute later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from infercanary.contract.report import Metric

Budget = Literal[
    "cpu_seconds",
    "judge_seconds",
    "bytes",
    "starts",
    "canaries",
    "runs",
    "samples",
    "environment_bytes",
    "series",
]
Total = Literal["shown_bytes", "shown_series", "held_bytes"]


class Allowance(NamedTuple):
    """So much a minute; what was not spent is kept, up to ``most``."""

    minute: float
    most: float


ALLOWED: Final[Mapping[Budget, Allowance]] = {
    "cpu_seconds": Allowance(0.6, 0.1),
    "judge_seconds": Allowance(3, 60),
    "bytes": Allowance(16 << 20, 16 << 20),
    "starts": Allowance(6, 60),
    "canaries": Allowance(0.5, 64),
    "runs": Allowance(3_000, 12_000),
    "samples": Allowance(50_000, 400_000),
    "environment_bytes": Allowance(128 << 10, 512 << 10),
    "series": Allowance(500, 10_000),
}
"""Several times what an honest probe spends, which answers with 40 kB each 5 s, and with 2,048 runs when an exporter
comes back; in a crash loop it starts six times a minute, and finds the runs of many starts in its journal."""

EXCEEDED = Metric(
    "infercanary_budget_exceeded_total",
    "counter",
    "Times that the container's probe exceeded a budget, by budget.",
    ("budget",),
    reading="Healthy is no increase. Causes: a crash loop, or labels that never repeat. [Each "
    "budget](exporter.md#budgets).",
)
METRICS = (EXCEEDED,)
BUDGETS: Final = (*get_args(Budget), *get_args(Total))

_LONGEST_WAIT = 60.0
_DEBT = -1e-6  # what rounding leaves is none


class Account:
    """Of one probe. Times are of the monotonic clock, and do not go back."""

    def __init__(self) -> None:
        self.exceeded: Counter[Budget | Total] = Counter()
        """How often it was in debt, or had more than its share of a total, by what it had too much of."""
        self._left = {budget: allowance.most for budget, allowance in ALLOWED.items()}
        self._at: float | None = None

    def spend(self, budget: Budget, amount: float, now: float) -> bool:
        """Take ``amount``, unless it is in debt already.

        Args:
            budget: Of what.
            amount: In its unit; nothing is always allowed.
            now: Seconds.

        Returns:
            Whether it may have that.
        """
        self._refill(now)
        allowed = amount <= 0 or self._left[budget] >= _DEBT
        if allowed:
            self._left[budget] -= amount
        if amount > 0 and self._left[budget] < _DEBT:
            self.exceeded[budget] += 1
        return allowed

    def wait(self, now: float) -> float:
        """How long it is not to be polled.

        Args:
            now: Seconds.

        Returns:
            Seconds until it has no debts, at most a minute; 0 where it has none.
        """
        self._refill(now)
        debts = (-left * 60.0 / ALLOWED[budget].minute for budget, left in self._left.items() if left < _DEBT)
        return min(_LONGEST_WAIT, max(debts, default=0.0))

    def _refill(self, now: float) -> None:
        minutes = 0.0 if self._at is None else max(0.0, now - self._at) / 60.0
        self._at = now
        for budget, allowance in ALLOWED.items():
            self._left[budget] = min(allowance.most, self._left[budget] + minutes * allowance.minute)
