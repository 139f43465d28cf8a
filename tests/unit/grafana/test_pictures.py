"""Pictures of dashboards: numbers as Grafana writes them, colours, tables, and the pace of queries."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from grafana.pictures.answers import Mark, Range, Series, interval, seconds
from grafana.pictures.canvas import Area, Canvas
from grafana.pictures.drawing import KINDS, Content
from grafana.pictures.fields import Fields, legible, on, shade, words
from grafana.pictures.tables import Cell, table
from grafana.pictures.units import ticks, written
from grafana.queries import dashboards, panels
from infercanary.command.settings import UsageError
from tests.for_each import for_each

PANELS = [panel for board in dashboards().values() for panel in panels(board)]


def test_every_kind_of_panel_and_every_unit_is_known() -> None:
    assert {panel["type"] for panel in PANELS} == KINDS.keys()
    for panel in PANELS:
        properties = [p for o in panel["fieldConfig"]["overrides"] for p in o["properties"]]
        units = [p["value"] for p in properties if p["id"] == "unit"]
        for unit in [panel["fieldConfig"]["defaults"]["unit"], *units]:
            assert written(1e12, unit)


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.0, "s", None, "0 s"),
        (0.0523, "s", None, "52.3 ms"),
        (0.00005, "s", None, "50 µs"),
        (90, "s", None, "1.50 min"),
        (0.124, "percentunit", 1, "12.4%"),
        (-0.031, "percentunit", None, "-3.10%"),
        (1.0, "percentunit", None, "100%"),
        (0.0, "percentunit", 4, "0.0000%"),
        (1536, "bytes", None, "1.50 KiB"),
        (2e9, "Bps", None, "2 GB/s"),
        (1_410_000_000, "hertz", None, "1.41 GHz"),
        (12_345, "short", None, "12.3 K"),
        (3, "none", None, "3"),
        (0.25, "ops", None, "0.250 ops/s"),
        (float("nan"), "s", None, "NaN"),
        (float("inf"), "s", None, "∞"),
        (1_700_000_000_000, "dateTimeAsIso", None, "2023-11-14 22:13:20"),
    ],
)
def test_a_number_is_written_as_its_unit_is(value: float, unit: str, decimals: int | None, text: str) -> None:
    assert written(value, unit, decimals) == text


@pytest.mark.parametrize(
    ("ago", "text"),
    [(5, "a few seconds ago"), (70, "1 minute ago"), (7300, "2 hours ago"), (200_000, "2 days ago")],
)
def test_a_moment_is_written_from_now(ago: float, text: str) -> None:
    assert written((1_700_000_000 - ago) * 1000, "dateTimeFromNow", now=1_700_000_000) == text


def test_an_axis_has_one_scale() -> None:
    assert ticks([0, 0.05, 0.1], "s") == ["0 ms", "50 ms", "100 ms"]
    assert ticks([0.9, 1.0, 1.1], "percentunit") == ["90%", "100%", "110%"]


def test_the_last_override_that_fits_has_the_last_word() -> None:
    def override(kind: str, of: str, colour: str, mode: str = "fixed") -> dict[str, Any]:
        value = {"mode": mode, "fixedColor": colour}
        return {"matcher": {"id": kind, "options": of}, "properties": [{"id": "color", "value": value}]}

    overrides = [override("byFrameRefID", "A", "#0072B2", "shades"), override("byName", "low", "#56B4E9")]
    fields = Fields({"fieldConfig": {"defaults": {"unit": "s"}, "overrides": overrides}})
    first, second, low, other = fields.colours([("x", "A"), ("y", "A"), ("low", "A"), ("z", "B")])
    assert (first, low, other) == ("#0072B2", "#56B4E9", "#999999")
    assert second not in (first, low)
    assert fields.look("x", "A")["unit"] == "s"


def test_shades_differ_and_ink_can_be_read() -> None:
    assert len({shade("#E69F00", i, 6) for i in range(6)}) == 6
    assert on("#F0E442") != on("#0072B2") == "#ffffff"
    assert (legible("#0072B2"), legible("#F0E442")) == ("#0072B2", "#aea52f")


def test_states_are_words_in_their_order() -> None:
    [panel] = [p for p in PANELS if p["title"] == "Verdicts over time"]
    said = words(panel["fieldConfig"]["defaults"])
    assert [word.text for word in said.values()][-1] == "regressed"
    assert [*said] == ["1", "2", "3", "4", "5", "6", "7"]


def _series(reference: str, value: float, **labels: str) -> Series:
    return Series(reference, "", labels, [(1_700_000_000.0, value)])


def test_a_tables_queries_are_merged_where_they_agree() -> None:
    [panel] = [p for p in PANELS if p["title"] == "What the last upgrade did"]
    a, b = ({"service": name, "canary": "resnet18"} for name in ("classify", "moderate"))
    made = table(
        panel,
        [
            _series("A", 1, verdict="regressed", **a),
            _series("A", 1, verdict="no_baseline", **b),
            _series("B", 0.1234, **a),
        ],
        1_700_000_000,
    )
    assert made.headings == ["service", "canary", "Verdict", "Shift"]
    assert made.rows == [
        [Cell("classify"), Cell("resnet18"), Cell("regressed", "#D55E00"), Cell("12.3%", number=True)],
        [Cell("moderate"), Cell("resnet18"), Cell("no baseline", "#999999"), Cell()],
    ]


def test_a_matrix_has_one_label_against_another() -> None:
    [panel] = [p for p in PANELS if p["title"] == "Phases by image"]
    made = table(panel, [_series("A", 0.05, phase="compute", image_id=image) for image in "ab"], 0)
    assert made.headings == ["phase\\image_id", "a", "b"]
    assert made.rows == [[Cell("compute"), Cell("50 ms", number=True), Cell("50 ms", number=True)]]


def test_points_are_no_closer_than_the_panel_wants() -> None:
    assert interval(Range(0, 1800), None) == 5
    assert interval(Range(0, 1800), "1m") == 60
    assert interval(Range(0, 86400), None) == 300


@pytest.mark.parametrize("text", ["", "1", "h", "0m", "-5m", "1 h", "5y"])
def test_a_length_of_time_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="write it as 30m"):
        seconds(text)


NAN, INFINITE = float("nan"), float("inf")
ODD = ([1.0], [0.0, 0.0], [NAN], [NAN, 1.0, NAN], [INFINITE, 2.0], [-INFINITE], [-3.0, 5.0], [1e-12, 1e15])
KIND_OF_EACH = {panel["type"]: panel for panel in PANELS}


def test_odd_numbers_are_drawn(tmp_path: Path) -> None:
    @for_each(product(KIND_OF_EACH.values(), ODD), lambda odd: f"{odd[0]['type']} {odd[1]}")
    def draw(odd: tuple[dict[str, Any], list[float]]) -> None:
        panel, values = odd
        labels = {"le": "0.5", "state": "a", "image_id": "b", "component": "c", "version": "$d$"}
        points = [(1_700_000_000.0 + 60 * i, value) for i, value in enumerate(values)]
        series = [Series(target["refId"], "of $which$ it is", labels, points) for target in panel["targets"]]
        marks = [Mark("m", 1_700_000_000, "#D55E00")]
        content = Content(panel, series, Range(1_699_999_000, 1_700_001_000), marks)
        canvas = Canvas(400, 200)
        KINDS[panel["type"]](canvas, Area(5, 5, 390, 190), content)
        canvas.save(tmp_path / "panel.png")
        assert (tmp_path / "panel.png").stat().st_size > 500

    draw()
