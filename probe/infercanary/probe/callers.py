"""Limits on the port's CPU time: 2 % of one CPU in the long run, and less for a single address."""

from __future__ import annotations

from collections import Counter

SHARE, BURST_SECONDS = 0.02, 0.5
"""Limits of the whole port: share of one CPU in the long run, and CPU seconds of a burst."""
ADDRESS_SECONDS, WINDOW_SECONDS = 0.3, 100.0
"""CPU seconds for all connections of one address within a window. Polls every 5 s take below 0.1 s, even with TLS."""
_ADDRESSES = 64  # largest number of counted addresses; a new address above this number resets all counts
# sleep after a turn, in multiples of the turn's CPU time: even a burst uses at most a tenth of a CPU
_BURST_REST = 9
_LONGEST_REST_SECONDS = 1.0


class Callers:
    """CPU budgets of the port. Each ``now`` is in seconds of the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._left, self._at, self._until = BURST_SECONDS, now, now
        self._spent: Counter[str] = Counter()  # address → CPU seconds in the present window

    def may_go_on(self, address: str, cpu_seconds: float, now: float) -> bool:
        """Charge CPU time to an address. True if the connection of this address may begin or continue."""
        if now >= self._until or len(self._spent) > _ADDRESSES:
            self._spent.clear()
            self._until = now + WINDOW_SECONDS
        self._spent[address] += cpu_seconds  # type: ignore[assignment]
        return self._spent[address] < ADDRESS_SECONDS

    def rest(self, cpu_seconds: float, now: float) -> float:
        """Charge one turn of the loop to the port's token bucket. Return the seconds to sleep after the turn."""
        self._left = min(BURST_SECONDS, self._left + (now - self._at) * SHARE) - cpu_seconds
        self._at = now
        return min(max(_BURST_REST * cpu_seconds, -self._left / SHARE), _LONGEST_REST_SECONDS)
