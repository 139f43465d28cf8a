"""Numbers from text of any format; each mistake gives one line with its place."""

import csv
import gzip
import io
import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError
from infercanary.compare import content, rows, table
from infercanary.compare.read import read
from infercanary.compare.rows import File
from infercanary.compare.table import numbers
from tests.scenarios import cases, scenarios

latencies = st.lists(st.floats(1e-15, 1e15), min_size=1, max_size=30)


def values(data, column="", notes=()):
    data = data if isinstance(data, bytes) else data.encode()
    return [float(x) for x in numbers(File("f", [] if notes == () else notes, column), data)[""].every]


@given(
    latencies,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(",;\t"),
    st.text(st.characters(exclude_categories=["C"]), max_size=10),
)
def test_each_format_gives_the_same_numbers(each, end, delimiter, text):
    assert values(end.join(map(repr, each))) == each
    assert values(json.dumps(each)) == values(json.dumps(each, indent=1)) == each
    lines = end.join(json.dumps({"t": "x", "a": {"b": x}, "c.d": x}) for x in each)
    assert values(lines, "a.b") == values(lines, "c.d") == each
    assert values(json.dumps([{"ms": x} for x in each])) == each
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["name", "latency, p50", "n"])
    writer.writerows([f"x{text}", repr(x), 1] for x in each)
    assert values(out.getvalue(), "latency, p50") == each


FORMS = r"""
# a\n\n0.5  # warm, 2nd\n  1\n#\n2e-3\n     | 0.5 1 0.002
# made by x\nlatency\n1\n\n# more\n2\n      | 1 2
# x\n{"a": 1}\n\n{"a": 2}\n                 | 1 2
{}\n{"a": 1}\n{"a": 2}\n                    | 1 2
sep=|\nt|latency\n12:00|7\n                 | 7
latency\n"1,234.5"\n                        | 1234.5
duration (ms),status\n20ms,OK\n             | 0.02
name;iterations;real_time;time_unit\nB;9;21,5;ms\nB;9;1.022,5;ms\nB;9;22;ms\n | 0.0215 1.0225 0.022
t;latency\nx;12,5\ny;1.234,5\n              | 12.5 1234.5
t;latency\nx;12,5 ms\n                      | 0.0125
"latency\n(ms)",id\n3,x\n                   | 3
1m2.5s\n850 us\n                            | 62.5 0.00085
Größe;latency\nx;1\n                        | 1
t;latency\nx;,5\n                           | 0.5
# latency\n1\n2\n                           | 1 2
# n,latency\nx,5\ny,6\n                     | 5 6
"""


@cases(FORMS)
def test_forms(text, found):
    assert values(text) == pytest.approx([float(number) for number in found.split()])
    if text.isascii():
        return
    assert values(text.encode("latin-1")) == pytest.approx([float(number) for number in found.split()])


def test_a_header_behind_a_hash_names_columns_of_whole_numbers():
    assert values("# t,latency\n1,5\n2,6\n", "latency") == [5, 6]
    assert values("# latency\n1\n2\n", "latency") == [1, 2]


@cases(['{"a', "[1", "0.5", "Terminated"])
def test_a_truncated_last_line_of_objects_is_left_out(last):
    notes = []
    assert values('{"a": 1}\n{"a": 2}\n' + last, notes=notes) == [1, 2]
    assert notes == ["f: the last line is truncated, and was left out"]


MISTAKES = r"""
{"a": 1}\n{"a\n              |      | f:2: not a JSON object; write one object on each line
1,2\n3,4\n                   |      | f:1: `1, 2` is neither a header nor a number
12,5\n12,7\n                 |      | f:1: `12, 5` is neither a header nor a number; write one number on each line (with
12.5ms?\n13ms\n              |      | f:1: `12.5ms?` is neither a header nor a number
a,b\n"22,077",1\n            | a    | f:2: `22,077` is not a number; write a number with a decimal point
a,b\n,1\n                    | a    | f:2: `nothing` is not a number; write a number
1\n2\nnan\n                  |      | f:3: `nan` is not a latency, which is a finite number
# x\n\n0\n                   |      | f:3: `0` is not a latency
1\n1.7e308\n                 |      | f:2: `1.7e308` is not a latency, which is a finite number
1\n1e999\n                   |      | f:2: `1e999` is not a latency
1\nx\n                       |      | f:2: `x` is not a number
1\n1 2\n                     |      | f:2: `1 2` is not a number; write a number
1\n2\n                       | x    | f: no column `x`, and there is none to choose; remove --column
a,b\n1,2\n                   |      | f: several columns; name a column in --column: a, b
a,b\n1,2\n                   | c    | f: no column `c`; name a column in --column: a, b
a,a\n1,2\n                   | a    | f:1: several columns `a`; rename all but one
a,b\n1,2\n1\n                | a    | f:3: 1 columns, but the header has 2; fix the line
a,b\n\n# c\n1,2\n\nx,1\n     | a    | f:6: `x` is not a number
a\n                          |      | f: a file of numbers without a run; give another file
[1, 2                        |      | f: not JSON (Expecting ',' delimiter: line 1 column
{\n"a": [1\n                 |      | f: not JSON (Expecting ',' delimiter: line 3
[1, NaN]                     |      | f: entry 2: `nan` is not a latency
{"a": 1}\n{"a": -Infinity}   |      | f:2: `-inf` is not a latency
[1, null]                    |      | f: entry 2: `nothing` is not a number
[1, true]                    |      | f: entry 2: `True` is not a number
[1, "2x"]                    |      | f: entry 2: `2x` is not a number
[1, [2]]                     |      | f: entry 2: `[2]` is not a number
{"a": 1, "b": {"c": 2}}\n    |      | f: several columns; name a column in --column: a, b.c
{"a": 1, "b": {"c": 2}}\n    | b.d  | f: no column `b.d`; name a column in --column: a, b.c
{"a": 1}\n0.5\n              | a    | f:2: not a JSON object
{"a": "x"}\n                 |      | f: entry 1: `x` is not a number
{"a": ["\\ud800"], "error": ["\\udfff"]}\n{"a": "\\ud800", "error": null}\n | a    | f:2: `?` is not
20ms\n21\n                   |      | f:2: `21` has no unit, unlike the numbers before
21\n20ms\n                   |      | f:2: `20ms` has a unit, unlike the numbers before
a;b\n1;12,5\n2;12.5\n        | b    | f:3: `12.5` has a different decimal sign (comma or point) from the numbers before
name;iterations;real_time;time_unit\nB;9;21,5;ms\nB;9;21.5;ms\n |      | f:3: `21.5` has a different decimal sign
name;iterations;real_time;time_unit\nB;9;21;bars\n |      | f:2: `21` is in `bars`, which is not a unit of time
"""
LARGE = [
    ("[" * 100_000, "", "f: not JSON ("),
    ("[1, " + "9" * 400 + "]", "", "f: "),
    (
        '{"id": 7, "error": "x"}\n' * 100 + '{"id": 7, "a": 1}\n',
        "",
        "f: no record has a latency; give another",
    ),
    (
        'a\n"' + "1" * 200_000,
        "",
        "f:2: not a row of a table (field larger than field limit (131072)); fix the line",
    ),
]


@cases([*scenarios(MISTAKES), *LARGE])
def test_mistakes(text, column, message):
    with pytest.raises(UsageError) as raised:
        values(text, column)
    line = str(raised.value)
    assert line.startswith(message)
    assert "\n" not in line
    assert "; " in line
    assert len(line) < 300


@given(st.binary(max_size=60), st.sampled_from(["", "a"]))
@example(b"\xc2\x80\r\x01", "")
def test_any_bytes_give_numbers_or_one_line(data, column):
    with suppress(UsageError):
        found = values(data, column)
        assert found
        assert all(x > 0 for x in found)


NO_TEXT = r"""
 \n\n                | is empty
\x7fELF\x00\x00\x00  | a binary or packed file; give a journal, or numbers as text
\x80\x81\n           | a file of numbers without a run
\xff\xfe1            | damaged gzip or UTF-16; download the file again, or save
PK\x03\x04\x14\x00   | a binary or packed file
\x1f\x8bnonsense     | damaged gzip
"""


@cases([("", "is empty"), (" \n\n", "is empty"), *scenarios(NO_TEXT)])
def test_files_that_hold_no_text(text, message, write):
    path = write("f", text.encode("latin-1"))
    with pytest.raises(UsageError) as raised:
        read([path])
    assert str(raised.value).startswith(f"{path}: {message}")


UNREADABLE = r"""
none   | No such file or directory
.      | Is a directory
a\0b   | embedded null byte
"""


@cases(UNREADABLE)
def test_what_cannot_be_read(name, why, tmp_path):
    with pytest.raises(UsageError, match=rf"cannot be read \({why}\); choose a readable file"):
        read([str(tmp_path / name)])


@cases([gzip.compress, lambda text: b"\xef\xbb\xbf" + text, lambda text: text.decode().encode("utf-16")])
def test_packed_and_marked_text_is_taken(pack, write):
    assert read([write("a", pack(b"1\n2\n"))]).canaries[""].every.tolist() == [1, 2]


def test_too_large_files(write, monkeypatch):
    monkeypatch.setattr(content, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(content, "MAX_UNPACKED", 1 << 19)
    for module in (rows, table):
        monkeypatch.setattr(module, "MAX_POINTS", 100)
    for name, data, said in (
        ("a", b"1\n" * (1 << 20), "more than 1 MiB"),
        ("bomb", gzip.compress(b"1\n" * (1 << 20)), "more than 0 MiB of text"),
        ("b", b"1\n" * 101, "more than 100 numbers; give a part of the file"),
        ("c", b"[" + b"[]," * 101 + b"1]", "more than 100 numbers; give a part of the file"),
    ):
        with pytest.raises(UsageError, match=said):
            read([write(name, data)])


def test_each_file_of_numbers_is_a_start(write):
    recording = read([write("a", [1, 2]), write("b", "[3]"), write("a", [1, 2])])
    assert [start.tolist() for start in recording.canaries[""].points] == [[1, 2], [3]]
    assert not recording.journal
