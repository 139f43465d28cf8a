"""Options and output shared by `compare`, `scan`, `report` and `ab`."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import click

import infercanary
from infercanary.command.exit_codes import worst
from infercanary.command.extras import needed_by
from infercanary.command.paths import unwritable
from infercanary.command.settings import UsageError
from infercanary.compare import claim
from infercanary.compare.comparison import GATES
from infercanary.compare.terminal import say, width
from infercanary.judge.identity import Digests
from infercanary.judge.policy import Policy
from infercanary.pages import html
from infercanary.pages.junit import render_junit
from infercanary.pages.markdown import render_markdown
from infercanary.pages.table_csv import Cell, render_csv
from infercanary.render.document import Document
from infercanary.render.json import json_line, plain_values, render_json
from infercanary.render.text import render_texts
from infercanary.render.units import when

F = TypeVar("F", bound=Callable[..., Any])


class Output(NamedTuple):
    """Output settings of a command: the printed format, and the files to write. See :func:`output`."""

    form: str | None = None
    """Printed format; None for text, in commands without --format."""
    html: str = ""
    junit: str = ""

    def show(
        self,
        documents: Sequence[Document],
        notes: Sequence[str] = (),
        *,
        title: str,
        **more: Any,
    ) -> int:
        """Print the answer, then write the files. Return the answer's exit code.

        Printing comes first, because writing files may fail on a full disk.

        Args:
            documents: One document for each canary, in order of output.
            notes: Remarks on all documents.
            title: Title of the HTML page.
            more: Additional fields of the JSON object.
        """
        if self.form == "json":
            say(render_json(documents, notes, **more))
        elif self.form == "github":
            say(render_markdown(documents, notes))
        elif self.form in (None, "text"):
            say(render_texts(documents, notes, width()))
        if self.html:
            made = f"InferCanary {infercanary.__version__}, {when(time.time())}"
            page = html.render_page(title, documents, notes, [made])
            html.write(self.html, page)
        if self.junit:
            html.write(self.junit, render_junit(documents), "--junit")
        return worst(document.exit_code for document in documents)

    def show_rows(self, rows: Sequence[Mapping[str, Cell]]) -> None:
        """Print rows as JSON, or as CSV with all columns that occur."""
        if self.form == "json":
            say(json_line(plain_values(rows)))
        else:
            columns = [*dict.fromkeys(chain.from_iterable(rows))]
            for line in render_csv(columns, ([row.get(column) for column in columns] for row in rows)):
                say(line)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options in this order to the help text."""
    return lambda function: functools.reduce(lambda inner, add: add(inner), reversed(options), function)


def number(
    *names: str,
    low: float,
    high: float,
    advice: str,
    convert: Callable[[Any], Any] = lambda value: value,
    **more: Any,
) -> Callable[[F], F]:
    """Return an option for a number from ``low`` to ``high``.

    Args:
        names: Names of the option; messages use the first name.
        low: Lower limit.
        high: Upper limit.
        advice: A valid value with its unit, for the error message.
        convert: Converts the number, or None, to the command's argument.
        more: Additional arguments of :func:`click.option`.
    """

    def checked(_: click.Context, __: click.Parameter, value: float | None) -> Any:
        if value is not None and not low <= value <= high:  # the comparison is false for NaN
            raise UsageError(f"{names[0]} {value:g}: {advice}")
        return convert(value)

    return click.option(*names, callback=checked, **{"type": float, **more})


def output(*forms: str) -> Callable[[F], F]:
    """Return the options that make an :class:`Output`.

    Args:
        forms: Additional formats besides text and JSON: `csv`, or `github`, which also adds JUnit XML.
    """
    choices = click.Choice(["text", "json", *forms])
    options = [
        click.option("--json", "form", flag_value="json", help="Print JSON instead of text."),
        _written("--html", "an HTML report"),
        click.option("--format", "form", type=choices, default="text", help="Format of the printed answer."),
        _written("--junit", "JUnit XML for a CI system"),
    ]
    return together(*options[: 4 if "github" in forms else 3 if forms else 2])


def _written(name: str, content: str) -> Callable[[F], F]:
    return click.option(
        name, default="", callback=writable, metavar="FILE", help=f"Also write {content} to FILE."
    )


def policy(base: Policy) -> Callable[[F], F]:
    """Return the option for the smallest effect. The command receives a policy with the given effect."""
    decide = base.decide

    def adjusted(percent: float | None) -> Policy:
        effect = decide.smallest_effect if percent is None else percent / 100
        return base.but(smallest_effect=effect, clear_zone=min(decide.clear_zone, effect / 3))

    return number(
        "--smallest-effect", "policy", low=0.1, high=50, convert=adjusted, metavar="PERCENT",
        advice="give a percentage from 0.1 to 50, such as 3",
        help=f"The smallest shift that counts as a change.  [default: {100 * decide.smallest_effect:g}]",
    )  # fmt: skip


def writable(_: click.Context, option: click.Parameter, path: str) -> str:
    """Refuse a file that cannot be written, before the measurement begins."""
    if path and (why := unwritable(path)):
        raise UsageError(f"{option.opts[0]}: {why}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{option.opts[0]}: `{path}` is a device or a pipe; name a file")
    return path


def _pairs(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        column, sign, cell = text.partition("=")
        if not (column and sign):
            raise UsageError(f"--where {text}: give COLUMN=VALUE, such as label=infer")
        pairs.append((column, cell))
    return pairs


def _recorder(_: click.Context, __: click.Parameter, location: str) -> Any:
    if not location:
        return None
    with needed_by("--record", "exporter"):
        from infercanary.compare.record import Recorder
    return Recorder(location)


def _digests(_: click.Context, option: click.Parameter, texts: Sequence[str]) -> Digests:
    known = {}
    for text in texts:
        __, at, digest = text.rpartition("@")
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise UsageError(
                f"{option.opts[0]} {text}: not a digest; give REPOSITORY@sha256:…, or the image's id, sha256:…"
            )
        known["manifest_digest" if at else "config_digest"] = digest
    return Digests(**known)


record = click.option(
    "--record",
    "recorder",
    default="",
    metavar="STORE",
    callback=_recorder,
    help="Record the result in an exporter's store: an SQLite file, or postgresql://… (docs/ab.md).",
)

image = click.option(
    "--image",
    "digests",
    multiple=True,
    metavar="DIGEST",
    callback=_digests,
    help="Image of the recorded (candidate's) journal: REPOSITORY@sha256:… or an image id; may be repeated.",
)

canary = click.option("--canary", default="", metavar="NAME", help="Use only this canary of a journal.")

choice = together(
    click.option(
        "--column",
        default="",
        metavar="NAME",
        help="Column of a table, or key of JSON objects, with the latencies; `a.b` is the key b of the object a.",
    ),
    click.option(
        "--where",
        multiple=True,
        metavar="COLUMN=VALUE",
        callback=_pairs,
        help="Use only rows of a table, or JSON objects, with this value in this column. May be repeated: a row needs "
        "one of the values in each named column.",
    ),
)

expect = click.option(
    "--expect",
    "claimed",
    default="",
    metavar="SHIFT",
    callback=lambda _, __, text: claim.parse(text),
    help="Check a claim: -40% means at least 40 % faster, +10% at most 10 % slower (docs/ab.md).",
)

gate = click.option(
    "--gate",
    type=click.Choice(GATES),
    default="all",
    show_default=True,
    help="Regressions that give exit code 1: of all measures, or of latency only.",
)
