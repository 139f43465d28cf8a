"""Runbooks that alerts link to: docs/runbooks.md as HTML, which ``make docs`` writes into this package."""

from __future__ import annotations

from importlib.resources import files

from infercanary.pages.html import environment

PATH = "/runbooks"
PAGE = (
    environment()
    .get_template("runbooks.html")
    .render(text=files(__package__).joinpath("runbooks.html").read_text(encoding="utf-8"))
)
"""HTML; each heading has the alert's name in lower case as its id."""
