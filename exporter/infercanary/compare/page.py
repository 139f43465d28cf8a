"""Results as one HTML file. It loads nothing from elsewhere, and everything that comes from files is escaped."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare import operators, picture, text
from infercanary.compare.changes import ScanResult
from infercanary.compare.colophon import colophon
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.efficiency import in_words
from infercanary.compare.measured import MeasureShift
from infercanary.compare.overview import OverviewRow, apart
from infercanary.compare.parts import PartShift
from infercanary.compare.recording import Floats, RecordedRuns, safe, shown
from infercanary.compare.units import count, value, when
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.sentence import interval
from infercanary.judge.shift import CHANGED

_STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
_WIDTH, _HEIGHT = 600, 100
_BINS = 300  # from 0 on, a distribution fills a few
_DOTS = 1500  # of a series; of more, medians are drawn

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{style}</style></head><body>
<h1>{title}</h1>
<main>
"""


def page(title: str, articles: Iterable[str], notes: Sequence[str], policy: Policy | None = None) -> str:
    """Return the whole document.

    Args:
        title: Text; it is escaped.
        articles: HTML.
        notes: Text; it is escaped.
        policy: The numbers that decided; None where nothing was.
    """
    head = _HEAD.format(title=safe(title, 400), style=_STYLE)
    said = [f"<p><small>{safe(note, 1000)}</small></p>" for note in notes]
    made = "".join(f"<p><small>{safe(line, 2000)}</small></p>" for line in colophon(policy))
    foot = f"<footer>{made}</footer></body></html>\n"
    return "\n".join([head, *articles, *said, "</main>", foot])


def comparison(result: ComparisonResult, baseline: RecordedRuns, candidate: RecordedRuns) -> str:
    """Return the article on one comparison.

    Args:
        result: On one canary.
        baseline: Its runs before.
        candidate: Its runs after.
    """
    facts = {
        "expected": result.claim.sentence if result.claim else "",
        "medians": f"{value(result.baseline.median, result.unit)} → {value(result.candidate.median, result.unit)}",
        "baseline": _side(result.baseline),
        "candidate": _side(result.candidate),
        "confidence": f"{100 * result.level:g} %",
        "restarts": text.restarts(result),
        "bottleneck": text.bottlenecks(result),
        "changed": text.changed(result.causes.changes, most=40) if result.causes else "",
        "notes": "; ".join(result.notes),
    }
    before, after = baseline.every, candidate.every
    pictures = (
        [*_distributions(before, after, result.unit), _sides(before, after, result.unit)]
        if before.size and after.size
        else []
    )
    parts = [
        _headline(result.canary, result.sentence, result.verdict),
        _list(result.next),
        _facts(facts),
        *pictures,
        _table("Phases", result.phases, result.smallest_effect),
        _table("Controls: work that is the same in every image", result.controls, result.smallest_effect),
        operators.table(result.causes.operators if result.causes else None),
        _measures(result.measures, max(result.smallest_effect, FILES.measure_effect)),
    ]
    return (
        f'<article class="{"regressed" if result.regressed else result.verdict}">'
        + "\n".join(part for part in parts if part)
        + "</article>"
    )


def scan(result: ScanResult, series: RecordedRuns) -> str:
    """Return the article on one scan.

    Args:
        result: On one series.
        series: Its runs.
    """
    facts = {
        "levels": " → ".join(value(level.median, result.unit) for level in result.levels),
        "rests on": text.rests_on(result),
        "left out": text.left_out(result.left_out),
    }
    parts = [
        _headline(result.canary, result.sentence, result.verdict),
        _facts(facts),
        _series(result, series.every) if series.runs else "",
        _changes(result),
    ]
    return f'<article class="{result.verdict}">' + "\n".join(part for part in parts if part) + "</article>"


def overview(each: Sequence[OverviewRow]) -> str:
    """Return a table with a row for each host, engine and image; each start is a dot on one scale.

    Args:
        each: One row or more.
    """
    most = max(max(kind.medians) for kind in each) * 1.02
    rows = []
    for kind, what in zip(each, apart(each), strict=True):
        dots = "".join(f"M{200 * x / most:.1f} 5h0" for x in kind.medians)
        deviation = "" if kind.deviation is None else f" <small>±{100 * kind.deviation:.1f} %</small>"
        cells = (
            safe(kind.canary), safe(kind.host), safe(kind.service),
            safe(" · ".join(filter(None, (kind.image, kind.origin, what)))), safe(kind.engine),
            safe(kind.device), safe(value(kind.median, "s")) + deviation, f"+{100 * kind.slower:.1f} %",
            f"{count(kind.runs, 'run')} of {count(kind.starts, 'start')}", safe(value(kind.load, "s")),
            safe(in_words(kind.efficiency)),
            '<svg viewBox="0 0 200 10" preserveAspectRatio="none" role="img" aria-label="medians of the starts">'
            f'<path class="reach" d="M0 5H{200 * kind.median / most:.1f}"/><path class="point" d="{dots}"/></svg>',
        )  # fmt: skip
        rows.append(
            "<tr>"
            + "".join(f"<td>{cell}</td>" for cell in cells[:-1])
            + f'<td class="bar">{cells[-1]}</td></tr>'
        )
    names = (
        "canary",
        "host",
        "service",
        "image",
        "engine",
        "device",
        "median",
        "slower",
        "rests on",
        "load",
        "throughput and cost",
        "starts",
    )
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<article class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></article>'


def write(path: str, document: str) -> None:
    """Write ``document`` completely or not at all.

    Args:
        path: The file; one that is there is replaced.
        document: HTML.

    Raises:
        UsageError: ``path`` cannot be written.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    if os.path.isdir(target):
        raise UsageError(f"--html {path}: is a folder; name a file in it")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UsageError(f"--html {path}: is a device or a pipe; name a file")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise UsageError(f"--html {path}: cannot be written ({error.strerror}); name another place") from None
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(document)
        Path(temporary).chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"--html {path}: cannot be written ({error.strerror}); name another place") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _headline(canary: str | None, sentence: str, verdict: str) -> str:
    name = f"{safe(canary)}: " if canary else ""
    rest = safe(sentence.removeprefix(verdict), 2000)
    return f'<h2>{name}<span class="word">{verdict}</span>{rest}</h2>'


def _facts(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{safe(v, 4000)}</dd>" for k, v in facts.items() if v) + "</dl>"


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{safe(sentence, 1000)}</li>" for sentence in sentences)
    return f'<ul class="next">{items}</ul>' if items else ""


def _side(side: SideSummary) -> str:
    out = f"; left out {text.left_out(side.left_out)}" if side.left_out else ""
    where = f"{', '.join(shown(file, 200) for file in side.files)}: " if side.files else ""
    environments = f", environment {', '.join(side.environments[:4])}" if side.environments else ""
    return f"{where}{count(side.runs, 'run')} of {count(side.starts, 'start')}{environments}{out}"


def _distributions(before: Floats, after: Floats, unit: str | None) -> Iterator[str]:
    """Yield a figure for each side, on one scale."""
    low, (high, beyond) = 0.0, picture.axis((before, after))
    yield "<h3>Run medians, on one scale</h3>"
    for style, label, points in (("old", "baseline", before), ("new", "candidate", after)):
        middle = float(np.median(points))
        x = middle / high * _WIDTH
        caption = f'<span class="key {style}">{label}, median {safe(value(middle, unit))}</span>'
        yield (
            f'<figure class="{style}">{_svg(f"distribution of the {label}")}'
            f'<path class="edge" d="M0 {_HEIGHT}H{_WIDTH}"/>'
            f'<path class="fill" d="{_bars(picture.densities(points, low, high, _BINS))}"/>'
            f'<path class="middle" d="M{x:.1f} 0V{_HEIGHT}"/></svg><figcaption>{caption}</figcaption></figure>'
        )
    yield (
        f"<figure><figcaption><span>0</span><span>{safe(value(high, unit) + _beyond(beyond))}</span>"
        "</figcaption></figure>"
    )


def _beyond(runs: int) -> str:
    """How many runs lie beyond the end of an axis."""
    return f", {count(runs, 'run')} beyond" if runs else ""


def _bars(numbers: Sequence[float]) -> str:
    most = max(numbers, default=0) or 1
    step = _WIDTH / max(1, len(numbers))
    return "".join(
        f"M{i * step:.1f} {_HEIGHT}v{-_HEIGHT * n / most:.1f}h{step:.1f}V{_HEIGHT}z"
        for i, n in enumerate(numbers)
        if n
    )


def _sides(before: Floats, after: Floats, unit: str | None) -> str:
    """Return a figure of both sides in order of time, each on its half."""
    high, beyond = picture.axis((before, after))
    half = _WIDTH / 2
    dots = "".join(
        f'<path class="dots {style}" d="{_dots(picture.condensed(points, _DOTS), at, at + half, high)}"/>'
        for style, points, at in (("old", before, 0.0), ("new", after, half))
    )
    keys = '<span class="key old">baseline</span><span class="key new">candidate</span>'
    return (
        f'<h3>Runs, in order of time</h3><figure class="runs">{_svg("medians of runs, in order of time")}'
        f'<path class="edge" d="M0 0H{_WIDTH}M0 {_HEIGHT}H{_WIDTH}M{half} 0V{_HEIGHT}"/>{dots}</svg>'
        f"<figcaption>{keys}<span>0 to {safe(value(high, unit) + _beyond(beyond))}</span></figcaption></figure>"
    )


def _series(result: ScanResult, points: Floats) -> str:
    high, beyond = picture.axis((points,))
    each = _WIDTH / points.size
    marks = "".join(f"M{change.index * each:.1f} 0V{_HEIGHT}" for change in result.changes)
    levels = "".join(
        f"M{level.index * each:.1f} {_y(level.median, high):.1f}h{level.runs * each:.1f}"
        for level in result.levels
    )
    return (
        f'<h3>Runs, in order of time</h3><figure class="runs">{_svg("medians of runs, in order of time")}'
        f'<path class="edge" d="M0 0H{_WIDTH}M0 {_HEIGHT}H{_WIDTH}"/>'
        f'<path class="dots new" d="{_dots(picture.condensed(points, _DOTS), 0, _WIDTH, high)}"/>'
        f'<path class="level" d="{levels}"/><path class="mark" d="{marks}"/></svg><figcaption>'
        f"<span>0 to {safe(value(high, result.unit) + _beyond(beyond))}</span></figcaption></figure>"
    )


def _changes(result: ScanResult) -> str:
    if not result.changes:
        return ""
    rows = [
        (
            f"{change.index:,}",
            when(change.at) if change.at is not None else "",
            interval(change.shift, change.low, change.high),
            text.began(change),
        )
        for change in result.changes
    ]
    cells = "".join(
        "<tr>" + "".join(f"<td>{safe(cell, 1000)}</td>" for cell in row) + "</tr>" for row in rows
    )
    head = "<tr><th>index</th><th>time</th><th>shift</th><th>what began there</th></tr>"
    return f"<h3>Changes</h3><table>{head}{cells}</table>"


def _table(title: str, pieces: Mapping[str, PartShift], effect: float) -> str:
    """Return a table of shifts and their intervals, drawn over the range that counts as no change."""
    if not pieces:
        return ""
    ends = [abs(x) for p in pieces.values() for x in (p.low, p.high) if abs(x) < 10]
    reach = max([2 * effect, *ends])
    rows = []
    for name, piece in pieces.items():
        style = "moved better" if piece.moved and piece.shift < 0 else "moved" if piece.moved else ""
        share = (
            f" <small>{100 * piece.share:.0f} % of the change</small>" if piece.moved and piece.share else ""
        )
        shift = safe(interval(piece.shift, piece.low, piece.high))
        rows.append(
            f'<tr class="{style}"><td>{safe(name)}</td><td>{shift}{share}</td>'
            f'<td class="bar">{_reach(piece, reach, effect)}</td></tr>'
        )
    return f"<h3>{title}</h3><table>{''.join(rows)}</table>"


def _measures(each: Mapping[str, MeasureShift], effect: float) -> str:
    """Return a table of what is judged beside the latency, with the intervals as in the other tables."""
    if not each:
        return ""
    drawn = {
        name: PartShift(of.shift, of.low, of.high, of.verdict in CHANGED)
        for name, of in each.items()
        if of.shift is not None and of.low is not None and of.high is not None
    }
    reach = max([2 * effect, *(abs(x) for p in drawn.values() for x in (p.low, p.high) if abs(x) < 10)])
    rows = []
    for name, of in each.items():
        style = {"regressed": "moved", "improved": "moved better"}.get(of.verdict, "")
        bar = _reach(drawn[name], reach, effect) if name in drawn else ""
        rows.append(f'<tr class="{style}"><td>{safe(text.measure(of))}</td><td class="bar">{bar}</td></tr>')
    return f"<h3>Beside the latency</h3><table>{''.join(rows)}</table>"


def _reach(piece: PartShift, reach: float, effect: float) -> str:
    def x(ratio: float) -> float:
        return 100 + 96 * max(-1.0, min(1.0, ratio / reach))

    return (
        '<svg viewBox="0 0 200 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{safe(interval(piece.shift, piece.low, piece.high))}">'
        f'<path class="band" d="M{x(-effect):.1f} 0H{x(effect):.1f}V10H{x(-effect):.1f}z"/>'
        f'<path class="zero" d="M100 0V10"/><path class="reach" d="M{x(piece.low):.1f} 5H{x(piece.high):.1f}"/>'
        f'<path class="point" d="M{x(piece.shift):.1f} 5h0"/></svg>'
    )


def _dots(points: Floats, begin: float, end: float, high: float) -> str:
    step = (end - begin) / points.size
    return "".join(
        f"M{begin + (i + 0.5) * step:.1f} {_y(float(v), high):.1f}h0" for i, v in enumerate(points)
    )


def _y(number: float, high: float) -> float:
    """Return the height of ``number`` over 0; what is beyond ``high`` is drawn at the edge."""
    share = number / high
    return _HEIGHT * (1 - (min(1.0, max(0.0, share)) if math.isfinite(share) else 1.0))


def _svg(label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{safe(label)}">'
