"""The runbooks, where alerts lead: docs/runbooks.md as ``make docs`` renders it, which is part of the package."""

from __future__ import annotations

from importlib.resources import files

from infercanary.pages.html import environment

PATH = "/runbooks"
PAGE = (
    environment()
    .get_template("runbooks.html")
    .render(text=files(__package__).joinpath("runbooks.html").read_text(encoding="utf-8"))
)
"""HTML; the heading of an alert has its name in small letters as its id."""
