"""The operators of a change as HTML: two bars for each, old and new, on one scale."""

from __future__ import annotations

from infercanary.compare.recording import safe
from infercanary.judge import operator_words
from infercanary.judge.operators import Operators

_WIDTH = 200


def table(found: Operators | None) -> str:
    """Return a table with a row for each operator that changed, and one for what is outside of them.

    Args:
        found: What profiled repeats say of a change; None where there are none: the text is then empty.
    """
    if found is None:
        return ""
    head = f"<h3>Operators</h3><p>{safe(operator_words.summary(found), 400)}</p>"
    if not found.shifts:
        return head
    most = max(*found.outside, *(x for shift in found.shifts for x in (shift.before, shift.after)))
    rows = [
        _row(
            shift.operator,
            f"{operator_words.CHANGES[shift.change]}, {100 * shift.share:.0f} % of the change",
            "; ".join(text for text in (shift.detail, shift.shapes) if text),
            (shift.before, shift.after),
            most,
        )
        for shift in found.shifts
    ]
    share = f"{100 * (1 - found.share):.0f} % of the change"
    rows.append(_row("outside operators", share, "", found.outside, most))
    return f'{head}<table class="operators">{"".join(rows)}</table>'


def _row(name: str, what: str, detail: str, times: tuple[float, float], most: float) -> str:
    note = f" <small>{safe(detail, 400)}</small>" if detail else ""
    return (
        f"<tr><td>{safe(name)}</td><td>{safe(operator_words.times(*times))} <small>{safe(what)}</small>{note}</td>"
        f'<td class="bar">{_bars(times, most)}</td></tr>'
    )


def _bars(times: tuple[float, float], most: float) -> str:
    old, new = (_WIDTH * seconds / most if most > 0 else 0.0 for seconds in times)
    return (
        f'<svg viewBox="0 0 {_WIDTH} 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{safe(operator_words.times(*times))}">'
        f'<path class="fill old" d="M0 0h{old:.1f}v4H0z"/><path class="fill new" d="M0 6h{new:.1f}v4H0z"/></svg>'
    )
