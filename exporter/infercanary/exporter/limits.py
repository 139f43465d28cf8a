"""Limits on data from probes: budgets of each probe, and memory limits that all probes share."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

import structlog

from infercanary.contract.report import Family, Metric
from infercanary.exporter.discovery.base import Container, Key
from infercanary.exporter.expose import Lines

log = structlog.get_logger(__name__)

Budget = Literal[
    "cpu_seconds", "bytes", "starts", "canaries", "runs", "samples", "environment_bytes", "series"
]
Total = Literal["shown_bytes", "held_bytes"]


class Allowance(NamedTuple):
    """Token bucket: gains ``minute`` each minute, up to ``most``."""

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
"""Several times the usage of an honest probe. An honest probe answers with 40 kB every 5 s, and with 2,048 runs after
the exporter was down. In a crash loop, a probe starts six times a minute and reads runs of many starts from
its journal.
"""

EXCEEDED = Metric(
    "infercanary_budget_exceeded_total",
    "counter",
    "Times that the container's probe exceeded a budget, by budget.",
    ("budget",),
    reading="Healthy is no increase. Causes: a crash loop, or label values that never repeat. [Each "
    "budget](exporter.md#budgets).",
)
REFUSED = Metric(
    "infercanary_refused_containers",
    "gauge",
    "Containers that were found but are not polled, because the exporter has too little memory.",
    reading="Healthy is 0. Above 0, give the exporter more memory; the log names the containers.",
)
METRICS = (REFUSED,)
BUDGETS: Final = (*get_args(Budget), *get_args(Total))

BASE_BYTES: Final = 208 << 20
"""Memory of an exporter without probes: 100 MiB for the process, 50 MiB for connections, and the rest for reading one
answer.
"""
PROBE_BYTES: Final = 1_536 << 10
"""Memory for a probe at its limits: two thirds for its own state, one third for its part of the shared totals."""
UNLIMITED: Final = 1 << 50
"""Bytes of memory if there is no limit; cgroup v1 writes a larger number in this case."""
# Prometheus rejects an answer larger than its body_size_limit (100 MB in our config) as a whole.
SHOWN_BYTES = 80_000_000
# Minimum size that counts for a series. So at most 400,000 series fit, fewer than Prometheus' sample_limit.
_SERIES_BYTES = 200
_FAMILY_BYTES = 512 << 10  # maximum size of a family; each slow reader may keep an old copy
_LONGEST_WAIT = 60.0
_DEBT = -1e-6  # a smaller debt is due to rounding
_LOGGED = 20  # largest number of refused containers that one log line names
_REMEMBERED = 1_500  # number of remembered hashes, several times what an honest probe needs


class Account:
    """Budgets of one probe. Times are seconds of the monotonic clock.

    A probe without debt gets its full request, and may be in debt afterwards. So a burst (such as after an outage)
    loses nothing. A probe in debt gets nothing. The exporter polls such a probe again when the debt is paid, or after
    one minute at most.
    """

    def __init__(self) -> None:
        self.exceeded: Counter[Budget | Total] = Counter()
        self._left = {budget: allowance.most for budget, allowance in ALLOWED.items()}
        self._at = math.inf
        self._known = array("q")
        """Hashes of series and canaries; a set would take ten times the memory."""

    def spend(self, budget: Budget, amount: float, now: float) -> bool:
        """Take ``amount`` and return True, unless the probe is in debt; an amount of 0 is always allowed."""
        if amount <= 0:
            return True
        self._refill(now)
        allowed = self._left[budget] >= _DEBT
        if allowed:
            self._left[budget] -= amount
        if self._left[budget] < _DEBT:
            self.exceeded[budget] += 1
        return allowed

    def wait(self, now: float) -> float:
        """Return the seconds until the probe may be polled: until its debts are paid, at most a minute."""
        self._refill(now)
        debts = (-left * 60.0 / ALLOWED[budget].minute for budget, left in self._left.items() if left < _DEBT)
        return min(_LONGEST_WAIT, max(debts, default=0.0))

    def affordable_series(self, reported: Iterable[Lines], shown: Sequence[Lines], now: float) -> list[Lines]:
        """Select the families whose new series fit the budget. Prometheus keeps each new series in memory for hours."""
        layouts = {id(lines.layout) for lines in shown}  # a layout that is already exposed adds no new series
        return [
            lines
            for lines in reported
            if id(lines.layout) in layouts
            or self._spend_new("series", lines.layout.template.splitlines(), now)
        ]

    def affordable_canaries(self, names: Collection[str], now: float) -> set[str]:
        """Select the canaries that fit the budget. Each new canary has a verdict for hours, and rows in the store."""
        return {name for name in names if self._spend_new("canaries", [name], now)}

    def _spend_new(self, budget: Budget, things: Iterable[str | bytes], now: float) -> bool:
        new = set(map(hash, things)).difference(self._known)
        if not self.spend(budget, len(new), now):
            return False
        if new and len(self._known) > _REMEMBERED:
            del self._known[:]  # forgotten series and canaries count as new again
        self._known.extend(new)
        return True

    def _refill(self, now: float) -> None:
        minutes = max(0.0, now - self._at) / 60.0
        self._at = now
        for budget, allowance in ALLOWED.items():
            self._left[budget] = min(allowance.most, self._left[budget] + minutes * allowance.minute)


class Totals(NamedTuple):
    """Limits of all probes together."""

    probes: int
    shown_bytes: int
    """Size of the lines of all probes in ``/metrics``. If no two probes have the same labels, the lines take twice as
    much memory.
    """
    waiting_bytes: int
    """Limit for answers that are being received or wait for reading. Runs that wait for the store have the same limit.
    """
    read_bytes: int
    """Limit of the data that the judge reads from the store at once. Decoded data takes up to twelve times as much."""

    @classmethod
    def within(cls, memory: int) -> Totals:
        """Return the totals that fit into ``memory`` bytes."""
        room = max(PROBE_BYTES, memory - BASE_BYTES)
        part = min(128 << 20, room // 12)
        return cls(
            probes=room // PROBE_BYTES,
            shown_bytes=min(SHOWN_BYTES, part),
            waiting_bytes=part,
            read_bytes=min(32 << 20, max(1 << 20, memory // 128)),
        )


class Share:
    """A total that probes share: half in equal parts, the other half first come, first served."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.probes = 1
        self._extra: dict[Key, int] = {}

    def grant(self, key: Key, wanted: int) -> int:
        """Return the amount that a probe may use now, at most ``wanted``; 0 frees the probe's whole amount."""
        part = self.total // 2 // self.probes
        free = self.total // 2 - sum(self._extra.values()) + self._extra.pop(key, 0)
        extra = min(max(0, wanted - part), max(0, free))
        if extra:
            self._extra[key] = extra
        return min(wanted, part + extra)


class Shares:
    """Admits as many probes as fit into ``memory`` bytes, and divides the totals among them."""

    def __init__(self, memory: int = UNLIMITED) -> None:
        self.refused: frozenset[Key] = frozenset()
        """Containers whose probes do not fit."""
        totals = Totals.within(memory)
        self.shown, self.held = Share(totals.shown_bytes), Share(totals.waiting_bytes)
        self._most = totals.probes

    def admitted(self, found: Mapping[Key, Container], polled: Collection[Key]) -> dict[Key, Container]:
        """Return the containers that fit; containers in ``polled`` have priority.

        The number of refused containers is a metric, and newly refused containers are logged.
        """
        order = sorted(found, key=lambda key: key not in polled)
        refused = frozenset(order[self._most :])
        if new := sorted(refused - self.refused):
            log.warning(
                "not all probes are polled: give the exporter more memory",
                found=len(found), polled=self._most,
                refused=["/".join(filter(None, key)) for key in new[:_LOGGED]],
            )  # fmt: skip
        self.refused = refused
        self.shown.probes = self.held.probes = max(1, len(found) - len(refused))
        return {key: container for key, container in found.items() if key not in refused}

    def fitting(self, key: Key, lines: Sequence[Lines], account: Account) -> list[Lines]:
        """Return the first families that fit as a whole into the probe's part of ``/metrics``."""
        usual = [each for each in lines if len(each.text) <= _FAMILY_BYTES]
        sizes = [*accumulate(max(len(each.text), each.layout.series * _SERIES_BYTES) for each in usual)]
        granted = self.shown.grant(key, sizes[-1] if sizes else 0)
        fitting = [each for each, size in zip(usual, sizes, strict=True) if size <= granted]
        if len(fitting) < len(lines):
            account.exceeded["shown_bytes"] += 1
        return fitting

    def may_hold(self, key: Key, size: int, account: Account) -> bool:
        """Return True if ``size`` bytes of an arriving answer may be kept. A size of 0 frees the answer's bytes."""
        if self.held.grant(key, size) == size:
            return True
        account.exceeded["held_bytes"] += 1
        return False

    def forget(self, key: Key) -> None:
        for share in (self.shown, self.held):
            share.grant(key, 0)

    def families(self) -> list[Family]:
        """Return the number of refused containers, without container labels."""
        return [REFUSED.family(float(len(self.refused)))]


def memory_limit(root: Path = Path("/sys/fs/cgroup"), of_process: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory limit of this process's cgroup in bytes; in a container, this cgroup is at the root."""
    limits = [UNLIMITED]
    with suppress(OSError):
        # Path of cgroup v2; with v1 this path does not exist.
        name = of_process.read_text().rpartition(":")[2].strip().lstrip("/")
        for file in (root / name / "memory.max", root / "memory.max", root / "memory/memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # the file is missing, or contains `max`
                limits.append(int(file.read_text()))
    return min(limits)
