"""What all probes together may hold, by the memory that the exporter has; and how many of them fit into that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec
import structlog

from infercanary.client.limits import Limits
from infercanary.contract.report import Family, Metric
from infercanary.exporter.budget import Account, Total
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.expose import Lines
from infercanary.store.reading import fair

log = structlog.get_logger(__name__)

REFUSED = Metric(
    "infercanary_refused_containers",
    "gauge",
    "Containers that were found but are not polled: they exceed the exporter's memory or `limits.probes`.",
    reading="Healthy is 0. The log names them: give the exporter more memory, or raise `limits.probes`.",
)
METRICS = (REFUSED,)

BASE_BYTES: Final = 208 << 20
"""Of an exporter without probes: 100 MiB of its process, 50 MiB of connections, and one answer that is taken apart."""
PROBE_BYTES: Final = 1_536 << 10
"""Of a probe that holds all that it may: two thirds are its own, the rest is its shares of what is below."""
_UNBOUND = 128 << 20  # bytes of each total where memory is not limited
_READ_LEAST, _READ_MOST = 1 << 20, 32 << 20
_NAMED = 20  # of those that are refused, in one line of the log
_NO_LIMIT = 1 << 50  # beyond it, cgroup v1 means that there is none


class Ceilings(msgspec.Struct, frozen=True):
    """What all probes hold together, at most."""

    shown_bytes: int
    """Of their part of ``/metrics``; in memory they take twice as much, where no two have the same labels."""
    shown_series: int
    held_bytes: int
    """Of answers that are coming in, or wait to be taken apart."""
    queue_bytes: int
    """Of runs that wait for the store."""
    known_bytes: int
    """Of what the judge found."""
    read_bytes: int
    """Of what the judge reads of the store at once; in memory it takes up to twelve times as much."""
    probes: int

    @classmethod
    def within(cls, limits: Limits, memory: int | None) -> Ceilings:
        """Those of the settings, as far as they fit.

        Args:
            limits: As in the settings.
            memory: Bytes that the process may take; None for any number.

        Returns:
            At least one probe.
        """
        if memory is None:
            return cls(
                limits.shown_bytes,
                limits.shown_series,
                _UNBOUND,
                _UNBOUND,
                _UNBOUND,
                _READ_MOST,
                limits.probes,
            )
        room = max(PROBE_BYTES, memory - BASE_BYTES)
        part = min(_UNBOUND, room // 12)
        probes = min(limits.probes, room // PROBE_BYTES)
        return cls(
            min(limits.shown_bytes, part),
            limits.shown_series,
            part,
            part,
            part,
            min(_READ_MOST, max(_READ_LEAST, memory // 128)),
            probes,
        )


class FairShare:
    """A total that several share: who wants less than the others has it, and those share the rest (max-min fairness).

    So nobody has more for asking for more while somebody has less.
    """

    def __init__(self) -> None:
        self._wanted: dict[Key, int] = {}
        self._granted: dict[Key, int] = {}

    def want(self, key: Key, size: int, total: int) -> int:
        """What one may have now; somebody else may then have too much (:meth:`over`).

        Args:
            key: Who.
            size: What it would have; 0 to give back all.
            total: What there is.

        Returns:
            From 0 to ``size``.
        """
        if not size:
            self._wanted.pop(key, None)
            self._granted.pop(key, None)
            return 0
        self._wanted[key] = size
        self._granted[key] = min(size, fair(self._wanted.values(), total))
        return self._granted[key]

    def over(self, total: int) -> list[Key]:
        """Who has more than its share, the most first, as many as have to give some back.

        Args:
            total: What there is.

        Returns:
            Keys; none where all fits.
        """
        excess = sum(self._granted.values()) - total
        if excess <= 0:
            return []
        found = []
        share = fair(self._wanted.values(), total)
        for key in sorted(self._granted, key=lambda key: self._granted[key], reverse=True):
            if excess <= 0 or self._granted[key] <= share:
                break
            excess -= self._granted[key] - share
            found.append(key)
        return found


class Shares:
    """What there is for all probes, and who has how much of it.

    Args:
        memory: Bytes that the process may take; None for any number.
    """

    def __init__(self, memory: int | None) -> None:
        self.refused: frozenset[Key] = frozenset()
        """Containers whose probes do not fit."""
        self._memory = memory
        self._bytes, self._series, self._held = FairShare(), FairShare(), FairShare()

    def admitted(
        self, found: Mapping[Key, Container], polled: Collection[Key], limits: Limits
    ) -> dict[Key, Container]:
        """Those that fit; the others are counted, and named where they are new.

        Args:
            found: All containers with a probe.
            polled: Those that are polled by now: they go first.
            limits: As in the settings.

        Returns:
            The same, without those.
        """
        most = Ceilings.within(limits, self._memory).probes
        order = sorted(found, key=lambda key: key not in polled)
        refused = frozenset(order[most:])
        if new := sorted(refused - self.refused):
            log.warning(
                "not all probes are polled: give the exporter more memory, or raise limits.probes",
                found=len(found), polled=most, memory_limit=self._memory,
                refused=["/".join(filter(None, key)) for key in new[:_NAMED]],
            )  # fmt: skip
        self.refused = refused
        return {key: container for key, container in found.items() if key not in refused}

    def fitting(self, key: Key, lines: Sequence[Lines], account: Account, limits: Limits) -> list[Lines]:
        """The first families that fit into a probe's share of what ``/metrics`` shows.

        Args:
            key: Of its container.
            lines: All that it may show by itself.
            account: Of the probe, where it is counted if it had more.
            limits: As in the settings.

        Returns:
            Whole families.
        """
        totals = Ceilings.within(limits, self._memory)
        sizes = [*accumulate(len(each.text) for each in lines)]
        series = [*accumulate(each.layout.series for each in lines)]
        fitting = len(lines)
        of_all: tuple[tuple[Total, FairShare, list[int], int], ...] = (
            ("shown_bytes", self._bytes, sizes, totals.shown_bytes),
            ("shown_series", self._series, series, totals.shown_series),
        )
        for name, shared, sums, total in of_all:
            share = shared.want(key, sums[-1] if sums else 0, total)
            if (most := bisect_right(sums, share)) < len(lines):
                account.exceeded[name] += 1
                fitting = min(fitting, most)
        return [*lines[:fitting]]

    def may_hold(self, key: Key, size: int, account: Account, limits: Limits) -> bool:
        """Whether so much of an answer may be kept while it comes in.

        Args:
            key: Of the container.
            size: Bytes; 0 once it was taken apart.
            account: Of the probe, where it is counted if it has more than its share.
            limits: As in the settings.

        Returns:
            False where others want their share of what there is.
        """
        total = Ceilings.within(limits, self._memory).held_bytes
        if self._held.want(key, size, total) == size:
            return True
        account.exceeded["held_bytes"] += 1
        return False

    def over(self, limits: Limits) -> list[Key]:
        """Whose families do not all fit any more, since somebody else has come.

        Args:
            limits: As in the settings.

        Returns:
            Keys of their containers.
        """
        totals = Ceilings.within(limits, self._memory)
        found = [*self._bytes.over(totals.shown_bytes), *self._series.over(totals.shown_series)]
        return [*dict.fromkeys(found)]

    def forget(self, key: Key) -> None:
        """Give back what a probe had.

        Args:
            key: Of its container.
        """
        for shared in (self._bytes, self._series, self._held):
            shared.want(key, 0, 0)

    def families(self) -> list[Family]:
        """How many containers are refused.

        Returns:
            Families without labels of a container.
        """
        return [REFUSED.family(float(len(self.refused)))]


def memory_limit(
    root: Path = Path("/sys/fs/cgroup"), of_process: Path = Path("/proc/self/cgroup")
) -> int | None:
    """The memory that this process' control group, or one above it, may take.

    Args:
        root: Where control groups are mounted.
        of_process: Which ones a process is in; in a container its own is mostly ``/``.

    Returns:
        Bytes; None where nothing limits it, or no limit can be read.
    """
    try:
        entries = [line.split(":", 2) for line in of_process.read_text().splitlines()]
    except OSError:
        return None
    found = []
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = top / path.lstrip(
            "/"
        )  # of another namespace it is not there, and the container's own is at the top
        while folder.is_relative_to(top):
            found += _number(folder / name)
            folder = folder.parent
    return min(found, default=None)


def _number(file: Path) -> list[int]:
    try:
        number = int(file.read_text())
    except (OSError, ValueError):  # there is none, or it is `max`
        return []
    return [number] if 0 < number < _NO_LIMIT else []
