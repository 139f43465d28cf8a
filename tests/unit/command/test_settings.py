"""Settings files: reading, and messages about mistakes. probe/bad_config has complete files with mistakes."""

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from infercanary.command.settings import UsageError, convert, load
from tests.scenarios import cases


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    names: tuple[str, ...] = ()


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    parts: dict[str, Inner] = {}
    rows: list[Inner] = []
    nested: dict[str, dict[str, Inner]] = {}
    maybe: Inner | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    free: dict[str, Any] = {}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a.yaml"


def mistake(file, text):
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file, Outer)
    line = str(caught.value)
    assert line.startswith(str(file))
    assert "\n" not in line
    return line.removeprefix(str(file))


def test_what_is_read(file):
    file.write_text(
        "base: &base {size: 1, names: [a]}\n".replace("base: ", "free: {base: ").rstrip() + "}\n"
        "parts:\n  one: *base\n  two: {<<: *base, size: 2}\n"
        "share: 1\n"
    )
    found = load(file, Outer)
    # Other keys may override the keys of a merge (`<<`): these are no duplicate keys.
    assert found.parts == {"one": Inner(1, ("a",)), "two": Inner(2, ("a",))}
    assert found.share == 1.0


def test_an_empty_file_is_all_defaults(file):
    file.write_text("# nothing\n")
    assert load(file, Outer) == Outer()


@cases(
    [
        # msgspec's message lacks the name of a mapping's entry, so the reader adds the name.
        ("parts: {a: {size: 1}, b: {size: x}}", ": parts.b.size: expected a whole number, got text"),
        ("parts: {a: {size: 1}, b: {names: []}}", ": parts.b: the required key `size` is missing"),
        ("parts: {a: {size: 1}, b: {size: 1, z: 1}}", ": parts.b: unknown key `z`; known keys: size, names"),
        (
            "nested: {a: {b: {size: 1}, c: {size: []}}}",
            ": nested.a.c.size: expected a whole number, got a list",
        ),
        ("rows: [{size: 1}, {size: 1, names: [2]}]", ": rows[1].names[0]: expected text, got a whole number"),
        (
            "rows: [{size: 1}, {size: 1, nam: 2}]",
            ": rows[1]: unknown key `nam`; did you mean `names`? known keys: size, names",
        ),
        ('maybe: {size: 1, "x\\e[2J": 1}', ": maybe: unknown key `x?[2J`; known keys: size, names"),
        ("parts: {a.b: {size: x}}", ": parts.a.b.size: expected a whole number, got text"),
        ("nested: {a.b: {c: {size: x}}}", ": nested.a.b[...].size: expected a whole number, got text"),
        (
            "parts: {3: {size: 1}}",
            ": parts: expected text, got a whole number as a key; put the key in quotes",
        ),
        ("share: 0", ": share: expected a number > 0.0"),
        ("share: .NaN", ":1:8: `.NaN` is not a finite number; use a finite number"),
        ("free: {a: [1.0, .inf]}", ":1:17: `.inf` is not a finite number; use a finite number"),
        ("free: {a: {b: 1, c: 2, b: 3}}", ":1:24: the key `b` is repeated; keep one entry"),
        ("free:\n  'a': 1\n  a: 2", ":3:3: the key `a` is repeated; keep one entry"),
    ],
)
def test_a_mistake_names_its_place_and_its_fix(text, message, file):
    assert mistake(file, text) == message


def test_keys_that_only_look_alike_are_two(file):
    file.write_text("free: {a: {'1': x, 1: y}}")
    assert load(file, Outer).free == {"a": {"1": "x", 1: "y"}}


@given(st.binary(max_size=200) | st.text("{}[]:-#&*!|>'\"%@`,? \n\tab01.~", max_size=60).map(str.encode))
def test_no_bytes_at_all_give_anything_but_settings_or_one_line(tmp_path_factory, junk):
    file = tmp_path_factory.getbasetemp() / "junk.yaml"
    file.write_bytes(junk)
    message = f"{file}: "
    try:
        load(file, Outer)
    except UsageError as error:
        message = str(error)
    assert message.startswith(f"{file}:")
    assert len(message.splitlines()) == 1


def test_convert_without_a_place():
    with pytest.raises(UsageError, match=r"^the required key `size` is missing$"):
        convert({}, Inner, "")


def test_a_mistake_is_one_line_whatever_is_in_it():
    assert str(UsageError("two\nlines \t of  text")) == "two lines of text"
    assert "\x1b" not in str(UsageError("unknown key `\x1b[2J`"))


def test_a_huge_value_leaves_room_for_the_place_and_the_fix():
    line = str(UsageError(f"f.yaml: host: `{'x' * 600_000}` is no host; give a name"))
    assert line.startswith("f.yaml: host: `xxx")
    assert line.endswith("` is no host; give a name")
    assert len(line) < 2_100
