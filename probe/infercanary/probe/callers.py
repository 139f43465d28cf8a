"""CPU time that the probe's port may take of its host process: 2 % of one CPU in the long run, a part per address."""

from __future__ import annotations

SHARE, BURST_SECONDS = 0.02, 0.5
"""Share of one CPU for the port as a whole, and its burst in seconds."""
ADDRESS_SHARE, ADDRESS_BURST_SECONDS = 0.003, 0.4
"""The same for the connections of one address. A poll each 5 s takes less than 0.001, also over TLS."""
_ADDRESSES = (
    64  # with a budget; so many that spend theirs spend the whole port's too, and all may begin again
)
_BURST_REST = (
    9  # times a turn's CPU time that the loop sleeps after it: a tenth of a CPU at most, also in a burst
)
_LONGEST_REST_SECONDS = 1.0


class _Budget:
    """Token bucket of CPU seconds, full at first."""

    def __init__(self, share: float, burst: float, now: float) -> None:
        self._share, self._burst, self._left, self._at = share, burst, burst, now

    def spend(self, seconds: float, now: float) -> float:
        """Return what is left after that."""
        self._left = min(self._burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now
        return self._left


class Callers:
    """Budgets of the port. Each ``now`` is of the monotonic clock, seconds."""

    def __init__(self, now: float) -> None:
        self._all = _Budget(SHARE, BURST_SECONDS, now)
        self._addresses: dict[str, _Budget] = {}

    def may_go_on(self, address: str, cpu_seconds: float, now: float) -> bool:
        """Charge a connection of this address; say whether it may go on, or begin."""
        if address not in self._addresses:
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            self._addresses[address] = _Budget(ADDRESS_SHARE, ADDRESS_BURST_SECONDS, now)
        return self._addresses[address].spend(cpu_seconds, now) > 0

    def rest(self, cpu_seconds: float, now: float) -> float:
        """Charge a turn of the loop; return the seconds to sleep after it."""
        debt = -self._all.spend(cpu_seconds, now)
        return min(max(_BURST_REST * cpu_seconds, debt / SHARE), _LONGEST_REST_SECONDS)
