"""HTML pages from templates that escape all text. A page is one file and loads no other files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from infercanary.command.settings import UsageError
from infercanary.pages.chart import draw
from infercanary.pages.safe_text import shown, web_link
from infercanary.render.document import Document
from infercanary.render.units import duration, value, when

STYLE = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
"""Stylesheet of every page."""


@cache
def environment() -> Environment:
    """Return the environment of the templates. The environment escapes each text, cuts it, and replaces unprintable
    characters.
    """
    templates = Environment(
        loader=PackageLoader("infercanary.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda output: shown(output) if type(output) is str else output,  # a str but not Markup
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    templates.globals["style"] = STYLE
    templates.filters |= {
        "chart": draw,
        "duration": duration,
        "shown": shown,
        "value": value,
        "web_link": web_link,
        "when": when,
    }
    return templates


def render_page(
    title: str, documents: Sequence[Document], notes: Sequence[str] = (), colophon: Sequence[str] = ()
) -> str:
    """Return a report as one HTML file.

    Args:
        title: Title of the page, as plain text.
        documents: Each document becomes an article.
        notes: Lines about all documents.
        colophon: Lines of the footer, such as version and date of the report.
    """
    template = environment().get_template("report.html")
    return template.render(title=title, documents=documents, notes=notes, colophon=colophon)


def write(path: str, text: str, option: str = "--html") -> None:
    """Write a file.

    Args:
        path: Path of the file. An existing file is replaced.
        option: Command-line option that sets the path, for messages.

    Raises:
        UsageError: The file cannot be written completely.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                if Path(path).is_file():  # remove an incomplete file, which would mislead; keep a device
                    Path(path).resolve().unlink()
                raise
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be written ({error.strerror}); choose another path"
        ) from None
