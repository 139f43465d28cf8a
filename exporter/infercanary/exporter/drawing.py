"""Pictures of the status page: a canary's last runs, and those around its upgrade, as SVG with their scale."""

from __future__ import annotations

from collections.abc import Sequence

from infercanary.exporter.history import RunSummary

_WIDTH, _HEIGHT = 120, 30


def before_and_after(before: Sequence[float], after: Sequence[float]) -> str:
    """Draw run medians on one scale, with the upgrade as a line between them.

    Args:
        before: Seconds, in order of time.
        after: Seconds, in order of time.

    Returns:
        SVG with its scale; empty where a side has no run.
    """
    if not before or not after:
        return ""
    ordered = sorted([*before, *after])
    # A few wild runs must not flatten the rest.
    low, high = ordered[len(ordered) // 50] * 0.98, ordered[-1 - len(ordered) // 50] * 1.02
    middle = _WIDTH / 2
    span = (high - low) or 1.0  # where all are the same

    def dots(values: Sequence[float], begin: float, end: float, style: str) -> str:
        step = (end - begin) / len(values)
        marks = "".join(
            f"M{begin + (i + 0.5) * step:.1f} {_HEIGHT * (1 - (min(max(v, low), high) - low) / span):.1f}h0"
            for i, v in enumerate(values)
        )
        return f'<path class="{style}" d="{marks}"/>'

    return (
        f'<span class="history"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="medians of {len(before)} runs before and {len(after)} after the upgrade">'
        f'<path class="edge" d="M0 0H{_WIDTH}M0 {_HEIGHT}H{_WIDTH}"/><path class="upgrade" d="M{middle} 0V{_HEIGHT}"/>'
        f"{dots(before, 0, middle, 'before')}{dots(after, middle, _WIDTH, 'after')}</svg>"
        f'<span class="scale"><span>{milliseconds(high)}</span><span>{milliseconds(low)}</span></span></span>'
    )


def sparkline(runs: Sequence[RunSummary]) -> str:
    """The medians of ``runs``, oldest first, between labelled bounds; a red tick where a run failed.

    Args:
        runs: Of one canary; without a median among them, the text is empty.
    """
    medians = [run.median for run in runs if run.median is not None]
    if not medians:
        return ""
    # At least ±5 % around the middle, so that noise does not look like drama.
    middle = (max(medians) + min(medians)) / 2
    half = max((max(medians) - min(medians)) / 2, middle * 0.05) or 1.0
    step = _WIDTH / max(1, len(runs) - 1)
    points = " ".join(
        f"{index * step:.1f},{_HEIGHT / 2 * (1 - (run.median - middle) / half):.1f}"
        for index, run in enumerate(runs)
        if run.median is not None
    )
    misses = "".join(
        f'<path class="miss" d="M{index * step:.1f} {_HEIGHT - 6}v6"/>'
        for index, run in enumerate(runs)
        if run.outcome != "ok"
    )
    return (
        f'<span class="history"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="median of the last {len(runs)} runs"><path class="edge" d="M0 0H{_WIDTH}M0 {_HEIGHT}H{_WIDTH}"/>'
        f'<polyline points="{points}"/>{misses}</svg>'
        f'<span class="scale"><span>{milliseconds(middle + half)}</span>'
        f"<span>{milliseconds(middle - half)}</span></span></span>"
    )


def milliseconds(seconds: float | None) -> str:
    """A latency in three digits.

    Args:
        seconds: None where none is known.

    Returns:
        Milliseconds without their unit.
    """
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
