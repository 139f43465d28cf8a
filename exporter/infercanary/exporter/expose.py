"""The cached exposition: what each container shows, as the lines that prometheus_client writes for it.

prometheus_client takes about 12 µs a line. So it writes each family once for all containers that report it with the
same labels; a report only fills its container's identity and the values into those lines. The sample lines are the
same in the text format and in OpenMetrics, so one copy serves both, and only the headers differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias
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
_MOST_BYTES = 256 << 10  # of an answer at once
_SLICE_BYTES = 32 << 10  # of a text
_KEPT_BYTES = 512 << 10  # of a replaced text, for each reader that was in the middle of it
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


_Name: TypeAlias = "tuple[str, Kind]"


class Pieces(NamedTuple):
    """A part of an exposition: ``size`` bytes, once joined; at most 256 KiB."""

    texts: list[bytes]
    size: int


class _Shown:
    """One family of one kind: what each container shows of it; a scrape touches the bytes alone."""

    def __init__(self, name: _Name, layout: Layout) -> None:
        self.name = name
        self.layout = layout  # the first holder's: it decides the header
        self.texts: dict[Key, bytes] = {}
        self.size = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of its series."""
        name = self.layout.name
        return (
            tuple(f"{name}{end}" for end in ("_bucket", "_count", "_sum"))
            if self.layout.kind == "histogram"
            else (name,)
        )

    def header(self, *, in_openmetrics: bool) -> bytes:
        """Of all its lines."""
        return _header(self.layout, in_openmetrics=in_openmetrics)

    def slices(self) -> Iterator[bytes]:
        """All texts, in whole lines of 32 KiB at most; who asks slowly may be shown texts that were replaced meanwhile.

        Of one beyond 512 KiB, which no honest container has, the rest is left out then: each reader would keep it.
        """
        for key in [*self.texts]:
            text, at = self.texts.get(key, b""), 0  # its holder may have gone since
            is_kept = len(text) <= _KEPT_BYTES
            while part := _lines(text, at):
                if not is_kept:
                    text = b""
                yield part
                if not is_kept and not (text := self.texts.get(key, b"")).startswith(part, at):
                    break
                at += len(part)


class Exposition:
    """What is shown now, by family and within it by container.

    A name that containers report with several kinds has none: all of its lines are shown, without a type.
    """

    def __init__(self) -> None:
        self._families: dict[_Name, _Shown] = {}
        self._kinds: Counter[str] = Counter()  # of each name
        self._of_key: dict[Key, tuple[_Name, ...]] = {}  # what each shows
        self._sorted: list[_Name] | None = None  # the names; None where one came or went since

    def replace(self, key: Key, lines: Sequence[Lines]) -> list[str]:
        """Show ``lines`` and nothing else for ``key``.

        Args:
            key: Of a container.
            lines: One entry for each family.

        Returns:
            Names of families that another shows with another kind.
        """
        named = {(each.layout.base, each.layout.kind) for each in lines}
        self._remove(key, {name for name in self._of_key.get(key, ()) if name not in named})
        for each in lines:
            self.put(key, each)
        return [each.layout.name for each in lines if self._kinds[each.layout.base] > 1]

    def put(self, key: Key, lines: Lines) -> None:
        """Show ``lines`` for ``key``.

        Args:
            key: Of a container.
            lines: Of one family; empty ones take it away.
        """
        layout = lines.layout
        name = layout.base, layout.kind
        if not lines.text:
            self._remove(key, {name}.intersection(self._of_key.get(key, ())))
            return
        shown = self._families.get(name)
        if shown is None:
            shown = self._families[name] = _Shown(name, layout)
            self._kinds[layout.base] += 1
            self._sorted = None
        if key not in shown.texts:
            self._of_key[key] = *self._of_key.get(key, ()), shown.name
        shown.size += len(lines.text) - len(shown.texts.get(key, b""))
        shown.texts[key] = lines.text
        if layout is not shown.layout and next(iter(shown.texts)) == key:
            shown.layout = layout

    def refill(self, name: str, values: Iterable[tuple[Key, float]]) -> None:
        """Show other values in the gauge ``name``, for those that show one point of it: this is done in bulk.

        Args:
            name: Of the family.
            values: Key → value; those that do not show the family are passed over.
        """
        shown = self._families.get((name, "gauge"))
        for key, value in values:
            if shown is not None and (before := shown.texts.get(key)) is not None:
                text = b"%b %b\n" % (before.rpartition(b" ")[0], _number(value).encode())
                shown.size += len(text) - len(before)
                shown.texts[key] = text

    def forget(self, key: Key) -> None:
        """Show nothing for ``key`` any more.

        Args:
            key: Of a container; it need not show anything.
        """
        self._remove(key, {*self._of_key.get(key, ())})

    def families(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        """The exposition, family by family, but for OpenMetrics' ``# EOF``.

        Each part is as it is when it is asked for: to take all at once, tens of thousands of references, would stop the
        event loop for 10 ms, and readers that fall behind would keep what is no longer shown.

        Args:
            in_openmetrics: Whether it is for OpenMetrics, else for the text format.

        Yields:
            Header and lines of each family, in order of the names: small ones together, large ones in several parts.
        """
        several: list[bytes] = []
        size = 0
        for each in self._parts(in_openmetrics=in_openmetrics):
            if several and size + each.size > _MOST_BYTES:
                yield Pieces(several, size)
                several, size = [], 0
            several += each.texts
            size += each.size
            if size > _SLICE_BYTES:
                yield Pieces(several, size)
                several, size = [], 0
        if several:
            yield Pieces(several, size)

    def _parts(self, *, in_openmetrics: bool) -> Iterator[Pieces]:
        if self._sorted is None:
            self._sorted = sorted(self._families)
        for _, names in groupby(self._sorted, key=itemgetter(0)):
            found = [self._families[name] for name in names if name in self._families]
            if len(found) > 1:
                yield from _disputed(found)
            elif found:  # its last holder may have gone since
                [shown] = found
                header = shown.header(in_openmetrics=in_openmetrics)
                if (size := len(header) + shown.size) <= _MOST_BYTES:
                    yield Pieces([header, *shown.texts.values()], size)
                else:
                    yield from _together(chain([header], shown.slices()))

    def _remove(self, key: Key, names: Collection[_Name]) -> None:
        """Take away families that it shows."""
        if not names:
            return
        self._of_key[key] = tuple(name for name in self._of_key[key] if name not in names)
        if not self._of_key[key]:
            del self._of_key[key]
        for name in names:
            shown = self._families[name]
            shown.size -= len(shown.texts.pop(key, b""))
            if not shown.texts:
                del self._families[name]
                self._sorted = None
                self._kinds[name[0]] -= 1
                if not self._kinds[name[0]]:
                    del self._kinds[name[0]]


def _disputed(shown: Iterable[_Shown]) -> Iterator[Pieces]:
    """The lines of one name with several kinds: without a header, which could be right for one of them only.

    Those of one series' name are together, as OpenMetrics wants it.
    """
    of_name = sorted(((name, kind) for kind in shown for name in kind.names), key=itemgetter(0))
    for name, of_kind in of_name:
        for pieces in _together(of_kind.slices()):
            texts = pieces.texts if len(of_kind.names) == 1 else [_of(name, text) for text in pieces.texts]
            yield Pieces(texts, sum(map(len, texts)))


def _of(name: str, text: bytes) -> bytes:
    """The lines of the series of one name."""
    begins = (b"%b{" % name.encode(), b"%b " % name.encode())
    return b"".join(b"%b\n" % line for line in text.split(b"\n") if line.startswith(begins))


def _together(slices: Iterable[bytes]) -> Iterator[Pieces]:
    """Put slices together, before the next one is asked for."""
    several: list[bytes] = []
    size = 0
    for each in slices:
        several.append(each)
        size += len(each)
        if size > _MOST_BYTES - _SLICE_BYTES:
            yield Pieces(several, size)
            several, size = [], 0
    if several:
        yield Pieces(several, size)


def _lines(text: bytes, at: int) -> bytes:
    """Whole lines from ``at`` on: the text itself where it is no more than a slice."""
    end = at + _SLICE_BYTES
    return text[at : text.rfind(b"\n", at, end) + 1 or end] if len(text) > _SLICE_BYTES else text[at:]


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
