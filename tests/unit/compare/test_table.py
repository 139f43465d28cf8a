"""Numbers from text of any format; each mistake is one line with its place."""

from __future__ import annotations

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
from infercanary.compare.rows import Choice
from infercanary.compare.table import numbers

latencies = st.lists(st.floats(1e-15, 1e15), min_size=1, max_size=30)


def values(data, column=""):
    data = data if isinstance(data, bytes) else data.encode()
    return [float(x) for x in numbers("f", data, Choice(column))[0][""].every]


@given(latencies, st.sampled_from(["\n", "\r\n"]))
def test_one_a_line(each, end):
    assert values(end.join(map(repr, each))) == each


@given(latencies)
def test_a_json_array(each):
    assert values(json.dumps(each)) == each
    assert values(json.dumps(each, indent=1)) == each


@given(latencies)
def test_json_objects(each):
    lines = "".join(json.dumps({"t": "x", "a": {"b": x}, "c.d": x}) + "\n" for x in each)
    assert values(lines, "a.b") == values(lines, "c.d") == each
    assert values(json.dumps([{"ms": x} for x in each])) == each


@given(latencies, st.sampled_from(",;\t"), st.text(st.characters(exclude_categories=["C"]), max_size=10))
def test_tables(each, delimiter, text):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(["name", "latency, p50", "n"])
    writer.writerows([f"x{text}", repr(x), 1] for x in each)
    assert values(out.getvalue(), "latency, p50") == each


def test_comments_and_blank_lines():
    assert values("# a\n\n0.5  # warm\n  1\n#\n2e-3\n") == [0.5, 1, 0.002]
    assert values("# made by x\nlatency\n1\n\n# more\n2\n") == [1, 2]
    assert values('# x\n{"a": 1}\n\n{"a": 2}\n') == [1, 2]


def test_a_truncated_last_line_of_objects_is_left_out():
    found, notes = numbers("f", b'{"a": 1}\n{"a": 2}\n{"a')
    assert found[""].every.tolist() == [1, 2]
    assert notes == ["f: the last line is truncated, and was left out"]
    for text in ('{"a": 1}\n{"a\n', '{"a": 1}\n{"a\n{"a": 2}'):
        with pytest.raises(UsageError, match=r"^f:2: not JSON \(.*\); put one object on each line$"):
            values(text)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("1,\n2,\n", "", "f:1: several columns on a line, and no header"),
        ('a,b\n"22,077",1\n', "a", "f:2: `22,077` is not a number; write a decimal comma as a point"),
        ("a,b\n,1\n", "a", "f:2: nothing is not a number; take the row out"),
        ("1\n2\nnan\n", "", "f:3: nan is not a latency: those are finite and above zero; take it out"),
        ("1\n-2\n", "", "f:2: -2 is not a latency: those are finite and above zero; take it out"),
        ("# x\n\n0\n", "", "f:3: 0 is not a latency: those are finite and above zero; take it out"),
        ("1\n1.7e308\n", "", "f:2: 1.7e308 is not a latency: in any unit those are from 1e-15 to 1e+15"),
        ("1\n1e-320\n", "", "f:2: 1e-320 is not a latency"),
        ("[1, " + "9" * 400 + "]", "", "f: "),
        ("1\n1e999\n", "", "f:2: 1e999 is not a latency: those are finite and above zero; take it out"),
        ("1\nx\n", "", "f:2: `x` is not a number"),
        ("1\n{}\n", "", "f:2: `{}` is not a number"),
        ("1\n1 2\n", "", "f:2: `1 2` is not a number; put one number on a line, or give the table a header"),
        ("1,2\n3,4\n", "", "f:1: several columns on a line, and no header to name them; add one"),
        ("1\n2\n", "x", "f: one number a line, without columns; leave --column out"),
        ("a,b\n1,2\n", "", "f:1: which column? Give --column one of: a, b"),
        ("a,b\n1,2\n", "c", "f:1: no column `c`; there are: a, b"),
        ("a,a\n1,2\n", "a", "f:1: the column `a` is there 2 times; rename one"),
        ("a,b\n1,2\n1\n", "a", "f:3: 1 columns, and the header has 2; fix the line"),
        ("a,b\n1,2\n,1\n", "a", "f:3: nothing is not a number"),
        ("a,b\n\n# c\n1,2\n\nx,1\n", "a", "f:6: `x` is not a number"),
        ("a\n", "", "f: holds no numbers; give one a line, or a table with a header"),
        ("[]", "", "f: holds no numbers"),
        ("[1, 2", "", "f: not a JSON array (Input data was truncated); is it whole?"),
        ("[1, NaN]", "", "f: entry 2: nan is not a latency: those are finite and above zero; take it out"),
        ('{"a": 1}\n{"a": -Infinity}', "", "f:2: -inf is not a latency: those are finite and above zero"),
        ("[1, null]", "", "f: entry 2: nothing is not a number"),
        ("[1, true]", "", "f: entry 2: `true` is not a number"),
        ('[1, "2x"]', "", "f: entry 2: `2x` is not a number"),
        ("[1, [2]]", "", "f: entry 2: `[2]` is not a number"),
        ("[1, -1]", "", "f: entry 2: -1 is not a latency"),
        ("[1, 2]", "a", "f: an array of numbers, without columns; leave --column out"),
        ("[" * 100_000, "", "f: not a JSON array ("),
        ('{"a": 1, "b": {"c": 2}}\n', "", "f:1: which column? Give --column one of: a, b.c"),
        ('{"a": 1, "b": {"c": 2}}\n', "b.d", "f:1: no column `b.d`; there are: a, b.c"),
        ('{"a": 1}\n0.5\n', "a", "f:2: `0.5` among objects; keep to one format in a file"),
        ('{"a": "x"}\n', "", "f:1: `x` is not a number"),
        ('{\n"a": [1\n', "", "f: not JSON (Input data was truncated); is it whole?"),
        ("12,5\n12,7\n", "", "f:1: several columns on a line, and no header to name them; add one, or give one"),
        ("12.5ms?\n13ms\n", "", "f:1: `12.5ms?` is not a number"),
        ("20ms\n21\n", "", "f:2: `21` without a unit, unlike the numbers before"),
        ("a;b\n1;12,5\n2;12.5\n", "b", "f:3: `12.5`: decimal commas and points in one column"),
    ],
)  # fmt: skip
def test_mistakes(text, column, message):
    with pytest.raises(UsageError) as raised:
        values(text, column)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_lines_that_end_as_on_an_old_mac():
    assert values(b"a,b\r0.5,1\r0.25,2\r", "a") == values(b"0.5\r0.25\r") == [0.5, 0.25]


@given(st.binary(max_size=60), st.sampled_from(["", "a"]))
@example(b"\xc2\x80\r\x01", "")
def test_any_bytes_give_numbers_or_one_line(data, column):
    with suppress(UsageError):
        found = values(data, column)
        assert found and all(x > 0 for x in found)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; give a journal, or numbers"),
        (b" \n\n", "is empty"),
        (b"\x7fELF\0\0\0", "a binary file; give a journal, or numbers as text"),
        (b"\x80\x81\n", "not text in UTF-8; save it as such"),
        (b"\xff\xfe1", "damaged UTF-16; save it as UTF-8"),
        (b"PK\x03\x04....", "packed with zip; unpack it first"),
        (b"(\xb5/\xfd....", "packed with zstd; unpack it first"),
        (b"\x1f\x8bnonsense", "gzip that is cut off or damaged"),
        (gzip.compress(b"1\n" * 1000, mtime=0)[:-9], "gzip that is cut off or damaged"),
    ],
)
def test_files_that_hold_no_text(write, data, message):
    path = write("f", data)
    with pytest.raises(UsageError) as raised:
        read([path])
    assert str(raised.value).startswith(f"{path}: {message}")


def test_what_cannot_be_read(write, tmp_path):
    with pytest.raises(UsageError, match=r"cannot be read \(No such file or directory\); check the path"):
        read([str(tmp_path / "none")])
    with pytest.raises(UsageError, match=r": is a folder; name a file in it"):
        read([str(tmp_path)])
    with pytest.raises(UsageError, match="cannot be read"):
        read(["a\0b"])


def test_gzip_and_a_byte_order_mark_are_taken(write):
    assert read([write("a", gzip.compress(b"1\n2\n"))]).canaries[""].every.tolist() == [1, 2]
    assert read([write("b", b"\xef\xbb\xbf1\n2\n")]).canaries[""].every.tolist() == [1, 2]


def test_what_is_too_large(write, monkeypatch):
    monkeypatch.setattr(content, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(content, "MAX_UNPACKED", 1 << 19)
    for module in (rows, table):
        monkeypatch.setattr(module, "MAX_POINTS", 100)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read([write("a", b"1\n" * (1 << 20))])
    with pytest.raises(UsageError, match="unpacks to more than 0 MiB"):
        read([write("bomb", gzip.compress(b"1\n" * (1 << 20)))])
    with pytest.raises(UsageError, match="more than 100 numbers; give a part of them"):
        read([write("b", b"1\n" * 101)])
    with pytest.raises(UsageError, match="more than 100 numbers; give a part of them"):
        read([write("c", b"[" + b"[]," * 101 + b"1]")])


def test_each_file_of_numbers_is_a_start(write):
    recording = read([write("a", [1, 2]), write("b", "[3]"), write("a", [1, 2])])
    assert [start.tolist() for start in recording.canaries[""].points] == [[1, 2], [3]]
    assert not recording.journal
