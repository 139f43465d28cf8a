"""Panels that write: numbers as they are now, and tables.

Of all functions:

Args:
    about: What the panel says of itself.
    queries: Each with the name of its series.

Returns:
    A new panel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import common, stat, table
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.panels import (
    TABLE,
    About,
    Panel,
    Query,
    colour,
    finished,
    mapping,
    missing_values,
    option,
)

YES_OR_NO = {"1": ("yes", colours.WELL), "0": ("no", colours.TROUBLE)}
"""Value → word and colour, where yes is what one wants."""


def tiles(
    about: About,
    *queries: Query,
    named: Mapping[str, str] | None = None,
    words: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    bad_from: float | None = None,
    decimals: int | None = None,
) -> Panel:
    """Numbers as they are now, each with its name.

    Args:
        named: Series → colour, where no bound gives it.
        words: Series → value → word and colour, where a word says more than a number.
        units: Series → unit, where it is not the panel's: of whole numbers.
        links: Series → address that a click leads to.
        bad_from: Vermillion from there on; None for no such bound.
        decimals: None for Grafana's own choice.
    """
    panel = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(model.BigValueColorMode.VALUE)
        .graph_mode(model.BigValueGraphMode.NONE)
        .text_mode(model.BigValueTextMode.VALUE_AND_NAME)
        .justify_mode(model.BigValueJustifyMode.AUTO)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(bad_from))
    )
    if decimals is not None:
        panel.decimals(decimals)
    for name, hue in (named or {}).items():
        panel.override_by_name(name, [colour(hue)])
    for name, shown in (words or {}).items():
        panel.override_by_name(name, [option("mappings", [mapping(shown)])])
    for name, unit in (units or {}).items():
        panel.override_by_name(name, [option("unit", unit), option("decimals", 0)])
    for name, address in (links or {}).items():
        panel.override_by_name(name, [_link(address)])
    # In a panel of numbers the text for an empty one is as large as a number.
    return finished(panel.build(), about._replace(empty="–"), queries, instant=True)


class Column(NamedTuple):
    """A column of a table: the field that it is, its heading, and how its values look.

    ``width`` is in pixels; without one it takes what is left. ``tip`` is the heading of the column that is shown beside
    the cell under the pointer, and is itself ``hidden``.
    """

    field: str
    heading: str
    unit: str = ""
    named: Mapping[str, str] = {}
    link: str = ""
    width: int = 0
    decimals: int | None = None
    words: Mapping[str, tuple[str, str]] = {}
    tip: str = ""
    hidden: bool = False


def _with_kubernetes(columns: Iterable[Column]) -> Iterator[Column]:
    """With the columns that only Kubernetes has values for: a service's namespace, and a container's pod."""
    for column in columns:
        if column.field == "container":
            yield Column("pod", "Pod")
        yield column
        if column.field == "service" and not column.hidden:
            yield Column("namespace", "Namespace", width=110)


def rows(
    about: About, columns: Sequence[Column], *queries: Query, sort: Sequence[str] = (), paged: bool = False
) -> Panel:
    """A table. Its queries' rows are merged where their labels agree; fields without a column are left out, and so are
    columns without a value.

    Args:
        columns: From left to right; on a phone the first three are seen.
        sort: Headings of columns, the first one first, with ``-`` in front for the largest first.
        paged: Whether it has pages, and a filter in each heading: for tables of many rows.
    """
    columns = [*_with_kubernetes(columns)]
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(model.TableCellHeight.SM)
        .filterable(paged)
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="filterFieldsByName",
                options={"include": {"names": [column.field for column in columns]}},
            )
        )
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {column.field: i for i, column in enumerate(columns)},
                    "renameByName": {column.field: column.heading for column in columns},
                },
            )
        )
    )
    if sort:
        panel.sort_by(
            [
                common.TableSortByFieldState().display_name(heading.lstrip("-")).desc(heading.startswith("-"))
                for heading in sort
            ]
        )
    missing_values(panel, "")
    _hide_empty_columns(panel)
    for column in columns:
        panel.override_by_name(column.heading, [*looks(column)])
    built = panel.build()
    # Since Grafana 12.2 the pages are an option of the table, which the SDK does not know; it writes a footer's.
    known = json.loads(json.dumps(built.options, cls=JSONEncoder))
    built.options = {k: v for k, v in known.items() if k != "footer"} | {"enablePagination": paged}
    return finished(built, about, queries, TABLE, instant=True)


def compared(
    about: About, label: Column, old: str, new: str, change: str = "", decimals: int | None = None
) -> Panel:
    """Old image against new, a row for each value of a label.

    Args:
        label: What the rows are; other labels are not shown.
        old: A number for each value of the label.
        new: The same for the new image.
        change: New over old, minus 1; empty where a ratio says nothing.
        decimals: Of the numbers; None for Grafana's own choice.
    """
    columns = [
        label,
        Column("Value #A", "old", about.unit, decimals=decimals, width=90),
        Column("Value #B", "new", about.unit, decimals=decimals, width=90),
    ]
    queries = [Query(old), Query(new)]
    if change:
        columns.append(Column("Value #C", "change", "percentunit", width=78))
        queries.append(Query(change))
    return rows(about, columns, *queries)


def looks(column: Column) -> Iterable[dashboard.DynamicConfigValue]:
    """How a column's values look.

    Args:
        column: Which one.

    Yields:
        The properties of its override.
    """
    if column.unit:
        yield option("unit", column.unit)
    else:
        # A name that is longer than the column goes on in the next line.
        yield option("custom.wrapText", True)
    if column.decimals is not None:
        yield option("decimals", column.decimals)
    if column.width:
        yield option("custom.width", column.width)
    else:
        yield option("custom.minWidth", _LEAST)
    if column.link:
        yield _link(column.link)
    if column.tip:
        yield option("custom.tooltip", {"field": column.tip, "placement": "auto"})
    if column.hidden:
        yield _HIDDEN
    if column.named or column.words:
        shown = {value: (value, hue) for value, hue in column.named.items()} | dict(column.words)
        yield option("mappings", [mapping(shown)])
        yield option("custom.cellOptions", {"type": "color-background", "mode": "basic"})


_LEAST = 110
"""Pixels: with it old, new and the change between them fit on a phone."""
_HIDDEN = option("custom.hideFrom.viz", True)


def _hide_empty_columns(panel: Any) -> None:
    """Those in which no row has a value: the list of all different values is written as an empty text."""
    none = dashboard.MatcherConfig(
        id_val="byValue", options={"reducer": "uniqueValues", "op": "eq", "value": ""}
    )
    panel.with_override(none, [_HIDDEN])


def _link(address: str) -> dashboard.DynamicConfigValue:
    return option("links", [{"title": "Open", "url": address}])


def _thresholds(bad_from: float | None) -> builders.ThresholdsConfig:
    steps = [dashboard.Threshold(value=None, color=colours.WELL)]
    if bad_from is not None:
        steps.append(dashboard.Threshold(value=bad_from, color=colours.TROUBLE))
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
