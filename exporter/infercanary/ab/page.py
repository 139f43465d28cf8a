"""The answer as HTML: the page of `infercanary compare`, each start in order of time, and the cost of a start."""

from __future__ import annotations

import html

from infercanary.ab import text
from infercanary.ab.answer import STEPS, CanaryAnswer
from infercanary.compare import page
from infercanary.compare.recording import RecordedRuns, shown
from infercanary.compare.units import value
from infercanary.judge.origin import changed, link
from infercanary.judge.sentence import percent

_WIDTH, _HEIGHT = 600, 100


def experiment(answer: CanaryAnswer, a: RecordedRuns, b: RecordedRuns) -> list[str]:
    """Return the articles on one canary.

    Args:
        answer: On one canary.
        a: A's runs that count.
        b: B's runs that count.

    Returns:
        HTML: the comparison, then the experiment.
    """
    facts = {
        "A": text.side(answer.a),
        "B": text.side(answer.b),
        "took": f"{value(answer.seconds, 's')}; {text.ENDED[answer.ended]}",
    }
    listed = "".join(f"<dt>{label}</dt><dd>{_safe(words)}</dd>" for label, words in facts.items())
    parts = [
        f"<h3>The experiment</h3><dl>{listed}{_origin(answer)}</dl>",
        _starts(answer),
        _pairs(answer),
        _cold_start(answer),
    ]
    article = (
        f'<article class="{answer.compared.verdict}">'
        + "\n".join(part for part in parts if part)
        + "</article>"
    )
    return [page.comparison(answer.compared, a, b), article]


def _origin(answer: CanaryAnswer) -> str:
    """Where both images came from, by their labels, as a link: nothing is loaded from there."""
    both = answer.a.origin, answer.b.origin
    words, address = changed(*both), link(*both)
    if not address:
        return ""
    return (
        f'<dt>source</dt><dd>{_safe(words)} <a rel="noopener noreferrer" href="{_safe(address)}">'
        f"{_safe(address)}</a></dd>"
    )


def _starts(answer: CanaryAnswer) -> str:
    """Return a figure of the level of each start, in order of time; a line joins the two of a pair."""
    levels = [level for step in answer.pairs for level in (step.a, step.b)]
    if not levels:
        return ""
    room = max((max(levels) - min(levels)) / 10, 0.002 * max(levels))
    low, high = min(levels) - room, max(levels) + room
    each = _WIDTH / len(levels)

    def place(index: int, level: float) -> str:
        return f"{(index + 0.5) * each:.1f} {_HEIGHT * (1 - (level - low) / (high - low)):.1f}"

    dots: dict[str, list[str]] = {"old": [], "new": []}
    lines = []
    for number, step in enumerate(answer.pairs):
        both = [("old", step.a), ("new", step.b)]
        ends = []
        for i, (style, level) in enumerate(both if step.first == "A" else reversed(both)):
            ends.append(place(2 * number + i, level))
            dots[style].append(f"M{ends[-1]}h0")
        lines.append(f"M{ends[0]}L{ends[1]}")
    marks = "".join(f'<path class="dots {style}" d="{"".join(path)}"/>' for style, path in dots.items())
    keys = '<span class="key old">A</span><span class="key new">B</span>'
    return (
        f'<h3>Starts, in order of time</h3><figure class="runs"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'preserveAspectRatio="none" role="img" aria-label="medians of starts, in order of time">'
        f'<path class="edge" d="M0 0H{_WIDTH}M0 {_HEIGHT}H{_WIDTH}{"".join(lines)}"/>{marks}</svg>'
        f"<figcaption>{keys}<span>{_safe(value(low, 's'))} to {_safe(value(high, 's'))}</span></figcaption></figure>"
    )


def _pairs(answer: CanaryAnswer) -> str:
    rows = "".join(
        f"<tr><td>{number}</td><td>{step.first} first</td><td>{_safe(value(step.a, 's'))}</td>"
        f"<td>{_safe(value(step.b, 's'))}</td><td>{_safe(percent(step.shift))}</td></tr>"
        for number, step in enumerate(answer.pairs, 1)
    )
    head = "<tr><th>pair</th><th>order</th><th>A</th><th>B</th><th>shift</th></tr>"
    return f"<h3>Pairs of starts</h3><table>{head}{rows}</table>" if rows else ""


def _cold_start(answer: CanaryAnswer) -> str:
    rows = "".join(
        f"<tr><td>{_safe(text.name(step))}</td><td>{_safe(text.duration(answer.a, step))}</td>"
        f"<td>{_safe(text.duration(answer.b, step))}</td></tr>"
        for step in STEPS
        if step in answer.a.cold_start and step in answer.b.cold_start
    )
    head = "<tr><th>step</th><th>A</th><th>B</th></tr>"
    return f"<h3>Cold start: median, and half of the range</h3><table>{head}{rows}</table>" if rows else ""


def _safe(words: str) -> str:
    return html.escape(shown(words, 1000))
