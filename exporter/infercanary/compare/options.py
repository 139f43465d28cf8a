"""Options and output that `compare`, `scan`, `report` and `ab` share."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import click
import msgspec

from infercanary.command.exit_codes import worst
from infercanary.command.settings import UsageError
from infercanary.compare import claim, measured, text
from infercanary.compare.rows import Choice
from infercanary.compare.schemas import VERSION
from infercanary.compare.terminal import say, width
from infercanary.contract.text import all_printable
from infercanary.judge.policy import Policy

GATED = "Memory, energy and the throughput of a load count too, unless --gate latency or --expect is given."
"""What exit codes of comparisons are about, beside the latency."""

F = TypeVar("F", bound=Callable[..., Any])
FORMS = ("text", "json", "github")


def _form(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value == "junit":
        raise UsageError("--format junit: JUnit XML goes to a file beside the answer; give --junit FILE")
    return value


def canary(function: F) -> F:
    """Add the option ``--canary``.

    Args:
        function: A command, which gets it as its argument ``canary``.

    Returns:
        The command with the option.
    """
    return click.option("--canary", default="", metavar="NAME", help="This canary of a journal only.")(
        function
    )


def choice(function: F) -> F:
    """Add the options ``--column`` and ``--where``.

    Args:
        function: A command, which gets them as its argument ``choice``.

    Returns:
        The command with the options.
    """

    @functools.wraps(function)
    def with_choice(*arguments: Any, column: str, where: tuple[str, ...], **others: Any) -> Any:
        pairs = [pair.partition("=") for pair in where]
        for pair, (name, sign, _) in zip(where, pairs, strict=True):
            if not (name and sign):
                raise UsageError(f"--where {pair}: give COLUMN=VALUE, such as label=infer")
        picked = Choice(column, tuple((name, value) for name, _, value in pairs))
        return function(*arguments, choice=picked, **others)

    decorated = click.option(
        "--where",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Only rows of a table, or JSON objects, with this value there; may be repeated: for another column both "
        "must fit, for the same one either.",
    )(with_choice)
    decorated = click.option(
        "--column",
        default="",
        metavar="NAME",
        help="Which column of a table, or key of JSON objects, holds the latencies; `a.b` is the key b in a.",
    )(decorated)
    return cast("F", decorated)


def as_json(function: F) -> F:
    """Add the option ``--json``.

    Args:
        function: A command, which gets it as its argument ``as_json``.

    Returns:
        The command with the option.
    """
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(
        function
    )


def form(function: F) -> F:
    """Add the options ``--format`` and ``--json``, which is one of the formats.

    Args:
        function: A command, which gets the format as its argument ``form``: text, json or github.

    Returns:
        The command with the options.
    """

    @functools.wraps(function)
    def with_form(*arguments: Any, form: str | None, as_json: bool, **others: Any) -> Any:
        if as_json and form not in (None, "json"):
            raise UsageError(f"--json and --format {form}: exclude each other; give one of them")
        return function(*arguments, form="json" if as_json else form or "text", **others)

    decorate = click.option(
        "--format",
        "form",
        type=click.Choice([*FORMS, "junit"]),
        metavar=f"[{'|'.join(FORMS)}]",
        callback=_form,
        help="How the answer is printed: `github` is Markdown, for a comment on a change request.  [default: text]",
    )
    return cast("F", as_json(decorate(with_form)))


def expect(function: F) -> F:
    """Add the option ``--expect``; the command gets the claimed shift, or None, as its argument ``claimed``.

    Args:
        function: A command.

    Returns:
        The command with the option.
    """

    @functools.wraps(function)
    def with_claim(*arguments: Any, expect: str, **others: Any) -> Any:
        return function(*arguments, claimed=claim.parse(expect), **others)

    decorate = click.option(
        "--expect",
        default="",
        metavar="SHIFT",
        help="Check a claim: -40% is at least 40 % faster, +10% at most 10 % slower. The claim holds (exit code 0) if "
        "the interval reaches that shift or less, and the whole interval is below a limit: -20 % for -40%, +15 % for "
        "+10%, +3 % for 0%. It is refuted (1) if the whole interval is above that shift. Else it is not known (3).",
    )
    return cast("F", decorate(with_claim))


def gate(function: F) -> F:
    """Add the option ``--gate``.

    Args:
        function: A command, which gets it as its argument ``gate``.

    Returns:
        The command with the option.
    """
    return click.option(
        "--gate",
        type=click.Choice(measured.GATES),
        default="all",
        show_default=True,
        help="What the exit code depends on: with `all` it is also 1 if memory, energy or the throughput of a load "
        "regressed; with `latency` these are only shown.",
    )(function)


def report(function: F) -> F:
    """Add the option ``--html``.

    Args:
        function: A command, which gets it as its argument ``report``.

    Returns:
        The command with the option.
    """
    return click.option(
        "--html", "report", default="", metavar="FILE", help="Write a report with pictures to FILE too."
    )(function)


def junit_file(function: F) -> F:
    """Add the option ``--junit``.

    Args:
        function: A command, which gets it as its argument ``junit_path``.

    Returns:
        The command with the option.
    """
    return click.option(
        "--junit",
        "junit_path",
        default="",
        metavar="FILE",
        help="Write JUnit XML for a CI system to FILE too.",
    )(function)


def policy(base: Policy, of_what: str) -> Callable[[F], F]:
    """Add the options for the numbers that decide; the command gets them as its argument ``policy``.

    Args:
        base: The policy that options which are not given leave as it is.
        of_what: What the confidence is of, for the help.

    Returns:
        A decorator for a command.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_policy(
            *arguments: Any,
            smallest_effect: float | None,
            clear_zone: float | None,
            confidence: float | None,
            **others: Any,
        ) -> Any:
            chosen = adjusted(base, smallest_effect, clear_zone, confidence)
            return function(*arguments, policy=chosen, **others)

        decorators = (
            click.option(
                "--smallest-effect",
                type=float,
                metavar="PERCENT",
                help="The smallest shift that counts as a change. An interval within it is `equivalent`.  "
                f"[default: {100 * base.smallest_effect:g}]",
            ),
            click.option(
                "--clear-zone",
                type=float,
                metavar="PERCENT",
                help="A change counts only if its whole interval is further from 0 than this.  "
                f"[default: {100 * base.clear_zone:g}]",
            ),
            click.option(
                "--confidence",
                "--level",
                "confidence",
                type=float,
                metavar="SHARE",
                help=f"Confidence of {of_what}.  [default: {base.confidence:g}]",
            ),
        )
        decorated: Any = with_policy
        for option in reversed(decorators):
            decorated = option(decorated)
        return cast("F", decorated)

    return decorate


def adjusted(
    base: Policy, smallest_effect: float | None, clear_zone: float | None, confidence: float | None
) -> Policy:
    """Return ``base`` with the numbers that were given: two percentages, and a share.

    Args:
        base: What is not given stays as it is here.
        smallest_effect: Percent; None where it is not given.
        clear_zone: Percent; None where it is not given.
        confidence: A share, such as 0.99; None where it is not given.

    Returns:
        A policy, with ratios in place of percentages.

    Raises:
        UsageError: One is out of range, or they contradict each other.
    """
    given: dict[str, float] = {}
    if smallest_effect is not None:
        between("--smallest-effect", smallest_effect, 0.1, 50, "give a percentage from 0.1 to 50, such as 3")
        given["smallest_effect"] = smallest_effect / 100
    if clear_zone is not None:
        between("--clear-zone", clear_zone, 0, 50, "give a percentage from 0 to 50, such as 1")
        given["clear_zone"] = clear_zone / 100
    if confidence is not None:
        between("--confidence", confidence, 0.5, 0.999999, "give a share from 0.5 to 0.999999, such as 0.99")
        given["confidence"] = confidence
    effect = given.get("smallest_effect", base.smallest_effect)
    zone = given.get("clear_zone", base.clear_zone)
    if zone >= effect and clear_zone is None:
        raise UsageError(
            f"--smallest-effect {smallest_effect:g}: must be above --clear-zone ({100 * zone:g}); both are percentages"
        )
    if zone >= effect:
        raise UsageError(
            f"--clear-zone {clear_zone:g}: must be below --smallest-effect ({100 * effect:g} %); give a smaller one"
        )
    return replace(base, **cast("dict[str, Any]", given))


def show(results: Iterable[tuple[str, str]], notes: Sequence[str]) -> None:
    """Print results (verdict, text), a blank line between them, and the notes on all of them.

    Args:
        results: In the order in which they are printed.
        notes: Lines that are wrapped to the terminal's width.
    """
    for number, (verdict, words) in enumerate(results):
        say("\n" * bool(number) + words, verdict)
    if notes:
        say("\n" + "".join(f"{line}\n" for note in notes for line in text.row("note", note, width())))


def between(name: str, number: float, low: float, high: float, advice: str) -> None:
    """Check that ``number`` lies in [``low``, ``high``]; NaN does not.

    Args:
        name: The option's.
        number: As given.
        low: The least.
        high: The most.
        advice: What to give instead, and in which unit.

    Raises:
        UsageError: It does not; the line ends with ``advice``.
    """
    if not (math.isfinite(number) and low <= number <= high):
        raise UsageError(f"{name} {number:g}: {advice}")


def plain(result: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of ``result`` as JSON has them, without infinity and NaN.

    Args:
        result: One of the answers.

    Returns:
        Name → value; what is not finite is None.
    """
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return fields


def answer(results: Sequence[Mapping[str, Any]], notes: Sequence[str], **more: Any) -> str:
    """Return the worst canary's result as a JSON object, with the results of all under `canaries`; in ASCII.

    Args:
        results: The fields of each result; there may be none, which is inconclusive.
        notes: Remarks on all of them.
        more: Further fields, which replace those of the worst result.
    """
    first: Mapping[str, Any] = {"verdict": "inconclusive", "notes": []}
    if results:
        code = worst(each["exit_code"] for each in results)
        first = next(each for each in results if each["exit_code"] == code)
    whole = {
        "schema_version": VERSION,
        **first,
        **more,
        "notes": [*first["notes"], *notes],
        "canaries": results,
    }
    return json_line(whole)


def json_line(document: object) -> str:
    """Return ``document`` as one line of JSON in ASCII. Its texts are printable, since `jq -r` prints them raw.

    Args:
        document: What :mod:`json` can write.
    """
    return json.dumps(all_printable(document)) + "\n"
