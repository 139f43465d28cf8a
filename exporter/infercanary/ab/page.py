"""The answer as HTML: what `infercanary compare` shows, each start in order of time, and what a start costs."""

from __future__ import annotations

import html

from infercanary.ab import text
from infercanary.ab.answer import STEPS, Told
from infercanary.compare import page
from infercanary.compare.recording import Series, shown
from infercanary.compare.units import value
from infercanary.judge.sentence import percent

_WIDTH, _HEIGHT = 600, 100


def experiment(told: Told, a: Series, b: Series) -> list[str]:
    """The articles on one canary."""
    facts = {
        "A": text.side(told.a),
        "B": text.side(told.b),
        "took": f"{value(told.seconds, 's')}; {text.ENDED[told.ended]}",
    }
    listed = "".join(f"<dt>{label}</dt><dd>{_safe(words)}</dd>" for label, words in facts.items())
    parts = [f"<h3>The experiment</h3><dl>{listed}</dl>", _starts(told), _pairs(told), _cold_start(told)]
    article = (
        f'<article class="{told.compared.verdict}">'
        + "\n".join(part for part in parts if part)
        + "</article>"
    )
    return [page.compared(told.compared, a, b), article]


def _starts(told: Told) -> str:
    """The level of each start, in order of time; a line joins the two of a pair."""
    levels = [level for step in told.pairs for level in (step.a, step.b)]
    if not levels:
        return ""
    room = max((max(levels) - min(levels)) / 10, 0.002 * max(levels))
    low, high = min(levels) - room, max(levels) + room
    each = _WIDTH / len(levels)

    def place(index: int, level: float) -> str:
        return f"{(index + 0.5) * each:.1f} {_HEIGHT * (1 - (level - low) / (high - low)):.1f}"

    dots: dict[str, list[str]] = {"old": [], "new": []}
    lines = []
    for number, step in enumerate(told.pairs):
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


def _pairs(told: Told) -> str:
    rows = "".join(
        f"<tr><td>{number}</td><td>{step.first} first</td><td>{_safe(value(step.a, 's'))}</td>"
        f"<td>{_safe(value(step.b, 's'))}</td><td>{_safe(percent(step.shift))}</td></tr>"
        for number, step in enumerate(told.pairs, 1)
    )
    head = "<tr><th>pair</th><th>order</th><th>A</th><th>B</th><th>shift</th></tr>"
    return f"<h3>Pairs of starts</h3><table>{head}{rows}</table>" if rows else ""


def _cold_start(told: Told) -> str:
    rows = "".join(
        f"<tr><td>{_safe(text.name(step))}</td><td>{_safe(text.duration(told.a, step))}</td>"
        f"<td>{_safe(text.duration(told.b, step))}</td></tr>"
        for step in STEPS
        if step in told.a.cold_start and step in told.b.cold_start
    )
    head = "<tr><th>step</th><th>A</th><th>B</th></tr>"
    return f"<h3>Cold start: median, and how far starts swing</h3><table>{head}{rows}</table>" if rows else ""


def _safe(words: str) -> str:
    return html.escape(shown(words, 1000))
