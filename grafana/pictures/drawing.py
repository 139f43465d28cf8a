"""Each kind of panel, drawn: a function for each, by Grafana's name for it in ``KINDS``.

Of all functions:

Args:
    canvas: What is drawn on.
    area: The panel without its title.
    content: What is drawn; one series or more, each with a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from grafana.pictures.answers import Mark, Range, Series
from grafana.pictures.canvas import EDGE, GRID, Area, Canvas
from grafana.pictures.fields import FADED, INK, NEUTRAL, Fields, legible, on, words
from grafana.pictures.tables import Cell, table
from grafana.pictures.units import scale, ticks, written

_LEFT, _BELOW = 52, 22
_LEGEND_LINE = 17
_LEGEND_LINES = 3
_ROW = 22


class Content(NamedTuple):
    """What there is to draw: the panel, what was answered, the range shown, and what is marked in it."""

    panel: Mapping[str, Any]
    series: Sequence[Series]
    shown: Range
    marks: Sequence[Mark]

    @property
    def fields(self) -> Fields:
        """How it is to look."""
        return Fields(self.panel)

    @property
    def unit(self) -> str:
        """Of its axis."""
        return str(self.fields.defaults["unit"])


# Over time --------------------------------------------------------------------------------------------------------


def lines(canvas: Canvas, area: Area, content: Content) -> None:
    """Series over time, or stacked."""
    fields, series = content.fields, content.series
    colours = fields.colours([(each.name, each.reference) for each in series])
    area = _legend(canvas, area, zip((each.name for each in series), colours, strict=True))
    looks = [fields.look(each.name, each.reference) for each in series]
    axes = canvas.axes(area)
    stacked = any((look.get("custom.stacking") or {}).get("mode") == "normal" for look in looks)
    drawn = (_stacked if stacked else _apart)(axes, series, looks, colours)
    bounds = (fields.defaults.get("min"), fields.defaults.get("max"))
    doubling = any((look.get("custom.scaleDistribution") or {}).get("type") == "log" for look in looks)
    labels = (_doubling_axis if doubling else _value_axis)(axes, drawn, content.unit, *bounds)
    left = max((canvas.length(label, 10.5) for label in labels), default=0) + 16
    canvas.move(axes, area.inside(max(_LEFT, left), 4, 8, _BELOW))
    _time_axis(axes, content)


def _apart(
    axes: Axes, series: Sequence[Series], looks: Sequence[Mapping[str, Any]], colours: Sequence[str]
) -> Sequence[np.ndarray]:
    """Draw each by itself; the values."""
    drawn: list[tuple[np.ndarray, np.ndarray]] = []
    for each, look, colour in zip(series, looks, colours, strict=True):
        times, values = _with_gaps(each, look.get("custom.spanNulls"))
        drawn.append((times, values))
        alone = np.isfinite(values).sum() == 1
        axes.plot(
            times,
            values,
            color=colour,
            linewidth=1.1,
            drawstyle="steps-post" if _in_steps(look) else "default",
            marker="o" if alone else None,
            markersize=3,
        )
    lower = {each.name: line for each, line in zip(series, drawn, strict=True)}
    for (times, values), look, colour in zip(drawn, looks, colours, strict=True):
        if (low := lower.get(str(look.get("custom.fillBelowTo")))) is not None:
            share = look.get("custom.fillOpacity", 20) / 100
            step: Literal["post"] | None = "post" if _in_steps(look) else None
            axes.fill_between(
                times, np.interp(times, *low), values, color=colour, alpha=share, linewidth=0, step=step
            )
    return [values for _, values in drawn]


def _in_steps(look: Mapping[str, Any]) -> bool:
    return look.get("custom.lineInterpolation") == "stepAfter"


def _stacked(
    axes: Axes, series: Sequence[Series], looks: Sequence[Mapping[str, Any]], colours: Sequence[str]
) -> Sequence[np.ndarray]:
    """Draw each on those before it; the heights."""
    times = sorted({at for each in series for at, _ in each.points})
    tops = np.cumsum([_at(times, each) for each in series], axis=0)
    bottom = np.zeros(len(times))
    for top, look, colour in zip(tops, looks, colours, strict=True):
        share = look.get("custom.fillOpacity", 60) / 100
        axes.fill_between(times, bottom, top, color=colour, alpha=share, linewidth=0)
        bottom = top
    return [*tops]


def _at(times: Sequence[float], series: Series) -> np.ndarray:
    """Its values at these times; 0 where it has none."""
    found = dict(series.points)
    return np.nan_to_num([found.get(at, 0.0) for at in times], posinf=0.0, neginf=0.0)


def _with_gaps(series: Series, bridged: object) -> tuple[np.ndarray, np.ndarray]:
    """Times and values, with a hole where there is nothing for longer than is bridged (milliseconds, or all)."""
    # Grafana writes true for all, and false or nothing for none; a step is a minute at most.
    longest = math.inf if bridged is True else float(str(bridged)) / 1000 if bridged else 60.0
    times: list[float] = []
    values: list[float] = []
    for at, value in series.points:
        if times and at - times[-1] > longest:
            times.append(at)
            values.append(math.nan)
        times.append(at)
        values.append(value)
    return np.array(times), np.array(values)


def heat(canvas: Canvas, area: Area, content: Content) -> None:
    """A histogram over time: a row for each bucket, of cumulative counts by `le`."""
    buckets = sorted(content.series, key=lambda each: float(each.labels["le"]))
    times = sorted({at for each in buckets for at, _ in each.points})
    step = _step(times)
    counts = np.diff([_at(times, each) for each in buckets], axis=0, prepend=0.0)
    least = ((content.panel.get("options") or {}).get("filterValues") or {}).get("le", 0.0)
    shown = np.ma.masked_less_equal(counts, least)
    area = area.inside(bottom=_LEGEND_LINE + 6)
    axes = canvas.axes(area.inside(_LEFT, 4, 8, _BELOW))
    axes.grid(False)
    edges = np.array([*times, times[-1] + step]) - step
    most = float(shown.max()) if shown.count() else 1.0
    axes.pcolormesh(
        edges, np.arange(len(buckets) + 1), shown, cmap="cividis", norm=PowerNorm(0.5, 0, most), linewidth=0
    )
    each = max(1, math.ceil(len(buckets) / 8))
    axes.set_yticks(
        [i + 1 for i in range(0, len(buckets), each)],
        [written(float(buckets[i].labels["le"]), "s") for i in range(0, len(buckets), each)],
    )
    _time_axis(axes, content)
    _ramp(canvas, Area(area.x + _LEFT, area.y + area.height + 4, 140, 9), most)


def _step(times: Sequence[float]) -> float:
    """Seconds between points: the least, since points may be missing."""
    return min((later - earlier for earlier, later in pairwise(times)), default=60.0)


def _ramp(canvas: Canvas, area: Area, most: float) -> None:
    axes = canvas.axes(area)
    axes.grid(False)
    axes.imshow(
        np.linspace(0, most, 64).reshape(1, -1), aspect="auto", cmap="cividis", norm=PowerNorm(0.5, 0, most)
    )
    axes.set_xticks([])
    axes.set_yticks([])
    canvas.text(area.x + area.width + 8, area.y + 5, f"0 to {written(most, 'ops')} in a cell", 10.5, FADED)


def timeline(canvas: Canvas, area: Area, content: Content) -> None:
    """States over time: a row for each series."""
    said = words(content.fields.defaults)
    area = _legend(canvas, area, ((word.text, word.colour) for word in said.values()))
    left = min(area.width / 3, max((canvas.length(each.name, 11) for each in content.series), default=0) + 14)
    axes = canvas.axes(area.inside(left, 4, 8, _BELOW))
    axes.grid(False)
    rows = len(content.series)
    for place, each in enumerate(content.series):
        middle = rows - 1 - place
        for begin, end, value in _spans(each.points):
            word = said.get(f"{value:g}")
            colour = word.colour if word else NEUTRAL
            text = word.text if word else f"{value:g}"
            axes.barh(middle, end - begin, left=begin, height=0.8, color=colour, alpha=0.85, linewidth=0)
            share = (end - begin) / (content.shown.end - content.shown.start)
            if share * (area.width - left) > canvas.length(text, 10.5) + 8:
                axes.text(
                    (begin + end) / 2,
                    middle,
                    text,
                    fontsize=10.5 * 0.72,
                    color=on(colour),
                    horizontalalignment="center",
                    verticalalignment="center_baseline",
                    clip_on=True,
                )
    axes.set_ylim(-0.6, rows - 0.4)
    names = [canvas.fit(each.name, left - 10, 10.5) for each in content.series]
    axes.set_yticks([*range(rows - 1, -1, -1)], names)
    _time_axis(axes, content)


def _spans(points: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float, float]]:
    """From, to, and what held meanwhile: as long as points follow one another and are alike."""
    if not points:
        return
    step = _step([at for at, _ in points])
    begin, held = points[0]
    last = begin
    for at, value in points[1:]:
        if value != held or at - last > 1.5 * step:
            yield begin, min(at, last + step), held
            begin, held = at, value
        last = at
    yield begin, last + step, held


def _time_axis(axes: Axes, content: Content) -> None:
    start, end = content.shown
    axes.set_xlim(start, end)
    steps = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)
    step = next((step for step in steps if (end - start) / step <= 7), steps[-1])
    # None so near the end that its words would cross the panel's edge.
    places = np.arange(math.ceil(start / step) * step, end - 0.03 * (end - start), step)
    form = "%H:%M" if step < 86400 else "%m-%d"
    axes.set_xticks(
        places, [datetime.fromtimestamp(at, timezone.utc).strftime(form) for at in places.tolist()]
    )
    for mark in content.marks:
        axes.axvline(mark.at, color=mark.colour, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.plot(
            [mark.at], [0], marker="^", markersize=4, color=mark.colour, clip_on=False,
            transform=axes.get_xaxis_transform(), linestyle="none",
        )  # fmt: skip


def _value_axis(
    axes: Axes, drawn: Sequence[np.ndarray], unit: str, least: float | None, most: float | None
) -> list[str]:
    """Round numbers of the unit along the axis, with a little room around what is drawn; as they are written."""
    values = np.concatenate([each[np.isfinite(each)] for each in drawn]) if drawn else np.array([])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    low, high = (low if least is None else least), (high if most is None else most)
    if high <= low:
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, low + abs(low) / 2)
    room = 0.06 * (high - low)
    low, high = (low - room if least is None else low), (high + room if most is None else high)
    places = _round_numbers(low, high, unit, 5)
    labels = ticks(places, unit)
    axes.set_yticks(places, labels)
    axes.set_ylim(low, high)
    return labels


def _doubling_axis(
    axes: Axes, drawn: Sequence[np.ndarray], unit: str, least: float | None, most: float | None
) -> list[str]:
    """Each step up is twice as much; as they are written."""
    values = np.concatenate([each[np.isfinite(each) & (each > 0)] for each in drawn])
    if not values.size:
        return _value_axis(axes, drawn, unit, least, most)
    low, high = math.log2(values.min()), math.log2(values.max())
    low, high = math.floor(low - 0.1), math.ceil(high + 0.1)
    places = [2.0**i for i in range(low, high + 1, max(1, (high - low) // 4))]
    labels = ticks(places, unit)
    axes.set_yscale("log", base=2)
    axes.minorticks_off()
    axes.set_yticks(places, labels)
    axes.set_ylim(least or 2.0**low, most or 2.0**high)
    return labels


def _round_numbers(low: float, high: float, unit: str, most: int) -> list[float]:
    """Places along an axis that are round in the unit that is written there."""
    worth = scale(max(abs(low), abs(high)), unit).worth
    found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low / worth, high / worth)
    near = 1e-9 * (high - low)
    return [place * worth for place in found if low - near <= place * worth <= high + near]


def _legend(canvas: Canvas, area: Area, named: Iterable[tuple[str, str]]) -> Area:
    """The series' names below, in lines; what is left of the area for the chart."""
    rows: list[list[tuple[float, str, str]]] = [[]]
    x, room = 0.0, area.width - 16
    for name, colour in dict.fromkeys(named):
        name = canvas.fit(name, room - 20, 10.5)
        wide = 18 + canvas.length(name, 10.5) + 14
        if rows[-1] and x + wide > room + 14:
            rows.append([])
            x = 0.0
        rows[-1].append((x, name, colour))
        x += wide
    hidden = sum(map(len, rows[_LEGEND_LINES:]))
    rows = rows[:_LEGEND_LINES]
    height = len(rows) * _LEGEND_LINE + 4
    for i, row in enumerate(rows):
        y = area.y + area.height - height + (i + 0.5) * _LEGEND_LINE
        for x, name, colour in row:
            canvas.box(Area(area.x + 10 + x, y - 1.5, 13, 3), colour, round_by=1)
            canvas.text(area.x + 10 + x + 18, y + 0.5, name, 10.5, FADED)
    if hidden:
        canvas.text(area.x + area.width - 10, y + 0.5, f"and {hidden} more", 10.5, FADED, align="right")
    return area.inside(bottom=height)


# As it is now -----------------------------------------------------------------------------------------------------


def tiles(canvas: Canvas, area: Area, content: Content) -> None:
    """Numbers, or names, side by side."""
    fields = content.fields
    mode = (content.panel.get("options") or {}).get("textMode", "auto")
    room = (area.width - 16) / len(content.series)
    for i, each in enumerate(content.series):
        look = fields.look(each.name, each.reference)
        value = each.points[-1][1]
        fixed = (look.get("color") or {}).get("fixedColor")
        colour = str(fixed) if fixed else fields.threshold(value)
        number = written(value, look["unit"], look.get("decimals"))
        x, middle = area.x + 8 + (i + 0.5) * room, area.y + area.height / 2
        if mode == "name":
            _large(canvas, x, middle, each.name, room - 12, area.height - 10, colour)
        elif mode == "value" or (mode == "auto" and len(content.series) == 1):
            _large(canvas, x, middle, number, room - 12, area.height - 10, colour)
        else:
            label = canvas.fit(each.name, room - 8, 11.5)
            canvas.text(x, area.y + area.height * 0.22, label, 11.5, align="center")
            below = area.y + area.height * 0.62
            _large(canvas, x, below, number, room - 12, area.height * 0.55, colour)


def _large(canvas: Canvas, x: float, y: float, words: str, wide: float, high: float, colour: str) -> None:
    """As large as there is room for."""
    size = min(34.0, high * 0.8, 20 * wide / max(1.0, canvas.length(words, 20, "bold")))
    canvas.text(x, y, words, size, legible(colour), "bold", "center")


def bars(canvas: Canvas, area: Area, content: Content) -> None:
    """Numbers as bars from zero, one below the other."""
    fields = content.fields
    colours = fields.colours([(each.name, each.reference) for each in content.series])
    numbers = [each.points[-1][1] for each in content.series]
    shown = [
        written(number, str(fields.look(each.name, each.reference)["unit"]), fields.defaults.get("decimals"))
        for number, each in zip(numbers, content.series, strict=True)
    ]
    names = max(canvas.length(each.name, 12) for each in content.series) + 14
    texts = max(canvas.length(text, 15, "bold") for text in shown) + 14
    left, room = area.x + 10 + names, area.width - names - texts - 20
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    for i, (each, number, text, colour) in enumerate(
        zip(content.series, numbers, shown, colours, strict=True)
    ):
        high_each = area.height / len(numbers)
        y = area.y + (i + 0.5) * high_each
        canvas.text(left - 10, y, each.name, 12, align="right")
        canvas.box(Area(left, y - high_each * 0.36, room, high_each * 0.72), GRID)
        if high > low:
            x0, x1 = (left + room * (value - low) / (high - low) for value in sorted((0.0, number)))
            canvas.box(Area(x0, y - high_each * 0.36, x1 - x0, high_each * 0.72), colour)
        canvas.text(left + room + texts, y, text, 15, legible(colour), "bold", "right")


def spread(canvas: Canvas, area: Area, content: Content) -> None:
    """How often which value was met, series by series."""
    fields = content.fields
    colours = fields.colours([(each.name, each.reference) for each in content.series])
    area = _legend(canvas, area, zip((each.name for each in content.series), colours, strict=True))
    axes = canvas.axes(area.inside(_LEFT - 14, 4, 14, _BELOW))
    values = [np.array([v for _, v in each.points if math.isfinite(v)]) for each in content.series]
    together = np.concatenate(values)
    if not together.size:
        return
    wide = float(np.ptp(together)) or abs(float(together[0])) or 1.0
    count = int((content.panel.get("options") or {}).get("bucketCount") or 30)
    low = float(together.min())
    edges = np.linspace(low, low + wide, count + 1).tolist()
    for found, colour in zip(values, colours, strict=True):
        axes.hist(found, edges, color=colour, alpha=0.5, linewidth=0)
        axes.hist(found, edges, color=colour, histtype="step", linewidth=1)
    places = _round_numbers(edges[0], edges[-1], content.unit, 8)
    axes.set_xticks(places, ticks(places, content.unit))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def against(canvas: Canvas, area: Area, content: Content) -> None:
    """The first query's numbers along the axis and the second's up, where their labels agree."""
    fields = content.fields
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {"A": {}, "B": {}}
    for each in content.series:
        found[each.reference][frozenset(each.labels.items())] = each.points[-1][1]
    both = [(found["A"][labels], found["B"][labels]) for labels in found["A"].keys() & found["B"].keys()]
    shown = [pair for pair in both if all(map(math.isfinite, pair))]
    across, up = np.array(shown, dtype=float).reshape(-1, 2).T
    names = [override["matcher"]["options"] for override in content.panel["fieldConfig"]["overrides"]]
    units = [str(fields.look(name).get("unit", content.unit)) for name in names]
    axes = canvas.axes(area.inside(_LEFT + 6, 20, 14, _BELOW + 16))
    axes.scatter(across, up, s=30, color=fields.defaults["color"]["fixedColor"])
    _value_axis(axes, [up], units[1], 0.0, None)
    most = 1.06 * float(across.max(initial=0.0)) or 1.0
    places = _round_numbers(0.0, most, units[0], 6)
    axes.set_xticks(places, ticks(places, units[0]))
    axes.set_xlim(0.0, most)
    canvas.text(area.x + area.width / 2, area.y + area.height - 8, names[0], 11, FADED, align="center")
    canvas.text(area.x + 10, area.y + 8, names[1], 11, FADED)


def rows(canvas: Canvas, area: Area, content: Content) -> None:
    """A table, with as many rows as there is room for."""
    made = table(content.panel, content.series, content.shown.end)
    widths = _widths(canvas, [[Cell(heading) for heading in made.headings], *made.rows], area.width - 20)
    x = area.x + 10
    for i, (heading, wide) in enumerate(zip(made.headings, widths, strict=True)):
        heading = canvas.fit(heading, wide - 8, 11.5, "bold")
        if any(row[i].number for row in made.rows):
            canvas.text(x + wide - 6, area.y + 9, heading, 11.5, weight="bold", align="right")
        else:
            canvas.text(x + 6, area.y + 9, heading, 11.5, weight="bold")
        x += wide
    room = int((area.height - _ROW) // _ROW)
    cut = room - 1 if len(made.rows) > room else room
    for i, row in enumerate(made.rows[:cut], 1):
        top = area.y + i * _ROW - 2
        canvas.line(area.x + 10, top, area.x + area.width - 10, top, EDGE, 0.8)
        x = area.x + 10
        for cell, wide in zip(row, widths, strict=True):
            if cell.fill:
                canvas.box(Area(x + 1, top + 1, wide - 2, _ROW - 2), cell.fill)
            text = canvas.fit(cell.text, wide - 10, 11.5)
            colour = on(cell.fill) if cell.fill else INK
            if cell.number:
                canvas.text(x + wide - 6, top + _ROW / 2, text, 11.5, colour, align="right")
            else:
                canvas.text(x + 6, top + _ROW / 2, text, 11.5, colour)
            x += wide
    if len(made.rows) > cut:
        more = f"and {len(made.rows) - cut} more"
        canvas.text(area.x + 16, area.y + (cut + 1) * _ROW + 8, more, 11, FADED)


def _widths(canvas: Canvas, rows: Sequence[Sequence[Cell]], room: float) -> list[float]:
    """Of columns: what their words take, in proportion; the widest give way first."""
    if not rows[0]:
        return []
    wanted = [
        max(canvas.length(row[i].text, 11.5, "bold" if row is rows[0] else "normal") for row in rows) + 18
        for i in range(len(rows[0]))
    ]
    most = max(wanted)
    while sum(min(wide, most) for wide in wanted) > room and most > 40:
        most -= 2
    kept = [min(wide, most) for wide in wanted]
    return [wide * room / sum(kept) for wide in kept]


Kind = Callable[[Canvas, Area, Content], None]

KINDS: Mapping[str, Kind] = {
    "timeseries": lines,
    "heatmap": heat,
    "state-timeline": timeline,
    "stat": tiles,
    "bargauge": bars,
    "histogram": spread,
    "table": rows,
    "xychart": against,
}
