"""Limits of what probes may send and hold: each probe's account, and what all of them share by memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import structlog

from infercanary.client.limits import Limits
from infercanary.contract.report import Family, Metric
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.expose import Layout, Lines

log = structlog.get_logger(__name__)

Budget = Literal[
    "cpu_seconds", "bytes", "starts", "canaries", "runs", "samples", "environment_bytes", "series"
]
Total = Literal["shown_bytes", "shown_series", "held_bytes"]


class Allowance(NamedTuple):
    """Amount a minute; what was not spent is kept, up to ``most``."""

    minute: float
    most: float


ALLOWED: Final[Mapping[Budget, Allowance]] = {
    "cpu_seconds": Allowance(0.6, 0.1),
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
REFUSED = Metric(
    "infercanary_refused_containers",
    "gauge",
    "Containers that were found but are not polled: they exceed the exporter's memory.",
    reading="Healthy is 0. The log names them: give the exporter more memory.",
)
METRICS = (REFUSED,)
BUDGETS: Final = (*get_args(Budget), *get_args(Total))

BASE_BYTES: Final = 208 << 20
"""Memory of an exporter without probes: 100 MiB of its process, 50 MiB of connections, and one answer being read."""
PROBE_BYTES: Final = 1_536 << 10
"""Memory of a probe at its limits: two thirds are its own, the rest is its part of the totals."""
_LONGEST_WAIT = 60.0
_DEBT = -1e-6  # less is a rounding error
_UNBOUND = 128 << 20  # bytes of each total where memory is not limited
_READ_LEAST, _READ_MOST = 1 << 20, 32 << 20
_LOGGED = 20  # refused containers that one line of the log names
_NO_LIMIT = 1 << 50  # cgroup v1 writes a larger number where there is no limit
_FAMILY_BYTES = 512 << 10  # of one family: each slow reader may keep one that was replaced meanwhile
_REMEMBERED = 1_500  # hashes: several times what an honest probe has


class Account:
    """Budgets of one probe, in seconds of the monotonic clock.

    A probe without debt gets all that it asks for, and may be in debt then: a burst, as after an outage, loses nothing.
    A probe in debt gets nothing more, and is polled again when the debt is paid, or a minute later.
    """

    def __init__(self) -> None:
        self.exceeded: Counter[Budget | Total] = Counter()
        self._left = {budget: allowance.most for budget, allowance in ALLOWED.items()}
        self._at: float | None = None
        self._known: dict[object, frozenset[int]] = {}

    def spend(self, budget: Budget, amount: float, now: float) -> bool:
        """Take ``amount`` and return True, unless the probe is in debt; nothing is always allowed."""
        self._refill(now)
        allowed = amount <= 0 or self._left[budget] >= _DEBT
        if allowed:
            self._left[budget] -= amount
        if amount > 0 and self._left[budget] < _DEBT:
            self.exceeded[budget] += 1
        return allowed

    def wait(self, now: float) -> float:
        """Seconds until the probe may be polled: until its debts are paid, at most a minute."""
        self._refill(now)
        debts = (-left * 60.0 / ALLOWED[budget].minute for budget, left in self._left.items() if left < _DEBT)
        return min(_LONGEST_WAIT, max(debts, default=0.0))

    def affordable_series(self, reported: Iterable[Lines], shown: Sequence[Lines], now: float) -> list[Lines]:
        """Families of a report whose new series the budget allows: a series costs Prometheus memory for hours.

        Args:
            reported: The last answer, by family.
            shown: The answer before.
            now: Seconds of the monotonic clock.
        """
        layouts = {id(lines.layout) for lines in shown}  # the same layout has the same series
        return [
            lines
            for lines in reported
            if id(lines.layout) in layouts
            or self._spend_new("series", lines.layout.name, _series_of(lines.layout), now)
        ]

    def affordable_canaries(self, names: Collection[str], now: float) -> set[str]:
        """Canaries whose runs the budget allows: each new one costs a verdict for hours, and rows of the store."""
        return {name for name in names if self._spend_new("canaries", None, frozenset((hash(name),)), now)}

    def _spend_new(self, budget: Budget, group: str | None, hashes: frozenset[int], now: float) -> bool:
        known = self._known.get(group, frozenset())
        if not self.spend(budget, len(hashes - known), now):
            return False
        if not hashes <= known:
            if sum(map(len, self._known.values())) + len(self._known) > _REMEMBERED:
                self._known.clear()  # what is known now is paid for once more
            self._known[group] = self._known.get(group, frozenset()) | hashes
        return True

    def _refill(self, now: float) -> None:
        minutes = 0.0 if self._at is None else max(0.0, now - self._at) / 60.0
        self._at = now
        for budget, allowance in ALLOWED.items():
            self._left[budget] = min(allowance.most, self._left[budget] + minutes * allowance.minute)


_series: WeakKeyDictionary[Layout, frozenset[int]] = WeakKeyDictionary()
"""Hashes of a layout's series: the same for the hundreds of containers that report it."""


def _series_of(layout: Layout) -> frozenset[int]:
    hashes = _series.get(layout)
    if hashes is None:
        hashes = _series[layout] = frozenset(map(hash, layout.template.split(b"\n")[:-1]))
    return hashes


class Totals(NamedTuple):
    """Limits of all probes together."""

    probes: int
    shown_bytes: int
    """Bytes of their part of ``/metrics``; memory for them is twice as much, where no two have the same labels."""
    shown_series: int
    held_bytes: int
    """Bytes of answers that are coming in, or wait to be read."""
    queue_bytes: int
    """Bytes of runs that wait for the store."""
    read_bytes: int
    """Bytes that the judge reads of the store at once; memory for them is up to twelve times as much."""

    @classmethod
    def within(cls, limits: Limits, memory: int | None) -> Totals:
        """Totals of the settings, as far as they fit into ``memory`` bytes; None is unlimited."""
        if memory is None:
            return cls(limits.probes, limits.shown_bytes, limits.shown_series, _UNBOUND, _UNBOUND, _READ_MOST)
        room = max(PROBE_BYTES, memory - BASE_BYTES)
        part = min(_UNBOUND, room // 12)
        return cls(
            min(limits.probes, room // PROBE_BYTES),
            min(limits.shown_bytes, part),
            limits.shown_series,
            part,
            part,
            min(_READ_MOST, max(_READ_LEAST, memory // 128)),
        )


class Share:
    """A total that probes share: half of it in equal parts, the other half as they come."""

    def __init__(self) -> None:
        self.probes = 1
        self._extra: dict[Key, int] = {}

    def grant(self, key: Key, wanted: int, total: int) -> int:
        """Amount that a probe may have now, at most ``wanted``; 0 gives all back."""
        part = total // 2 // self.probes
        free = total // 2 - sum(self._extra.values()) + self._extra.pop(key, 0)
        extra = min(max(0, wanted - part), max(0, free))
        if extra:
            self._extra[key] = extra
        return min(wanted, part + extra)


class Shares:
    """Admission of probes by memory, and each one's part of the totals.

    Args:
        memory: Bytes that the process may take; None is unlimited.
    """

    def __init__(self, memory: int | None) -> None:
        self.refused: frozenset[Key] = frozenset()
        """Containers whose probes do not fit."""
        self._memory = memory
        self._bytes, self._series, self._held = Share(), Share(), Share()

    def admitted(
        self, found: Mapping[Key, Container], polled: Collection[Key], limits: Limits
    ) -> dict[Key, Container]:
        """Containers that fit, those in ``polled`` first; the others are counted, and new ones named in the log."""
        most = Totals.within(limits, self._memory).probes
        order = sorted(found, key=lambda key: key not in polled)
        refused = frozenset(order[most:])
        if new := sorted(refused - self.refused):
            log.warning(
                "not all probes are polled: give the exporter more memory",
                found=len(found), polled=most, memory_limit=self._memory,
                refused=["/".join(filter(None, key)) for key in new[:_LOGGED]],
            )  # fmt: skip
        self.refused = refused
        for share in (self._bytes, self._series, self._held):
            share.probes = max(1, len(found) - len(refused))
        return {key: container for key, container in found.items() if key not in refused}

    def fitting(self, key: Key, lines: Sequence[Lines], account: Account, limits: Limits) -> list[Lines]:
        """First whole families that fit into a probe's part of what ``/metrics`` shows."""
        totals = Totals.within(limits, self._memory)
        if any(len(each.text) > _FAMILY_BYTES for each in lines):
            account.exceeded["shown_bytes"] += 1
            lines = [each for each in lines if len(each.text) <= _FAMILY_BYTES]
        sizes = [*accumulate(len(each.text) for each in lines)]
        series = [*accumulate(each.layout.series for each in lines)]
        fitting = len(lines)
        shares: tuple[tuple[Total, Share, list[int], int], ...] = (
            ("shown_bytes", self._bytes, sizes, totals.shown_bytes),
            ("shown_series", self._series, series, totals.shown_series),
        )
        for name, share, sums, total in shares:
            granted = share.grant(key, sums[-1] if sums else 0, total)
            if (most := bisect_right(sums, granted)) < len(lines):
                account.exceeded[name] += 1
                fitting = min(fitting, most)
        return [*lines[:fitting]]

    def may_hold(self, key: Key, size: int, account: Account, limits: Limits) -> bool:
        """True if ``size`` bytes of an answer may be kept while it comes in; 0 once it was read."""
        total = Totals.within(limits, self._memory).held_bytes
        if self._held.grant(key, size, total) == size:
            return True
        account.exceeded["held_bytes"] += 1
        return False

    def forget(self, key: Key) -> None:
        """Give back what a probe had."""
        for share in (self._bytes, self._series, self._held):
            share.grant(key, 0, 0)

    def families(self) -> list[Family]:
        """Number of refused containers, without labels of a container."""
        return [REFUSED.family(float(len(self.refused)))]


def memory_limit(
    root: Path = Path("/sys/fs/cgroup"), of_process: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Memory limit in bytes of this process' control group, or of one above it; None where there is none.

    Args:
        root: Mount point of control groups.
        of_process: Control groups of the process; in a container its own is mostly ``/``.
    """
    try:
        entries = [line.split(":", 2) for line in of_process.read_text().splitlines()]
    except OSError:
        return None
    limits = []
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = top / path.lstrip(
            "/"
        )  # of another namespace it is not there, and the container's own is at the top
        while folder.is_relative_to(top):
            limits += _number(folder / name)
            folder = folder.parent
    return min(limits, default=None)


def _number(file: Path) -> list[int]:
    try:
        number = int(file.read_text())
    except (OSError, ValueError):  # there is none, or it is `max`
        return []
    return [number] if 0 < number < _NO_LIMIT else []
