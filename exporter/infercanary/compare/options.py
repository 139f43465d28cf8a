"""Options and output that `compare`, `scan`, `report` and `ab` share."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
import msgspec

from infercanary.command.exit_codes import worst
from infercanary.command.settings import UsageError
from infercanary.compare import claim, markdown, measured, text
from infercanary.compare.changes import ScanResult
from infercanary.compare.comparison import ComparisonResult
from infercanary.compare.rows import Choice
from infercanary.compare.terminal import say, width
from infercanary.contract.text import all_printable
from infercanary.judge.policy import Policy

VERSION = 1
"""Version of the output of `--json`. New fields keep it; a field that is removed or means something else changes it."""

F = TypeVar("F", bound=Callable[..., Any])
FORMS = ("text", "json", "github")


def combined(name: str, make: Callable[..., object], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options, of whose values the command gets one argument.

    Args:
        name: The command's argument.
        make: Makes its value; its parameters are named as the options are.
        options: In the order of the help.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_one(*arguments: Any, **given: Any) -> Any:
            own = {key: given.pop(key) for key in inspect.signature(make).parameters}
            return function(*arguments, **given, **{name: make(**own)})

        return functools.reduce(lambda decorated, add: add(decorated), reversed(options), cast("F", with_one))

    return decorate


def number(*names: str, low: float, high: float, advice: str, **more: Any) -> Callable[[F], F]:
    """Return an option that takes a number from ``low`` to ``high``.

    Args:
        names: The option's, the first for messages.
        low: The least.
        high: The most.
        advice: What to give instead, and in which unit.
        more: Further arguments of :func:`click.option`.
    """

    def checked(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:  # NaN is neither
            raise UsageError(f"{names[0]} {value:g}: {advice}")
        return value

    return click.option(*names, callback=checked, **{"type": float, **more})


def _choice(column: str, where: tuple[str, ...]) -> Choice:
    pairs = [pair.partition("=") for pair in where]
    for pair, (name, sign, _) in zip(where, pairs, strict=True):
        if not (name and sign):
            raise UsageError(f"--where {pair}: give COLUMN=VALUE, such as label=infer")
    return Choice(column, tuple((name, value) for name, _, value in pairs))


def _form(form: str | None, as_json: bool) -> str:
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form}: exclude each other; give one of them")
    return "json" if as_json else form or "text"


def form(words: str, forms: Sequence[str] = FORMS) -> Callable[[F], F]:
    """Return the options ``--format`` and ``--json``, which is one of the formats, for the argument ``form``.

    Args:
        words: The help, without the default.
        forms: Formats to choose from.
    """
    option = click.option("--format", "form", type=click.Choice(forms), help=f"{words}  [default: text]")
    return combined("form", _form, option, as_json)


canary = click.option("--canary", default="", metavar="NAME", help="This canary of a journal only.")

choice = combined(
    "choice",
    _choice,
    click.option(
        "--column",
        default="",
        metavar="NAME",
        help="Column of a table, or key of JSON objects, with the latencies; `a.b` is the key b in a.",
    ),
    click.option(
        "--where",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Only rows of a table, or JSON objects, with this value there; may be repeated: of one column either "
        "fits, of two columns both must.",
    ),
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")

expect = combined(
    "claimed",
    claim.parse,
    click.option(
        "--expect",
        "text",
        default="",
        metavar="SHIFT",
        help="Check a claim: -40% is at least 40 % faster, +10% at most 10 % slower (docs/ab.md).",
    ),
)

gate = click.option(
    "--gate",
    type=click.Choice(measured.GATES),
    default="all",
    show_default=True,
    help="What may end with 1: all measures, or latency alone.",
)

report = click.option(
    "--html", "report", default="", metavar="FILE", help="Write a report with pictures to FILE too."
)

junit_file = click.option(
    "--junit", "junit_path", default="", metavar="FILE", help="Write JUnit XML for a CI system to FILE too."
)


def policy(base: Policy, of_what: str) -> Callable[[F], F]:
    """Return the options for the numbers that decide; the command gets them as its argument ``policy``.

    Args:
        base: The policy that options which are not given leave as it is.
        of_what: What the confidence is of, for the help.
    """
    percents = "give a percentage from {:g} to 50, such as {}"
    return combined(
        "policy",
        functools.partial(adjusted, base),
        number(
            "--smallest-effect", low=0.1, high=50, advice=percents.format(0.1, 3), metavar="PERCENT",
            help="The smallest shift that counts as a change.  "
            f"[default: {100 * base.decide.smallest_effect:g}]",
        ),
        number(
            "--clear-zone", low=0, high=50, advice=percents.format(0, 1), metavar="PERCENT",
            help="Dead band: the interval of a change lies outside it.  "
            f"[default: {100 * base.decide.clear_zone:g}]",
        ),
        number(
            "--confidence", low=0.5, high=0.999999, metavar="SHARE",
            advice="give a share from 0.5 to 0.999999, such as 0.99",
            help=f"Confidence of {of_what}.  [default: {base.decide.confidence:g}]",
        ),
    )  # fmt: skip


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
        UsageError: They contradict each other.
    """
    effect = base.decide.smallest_effect if smallest_effect is None else smallest_effect / 100
    zone = base.decide.clear_zone if clear_zone is None else clear_zone / 100
    if zone >= effect:
        raise UsageError(
            f"--clear-zone ({100 * zone:g} %) must be below --smallest-effect ({100 * effect:g} %): change one of them"
        )
    return base.but(smallest_effect=effect, clear_zone=zone, confidence=confidence or base.decide.confidence)


def show(
    form: str,
    results: Sequence[ComparisonResult] | Sequence[ScanResult],
    texts: Iterable[str],
    notes: Sequence[str],
) -> None:
    """Print results and the notes on all of them.

    Args:
        form: One of :data:`FORMS`; `github` is of comparisons alone.
        results: In the order in which they are printed.
        texts: Each result as text.
        notes: Remarks on all of them.
    """
    if form == "json":
        say(answer([*map(plain, results)], notes))
    elif form == "github":
        say(markdown.document(map(markdown.comparison, cast("Sequence[ComparisonResult]", results)), notes))
    else:
        show_text(zip((each.verdict for each in results), texts, strict=True), notes)


def show_text(results: Iterable[tuple[str, str]], notes: Sequence[str]) -> None:
    """Print results (verdict, text), a blank line between them, and the notes on all of them.

    Args:
        results: In the order in which they are printed.
        notes: Lines that are wrapped to the terminal's width.
    """
    for number, (verdict, words) in enumerate(results):
        say("\n" * bool(number) + words, verdict)
    if notes:
        say("\n" + "".join(f"{line}\n" for line in text.rows((("note", note) for note in notes), width())))


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
