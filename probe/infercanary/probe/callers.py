"""CPU time that the probe's port may take of the process that it is a guest in: 2 % of one CPU in the long run.

A caller's address has a part of it, so that one address leaves the others theirs.
"""

from __future__ import annotations

ACCEPT_SHARE, ACCEPT_BURST_SECONDS = 0.011, 0.05
"""Share of one CPU for accepting connections and closing refused ones, and its burst in seconds."""
ALL_SHARE, ALL_BURST_SECONDS = 0.009, 1.0
"""The same for all connections together: TLS handshakes, headers and answers."""
ADDRESS_SHARE, ADDRESS_BURST_SECONDS = 0.003, 0.4
"""The same for the connections of one address. A poll each 5 s takes less than 0.001, also over TLS."""
_ADDRESSES = 64
"""Budgets kept at least; of more, those that are full again are forgotten."""


class _Budget:
    """Token bucket of CPU seconds, full at first."""

    def __init__(self, share: float, burst: float, now: float) -> None:
        self.burst = burst
        self._share, self._left, self._at = share, burst, now

    def spend(self, seconds: float, now: float) -> float:
        """Return what is left after that."""
        self._left = min(self.burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now
        return self._left


class Callers:
    """Budgets of the port.

    Args:
        now: Monotonic clock, seconds; so is each ``now`` of the methods.
    """

    def __init__(self, now: float) -> None:
        self._accepting = _Budget(ACCEPT_SHARE, ACCEPT_BURST_SECONDS, now)
        self._all = _Budget(ALL_SHARE, ALL_BURST_SECONDS, now)
        self._addresses: dict[str, _Budget] = {}

    def may_spend(self, address: str, now: float) -> bool:
        """Say whether a connection of this address may go on, or begin."""
        budget = self._addresses.get(address)
        return self._all.spend(0.0, now) > 0 and (budget is None or budget.spend(0.0, now) > 0)

    def spend(self, address: str, cpu_seconds: float, now: float) -> None:
        """Charge a connection."""
        if address not in self._addresses:
            if len(self._addresses) >= _ADDRESSES:
                self._addresses = {a: b for a, b in self._addresses.items() if b.spend(0.0, now) < b.burst}
            self._addresses[address] = _Budget(ADDRESS_SHARE, ADDRESS_BURST_SECONDS, now)
        self._addresses[address].spend(cpu_seconds, now)
        self._all.spend(cpu_seconds, now)

    def accepted(self, cpu_seconds: float, now: float) -> float:
        """Charge the acceptance of connections; return the seconds for which no more may be accepted."""
        return max(0.0, -self._accepting.spend(cpu_seconds, now) / ACCEPT_SHARE)
