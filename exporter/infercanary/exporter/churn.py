"""What of a probe is new: each series costs Prometheus memory for hours, also where it is never seen again; each canary
costs the judge a verdict for as long, and the store its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from weakref import WeakKeyDictionary

from infercanary.exporter.budget import Account
from infercanary.exporter.expose import Layout, Lines

_MOST_KNOWN = 2_500  # hashes: several times what an honest probe has
_MOST_FAMILIES = 500  # the same; a set takes more than its hash
_MOST_CANARIES = 256  # the same


_series: WeakKeyDictionary[Layout, frozenset[int]] = WeakKeyDictionary()
"""Hashes of a layout's series: the same for the hundreds of containers that report it."""


class KnownSeries:
    """Those that one probe has shown, by their hashes: one that comes back is not new."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[int]] = {}  # by the hash of the family's name

    def affordable(
        self, reported: Iterable[Lines], shown: Sequence[Lines], account: Account, now: float
    ) -> list[Lines]:
        """The families of a report whose new series the account of its probe allows.

        Args:
            reported: By the last answer.
            shown: By the one before.
            account: Of the probe.
            now: Seconds, of the monotonic clock.

        Returns:
            Families, each with all of its series, in the same order.
        """
        layouts = {id(lines.layout) for lines in shown}  # the same one has the same series
        afforded = []
        for lines in reported:
            if id(lines.layout) not in layouts:
                series, name = _of(lines.layout), hash(lines.layout.name)
                known = self._known.get(name, frozenset())
                if not account.spend("series", len(series - known), now):
                    continue
                self._known[name] = series if known <= series else known | series
            afforded.append(lines)
        if (
            len(self._known) > _MOST_FAMILIES or sum(map(len, self._known.values())) > _MOST_KNOWN
        ):  # those of now are paid for once more
            self._known.clear()
        return afforded


def _of(layout: Layout) -> frozenset[int]:
    found = _series.get(layout)
    if found is None:
        found = _series[layout] = frozenset(map(hash, layout.template.split(b"\n")[:-1]))
    return found


class KnownCanaries:
    """Those of one probe whose runs were taken, by their hashes."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def affordable(self, names: Collection[str], account: Account, now: float) -> set[str]:
        """The canaries whose runs the account of their probe allows.

        Args:
            names: Of canaries that ran.
            account: Of the probe.
            now: Seconds, of the monotonic clock.

        Returns:
            All of them, or those that are known.
        """
        new = {name for name in names if hash(name) not in self._known}
        if not account.spend("canaries", len(new), now):
            return {*names} - new
        if len(self._known) > _MOST_CANARIES:  # those of now are paid for once more
            self._known.clear()
        self._known |= {hash(name) for name in new}
        return {*names}
