"""Status page: states, texts and limits. ``tests/integration/pages`` renders the page in a browser."""

import asyncio
import re
import time
from collections import Counter

import pytest
import yaml
from structlog.testing import capture_logs

from infercanary.contract.report import Run
from infercanary.exporter import status
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.report_facts import ReportFacts
from infercanary.exporter.tags import tag_moves
from tests.programs import GOLDEN
from tests.scenarios import cases
from tests.status_pages import URL, container, healthy, page, probe_of

NOW, CLOCK = 1.8e9, time.monotonic()
TABLES = yaml.safe_load((GOLDEN / "status_cards.yaml").read_text())


@pytest.fixture
def stopped(monkeypatch):
    """Stop the clock, so that texts do not depend on the machine's speed."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: CLOCK)


def words(html):
    return " ".join(re.sub(r"<[^>]*>", "", html.replace("</td>", " ")).split())


def test_each_state_has_its_place_its_style_and_its_words(stopped):
    table = TABLES["states"]
    killed = {number: row[3].pop("killed") for number, row in enumerate(table) if "killed" in row[3]}
    probes = [probe_of(row[3], service=f"{number:02}") for number, row in enumerate(table)]
    ended = {probes[number].key: (2, NOW - ago, "search:1") for number, ago in killed.items()}
    text = page(probes[::-1], ended=ended)
    tally = re.findall(r'<span class="(\w+)"><b>(\d+)</b> (.*?)</span>', text)
    expected = Counter((style, state) for style, state, *_ in table)
    assert tally == [(style, str(count), state) for (style, state), count in expected.items()]
    shown = re.findall(r'<article class="(\w+)">.*?"soft">(\d+)</span>(.*?)</article>', text, re.DOTALL)
    assert [table[int(number)][1] for _, number, _ in shown] == [state for _, state, *_ in table]
    for style, number, html in shown:
        expected_style, _, said, _ = table[int(number)]
        assert style == expected_style and said in words(html), words(html)


@pytest.mark.parametrize("row", TABLES["cards"], ids=[row[0] or f"not {row[1]}" for row in TABLES["cards"]])
def test_words(stopped, row):
    expected, absent, fields = row
    text = words(page([probe_of(fields)]).partition("<main>")[2])
    assert expected in text and (not absent or absent not in text), text


def test_an_upgrade_links_to_its_commits():
    link = '/search/compare/1a2b3c4d5e6f...9f8e7d6c5b4a" rel="noopener noreferrer">'
    [linked] = [probe_of(fields) for *_, fields in TABLES["cards"] if "script" in str(fields)]
    assert link in page([linked])
    assert "/compare/" not in page([healthy()])


def test_a_failing_canary_has_its_detail_once():
    [failing] = [probe_of(fields) for *_, fields in TABLES["cards"] if "failed" in fields]
    text = page([failing])
    assert text.count("boom") == 1
    assert re.search(r'class="line new".*class="miss" d="M3.5 ', text, re.DOTALL)


def test_above_the_cards():
    gone = {("test", "search", "search-5c4-a/server"): (1, 1.0, "app:1")}
    left = [(Container(service="<b>", name="search-1"), time.time() - 300)]
    text = page([], troubles=["<the store> fails"], ended=gone, left=left)
    above, _, main = text.partition("<main>")
    for expected in (
        "&lt;the store&gt; fails",
        "search-5c4-a/server (test/search) does not run: killed for memory once, last",
        "&lt;b&gt;: its last container, search-1, ended 5 min ago. A service that was stopped sends no alert.",
    ):
        assert expected in words(above)
    assert "No canaries yet" in main


def test_a_label_without_enable_is_a_card_and_no_alert():
    probe = container(url_missing="label infercanary.enable is missing", is_asked=False)
    probe.trouble = probe.container.url_missing
    assert not [
        point for each in probe.families(0.0) if each.name == "infercanary_up" for point in each.points
    ]
    text = page([probe])
    assert "<b>1</b> not polled" in text
    assert "label infercanary.enable is missing" in text


@cases(["card", "state_of"])
def test_a_fault_with_one_card_costs_no_other(where, monkeypatch):
    whole = getattr(status, where)

    def broken(probe, *others):
        assert probe.container.name != "evil"
        return whole(probe, *others)

    monkeypatch.setattr(status, where, broken)
    with capture_logs() as lines:
        text = page([healthy("evil", image="search:7"), healthy("good", image="search:8")])
    [(first, evil), (_, good)] = re.findall(r"<h2>(.+?)</h2>(.*?)</article>", text, re.DOTALL)
    assert first == "evil"
    assert "search:7" not in text
    assert "<b>1</b> not shown" in text
    assert "cannot be shown: the exporter" in evil
    assert "search:8" in good
    assert [(line["container"], line["log_level"]) for line in lines] == [("evil", "error")]


async def test_others_have_their_turn_between_two_cards():
    rendering = asyncio.create_task(
        status.page([healthy(f"s-{n}") for n in range(10)], {}, version="1", troubles=(), left=())
    )
    turns = 0
    while not rendering.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10


@cases(["a", "'", "\U0001f600"])
def test_a_hostile_probe_has_a_card_of_a_bounded_size(letter, monkeypatch):
    wide, name = letter * 9_000, letter * 100
    names = [f"{name}{n:02}" for n in range(16)]
    probe = container(name="wide", url=URL, image=wide, notes=(wide,) * 99)
    probe.up, probe.trouble = True, wide
    probe.environment = {f"{name}{n:03}": letter * 4_096 for n in range(200)}
    failed = [
        Run(n, each, 0.0, float(n), "raised", (0.1,), detail=letter * 500)
        for n in range(120)
        for each in names
    ]
    probe.history.take(failed)
    probe.reported = ReportFacts(dict.fromkeys(names, "failing"), dict.fromkeys(names, wide))
    whole = page([probe])
    assert "and 72 more</p>" in whole or "more canaries" in whole
    assert len(whole) < 450_000
    monkeypatch.setattr(status, "_PAGE", 0)
    small = page([probe])
    assert len(small) - len(page([])) < 35_000
    for what in ("more canaries", "more failing canaries", "more</p>"):
        assert len(re.findall(rf"and \d+ {what}", small)) == 1


def test_tags_that_move_and_those_that_do_not():
    moves = ["search:latest", "registry.local:5000/team/search", "search:main"]
    stays = "registry.local:5000/team/search:1.4 search@sha256:0123456789abcdef 0123456789ab search:latest-2024-01"
    assert [name for name in (*moves, *stays.split(), "") if tag_moves(name)] == moves
