"""Text of other people's code: nothing in it acts on a terminal, and everybody cleans it by this one function."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import infercanary.judge
from infercanary.contract import text as cleaning
from infercanary.contract.text import REPLACEMENT, printable, shortened


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("torch 2.13", "torch 2.13"),
        ("µs × π", "µs × π"),
        ("a\nb\r\tc", "a?b??c"),
        ("\x1b[31mred", "?[31mred"),
        ("\u202eevil\u2066", "?evil?"),
        ("\ud800", "?"),
        ("no\xa0break", "no?break"),
    ],
)
def test_what_could_act_is_replaced(given_: str, shown: str) -> None:
    assert printable(given_) == shown
    assert printable(given_, replacement=REPLACEMENT) == shown.replace("?", REPLACEMENT)


@given(st.text(), st.integers(1, 20))
def test_the_length_stays_or_is_cut(text: str, most: int) -> None:
    assert len(printable(text)) == len(text)
    assert printable(text).isprintable()
    assert printable(text, most) == printable(text)[:most]
    assert len(shortened(text, most)) == min(len(text), most)
    assert shortened(text, most) == text or shortened(text, most).endswith("…")


def test_nobody_else_replaces_characters_by_himself() -> None:
    # In an installed wheel both are the same folder.
    trees = {Path(cleaning.__file__).parents[1], Path(next(iter(infercanary.judge.__path__))).parent}
    # To refuse a text that is not printable is another matter.
    found = subprocess.run(
        ["grep", "-rlE", r"isprintable\(\) (or .* )?else", "--include=*.py", *map(str, trees)],
        capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    assert found == [cleaning.__file__]
