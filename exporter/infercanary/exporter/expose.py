"""The cached exposition: what each container shows, as the lines that prometheus_client writes for it.

prometheus_client takes about 12 µs a line. So it writes each family once for all containers that report it with the
same labels; a report only fills its container's identity and the values into those lines. The sample lines are the
same in the text format and in OpenMetrics, so one copy serves both, and only the headers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_latest_openmetrics
from prometheus_client.utils import floatToGoString

from infercanary.client.accept import base_name
from infercanary.contract.report import LADDER, Family, HistogramValue, Kind, Point

Key = tuple[str, ...]  # of a container, or of what else has lines of its own

_number: Callable[[float], str] = floatToGoString
_count: Callable[[int], str] = lru_cache(maxsize=1 << 14)(floatToGoString)  # counts recur, most of all 0
_write_openmetrics: Callable[[Any], bytes] = generate_latest_openmetrics

_HISTOGRAM: Sequence[tuple[str, dict[str, str]]] = [
    *(("_bucket", {"le": bound}) for bound in (*map(_number, LADDER), "+Inf")),
    ("_count", {}),
    ("_sum", {}),
]
"""Suffix and labels of each sample of a histogram's point."""
_MOST_BYTES = 240 << 10  # of a part, except for one container whose lines are longer
_IDENTITY = "\0"  # stands for a label of the identity; no accepted label value has one


class Layout(msgspec.Struct, frozen=True, weakref=True):
    """One family without its values and without its container: shared by all that report it with the same labels.

    ``template`` has a ``%s`` for each identity label of a line, in order of these labels' names, and a ``%%s`` for each
    value.
    """

    name: str
    base: str
    kind: Kind
    header: bytes
    openmetrics_header: bytes
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
    names, labels = sorted(identity), [point.labels for point in family.points]
    words = msgspec.json.encode((family.kind, family.name, family.help, family.labels, labels, names))
    key = blake2b(words, digest_size=16).digest()  # the words themselves are in the template
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = _layout(family, names)
    texts = [*_values(family.points)]
    who = [_escaped(identity[name]) for name in names] * len(texts)
    return Lines(layout, (layout.template.decode() % (*who,) % (*texts,)).encode())


class _Family(msgspec.Struct):
    """One family: the text of each container. A scrape touches the bytes alone."""

    layout: Layout
    """Of the container that reported last: it decides the header."""
    texts: dict[Key, bytes] = {}
    size: int = 0


class Exposition:
    """Families that are shown now, each with its containers. A name has the kind of its first container."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}  # by base name
        self._names: dict[Key, tuple[str, ...]] = {}  # base names of the families that each container shows

    def replace(self, key: Key, lines: Iterable[Lines]) -> int:
        """Show ``lines`` for a container, and nothing else.

        Returns:
            Number of families that are not shown, since another container has them with another kind.
        """
        conflicts = 0
        texts: dict[str, bytes] = {}
        for entry in lines:
            layout = entry.layout
            if not entry.text:
                continue
            family = self._families.get(layout.base)
            if family is None or (
                family.layout.kind != layout.kind
                and layout.base not in texts
                and family.texts.keys() <= {key}
            ):
                family = self._families[layout.base] = _Family(layout)
            elif family.layout.kind != layout.kind:
                conflicts += 1
                continue
            family.layout = layout
            texts[layout.base] = texts.get(layout.base, b"") + entry.text
        for name in {*self._names.pop(key, ()), *texts}:
            family = self._families[name]
            family.size += len(texts.get(name, b"")) - len(family.texts.get(key, b""))
            if name in texts:
                family.texts[key] = texts[name]  # at its place in the order, which a scrape reads faster
            elif family.texts.pop(key, b"") and not family.texts:
                del self._families[name]
        if texts:
            self._names[key] = (*texts,)  # a set of some 80 names takes 8 KiB
        return conflicts

    def families(self, *, in_openmetrics: bool) -> Iterator[bytes]:
        """The exposition, family by family, but for OpenMetrics' ``# EOF``.

        Each part is as it is when it is asked for: readers that fall behind would keep what is no longer shown.

        Args:
            in_openmetrics: True for OpenMetrics, else the text format.

        Yields:
            Header and lines of each family, in order of the names: small ones together, large ones in several parts.
        """
        texts: list[bytes] = []
        size = 0
        for name in sorted(self._families):
            family = self._families.get(name)
            if family is None:  # its last container may have gone since
                continue
            layout = family.layout
            header = layout.openmetrics_header if in_openmetrics else layout.header
            if texts and size + len(header) + family.size > _MOST_BYTES:
                yield b"".join(texts)
                texts, size = [], 0
            texts.append(header)
            size += len(header)
            if size + family.size <= _MOST_BYTES:
                texts += family.texts.values()
                size += family.size
                continue
            for key in [*family.texts]:
                if size + len(family.texts.get(key, b"")) > _MOST_BYTES:
                    yield b"".join(texts)
                    texts, size = [], 0
                text = family.texts.get(key, b"")
                texts.append(text)
                size += len(text)
        yield b"".join(texts)


def _layout(family: Family, names: Iterable[str]) -> Layout:
    """Let prometheus_client write ``family`` with these identity labels."""
    base = base_name(family.name, family.kind)
    metric = Metric(base, family.help, family.kind)
    given: Any = SimpleNamespace(collect=lambda: [metric])
    header, openmetrics_header = generate_latest(given), _write_openmetrics(given).removesuffix(b"# EOF\n")
    identity = dict.fromkeys(names, _IDENTITY)
    samples = _HISTOGRAM if family.kind == "histogram" else [("", {})]
    for point in family.points:
        labels = {**identity, **dict(zip(family.labels, point.labels, strict=True))}
        for suffix, bound in samples:
            metric.add_sample(family.name + suffix, labels | bound, 0.0)
    # Not splitlines(): label values may hold what it takes for the end of a line.
    lines = generate_latest(given).removeprefix(header).decode().split("\n")[:-1]
    template = "".join(line.rpartition(" ")[0].replace("%", "%%%%") + " %%s\n" for line in lines)
    template = template.replace(_IDENTITY, "%s")
    return Layout(
        family.name, base, family.kind, header, openmetrics_header, template.encode(), template.count("\n")
    )


def _escaped(label: str) -> str:
    """A label's value as the text format has it, to be filled into a template that values are filled into next."""
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").replace("%", "%%")


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
