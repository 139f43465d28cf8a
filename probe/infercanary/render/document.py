"""A document: the content of one result, without a layout. All renderers show the same document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from infercanary.render.units import quantity


class Fact(msgspec.Struct, frozen=True):
    """A labelled value of a document."""

    label: str
    value: str | float | None
    """Text, or a number in ``unit``; renderers leave out None and ""."""
    unit: str = ""
    """Unit of the number: "s", "bytes", "joules" or "ratio"; "" for a number without a unit."""
    link: str = ""
    """An http or https address; renderers without links show the address after the value."""

    @property
    def text(self) -> str:
        """Value with its unit; empty for None."""
        return self.value or "" if isinstance(self.value, str | None) else quantity(self.value, self.unit)


class Table(msgspec.Struct, frozen=True):
    """A table of text: a title, names of columns, and rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Series(msgspec.Struct, frozen=True):
    """Values of one side of a comparison, in order of time."""

    label: str
    values: Sequence[float | None]
    """One value for each position on the chart's axis, in order of time; None for a missing value."""
    style: Literal["old", "new"] = "new"


class Chart(msgspec.Struct, frozen=True):
    """Series over time (`points`), or the distribution of each series (`distributions`), on one scale."""

    title: str
    kind: Literal["points", "distributions"]
    series: Sequence[Series]
    unit: str = "s"
    """Unit of the values: "s", or "" for an unknown unit."""
    marks: Sequence[int] = ()
    """Positions of changes on the axis: an upgrade, or a change of level."""
    misses: Sequence[int] = ()
    """Positions of failed runs."""
    levels: Sequence[tuple[int, int, float]] = ()
    """Levels of a scanned series: first position, number of positions, value."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one result."""

    name: str = ""
    """Subject of the document, such as a canary."""
    verdict: str = ""
    """First word of the sentence. It decides the colour."""
    sentence: str = ""
    """Result in one sentence without a full stop. The sentence begins with the verdict, if there is one."""
    exit_code: int = 0
    actions: Sequence[str] = ()
    """Next actions, as sentences."""
    facts: Sequence[Fact] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    data: Mapping[str, Any] = {}
    """Fields of the result in the JSON output, as plain values."""
