"""Documents as text and JSON. After an intended change of the text:

UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/render -k golden; git diff tests/golden
"""

import ast
import json
import math
import os

from infercanary.render import units
from infercanary.render.document import Chart, Document, Fact, Series, Table
from infercanary.render.json import render_json
from infercanary.render.text import plain, render_text, render_texts, wrapped
from tests.programs import ROOT
from tests.scenarios import cases

GOLDEN = ROOT / "tests/golden/render.txt"
OLD, NEW = ([middle + 0.001 * (i * 7 % 11) for i in range(60)] for middle in (0.0525, 0.155))
REGRESSED = Document(
    name="resnet18",
    verdict="regressed",
    sentence="regressed +178 % [+116, +259] (57.5 → 160 ms): image; torch_cpu_capability AVX512 → DEFAULT; compute; "
    "controls flat",
    exit_code=1,
    facts=[
        Fact("old median", 0.0575, "s"),
        Fact("host memory", 1.2e9, "bytes"),
        Fact("load", 0.25, "ratio"),
        Fact("runs", 60),
        Fact("nothing", None),
        Fact("nothing", ""),
        Fact("commits", "1a2b3c4 → 5d6e7f8", link="https://example.com/compare"),
    ],
    tables=[
        Table(
            "operators",
            ("operator", "before", "share", "shapes"),
            [
                ("aten::conv2d", "9.8 ms", "84.1 %", "1x3x224x224 float, " * 4),
                ("aten::" + "long_" * 20, "12.04 ms", "5 %", ""),
            ],
        ),
        Table("empty", ("a", "b"), []),
    ],
    charts=[
        Chart("latency", "distributions", [Series("baseline", OLD, "old"), Series("candidate", NEW)]),
        Chart("medians", "points", [Series("runs", [*OLD, None, *NEW])], marks=[61]),
        Chart("pairs", "points", [Series("a", [1, 2, None]), Series("b", [2, 3, math.inf])], unit=""),
        Chart("empty", "points", [Series("none", [None])]),
    ],
    actions=["roll back to the old image"],
    notes=["restart variance assumed: no restart observed yet"],
    data={"verdict": "regressed", "exit_code": 1, "notes": ["n"], "name": "a\x1b[31m"},
)
STEADY = Document(name="other", sentence="equivalent", data={"verdict": "equivalent", "notes": []})


def test_golden_text():
    text = render_texts([REGRESSED, STEADY], ["2 canaries"])
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@cases([80, 101, 120])
def test_no_line_is_wider_than_the_terminal_or_ends_in_spaces(width):
    lines = render_text(REGRESSED, width).split("\n")
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []


def test_texts_of_others_are_printable_and_short():
    hostile = "\x1b[31m\u202eevil\x00\n" * 3000
    table = Table(hostile, (hostile, hostile), [(hostile, hostile)])
    document = Document(
        name=hostile,
        sentence=hostile,
        facts=[Fact(hostile, hostile)],
        tables=[table],
        notes=[hostile],
    )
    text = render_text(document)
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) < 60_000


def test_a_number_stays_with_its_unit_and_its_interval():
    for width in range(20, 60):
        for text in wrapped("all of it is +178 % [+116, +259] slower, 57.5 ms and 160 MB", width):
            assert not text.endswith(("178", "%", "116,", "57.5", "160"))


def test_the_nearest_ascii():
    assert plain("57 µs → ×2 ± 1 ö") == "57 us -> x2 +/- 1 ?"


def test_json_has_the_worst_documents_fields_first():
    inconclusive = Document(exit_code=3, data={"verdict": "inconclusive", "notes": []})
    text = render_json([STEADY, REGRESSED, inconclusive], ["both"], extra=1)
    answer = json.loads(text)
    assert text.isascii()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert (answer["schema_version"], answer["verdict"], answer["extra"]) == (1, "regressed", 1)
    assert answer["notes"] == ["n", "both"]
    assert answer["name"] == "a?[31m"
    assert [each["verdict"] for each in answer["canaries"]] == ["equivalent", "regressed", "inconclusive"]
    assert json.loads(render_json([STEADY, inconclusive]))["verdict"] == "inconclusive"
    assert json.loads(render_json([])) == {
        "schema_version": 1, "verdict": "inconclusive", "notes": [], "canaries": []
    }  # fmt: skip


NUMBERS = """
value      | 0.0575, "s"            | 57.5 ms
value      | 0.999999, "s"          | 1 s
value      | 2.5e-6, "s"            | 2.5 µs
value      | 0.0, "s"               | 0 µs
value      | 1234.5678, None        | 1,235
value      | None, "s"              | unknown
value      | 1_234_567, ""          | 1,234,567
size       | 999.9e6,               | 1 GB
size       | 999.4e6,               | 999 MB
size       | 128,                   | 128 B
quantity   | 12_345.6, "samples/s"  | 12,300 samples/s
quantity   | 0.01234, "joules"      | 0.0123 J
quantity   | 0.999, "ratio"         | 99.9 %
quantity   | 3.0, ""                | 3
short      | 0.00009271, 3          | 0.0000927
short      | 1e999,                 | inf
count      | 1, "run"               | 1 run
count      | 1200, "run"            | 1,200 runs
count      | 1.5, "CPU"             | 1.5 CPUs
duration   | 7300,                  | 2 h
duration   | 119,                   | 119 s
when       | 0,                     | 1970-01-01 00:00:00 UTC
when       | 1e300,                 | at an unknown time
percent    | -0.0312,               | -3.1 %
percent    | 10,                    | ×11
interval   | 0.124, 0.109, 0.138    | +12.4 % [+10.9, +13.8]
interval   | 1.78, 1.16, 2.59       | +178 % [+116, +259]
interval   | 8.2, 6.5, 10.3         | ×9.2 [×7.5, ×11.3]
interval   | 0.1, -1.0, 1e999       | ×1.1 [×0, ×∞]
"""


@cases(NUMBERS)
def test_numbers_for_people(function, arguments, expected):
    assert getattr(units, function)(*ast.literal_eval(arguments)) == expected
