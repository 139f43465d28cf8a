"""The cached exposition: what each container shows, as the lines that prometheus_client writes for it.

prometheus_client takes about 12 µs a line. So each family of each container is written by it once; while the
labels stay the same, the next report only fills new values into those lines. The sample lines are the same
in the text format and in OpenMetrics, so one copy serves both, and only the headers differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_latest_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infercanary.client.accept import base_name
from infercanary.contract.report import LADDER, Family, HistogramValue, Kind, Point

Key = tuple[str, ...]  # of a container, or of what else has lines of its own

# prometheus_client leaves these two untyped.
_number: Callable[[float], str] = floatToGoString
_count: Callable[[int], str] = lru_cache(maxsize=1 << 14)(floatToGoString)  # counts recur, most of all 0
_write_openmetrics: Callable[[Collector], bytes] = generate_latest_openmetrics

_BOUNDS = (*map(_number, LADDER), "+Inf")


class Lines(msgspec.Struct, frozen=True, gc=False):  # by the ten thousand, and never in a cycle
    """One family of one container. ``template`` has a ``%s`` for each value, ``text`` has the values.

    ``layout`` is what the template was made from, in short: where it is the same, so is the template.
    """

    name: str
    kind: Kind
    help: str
    layout: str
    template: str
    text: bytes


def write(family: Family, identity: Mapping[str, str], before: Lines | None = None) -> Lines:
    """Write ``family`` as lines, with the labels of an identity on each.

    Args:
        family: Accepted, so that its names and label values can be written.
        identity: Label → value.
        before: The same family as last written for the same identity; its template is used again if the labels are the
            same.

    Returns:
        The lines, with the template for the next time.
    """
    # One string, not tuples in tuples: there are ten thousands of them, and the garbage collector walks tuples.
    # With both counts in it, no two layouts read the same: a label has no line end.
    values = chain.from_iterable(point.labels for point in family.points)
    counts = f"{family.kind} {len(family.labels)} {len(family.points)}"
    layout = "\n".join([counts, *family.labels, *values])
    if before is None or before.layout != layout or before.help != family.help:
        before = Lines(family.name, family.kind, family.help, layout, _template(family, identity), b"")
    return fill(before, family.points)


def fill(lines: Lines, points: Iterable[Point]) -> Lines:
    """``lines`` with the values of ``points``, which have the same labels.

    Args:
        lines: Of a family as last written.
        points: In the order in which they were.

    Returns:
        New lines.
    """
    text = lines.template % tuple(_values(points))
    return Lines(lines.name, lines.kind, lines.help, lines.layout, lines.template, text.encode())


class Pieces(NamedTuple):
    """A part of an exposition: ``size`` bytes, once joined."""

    texts: list[bytes]
    size: int


class _Shown:
    """One family: what each container shows of it, and that as bytes alone, which is all that a scrape touches."""

    def __init__(self) -> None:
        self.lines: dict[Key, Lines] = {}
        self.texts: dict[Key, bytes] = {}
        self.size = 0


class Exposition:
    """What is shown now, by family and within it by container. A name has one kind: its first live holder's."""

    def __init__(self) -> None:
        self._families: defaultdict[str, _Shown] = defaultdict(_Shown)

    def replace(self, key: Key, lines: Sequence[Lines]) -> list[str]:
        """Show ``lines`` and nothing else for ``key``.

        Args:
            key: Of a container.
            lines: One entry for each family.

        Returns:
            Names of families that are refused, since another holds the name with another kind.
        """
        self._remove(key, set(self._families) - {base_name(each.name, each.kind) for each in lines})
        return [each.name for each in lines if not self.put(key, each)]

    def put(self, key: Key, lines: Lines) -> bool:
        """Show ``lines`` for ``key``; False, and not shown, where another holds the name with another kind.

        Args:
            key: Of a container.
            lines: Of one family; empty ones take it away.
        """
        base = base_name(lines.name, lines.kind)
        shown = self._families[base]
        rivals = (held for holder, held in shown.lines.items() if holder != key)
        agreed = next(rivals, lines).kind == lines.kind
        if agreed and lines.text:
            shown.size += len(lines.text) - len(shown.texts.get(key, b""))
            shown.lines[key] = lines
            shown.texts[key] = lines.text
        else:
            self._remove(key, [base])
        return agreed

    def refill(self, name: str, values: Iterable[tuple[Key, float]]) -> None:
        """Show other values in the plain family ``name``, for those that show one point of it: this is done in bulk.

        Args:
            name: Without ``_total``.
            values: Key → value; those that do not show the family are passed over.
        """
        shown = self._families.get(name)
        for key, value in values:
            if shown is not None and (lines := shown.lines.get(key)) is not None:
                text = (lines.template % _number(value)).encode()
                shown.size += len(text) - len(shown.texts[key])
                shown.texts[key] = text

    def forget(self, key: Key) -> None:
        """Show nothing for ``key`` any more.

        Args:
            key: Of a container; it need not show anything.
        """
        self._remove(key, [*self._families])

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """The exposition, family by family, but for OpenMetrics' ``# EOF``.

        Each family is whole, and as it is when it is asked for: to take all of them at once, tens of thousands of
        references, would stop the event loop for 10 ms.

        Args:
            in_openmetrics: Whether it is for OpenMetrics, else for the text format.

        Yields:
            Header and lines of each family, in order of the names.
        """
        for base in sorted(self._families):
            if base in self._families:  # its last holder may have gone since
                shown = self._families[base]
                first = next(iter(shown.lines.values()))
                header = _header(first.name, first.kind, first.help, in_openmetrics)
                yield Pieces([header, *shown.texts.values()], len(header) + shown.size)

    def _remove(self, key: Key, bases: Iterable[str]) -> None:
        for base in bases:
            shown = self._families[base]
            shown.lines.pop(key, None)
            shown.size -= len(shown.texts.pop(key, b""))
            if not shown.lines:
                del self._families[base]


class _Given(Collector):
    """What prometheus_client asks for the families to write."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text(metrics: Iterable[Metric], *, in_openmetrics: bool) -> str:
    """``metrics`` as prometheus_client writes them, but for OpenMetrics' ``# EOF``.

    Args:
        metrics: As prometheus_client's collectors give them.
        in_openmetrics: Whether it is for OpenMetrics, else for the text format.
    """
    if not in_openmetrics:
        return generate_latest(_Given(metrics)).decode()
    return _write_openmetrics(_Given(metrics)).decode().removesuffix("# EOF\n")


@lru_cache(maxsize=1024)
def _header(name: str, kind: Kind, documentation: str, in_openmetrics: bool) -> bytes:
    metric = _metric(Family(name, kind, documentation, (), ()), {})
    return text([metric], in_openmetrics=in_openmetrics).encode()


def _template(family: Family, identity: Mapping[str, str]) -> str:
    """The lines of ``family`` as prometheus_client writes them, with ``%s`` for each value."""
    # Not splitlines(): label values may hold what it takes for the end of a line.
    _help, _type, *lines = text([_metric(family, identity)], in_openmetrics=False).split("\n")[:-1]
    return "".join(line.rpartition(" ")[0].replace("%", "%%") + " %s\n" for line in lines)


def _metric(family: Family, identity: Mapping[str, str]) -> Metric:
    names = (*identity, *family.labels)
    values = tuple(identity.values())
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=names)
        for point in family.points:
            histogram.add_metric((*values, *point.labels), [(bound, 0.0) for bound in _BOUNDS], 0.0)
        return histogram
    plain = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = plain(family.name, family.help, labels=names)
    for point in family.points:
        metric.add_metric((*values, *point.labels), 0.0)
    return metric


def _values(points: Iterable[Point]) -> Iterator[str]:
    """The value of each line, in the order in which prometheus_client writes them."""
    for point in points:
        if isinstance(point.value, HistogramValue):
            *_, count = cumulative = [*map(_count, accumulate(point.value.counts))]
            yield from cumulative
            yield count
            yield _number(point.value.sum)
        else:
            yield _number(point.value)
