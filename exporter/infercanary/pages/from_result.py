"""Makes documents from the judge's results: facts, tables and charts for all output formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infercanary.contract.measures import measure_of
from infercanary.judge import origin
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators
from infercanary.judge.result import Causes, Result
from infercanary.judge.shift import CHANGED
from infercanary.pages.sentence import (
    alarms,
    benchmark_words,
    cold_starts,
    conditions,
    evidence,
    listed,
    milliseconds,
    phrases,
    progress,
    shares,
    shift_words,
)
from infercanary.render.document import Chart, Document, Fact, Series, Table
from infercanary.render.units import when

_CHANGES = 20  # maximum number of environment components in one fact


def causes_facts(causes: Causes, *, is_change: bool = True) -> list[Fact]:
    """Return the known facts about the causes of the latency.

    Args:
        causes: Causes in a result.
        is_change: True if the latency changed; otherwise, shares of the change are left out.
    """
    parts = {"due to the host": causes.host, "due to the image": causes.image, "due to the load": causes.load}
    change = [*phrases({label: shift_words(part) for label, part in parts.items()}), *shares(causes)]
    return [
        *alarms(causes),
        *(change if is_change else ()),
        Fact("changed", listed(causes.changes, _CHANGES)),
        *cold_starts(causes),
        *evidence(causes),
    ]


def operators_table(operators: Operators | None) -> Table:
    """Return a table of the changed operators, sorted by their part of the change (largest first)."""
    rows = [
        (
            shift.operator,
            shift.change,
            milliseconds(shift.before),
            milliseconds(shift.after),
            f"{100 * shift.share:.0f} %",
            "; ".join(filter(None, (shift.detail, shift.shapes))),
        )
        for shift in (operators.shifts if operators else ())
    ]
    return Table("operators", ("operator", "change", "before", "after", "of the change", "detail"), rows)


def measures_table(verdicts: Mapping[str, MeasureVerdict], unit: str = "ratio") -> Table:
    """Return a table of the verdicts, changed measures first.

    ``unit`` is the unit of rows without a known measure, such as the row for latency.
    """
    rows = []
    for name, verdict in sorted(verdicts.items(), key=lambda item: item[1].state not in CHANGED):
        measure = measure_of(name)
        own = (measure.unit or "ratio") if measure else unit
        sides = (Fact("", side, own).text for side in (verdict.before, verdict.after))
        change = shift_words(verdict) or "too few values"
        rows.append((measure.words if measure else name, verdict.state, *sides, change))
    return Table("measures", ("measure", "verdict", "before", "after", "change"), rows)


def timeline(
    title: str, sides: tuple[str, str], before: Sequence[float], after: Sequence[float], unit: str = "s"
) -> Chart:
    """Return a chart of the first side, a mark, and the second side."""
    old = Series(sides[0], [*before, *[None] * len(after)], "old")
    new = Series(sides[1], [*[None] * len(before), *after])
    return Chart(title, "points", [old, new], unit, marks=[len(before)])


def verdict_document(result: Result, sentence: str, measures: Mapping[str, MeasureVerdict]) -> Document:
    """Return the document of a live verdict.

    Args:
        result: Result for a service's last upgrade.
        sentence: The result's sentence.
        measures: Verdict by name of the measure.
    """
    is_change = result.state in CHANGED
    return Document(
        verdict=result.state,
        sentence=sentence,
        facts=[
            *_upgrade(result),
            Fact("progress", progress(result)),
            Fact(
                "benchmark",
                benchmark_words(result) or ("none of this image is recorded" if result.benchmark else None),
            ),
            *causes_facts(result.causes, is_change=is_change),
            *conditions(result),
        ],
        tables=[measures_table(measures), operators_table(result.causes.operators if is_change else None)],
        charts=[timeline("medians of runs", ("old image", "new image"), *result.medians)],
    )


def _upgrade(result: Result) -> list[Fact]:
    """Return medians and images of both sides, and a link to the commits between both images."""
    link, names = origin.link(*result.origins), (result.baseline_image, result.candidate_image)
    old, new = (
        f"{name} ({of.words})".removesuffix(" ()") for name, of in zip(names, result.origins, strict=True)
    )
    return [
        Fact("old median", result.baseline, "s"),
        Fact("new median", result.current, "s"),
        Fact("old image", old),
        Fact("new image", new),
        Fact("commits", link and (origin.changed(*result.origins) or "source"), link=link),
        Fact("upgraded", "" if result.upgraded_at is None else when(result.upgraded_at)),
    ]
