"""The runbooks, where alerts lead: docs/runbooks.md as ``make docs`` renders it, which is part of the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from infercanary.pages.html import environment

PATH = "/runbooks"


@cache
def page() -> str:
    """Return the whole page; the heading of an alert has its name in small letters as its id."""
    text = files(__package__).joinpath("runbooks.html").read_text(encoding="utf-8")
    return environment().get_template("runbooks.html").render(text=text)
