"""The cached exposition: what each container shows, as the lines that prometheus_client writes for it.

prometheus_client takes about 12 µs a line. So it writes each family once for all containers that report it with the
same labels; a report only fills its container's identity and the values into those lines. The sample lines are the
same in the text format and in OpenMetrics, so one copy serves both, and only the headers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain
from typing import NamedTuple
from weakref import WeakValueDictionary

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
_MOST_BYTES = 256 << 10  # of small families together
_IDENTITY = "\0"  # stands for a label of the identity; no accepted label value has one


class Layout(msgspec.Struct, frozen=True, weakref=True):
    """One family without its values and without its container: shared by all that report it with the same labels.

    ``template`` has a ``%s`` for each identity label of a line, in order of these labels' names, and a ``%%s`` for each
    value.
    """

    name: str
    base: str
    kind: Kind
    help: str
    template: bytes
    """UTF-8: as text, one odd character would make it four times as long in memory."""
    series: int
    """How many lines it has."""


class Lines(msgspec.Struct, frozen=True, gc=False):  # by the ten thousand, and never in a cycle
    """One family of one container, as it is sent."""

    layout: Layout
    text: bytes


_layouts: WeakValueDictionary[bytes, Layout] = WeakValueDictionary()


def write(family: Family, identity: Mapping[str, str]) -> Lines:
    """Write ``family`` as lines, with the labels of an identity on each.

    Args:
        family: Accepted, so that its names and label values can be written.
        identity: Label → value.

    Returns:
        The lines.
    """
    # With the counts in it, no two layouts read the same: a label has no line end.
    values = chain.from_iterable(point.labels for point in family.points)
    counts = f"{family.kind} {len(identity)} {len(family.labels)} {len(family.points)}"
    names = "\n".join([counts, family.name, family.help, *identity, *family.labels, *values])
    key = blake2b(names.encode(), digest_size=16).digest()  # the names themselves are in the template
    layout = _layouts.get(key)
    if layout is None:
        base, template = base_name(family.name, family.kind), _template(family, sorted(identity))
        layout = _layouts[key] = Layout(
            family.name, base, family.kind, family.help, template, template.count(b"\n")
        )
    texts = [*_values(family.points)]
    labels = [_escaped(identity[name]) for name in sorted(identity)] * len(texts)
    return Lines(layout, (layout.template.decode() % (*labels,) % (*texts,)).encode())


class Pieces(NamedTuple):
    """Part of an exposition: ``size`` bytes, once joined."""

    texts: list[bytes]
    size: int


class _Shown:
    """One family: the text of each container. A scrape touches the bytes alone."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout  # of the first container: it decides the header
        self.texts: dict[Key, bytes] = {}
        self.size = 0

    def put(self, key: Key, text: bytes) -> None:
        self.size += len(text) - len(self.texts.get(key, b""))
        if text:
            self.texts[key] = text
        else:
            self.texts.pop(key, None)


class Exposition:
    """What is shown now, by family and within it by container. A name has the kind of its first container."""

    def __init__(self) -> None:
        self._families: dict[str, _Shown] = {}  # by base name
        self._of_key: dict[Key, set[str]] = {}
        self._sorted: list[str] | None = None  # the names; None where one came or went since

    def replace(self, key: Key, lines: Sequence[Lines]) -> list[str]:
        """Show ``lines``, one entry for each family, and nothing else for a container.

        Returns:
            Names of families that are not shown, since another container has them with another kind.
        """
        named = {each.layout.base for each in lines}
        for name in self._of_key.get(key, set()) - named:
            self._put(key, name, b"")
        return [each.layout.name for each in lines if not self.put(key, each)]

    def put(self, key: Key, lines: Lines) -> bool:
        """Show one family for ``key``; without text it is taken away. False if it has another kind than shown."""
        layout = lines.layout
        shown = self._families.get(layout.base)
        if shown is not None and shown.layout.kind != layout.kind:
            if shown.texts.keys() - {key}:
                self._put(key, layout.base, b"")
                return False
            self._put(key, layout.base, b"")  # a lone container may change its mind
            shown = None
        if shown is None and lines.text:
            shown = self._families[layout.base] = _Shown(layout)
            self._sorted = None
        if shown is not None and next(iter(shown.texts), key) == key:
            shown.layout = layout
        self._put(key, layout.base, lines.text)
        return True

    def refill(self, name: str, values: Iterable[tuple[Key, float]]) -> None:
        """Show other values in the gauge ``name``, for those that show one point of it: this is done in bulk."""
        shown = self._families.get(name)
        for key, value in values:
            if shown is not None and (before := shown.texts.get(key)) is not None:
                shown.put(key, b"%b %b\n" % (before.rpartition(b" ")[0], _number(value).encode()))

    def forget(self, key: Key) -> None:
        """Show nothing for ``key`` any more; it need not show anything."""
        for name in [*self._of_key.get(key, ())]:
            self._put(key, name, b"")

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """The exposition, family by family, but for OpenMetrics' ``# EOF``.

        Each part is as it is when it is asked for: readers that fall behind would keep what is no longer shown.

        Args:
            in_openmetrics: True for OpenMetrics, else the text format.

        Yields:
            Header and lines of each family, in order of the names: small ones together, large ones in several parts.
        """
        if self._sorted is None:
            self._sorted = sorted(self._families)
        texts: list[bytes] = []
        size = 0
        for name in self._sorted:
            shown = self._families.get(name)
            if shown is None:  # its last container may have gone since
                continue
            header = _header(shown.layout, in_openmetrics=in_openmetrics)
            texts.append(header)
            size += len(header)
            if size + shown.size <= _MOST_BYTES:
                texts += shown.texts.values()
                size += shown.size
                continue
            for key in [*shown.texts]:
                texts.append(shown.texts.get(key, b""))
                size += len(texts[-1])
                if size > _MOST_BYTES:
                    yield Pieces(texts, size)
                    texts, size = [], 0
        yield Pieces(texts, size)

    def _put(self, key: Key, name: str, text: bytes) -> None:
        shown = self._families.get(name)
        if shown is None:
            return
        shown.put(key, text)
        if text:
            self._of_key.setdefault(key, set()).add(name)
            return
        if names := self._of_key.get(key):
            names.discard(name)
            if not names:
                del self._of_key[key]
        if not shown.texts:
            del self._families[name]
            self._sorted = None


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


def _header(layout: Layout, *, in_openmetrics: bool) -> bytes:
    """As prometheus_client writes it, in a thirtieth of its time: there may be 30,000, too many to keep."""
    documentation = layout.help.replace("\\", r"\\").replace("\n", r"\n")
    name = layout.name
    if in_openmetrics:
        documentation, name = documentation.replace('"', r"\""), layout.base
    return f"# HELP {name} {documentation}\n# TYPE {name} {layout.kind}\n".encode()


def _template(family: Family, names: Iterable[str]) -> bytes:
    """The lines of ``family`` as prometheus_client writes them, as :class:`Layout` has them."""
    metric = _metric(family, dict.fromkeys(names, _IDENTITY))
    # Not splitlines(): label values may hold what it takes for the end of a line.
    _help, _type, *lines = text([metric], in_openmetrics=False).split("\n")[:-1]
    template = "".join(line.rpartition(" ")[0].replace("%", "%%%%") + " %%s\n" for line in lines)
    return template.replace(_IDENTITY, "%s").encode()


def _escaped(label: str) -> str:
    """A label's value as the text format has it, to be filled into a template that values are filled into next."""
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").replace("%", "%%")


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
