"""Panels that write: numbers as they are now, and tables.

Of all functions:

Args:
    about: The panel's title, texts, unit and size.
    queries: Each with the name of its series.

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
"""Value → word and colour, where yes is what one wants."""


def tiles(
    about: About,
    *queries: Query,
    named: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    bad_from: float | None = None,
) -> Panel:
    """Numbers as they are now, each with its name.

    Args:
        named: Series → colour, where no bound gives it.
        units: Series → unit, where it is not the panel's.
        links: Series → address that a click leads to.
        bad_from: Vermillion from there on, and blue below it; grey without it.
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
    """A column of a table: a field, its heading, and how its values look.

    ``width`` is in pixels; ``least`` is the least width of a column that takes what is left. ``named`` has value →
    colour, ``words`` value → word and colour; a word without a colour is plain text.
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
    """With a service's namespace, which only Kubernetes has."""
    for column in columns:
        yield column
        if column.field == "service" and not column.hidden:
            yield Column("namespace", "Namespace", width=110)


def rows(about: About, columns: Sequence[Column], *queries: Query, sort: Sequence[str] = ()) -> Panel:
    """A table without pages. Its queries' rows are merged where their labels agree; fields without a column are left
    out, and so are columns without a value.

    Args:
        columns: From left to right; on a phone the first three are seen.
        sort: Headings of columns, the first one first, with ``-`` in front for the largest first.
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
    # A column in which no row has a value: the list of all different values is written as an empty text.
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
        # A name that is longer than the column goes on in the next line.
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
    """Write a column's texts in lower case, as anchors of headings are.

    Args:
        panel: Of :func:`rows`.
        field: Name of the column's field.
    """
    built = panel.build()
    options = {"stringField": field, "outputFormat": "Lower Case"}
    steps = built.transformations or []
    built.transformations = [dashboard.DataTransformerConfig(id_val="formatString", options=options), *steps]
    return Panel(built)
