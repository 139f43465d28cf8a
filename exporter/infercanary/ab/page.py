"""The answer as HTML: the page of `infercanary compare`, each start in order of time, and the cost of a start."""

from __future__ import annotations

from infercanary.ab import text
from infercanary.ab.answer import CanaryAnswer
from infercanary.compare import page
from infercanary.compare.recording import RecordedRuns, safe
from infercanary.compare.units import value
from infercanary.judge.origin import changed, link
from infercanary.judge.sentence import percent


def experiment(answer: CanaryAnswer, a: RecordedRuns, b: RecordedRuns) -> list[str]:
    """Return the articles on one canary.

    Args:
        answer: On one canary.
        a: A's runs that count.
        b: B's runs that count.

    Returns:
        HTML: the comparison, then the experiment.
    """
    known = {label: words for label, words in text.facts(answer).items() if label != "pairs"}
    parts = [
        f"<h3>The experiment</h3>{page.facts(known, _origin(answer))}",
        _starts(answer),
        _pairs(answer),
    ]
    return [page.comparison(answer.compared, a, b), page.article(answer.compared.verdict, parts)]


def _origin(answer: CanaryAnswer) -> str:
    """Where both images came from, by their labels, as a link: nothing is loaded from there."""
    both = answer.a.origin, answer.b.origin
    words, address = changed(*both), link(*both)
    if not address:
        return ""
    return (
        f'<dt>source</dt><dd>{safe(words, 1000)} <a rel="noopener noreferrer" href="{safe(address, 1000)}">'
        f"{safe(address, 1000)}</a></dd>"
    )


def _starts(answer: CanaryAnswer) -> str:
    """Return a figure of the level of each start, in order of time; a line joins the two of a pair."""
    levels = [level for step in answer.pairs for level in (step.a, step.b)]
    if not levels:
        return ""
    room = max((max(levels) - min(levels)) / 10, 0.002 * max(levels))
    low, high = min(levels) - room, max(levels) + room
    each = page.WIDTH / len(levels)
    paths = {"edge": page.EDGES, "dots old": "", "dots new": ""}
    for number, step in enumerate(answer.pairs):
        both = [("old", step.a), ("new", step.b)]
        ends = []
        for i, (style, level) in enumerate(both if step.first == "A" else reversed(both), 2 * number):
            height = page.HEIGHT * (1 - (level - low) / (high - low))
            ends.append(f"{(i + 0.5) * each:.1f} {height:.1f}")
            paths[f"dots {style}"] += f"M{ends[-1]}h0"
        paths["edge"] += "M" + "L".join(ends)
    drawing = page.svg("medians of starts, in order of time", paths)
    caption = f"{page.keys(('A', 'B'))}<span>{safe(value(low, 's'))} to {safe(value(high, 's'))}</span>"
    return f"<h3>Starts, in order of time</h3>{page.figure('runs', drawing, caption)}"


def _pairs(answer: CanaryAnswer) -> str:
    rows = (
        page.row(
            str(number),
            f"{step.first} first",
            *map(safe, (value(step.a, "s"), value(step.b, "s"), percent(step.shift))),
        )
        for number, step in enumerate(answer.pairs, 1)
    )
    return page.table(rows, "pair,order,A,B,shift", "Pairs of starts")
