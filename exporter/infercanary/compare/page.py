"""Results as one HTML file. It loads nothing from elsewhere, and everything that comes from files is escaped."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare import picture, text
from infercanary.compare.changes import ScanResult
from infercanary.compare.colophon import colophon
from infercanary.compare.comparison import ComparisonResult, SideSummary
from infercanary.compare.efficiency import in_words
from infercanary.compare.measured import MeasureShift
from infercanary.compare.overview import OverviewRow, apart
from infercanary.compare.parts import PartShift
from infercanary.compare.recording import Floats, RecordedRuns, safe, shown
from infercanary.compare.units import count, value, when
from infercanary.judge import operator_words
from infercanary.judge.operators import Operators
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.sentence import interval

_STYLE = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
WIDTH, HEIGHT = 600, 100
"""Coordinates of a figure."""
EDGES = f"M0 0H{WIDTH}M0 {HEIGHT}H{WIDTH}"
"""Path of its upper and lower edge."""
_BAR, _BAR_HEIGHT = 200, 10
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
    known = text.facts(result) | {
        "baseline": _side(result.baseline),
        "candidate": _side(result.candidate),
        "confidence": f"{100 * result.level:g} %",
        "changed": text.changed(result.causes.changes, most=40) if result.causes else "",
        "notes": "; ".join(result.notes),
        **dict.fromkeys(("rests on", "phases", "controls", "left out"), ""),  # shown elsewhere
    }
    before, after = baseline.every, candidate.every
    pictures = (
        [
            *_distributions(before, after, result.unit),
            _runs({"old": before, "new": after}, result.unit, keys(("baseline", "candidate"))),
        ]
        if before.size and after.size
        else []
    )
    return article(
        "regressed" if result.regressed else result.verdict,
        [
            _headline(result.canary, result.sentence, result.verdict),
            _list(result.next),
            facts(known),
            *pictures,
            _pieces("Phases", result.phases, result.smallest_effect),
            _pieces(
                "Controls: work that is the same in every image", result.controls, result.smallest_effect
            ),
            _operators(result.causes.operators if result.causes else None),
            _measures(result.measures, max(result.smallest_effect, FILES.pool.measure_effect)),
        ],
    )


def scan(result: ScanResult, series: RecordedRuns) -> str:
    """Return the article on one scan.

    Args:
        result: On one series.
        series: Its runs.
    """
    return article(
        result.verdict,
        [
            _headline(result.canary, result.sentence, result.verdict),
            facts(text.levels(result)),
            _runs({"new": series.every}, result.unit, result=result) if series.runs else "",
            _changes(result),
        ],
    )


def overview(each: Sequence[OverviewRow]) -> str:
    """Return a table with a row for each host, engine and image; each start is a dot on one scale.

    Args:
        each: One row or more.
    """
    most = max(max(kind.medians) for kind in each) * 1.02
    rows = []
    for kind, what in zip(each, apart(each), strict=True):
        dots = "".join(f"M{_BAR * x / most:.1f} 5h0" for x in kind.medians)
        deviation = "" if kind.deviation is None else f" <small>±{100 * kind.deviation:.1f} %</small>"
        image = " · ".join(filter(None, (kind.image, kind.origin, what)))
        bar = {"reach": f"M0 5H{_BAR * kind.median / most:.1f}", "point": dots}
        rows.append(
            row(
                *map(safe, (kind.canary, kind.host, kind.service, image, kind.engine, kind.device)),
                safe(value(kind.median, "s")) + deviation,
                f"+{100 * kind.slower:.1f} %",
                f"{count(kind.runs, 'run')} of {count(kind.starts, 'start')}",
                *map(safe, (value(kind.load, "s"), in_words(kind.efficiency))),
                svg("medians of the starts", bar, _BAR, _BAR_HEIGHT),
            )
        )
    head = "canary,host,service,image,engine,device,median,slower,rests on,load,throughput and cost,starts"
    return article("wide", [table(rows, head)])


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
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(document)
        os.replace(draft, target)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise UsageError(f"--html {path}: cannot be written ({error.strerror}); name another place") from None


def article(style: str, parts: Iterable[str]) -> str:
    """Return one result.

    Args:
        style: Its class: a verdict.
        parts: HTML; empty ones are left out.
    """
    return f'<article class="{style}">' + "\n".join(filter(None, parts)) + "</article>"


def facts(known: Mapping[str, str], more: str = "") -> str:
    """Return a list of labels and lines.

    Args:
        known: Label → text, which is escaped; an empty one is left out.
        more: HTML of further ones.
    """
    each = "".join(f"<dt>{label}</dt><dd>{safe(words, 4000)}</dd>" for label, words in known.items() if words)
    return f"<dl>{each}{more}</dl>"


def table(rows: Iterable[str], head: str = "", title: str = "") -> str:
    """Return a table; empty text where it has no rows.

    Args:
        rows: As :func:`row` returns them.
        head: Names of the columns, separated by commas.
        title: Above it.
    """
    if not (inside := "".join(rows)):
        return ""
    names = "".join(f"<th>{name}</th>" for name in head.split(",") if head)
    return (
        f"{f'<h3>{title}</h3>' if title else ''}<table>{f'<tr>{names}</tr>' if head else ''}{inside}</table>"
    )


def row(*cells: str, style: str = "") -> str:
    """Return a row of a table.

    Args:
        cells: HTML; a cell that is a drawing is a bar.
        style: The row's class.
    """
    bars = ('<td class="bar">' if cell.startswith("<svg") else "<td>" for cell in cells)
    inside = "".join(f"{begin}{cell}</td>" for begin, cell in zip(bars, cells, strict=True))
    return f'<tr class="{style}">{inside}</tr>'


def svg(label: str, paths: Mapping[str, str], width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return a drawing.

    Args:
        label: Text; it is escaped.
        paths: Class → path, in the order in which they are drawn.
        width: Of its coordinates.
        height: Of its coordinates.
    """
    drawn = "".join(f'<path class="{style}" d="{path}"/>' for style, path in paths.items())
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{safe(label)}">'
        f"{drawn}</svg>"
    )


def figure(style: str, drawing: str, caption: str) -> str:
    """Return a drawing with its caption.

    Args:
        style: The class.
        drawing: As :func:`svg` returns it.
        caption: HTML.
    """
    return f'<figure class="{style}">{drawing}<figcaption>{caption}</figcaption></figure>'


def keys(labels: tuple[str, str]) -> str:
    """Return the key to the colours of both sides.

    Args:
        labels: Names of the sides.
    """
    return "".join(
        f'<span class="key {style}">{x}</span>' for style, x in zip(("old", "new"), labels, strict=True)
    )


def _headline(canary: str | None, sentence: str, verdict: str) -> str:
    name = f"{safe(canary)}: " if canary else ""
    rest = safe(sentence.removeprefix(verdict), 2000)
    return f'<h2>{name}<span class="word">{verdict}</span>{rest}</h2>'


def _list(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{safe(sentence, 1000)}</li>" for sentence in sentences)
    return f'<ul class="next">{items}</ul>' if items else ""


def _side(side: SideSummary) -> str:
    out = f"; left out {text.left_out(side.left_out)}" if side.left_out else ""
    where = f"{', '.join(shown(file, 200) for file in side.files)}: " if side.files else ""
    environments = f", environment {', '.join(side.environments[:4])}" if side.environments else ""
    return f"{where}{text.side(side)}{environments}{out}"


def _distributions(before: Floats, after: Floats, unit: str | None) -> Iterator[str]:
    """Yield a figure for each side, on one scale."""
    high, beyond = picture.axis((before, after))
    yield "<h3>Run medians, on one scale</h3>"
    for style, label, points in (("old", "baseline", before), ("new", "candidate", after)):
        middle = float(np.median(points))
        paths = {
            "edge": f"M0 {HEIGHT}H{WIDTH}",
            "fill": _bars(picture.densities(points, 0.0, high, _BINS)),
            "middle": f"M{middle / high * WIDTH:.1f} 0V{HEIGHT}",
        }
        caption = f'<span class="key {style}">{label}, median {safe(value(middle, unit))}</span>'
        yield figure(style, svg(f"distribution of the {label}", paths), caption)
    yield figure("", "", f"<span>0</span><span>{_end(high, beyond, unit)}</span>")


def _end(high: float, beyond: int, unit: str | None) -> str:
    """The end of an axis, and how many runs lie beyond it."""
    return safe(value(high, unit) + (f", {count(beyond, 'run')} beyond" if beyond else ""))


def _bars(numbers: Sequence[float]) -> str:
    most = max(numbers, default=0) or 1
    step = WIDTH / max(1, len(numbers))
    return "".join(
        f"M{i * step:.1f} {HEIGHT}v{-HEIGHT * n / most:.1f}h{step:.1f}V{HEIGHT}z"
        for i, n in enumerate(numbers)
        if n
    )


def _runs(
    sides: Mapping[str, Floats], unit: str | None, labels: str = "", result: ScanResult | None = None
) -> str:
    """Return a figure of series in order of time, each in its part; with levels and changes where one was scanned."""
    high, beyond = picture.axis(sides.values())
    width = WIDTH / len(sides)
    paths = {"edge": EDGES + "".join(f"M{i * width} 0V{HEIGHT}" for i in range(1, len(sides)))}
    for i, (style, points) in enumerate(sides.items()):
        dots = picture.condensed(points, _DOTS)
        step = width / dots.size
        paths[f"dots {style}"] = "".join(
            f"M{i * width + (j + 0.5) * step:.1f} {_y(float(x), high):.1f}h0" for j, x in enumerate(dots)
        )
    if result is not None:
        each = WIDTH / result.runs
        paths["level"] = "".join(
            f"M{level.index * each:.1f} {_y(level.median, high):.1f}h{level.runs * each:.1f}"
            for level in result.levels
        )
        paths["mark"] = "".join(f"M{change.index * each:.1f} 0V{HEIGHT}" for change in result.changes)
    drawing = svg("medians of runs, in order of time", paths)
    caption = f"{labels}<span>0 to {_end(high, beyond, unit)}</span>"
    return f"<h3>Runs, in order of time</h3>{figure('runs', drawing, caption)}"


def _changes(result: ScanResult) -> str:
    rows = [
        row(
            f"{change.index:,}",
            when(change.at) if change.at is not None else "",
            safe(interval(change.shift, change.low, change.high)),
            safe(text.began(change), 1000),
        )
        for change in result.changes
    ]
    return table(rows, "index,time,shift,what began there", "Changes")


def _pieces(title: str, pieces: Mapping[str, PartShift], effect: float) -> str:
    rows = []
    for name, piece in pieces.items():
        style = "moved better" if piece.moved and piece.shift < 0 else "moved" if piece.moved else ""
        share = (
            f" <small>{100 * piece.share:.0f} % of the change</small>" if piece.moved and piece.share else ""
        )
        shift = safe(interval(piece.shift, piece.low, piece.high))
        rows.append((style, (safe(name), f"{shift}{share}"), piece))
    return _intervals(title, rows, effect)


def _measures(each: Mapping[str, MeasureShift], effect: float) -> str:
    styles = {"regressed": "moved", "improved": "moved better"}
    rows = [(styles.get(of.verdict, ""), (safe(text.measure(of)),), of) for of in each.values()]
    return _intervals("Beside the latency", rows, effect)


def _intervals(
    title: str, rows: Sequence[tuple[str, tuple[str, ...], PartShift | MeasureShift]], effect: float
) -> str:
    """Return a table of shifts and their intervals, drawn over the range that counts as no change."""
    ends = [abs(x) for *_, of in rows if of.shift is not None for x in (of.low, of.high) if x is not None]
    reach = max([2 * effect, *(end for end in ends if end < 10)])
    return table(
        [row(*cells, _reach(of, reach, effect), style=style) for style, cells, of in rows], title=title
    )


def _reach(of: PartShift | MeasureShift, reach: float, effect: float) -> str:
    shift, low, high = of.shift, of.low, of.high
    if shift is None or low is None or high is None:
        return ""

    def x(ratio: float) -> str:
        return f"{_BAR / 2 + 96 * max(-1.0, min(1.0, ratio / reach)):.1f}"

    paths = {
        "band": f"M{x(-effect)} 0H{x(effect)}V10H{x(-effect)}z",
        "zero": "M100 0V10",
        "reach": f"M{x(low)} 5H{x(high)}",
        "point": f"M{x(shift)} 5h0",
    }
    return svg(interval(shift, low, high), paths, _BAR, _BAR_HEIGHT)


def _operators(found: Operators | None) -> str:
    """Return a table with a row for each operator that changed."""
    if found is None:
        return ""
    most = max((x for shift in found.shifts for x in (shift.before, shift.after)), default=1.0)
    drawn = []
    for shift in found.shifts:
        words = operator_words.times(shift.before, shift.after)
        what = f"{operator_words.CHANGES[shift.change]}, {100 * shift.share:.0f} % of the change"
        detail = "; ".join(filter(None, (shift.detail, shift.shapes)))
        note = f" <small>{safe(detail, 400)}</small>" if detail else ""
        old, new = (_BAR * seconds / most for seconds in (shift.before, shift.after))
        bars = {"fill old": f"M0 0h{old:.1f}v4H0z", "fill new": f"M0 6h{new:.1f}v4H0z"}
        drawn.append(
            row(
                safe(shift.operator),
                f"{safe(words)} <small>{safe(what)}</small>{note}",
                svg(words, bars, _BAR, _BAR_HEIGHT),
            )
        )
    return f"<h3>Operators</h3><p>{safe(operator_words.summary(found), 400)}</p>{table(drawn)}"


def _y(number: float, high: float) -> float:
    """Return the height of ``number`` over 0; what is beyond ``high`` is drawn at the edge."""
    share = number / high
    return HEIGHT * (1 - (min(1.0, max(0.0, share)) if math.isfinite(share) else 1.0))
