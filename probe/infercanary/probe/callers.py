"""What callers may take of the process that the probe runs in, which has requests of its own to serve."""

from __future__ import annotations

CPU_SHARE = 0.05
"""Of one CPU, that the answers to one address may take for long. A poll each 5 s takes less than 0.001."""
BURST_SECONDS = 1.0
"""Of CPU time, that they may take beyond that for a moment."""
_CONNECTION_SECONDS = 0.0003  # a thread that is started and ended, which it cannot count itself
_ADDRESSES = 64


class Callers:
    """Keeps the CPU time of each address that asked last, as a bucket that fills by :data:`CPU_SHARE`.

    Beyond 64 addresses, the one that was silent longest is forgotten. Threads need a lock around it.
    """

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # address → CPU seconds, and when that was so

    def admits(self, address: str, now: float) -> bool:
        """Whether it may be answered once more; a connection is charged.

        Args:
            address: Of whom asks.
            now: Seconds of a steady clock.
        """
        left = self._now(address, now)
        if left < _CONNECTION_SECONDS:
            return False
        self._keep(address, left - _CONNECTION_SECONDS, now)
        return True

    def charge(self, address: str, cpu_seconds: float, now: float) -> None:
        """Note what an answer took.

        Args:
            address: Of whom asked.
            cpu_seconds: Of this process.
            now: Seconds of the same clock.
        """
        self._keep(address, self._now(address, now) - cpu_seconds, now)

    def _now(self, address: str, now: float) -> float:
        left, since = self._left.get(address, (BURST_SECONDS, now))
        return min(BURST_SECONDS, left + (now - since) * CPU_SHARE)

    def _keep(self, address: str, left: float, now: float) -> None:
        self._left.pop(address, None)
        self._left[address] = left, now
        if len(self._left) > _ADDRESSES:
            del self._left[next(iter(self._left))]
