"""The pages in a real Chromium, in four widths, in dark mode and in print: no text may be cut, faint, broken or
missing.
"""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from docs.chromium import tab
from infercanary.compare.changes import scan_runs
from infercanary.compare.comparison import compare_runs
from infercanary.compare.document import comparison_document, scan_document
from infercanary.compare.overview import OverviewRow, overview_document
from infercanary.compare.recording import RecordedRuns
from infercanary.exporter import runbooks
from infercanary.pages.html import render_page
from tests.status_pages import LONG, cards, many, page

pytestmark = [
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
    pytest.mark.takes(12),
]

FAULTS = (Path(__file__).parent / "faults.js").read_text()
WIDTHS = (400, 800, 1200, 1920)


def report():
    rng = np.random.default_rng(1)
    before, after = (RecordedRuns([level * rng.lognormal(0, 0.01, 200)]) for level in (20.0, 24.0))
    result = compare_runs("", before, after)
    both = RecordedRuns([np.concatenate([before.every, after.every])])
    row = OverviewRow(
        canary="resnet18", host="gpu-host-1", service="search", image=LONG, origin="1.5", engine="torch 2.13.0",
        device="NVIDIA H100 80GB HBM3", starts=3, runs=300, latency_median_seconds=0.004,
        latency_deviation_ratio=0.01, latency_p90_seconds=0.0041, load_seconds=2.0, first_run_seconds=0.1,
        throughput_samples_per_second=2000.0, throughput_from="sweep, batch 8", cost_per_1000=0.01,
    )  # fmt: skip
    documents = [
        overview_document([row]),
        comparison_document(result, before, after),
        scan_document(scan_runs("", both, components={}), both),
    ]
    return render_page(f"before → {LONG}", documents, ["a note"], ["infercanary compare before after"])


async def faults(browser, html, **how):
    await browser.show(html, **how)
    return await browser.run(FAULTS)


async def tabbed(browser, html):
    """Press Tab through the page: links and folds get the focus in order, with a visible mark."""
    await browser.show(html, width=1200)
    wanted = await browser.run(
        "[...document.querySelectorAll('a[href], summary')].slice(0, 20).map(e => e.textContent)"
    )
    reached = []
    for _ in wanted:
        for kind in ("rawKeyDown", "keyUp"):
            await browser.call(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
        reached.append(
            await browser.run(
                "[document.activeElement].map(e => "
                "getComputedStyle(e).outlineStyle === 'none' ? 'no outline' : e.textContent)[0]"
            )
        )
    return [] if reached == wanted else [f"by the keyboard: {reached} in place of {wanted}"]


async def look(pages):
    found = {}
    async with tab() as browser:
        for name, html in pages.items():
            for width in WIDTHS:
                for dark in (False, True):
                    key = f"{name}, {width} px{', dark' * dark}"
                    found[key] = await faults(browser, html, width=width, dark=dark)
            found[f"{name}, by the keyboard"] = await tabbed(browser, html)
            found[f"{name}, printed"] = await faults(browser, html, width=800, media="print")
    return {key: each for key, each in found.items() if each}


def test_no_page_has_a_fault_at_any_width():
    pages = {
        "report": report(),
        "status page": page(
            cards(), troubles=["Docker does not answer"], alertmanager="http://127.0.0.1:9093"
        ),
        "unfolded status page": page(cards()).replace("<details ", "<details open "),
        "status page of many": page(many()),
        "empty status page": page([]),
        "runbooks": runbooks.PAGE,
    }
    found = asyncio.run(look(pages))
    assert not found, "\n".join(f"{key}: {fault}" for key, each in found.items() for fault in each)


BROKEN = """<!doctype html><body style="background: #fff"><p style="color: #aaa">too faint</p><img src="x">
<div style="width: 3000px">wide</div><div style="width: 8px; overflow-wrap: anywhere">letters apart</div>
<a href="#" style="outline: none">here</a></body>"""


def test_the_faults_are_seen():
    async def both():
        async with tab() as browser:
            return [*await faults(browser, BROKEN, width=400), *await tabbed(browser, BROKEN)]

    text = "\n".join(asyncio.run(both()))
    for fault in (
        "the page is 30", "beyond the window", "contrast 2.32", "torn letter by letter", "no text for those",
        "by the keyboard: ['no outline'] in place of ['here']",
    ):  # fmt: skip
        assert fault in text, text
