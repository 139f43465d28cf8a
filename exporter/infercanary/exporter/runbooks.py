"""The runbooks, where alerts lead: docs/runbooks.md as ``make docs`` renders it, which is part of the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from infercanary.exporter.status import STYLE

PATH = "/runbooks"


@cache
def page() -> str:
    """The whole page; each alert has a heading whose id is its name in small letters.

    Returns:
        HTML.
    """
    text = files(__package__).joinpath("runbooks.html").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>InferCanary: runbooks</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head><body class="runbooks">
<header class="top"><nav><a href="./">status</a></nav></header>
{text}</body></html>
"""
