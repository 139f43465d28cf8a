"""``make pictures``: draws docs/img, each InferCanary page in a real Chromium, narrow and wide, light and dark."""

from __future__ import annotations

import asyncio
import html
import logging
import math
import sys
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import structlog

from docs.chromium import tab
from grafana.situations.history import exporters
from grafana.situations.worlds import END, SITUATIONS
from infercanary.bisect.document import bisect_document
from infercanary.bisect.search import Finding, Outcome, Search
from infercanary.bisect.state import State
from infercanary.compare.comparison import compare_runs
from infercanary.compare.document import comparison_document
from infercanary.compare.recording import RecordedRuns
from infercanary.contract.profile import Profile, ProfileRow
from infercanary.doctor.limits import limit_document
from infercanary.exporter import runbooks, status
from infercanary.exporter.app import VERSION
from infercanary.judge.shift import Shift
from infercanary.pages.html import render_page
from infercanary.probe.roofline import Ceilings, Timed, find_limit
from infercanary.render.text import render_text

FOLDER = Path(__file__).parent / "img"
SITUATION = "upgraded"
HEIGHT = 760
WIDTHS = {"status": (400, 1200), "report": (800, 1200), "runbooks": (400, 1200)}
README = (1000, "status.png")
"""Picture for the README: the two upgraded containers."""


async def status_page() -> str:
    """Return the status page at the end of the situation, as HTML."""
    [exporter] = await exporters(SITUATIONS[SITUATION], lambda _: None)
    with patch("time.time", lambda: END), patch("time.monotonic", lambda: END + 2):
        page = await status.page(
            exporter.collector.probes.values(), {}, version=VERSION, troubles=(), left=()
        )
    return page.decode()


def report() -> str:
    """Return the report of ``compare --html`` on simulated runs that are 20 % slower."""
    rng = np.random.default_rng(20)
    before, after = (RecordedRuns([level * rng.lognormal(0, 0.01, 200)]) for level in (20.0, 24.0))
    result = compare_runs("", before, after)
    document = comparison_document(result, before, after)
    return render_page("old.csv → new.csv", [document], colophon=["infercanary compare old.csv new.csv"])


def bisection() -> str:
    """Return the report of ``bisect --html`` on simulated experiments."""
    texts = {
        "env.OMP_NUM_THREADS": "OMP_NUM_THREADS 4 → 2",
        "package torch": "torch 2.7.0 → 2.8.0",
        "cpus": "cpus 4 → 3",
    }
    taken = [["cpus", "env.OMP_NUM_THREADS"], ["package torch"]]

    def pairs(shift: float) -> list[Shift]:
        return [Shift(math.log1p(shift) + noise, 0.001, 20.0) for noise in (-0.01, 0.0, 0.012)]

    outcomes = [
        Outcome(frozenset(names), pairs(shift)) for names, shift in zip(taken, (0.01, 0.32), strict=True)
    ]
    state = State("", "resnet18", "regressed", 0.34, pairs(0.34), [], outcomes)
    search = Search(frozenset(texts), state.pairs, 12)
    finding = search.decide(outcomes)
    assert isinstance(finding, Finding)
    document = bisect_document(state, texts, search, finding)
    return render_page(
        "search:1.4 → search:1.5", [document], colophon=["infercanary bisect search:1.4 search:1.5"]
    )


def limits() -> str:
    """Return the answer of ``doctor --limits`` on a simulated profile, as HTML that looks like a terminal."""
    operators = (
        ("aten::addmm", 0.0351, "4096 float, 1x4096 float, 4096x4096 float", 2.0, 4.0, 8.0),
        ("aten::gelu", 0.0004, "1x4096 float", 0.0, 0.002, 8.0),
    )
    rows = tuple(
        ProfileRow(
            name, name, "cpu", shapes, calls, (seconds,), 0, 8 * flops * 4096**2, 8 * size * 4096**2, calls
        )
        for name, seconds, shapes, flops, size, calls in operators
    )
    profile = Profile(0.0, "torch", "ok", (0.0358,), (0.0003,), (0.0,), rows)
    timed = Timed(0.0358, {}, {"queued": 0.0006, "blocked": 0.0, "reading": 0.0})
    found = find_limit("feed_forward", timed, profile, Ceilings("float", 55.4e9, 19.8e9, 1.1e-6))
    text = render_text(limit_document(msgspec.structs.replace(found, useful_batch=16)), 100)
    command = "$ infercanary doctor --limits probe.yaml"
    return f"<pre style='font: 14px monospace; padding: 0 1em'>{command}\n{html.escape(text)}</pre>"


async def draw() -> dict[Path, bytes]:
    pages = {"status": await status_page(), "report": report(), "runbooks": runbooks.PAGE}
    drawn = {}
    async with tab() as browser:
        for name, html in pages.items():
            for width in WIDTHS[name]:
                for dark in (False, True):
                    await browser.show(html, width, dark=dark)
                    file = FOLDER / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                    drawn[file] = await browser.picture(HEIGHT)
        width, name = README
        await browser.show(pages["status"], width)
        drawn[FOLDER / name] = await browser.picture(HEIGHT)
        await browser.show(bisection(), 1000)
        drawn[FOLDER / "bisect.png"] = await browser.picture(HEIGHT // 2)
        await browser.show(limits(), 1000)
        drawn[FOLDER / "limits.png"] = await browser.picture(HEIGHT // 3)
    return drawn


def main() -> None:
    """Draw all pages; exit with 2 if Chromium is missing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        drawn = asyncio.run(draw())
    except FileNotFoundError as error:
        print(f"docs/pictures.py: {error}", file=sys.stderr)
        sys.exit(2)
    for path, png in drawn.items():
        path.write_bytes(png)


if __name__ == "__main__":
    main()
