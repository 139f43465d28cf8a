"""Charts, reports and files: drawn values, loaded resources of a page, and leftovers of a failure."""

import csv
import io
import math
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError
from infercanary.contract.text import printable
from infercanary.pages.chart import draw
from infercanary.pages.html import STYLE, environment, render_page, write
from infercanary.pages.table_csv import moment, render_csv
from infercanary.render.document import Chart, Document, Series
from tests.scenarios import cases

MS = 1e-3


def figure(chart):
    return draw(environment(), chart)


@pytest.mark.parametrize(
    ("values", "ends", "beyond"),
    [
        ([20 * MS] * 30, "19 ms 21 ms", 0),
        ([20 * MS, 20.1 * MS] * 15, "19.05 ms 21.05 ms", 0),
        ([20 * MS, 30 * MS], "19.5 ms 30.5 ms", 0),
        ([20 * MS] * 30 + [9.0], "19 ms 21 ms", 1),
        ([20 * MS] * 95 + [30 * MS] * 5, "19.5 ms 30.5 ms", 0),
        ([20 * MS, 30 * MS, 40 * MS], "19 ms 41 ms", 0),
        ([None, math.nan, math.inf, 20 * MS], "19 ms 21 ms", 0),
        ([0.0] * 3, "0 µs 1 s", 0),
    ],
    ids=[
        "noise is not drama",
        "small noise is none either",
        "a large change fills it",
        "an outlier does not flatten the rest",
        "a level is no outlier",
        "few values are no outliers",
        "only finite values count",
        "zeros",
    ],
)
@pytest.mark.parametrize("kind", ["points", "distributions"])
def test_the_scale_shows_what_matters(values, ends, beyond, kind):
    drawing = figure(Chart("a", kind, [Series("b", values)]))
    found = re.findall(r"<span>(\d[^<]* [mµ]?s)</span>", drawing)
    assert " ".join(found if kind == "distributions" else found[::-1]) == ends
    assert (f"{beyond} beyond the scale" in drawing) is bool(beyond)


def test_a_long_series_is_medians_of_parts():
    drawing = figure(Chart("a", "points", [Series("a", [1.0, 1.0, 1.2] * 100_000)], misses=range(300_000)))
    [data] = re.findall(r'class="line new" d="([^"]*)"', drawing)
    assert len({*re.findall(r"[ML][\d.e+]+ ([\d.]+)", data)}) == 1
    assert len(re.findall("[ML]", data)) == 1500
    assert len(drawing) < 100_000


@pytest.mark.parametrize("kind", ["points", "distributions"])
@pytest.mark.parametrize(
    "values", [[1e308, 1.79e308], [5e-324], [1e-322, 1e-321], [-2.0, -3.0], [-1.7e308, 1.7e308]]
)
def test_any_number_can_be_drawn(kind, values):
    drawing = figure(Chart("a", kind, [Series("a", [*values] * 20)]))
    assert "<path" in drawing
    assert "nan" not in re.sub("<span.*|<p.*|<svg.*", "", drawing)


@pytest.mark.parametrize("kind", ["points", "distributions"])
@pytest.mark.parametrize("values", [[], [None], [math.nan, math.inf]])
def test_nothing_is_drawn_without_values(kind, values):
    chart = Chart("the title", kind, [Series("a", values), Series("b", values)])
    assert figure(chart) == ""
    assert "the title" not in render_page("a", [Document(charts=[chart])])


def test_a_style_loads_nothing():
    assert not re.search(r"src=|@import|url\(|<link|<script", STYLE)


@cases([("", "cannot be written"), ("a/b", "No such"), ("/dev/full", "No space")])
def test_a_file_that_cannot_be_written_is_named(path, fault, tmp_path):
    with pytest.raises(UsageError, match=f"^--junit .*{fault}"):
        write(str(tmp_path / path), "text", "--junit")


def test_half_a_file_is_removed(tmp_path):
    file = tmp_path / "report.html"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(UsageError, match="too large"):
            write(str(file), "text" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not file.exists()
    assert Path("/dev/full").exists()


cells = st.one_of(st.text(), st.floats(), st.none(), st.integers())


@given(st.lists(st.lists(cells, min_size=3, max_size=3), max_size=5))
def test_csv_is_read_as_it_was_written(rows):
    text = "".join(render_csv(["a", "b", "c"], rows))
    read = [*csv.reader(io.StringIO(text, newline=""), strict=True)]
    assert read[0] == ["a", "b", "c"]
    assert len(read) == len(rows) + 1
    for row, got in zip(rows, read[1:], strict=True):
        for cell, text in zip(row, got, strict=True):
            if isinstance(cell, str):
                assert text.removeprefix("'") == printable(cell).removeprefix("'")
                assert not text.lstrip().startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠"))
            elif isinstance(cell, float):
                assert float(text or "nan") == cell or (not math.isfinite(cell) and text == "")
            else:
                assert text == ("" if cell is None else str(cell))


@cases([(0.5, "1970-01-01T00:00:00.500000Z"), (1e300, ""), (math.nan, "")])
def test_a_moment_is_in_the_calendar_or_empty(seconds, text):
    assert moment(seconds) == text
