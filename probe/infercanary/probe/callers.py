"""CPU time that the probe's port may use in its host process: 2 % of one CPU in the long run, less for one address."""

from __future__ import annotations

SHARE, BURST_SECONDS = 0.02, 0.5
"""Share of one CPU for the whole port, and its burst in seconds."""
ADDRESS_SHARE, ADDRESS_BURST_SECONDS = 0.003, 0.4
"""Share and burst for all connections of one address. A poll every 5 s takes a share below 0.001, with TLS too."""
_ADDRESSES = 64  # addresses with a budget; above this number, all address budgets are reset
_BURST_REST = 9  # sleep after a turn, in multiples of its CPU time: at most a tenth of a CPU, even in a burst
_LONGEST_REST_SECONDS = 1.0


class _Budget:
    """Token bucket of CPU seconds, full at the start."""

    def __init__(self, share: float, burst: float, now: float) -> None:
        self._share, self._burst, self._left, self._at = share, burst, burst, now

    def spend(self, seconds: float, now: float) -> float:
        """Subtract the seconds from the budget; return the rest, which is negative if the budget is overdrawn."""
        self._left = min(self._burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now
        return self._left


class Callers:
    """CPU budgets of the port. Each ``now`` is in seconds of the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._all = _Budget(SHARE, BURST_SECONDS, now)
        self._addresses: dict[str, _Budget] = {}

    def may_go_on(self, address: str, cpu_seconds: float, now: float) -> bool:
        """Charge a connection of this address. True if the connection may begin or go on."""
        if address not in self._addresses:
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            self._addresses[address] = _Budget(ADDRESS_SHARE, ADDRESS_BURST_SECONDS, now)
        return self._addresses[address].spend(cpu_seconds, now) > 0

    def rest(self, cpu_seconds: float, now: float) -> float:
        """Charge one turn of the loop; return the seconds to sleep after the turn."""
        debt = -self._all.spend(cpu_seconds, now)
        return min(max(_BURST_REST * cpu_seconds, debt / SHARE), _LONGEST_REST_SECONDS)
