"""Documents of the judge's results: facts, tables and charts that every surface shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from infercanary.contract.measures import measure_of
from infercanary.judge import origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Causes, Result
from infercanary.judge.sentence import interval
from infercanary.judge.shift import CHANGED
from infercanary.pages.sentence import (
    Phrase,
    alarms,
    conditions,
    explanations,
    listed,
    milliseconds,
    operators_summary,
    progress,
    weights,
)
from infercanary.render.document import Chart, Document, Fact, Series, Table

OPERATOR_CHANGES = {"grew": "slower", "shrank": "faster", "new": "new", "gone": "gone"}
"""Kind of an operator's change → its word in a table."""
_CHANGES = 20  # components in a fact


def causes_facts(causes: Causes, *, is_change: bool = True) -> list[Fact]:
    """Return what is known of why the latency moved.

    Args:
        causes: Of a result.
        is_change: Whether the latency changed; if not, shares of the change are left out.
    """
    phrases = [*alarms(causes), Phrase("changed", (listed(causes.changes, _CHANGES),))]
    phrases += explanations(causes)
    if not is_change:
        phrases = [phrase for phrase in phrases if phrase.label not in ("bottleneck", "phases", "operators")]
    parts = {"due to the host": causes.host, "due to the image": causes.image, "due to the load": causes.load}
    shares = [Fact(label, interval(p.shift, p.low, p.high)) for label, p in parts.items() if p and is_change]
    return [*_facts(phrases), *shares]


def condition_facts(result: Result, policy: Policy = LIVE) -> list[Fact]:
    """Return the conditions of a verdict."""
    return _facts([*conditions(result, policy), *weights(result)])


def operators_table(operators: Operators | None) -> Table | None:
    """Return the operators that changed, the largest part first; None without any."""
    if operators is None or not operators.shifts:
        return None
    rows = [
        (
            shift.operator,
            OPERATOR_CHANGES[shift.change],
            milliseconds(shift.before),
            milliseconds(shift.after),
            f"{100 * shift.share:.0f} %",
            "; ".join(filter(None, (shift.detail, shift.shapes))),
        )
        for shift in operators.shifts
    ]
    columns = ("operator", "change", "before", "after", "of the change", "detail")
    return Table(f"operators: {operators_summary(operators)}", columns, rows)


def measures_table(verdicts: Mapping[str, MeasureVerdict]) -> Table | None:
    """Return the verdicts beside latency, those that changed first; None without any."""
    if not verdicts:
        return None
    rows = []
    for name, verdict in sorted(verdicts.items(), key=lambda item: item[1].state not in CHANGED):
        measure, shift = measure_of(name), "too few values"
        if verdict.shift is not None and verdict.low is not None and verdict.high is not None:
            shift = interval(verdict.shift, verdict.low, verdict.high)
        unit = measure.unit if measure else ""
        sides = [f"{side:.4g} {unit}" if side is not None else "" for side in (verdict.before, verdict.after)]
        rows.append((measure.words if measure else name, verdict.state, *sides, shift))
    return Table("measures", ("measure", "verdict", "before", "after", "change"), rows)


def verdict_document(
    result: Result, sentence: str, measures: Mapping[str, MeasureVerdict], *, name: str = ""
) -> Document:
    """Return the document of a live verdict.

    Args:
        result: On a service's last upgrade.
        sentence: The same in words.
        measures: Measure → verdict.
        name: Name of the canary.
    """
    is_change = result.state in CHANGED
    facts = [
        Fact("old median", result.baseline, "s"),
        Fact("new median", result.current, "s"),
        *(_images(result) if result.upgraded_at is not None else []),
        Fact("progress", progress(result)),
        *causes_facts(result.causes, is_change=is_change),
        *condition_facts(result),
    ]
    tables = [measures_table(measures), operators_table(result.causes.operators if is_change else None)]
    return Document(
        name=name,
        verdict=result.state,
        sentence=sentence,
        facts=facts,
        tables=[table for table in tables if table is not None],
        charts=_charts(*result.medians),
    )


def _facts(phrases: Iterable[Phrase]) -> list[Fact]:
    return [Fact(phrase.label, text) for phrase in phrases if (text := phrase.fact or phrase.texts[0])]


def _images(result: Result) -> list[Fact]:
    """Images with version and revision, and the link to the commits between them."""
    names = result.baseline_image, result.candidate_image
    old, new = (_image(image, of) for image, of in zip(names, result.origins, strict=True))
    link = origin.link(*result.origins)
    return [
        Fact("old image", old),
        Fact("new image", new),
        Fact("commits", link and (origin.changed(*result.origins) or "source"), link=link),
    ]


def _image(name: str, of: Origin) -> str:
    return f"{name} ({of.words})" if of.words else name


def _charts(before: Sequence[float], after: Sequence[float]) -> list[Chart]:
    if not (before and after):
        return []
    old = Series("old image", [*before, *[None] * len(after)], "old")
    new = Series("new image", [*[None] * len(before), *after])
    return [Chart("medians of runs", "points", [old, new], marks=[len(before)])]
