"""Untrusted text must not control a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.text import REPLACEMENT, printable, shortened
from tests.scenarios import cases


@cases(
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
def test_control_characters_are_replaced(given_, shown):
    assert printable(given_) == shown
    assert printable(given_, replacement=REPLACEMENT) == shown.replace("?", REPLACEMENT)


@given(st.text(), st.integers(1, 20))
def test_the_length_stays_or_is_cut(text, most):
    assert len(printable(text)) == len(text)
    assert printable(text).isprintable()
    assert printable(text, most) == printable(text)[:most]
    assert len(shortened(text, most)) == min(len(text), most)
    assert shortened(text, most) == text or shortened(text, most).endswith("…")
