"""CPU time that callers may take of the process that the probe runs in, which has requests of its own to serve.

All callers together take at most 2 % of one CPU for long, wherever they come from. A part of it is for four addresses
that have a place: the first to come keep theirs while they get reports, so that an exporter is answered whatever others
do.
"""

from __future__ import annotations

PLACES = 4
PLACE_SHARE, PLACE_BURST_SECONDS = 0.0015, 0.1
"""Share of one CPU for an address with a place, and its burst in seconds. A poll each 5 s takes less than 0.0005."""
OTHERS_SHARE, OTHERS_BURST_SECONDS = 0.0025, 1.0
"""The same of all callers without a place together. Of the burst's first half, those with a place may take, too."""
ACCEPT_SHARE, ACCEPT_BURST_SECONDS = 0.0115, 0.1
"""The same of accepting connections, and of closing those that are refused: about 500 a second."""
SILENT_SECONDS = 60.0
"""Without a report, after which a place is free for another address."""
_CONNECTION_SECONDS = 0.0003  # to make room, and to start and end a thread, which it cannot count itself


class _Bucket:
    def __init__(self, share: float, burst: float, left: float, now: float) -> None:
        self._share, self._burst = share, burst
        self._left, self._at = left, now

    def left(self, now: float) -> float:
        return min(self._burst, self._left + (now - self._at) * self._share)

    def spend(self, seconds: float, now: float) -> None:
        self._left, self._at = self.left(now) - seconds, now

    def seconds_until(self, left: float, now: float) -> float:
        return max(0.0, (left - self.left(now)) / self._share)


class _Place:
    def __init__(self, now: float) -> None:
        # Empty at first: places that change hands must not add up to more.
        self.bucket = _Bucket(PLACE_SHARE, PLACE_BURST_SECONDS, 0.0, now)
        self.reported_at = now


class Callers:
    """Admits callers by the CPU time that is left. Threads need a lock around it.

    Args:
        now: Monotonic clock, seconds; so is each ``now`` of the methods.
    """

    def __init__(self, now: float) -> None:
        self._places: dict[str, _Place] = {}
        self._others = _Bucket(OTHERS_SHARE, OTHERS_BURST_SECONDS, OTHERS_BURST_SECONDS, now)
        self._accepting = _Bucket(ACCEPT_SHARE, ACCEPT_BURST_SECONDS, ACCEPT_BURST_SECONDS, now)

    def admits(self, address: str, now: float) -> bool:
        """Say whether a new connection of this address may be answered."""
        self._offer_place(address, now)
        place = self._places.get(address)
        if place is None:
            return self._others.left(now) > 0
        return place.bucket.left(now) > 0 or self._others.left(now) > OTHERS_BURST_SECONDS / 2

    def has_place(self, address: str) -> bool:
        """Say whether this address has a place."""
        return address in self._places

    def reported(self, address: str, now: float) -> None:
        """Note that this address was given a report: it keeps its place."""
        if address in self._places:
            self._places[address].reported_at = now

    def answered(self, address: str, cpu_seconds: float, now: float) -> None:
        """Charge a connection that ended."""
        cpu_seconds += _CONNECTION_SECONDS
        place = self._places.get(address)
        if place is not None and place.bucket.left(now) > 0:
            place.bucket.spend(cpu_seconds, now)
        else:
            self._others.spend(cpu_seconds, now)

    def accepted(self, cpu_seconds: float, now: float) -> float:
        """Charge the loop that accepts connections.

        Returns:
            Seconds for which it must not go on.
        """
        self._accepting.spend(cpu_seconds, now)
        if self._accepting.left(now) > 0:
            return 0.0
        return self._accepting.seconds_until(ACCEPT_BURST_SECONDS / 100, now)

    def _offer_place(self, address: str, now: float) -> None:
        if address in self._places:
            return
        for holder in [a for a, place in self._places.items() if now - place.reported_at > SILENT_SECONDS]:
            del self._places[holder]
        if len(self._places) < PLACES:
            self._places[address] = _Place(now)
