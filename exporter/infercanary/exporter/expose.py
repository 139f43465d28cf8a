"""Cached exposition: keeps the lines of each container, as written by prometheus_client.

prometheus_client takes about 12 µs for each line. So each family is written only once for all containers that report
the family with the same labels. Each report only fills identity and values into these lines. One copy of the sample
lines serves the text format and OpenMetrics, because only headers differ.
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

Key = tuple[str, ...]  # key of a container, or of the exporter's own lines

_number: Callable[[float], str] = floatToGoString
# Most counts repeat (many are 0), so texts are cached.
_count: Callable[[int], str] = lru_cache(maxsize=1 << 14)(floatToGoString)
_write_openmetrics: Callable[[Any], bytes] = generate_latest_openmetrics

_HISTOGRAM: Sequence[tuple[str, dict[str, str]]] = [
    *(("_bucket", {"le": bound}) for bound in (*map(_number, LADDER), "+Inf")),
    ("_count", {}),
    ("_sum", {}),
]
"""Suffix and labels of each sample of a histogram point."""
_MOST_BYTES = 240 << 10  # usual size of a part; longer lines of a container make a larger part
_IDENTITY = "\0"  # placeholder for an identity label; no accepted label value contains it


class Layout(msgspec.Struct, frozen=True, weakref=True):
    """One family without values and without container, shared by all containers that report it with the same labels.

    ``template`` has a ``%s`` for each identity label of a line, in the order of the label names, and a ``%%s`` for
    each value.
    """

    name: str
    base: str
    kind: Kind
    header: bytes
    openmetrics_header: bytes
    template: bytes
    """Lines as UTF-8 bytes. One emoji in a label would make a str four times as large."""
    series: int
    """Number of lines."""


class Lines(msgspec.Struct, frozen=True, gc=False):  # tens of thousands of objects without cycles
    """One family of one container, as lines for a scrape."""

    layout: Layout
    text: bytes


_layouts: WeakValueDictionary[bytes, Layout] = WeakValueDictionary()


def write(family: Family, identity: Mapping[str, str]) -> Lines:
    """Write ``family`` as lines with the identity labels.

    Args:
        family: An accepted family, whose names and label values can be written.
        identity: Value by label.
    """
    names, labels = sorted(identity), [point.labels for point in family.points]
    words = msgspec.json.encode((family.kind, family.name, family.help, family.labels, labels, names))
    # A hash as key saves memory: the layout's template already has the content of ``words``.
    key = blake2b(words, digest_size=16).digest()
    layout = _layouts.get(key)
    if layout is None:
        layout = _layouts[key] = _layout(family, names)
    texts = [*_values(family.points)]
    who = [_escaped(identity[name]) for name in names] * len(texts)
    return Lines(layout, (layout.template.decode() % (*who,) % (*texts,)).encode())


class _Family(msgspec.Struct):
    """One family: the lines of each container, as text that a scrape only joins."""

    layout: Layout
    """Layout of the container that reported last. The family's HELP and TYPE lines come from this layout."""
    texts: dict[Key, bytes] = {}
    size: int = 0


class Exposition:
    """Families that are shown now, each with its containers.

    The first container that reports a family decides the family's kind (counter, gauge or histogram).
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}  # families by base name
        self._names: dict[Key, tuple[str, ...]] = {}  # base names of the families of each container

    def replace(self, key: Key, lines: Iterable[Lines]) -> int:
        """Replace all lines of a container by ``lines``.

        Returns:
            Number of families left out: another container reports the same name with another kind.
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
                # A replaced value keeps its place in the dict, which makes a scrape faster.
                family.texts[key] = texts[name]
            elif family.texts.pop(key, b"") and not family.texts:
                del self._families[name]
        if texts:
            self._names[key] = (*texts,)  # a set of about 80 names would take 8 KiB
        return conflicts

    def families(self, *, in_openmetrics: bool) -> Iterator[bytes]:
        """Yield the exposition, family by family, without OpenMetrics' ``# EOF``.

        A part is made only when the reader asks for this part. Otherwise a slow reader would keep old lines in memory.

        Args:
            in_openmetrics: True for OpenMetrics, False for the text format.

        Yields:
            Header and lines of each family, ordered by name. Small families are joined; a large family is split into
            several parts.
        """
        texts: list[bytes] = []
        size = 0
        for name in sorted(self._families):
            family = self._families.get(name)
            if family is None:  # meanwhile, the family may have lost its last container
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
    """Make the layout of ``family`` with these identity labels, using prometheus_client."""
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
    # splitlines() would also split at other characters of label values.
    lines = generate_latest(given).removeprefix(header).decode().split("\n")[:-1]
    template = "".join(line.rpartition(" ")[0].replace("%", "%%%%") + " %%s\n" for line in lines)
    template = template.replace(_IDENTITY, "%s")
    return Layout(
        family.name, base, family.kind, header, openmetrics_header, template.encode(), template.count("\n")
    )


def _escaped(label: str) -> str:
    """Escape a label value for the text format.

    A second formatting fills in the values, so the percent sign is doubled.
    """
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").replace("%", "%%")


def _values(points: Iterable[Point]) -> Iterator[str]:
    """Yield the value of each line, in prometheus_client's order."""
    for point in points:
        if isinstance(point.value, HistogramValue):
            *_, count = cumulative = [*map(_count, accumulate(point.value.counts))]
            yield from cumulative
            yield count
            yield _number(point.value.sum)
        else:
            yield _number(point.value)
