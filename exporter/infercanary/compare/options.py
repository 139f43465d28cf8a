"""Options and output that `compare`, `scan`, `report` and `ab` share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from infercanary.command.exit_codes import worst
from infercanary.command.settings import UsageError
from infercanary.compare.changes import ScanResult
from infercanary.compare.comparison import ComparisonResult

F = TypeVar("F", bound=Callable[..., Any])


def canary(function: F) -> F:
    return click.option("--canary", default="", metavar="NAME", help="This canary of a journal only.")(
        function
    )


def column(function: F) -> F:
    return click.option(
        "--column",
        default="",
        metavar="NAME",
        help="Which column of a table, or key of JSON objects, holds the latencies; `a.b` is the key b in a.",
    )(function)


def as_json(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(
        function
    )


def report(function: F) -> F:
    return click.option(
        "--html", "report", default="", metavar="FILE", help="Write a report with pictures to FILE too."
    )(function)


def between(name: str, number: float, low: float, high: float, advice: str) -> None:
    """Check that ``number`` lies in [``low``, ``high``]; NaN does not.

    Raises:
        UsageError: It does not; the line ends with ``advice``.
    """
    if not (math.isfinite(number) and low <= number <= high):
        raise UsageError(f"{name} {number:g}: {advice}")


def answer(results: Sequence[ComparisonResult | ScanResult], notes: Sequence[str]) -> str:
    """Return the worst canary's result as a JSON object, with the results of all under `canaries`; in ASCII."""
    code = worst([each.exit_code for each in results])
    first: dict[str, Any] = msgspec.to_builtins(next(each for each in results if each.exit_code == code))
    whole = {**first, "notes": [*first["notes"], *notes], "canaries": results}
    return json.dumps(msgspec.json.decode(msgspec.json.encode(whole))) + "\n"
