"""Panels with text: current numbers, and tables.

Arguments of all functions:

Args:
    about: Title, texts, unit and size of the panel.
    queries: Queries with the names of their series.

Returns:
    A new panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, stat, table
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.panels import (
    DECIMALS,
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
"""Word and colour by value, for values where yes is good."""


def tiles(
    about: About,
    *queries: Query,
    named: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    bad_from: float | None = None,
) -> Panel:
    """Return a panel of current numbers with their names.

    Args:
        named: Colours by series, independent of the value.
        units: Units by series, where they differ from the panel's unit.
        links: Addresses that a click opens, by series.
        bad_from: Smallest bad value: bad values are vermillion, lower values are blue. None for grey.
    """
    usual = colours.CELLS[colours.NEUTRAL] if bad_from is None else colours.WELL
    steps = [dashboard.Threshold(value=None, color=usual)]
    if bad_from is not None:
        steps.append(dashboard.Threshold(value=bad_from, color=colours.TROUBLE))
    panel = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(model.BigValueColorMode.VALUE)
        .graph_mode(model.BigValueGraphMode.NONE)
        .text_mode(model.BigValueTextMode.VALUE_AND_NAME)
        .justify_mode(model.BigValueJustifyMode.AUTO)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        .decimals(DECIMALS.get(about.unit, 0))
    )
    for name, hue in (named or {}).items():
        panel.override_by_name(name, [colour(colours.CELLS.get(hue, hue))])
    for name, unit in (units or {}).items():
        panel.override_by_name(name, [option("unit", unit), option("decimals", DECIMALS.get(unit, 0))])
    for name, address in (links or {}).items():
        panel.override_by_name(name, [_link(address)])
    return finished(panel.build(), about, queries, instant=True)


class Column(NamedTuple):
    """A column of a table: a field, its heading, and the look of its values.

    ``width`` is in pixels; ``least`` is the minimum width of a column that takes the remaining space.
    ``named`` has the colours by value; ``words`` has word and colour by value. A word without a colour is
    plain text.
    """

    field: str
    heading: str
    unit: str = ""
    named: Mapping[str, str] = {}
    link: str = ""
    width: int = 0
    decimals: int | None = None
    words: Mapping[str, tuple[str, str]] = {}
    hidden: bool = False
    least: int = 110


def _with_namespace(columns: Iterable[Column]) -> Iterator[Column]:
    """Add a column for a service's namespace, which exists only in Kubernetes."""
    for column in columns:
        yield column
        if column.field == "service" and not column.hidden:
            yield Column("namespace", "Namespace", width=110)


def rows(about: About, columns: Sequence[Column], *queries: Query, sort: Sequence[str] = ()) -> Panel:
    """Return a table without pagination. Rows of different queries are merged if their labels agree.

    The table omits fields without a column, and columns without any value.

    Args:
        columns: From left to right; a phone shows the first three.
        sort: Headings of the columns to sort by, most important first; a leading ``-`` means descending.
    """
    columns = [*_with_namespace(columns)]
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(model.TableCellHeight.SM)
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
        .sort_by(
            [
                common.TableSortByFieldState().display_name(heading.lstrip("-")).desc(heading.startswith("-"))
                for heading in sort
            ]
        )
    )
    missing_values(panel, "")
    panel.override_by_regexp("/.*/", [option("custom.wrapHeaderText", True)])
    # Matches a column without any value: Grafana writes its list of unique values as an empty text.
    none = dashboard.MatcherConfig(
        id_val="byValue", options={"reducer": "uniqueValues", "op": "eq", "value": ""}
    )
    panel.with_override(none, [_HIDDEN])
    for column in columns:
        panel.override_by_name(column.heading, [*_looks(column)])
    return finished(panel.build(), about, queries, TABLE, instant=True)


def _looks(column: Column) -> Iterable[dashboard.DynamicConfigValue]:
    decimals = DECIMALS.get(column.unit) if column.decimals is None else column.decimals
    if column.unit:
        yield option("unit", column.unit)
    else:
        # A long name continues on the next line.
        yield option("custom.wrapText", True)
    if decimals is not None:
        yield option("decimals", decimals)
    yield option("custom.width", column.width) if column.width else option("custom.minWidth", column.least)
    if column.link:
        yield _link(column.link)
    if column.hidden:
        yield _HIDDEN
    shown = {value: (colours.word(value), hue) for value, hue in column.named.items()} | dict(column.words)
    if shown:
        cells = {value: (word, colours.CELLS.get(hue, hue)) for value, (word, hue) in shown.items()}
        yield option("mappings", [mapping(cells)])
        if any(hue for _, hue in cells.values()):
            yield option("custom.cellOptions", {"type": "color-background", "mode": "basic"})


_HIDDEN = option("custom.hideFrom.viz", True)


def _link(address: str) -> dashboard.DynamicConfigValue:
    return option("links", [{"title": "Open", "url": address}])


def lower_case(panel: Panel, field: str) -> Panel:
    """Write a column's texts in lower case, like anchors of headings.

    Args:
        panel: Panel from :func:`rows`.
        field: Name of the column's field.
    """
    built = panel.build()
    options = {"stringField": field, "outputFormat": "Lower Case"}
    steps = built.transformations or []
    built.transformations = [dashboard.DataTransformerConfig(id_val="formatString", options=options), *steps]
    return Panel(built)
