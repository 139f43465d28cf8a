"""Status page: states, words, bounds. ``tests/integration/pages`` looks at it in a browser."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from infercanary.contract.report import Family, Point, Run
from infercanary.contract.vocabulary import NOBODY, Outcome
from infercanary.exporter import status
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.history import History
from infercanary.exporter.judging.findings import Findings, PastVerdict, Sides
from infercanary.exporter.probe_state import PolledProbe
from infercanary.exporter.report_facts import ReportFacts, read_facts
from infercanary.exporter.tags import tag_moves
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.operators import Operators, OperatorShift
from infercanary.judge.origin import Origin
from infercanary.judge.result import Causes, Change, Looks, Part, Result
from tests.results import upgraded
from tests.status_pages import URL, found, healthy, page, runs

MINE = frozenset({("search-1", "b")})
NOW, CLOCK = time.time(), time.monotonic()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, so that a slow machine changes no word."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: CLOCK)


def cards(text: str) -> dict[str, tuple[str, str]]:
    """Name → style and HTML of each card, in order."""
    every = re.findall(r'<article class="(\w+)">.*?<h2>(.+?)</h2>(.*?)</article>', text, re.DOTALL)
    return {name: (style, html) for style, name, html in every}


def words(html: str) -> str:
    """The text that people read."""
    return " ".join(re.sub(r"<[^>]*>", "", html.replace("</td>", " ")).split())


def states(state: str, detail: str, canary: str = "resnet") -> ReportFacts:
    return ReportFacts({canary: state}, {canary: detail})


def drifted(shift: float, replica: str = "search-1") -> Findings:
    return found(name=replica, drifts={"resnet": {replica: Drift(shift=shift, onset=NOW - 7200)}})


def failed(outcome: Outcome) -> History:
    history = History()
    history.take([*runs(3), Run(99, "resnet", 99.0, 99.0, outcome, detail="boom")])
    return history


LESS = {"resnet": {"throughput@8x1": MeasureVerdict(state="regressed", shift=-0.2, low=-0.25, high=-0.15)}}
KILLED, LONG_AGO = "killed for memory 2 times, last 60 s ago with search:1", "last 2 h ago"
FAILING = "critical", "with a failing canary"
REGRESSED = "failing", "regressed since an upgrade"
UP = "up", "up"
STATES: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    f"refused ({URL})": (("down", "down"), {"up": False, "trouble": "refused"}),
    "": (("down", "not polled"), {"url": None}),
    "failing: &lt;b&gt;": (FAILING, {"reported": states("failing", "<b>")}),
    "resnet is out of memory: CUDA": (FAILING, {"reported": states("out_of_memory", "CUDA")}),
    KILLED: (("failing", "killed for memory"), {}),
    "regressed +10.0 % [+8.0, +12.0]": (REGRESSED, {"findings": found(upgraded("regressed"))}),
    "throughput at batch 8 regressed -20.0 % [-25.0, -15.0]": (REGRESSED, {"findings": found(measures=LESS)}),
    "drifted +10.0 % from the first day of this image, with no upgrade since 2 h ago": (
        ("failing", "drifted without an upgrade"), {"findings": drifted(0.1)},
    ),
    "7 runs lost": (UP, {"runs_lost": 7}),
    "last run raised: boom": (UP, {"history": failed("raised")}),
    "last run busy": (UP, {"history": failed("busy")}),
    "drifted -10.0 %": (UP, {"findings": drifted(-0.1)}),
    "improved -10.0 %": (UP, {"findings": found(upgraded("improved", -0.1))}),
    LONG_AGO: (UP, {}),
    "resnet": (UP, {"findings": drifted(0.1, "another")}),
    "resnet 20.08 ms min 19.88 ms max 20.48 ms": (UP, {}),
}  # fmt: skip
"""Distinctive words, style and words of the tally, and the difference from a healthy probe; the worst first."""


def test_each_state_has_its_place_its_style_and_its_words(stopped: None) -> None:
    probes, ended = [], {}
    for number, (said, (_, differs)) in enumerate(STATES.items()):
        known = differs.copy()
        probe = healthy(
            "search-1", service=f"{number:02}", **({"url": known.pop("url")} if "url" in known else {})
        )
        for field, value in known.items():
            setattr(probe, field, value)
        if said in (KILLED, LONG_AGO):
            ended[probe.key] = (2, NOW - (60 if said == KILLED else 7200), "search:1")
        probes.append(probe)
    text = page(probes[::-1], ended=ended)
    tally = re.findall(r'<span class="(\w+)"><b>(\d+)</b> (.*?)</span>', text)
    expected = Counter(state for state, _ in STATES.values())
    assert tally == [(style, str(count), state) for (style, state), count in expected.items()]
    shown = re.findall(r'<article class="(\w+)">.*?"soft">(\d+)</span>(.*?)</article>', text, re.DOTALL)
    table = [(said, state) for said, (state, _) in STATES.items()]
    assert [table[int(number)][1] for _, number, _ in shown] == [state for _, state in table]
    for style, number, html in shown:
        said, state = table[int(number)]
        assert style == state[0] and said in words(html), words(html)


def image(changed: Any = "image") -> Result:
    return upgraded(shift=3.0, changed=changed, baseline_image="search:1 (1)", candidate_image="search:1 (2)")


def with_verdict(result: Result, image_id: str = "2", **findings: Any) -> PolledProbe:
    probe = healthy(image_id=image_id)
    probe.findings = found(result, **findings)
    return probe


def failing() -> PolledProbe:
    probe = healthy()
    probe.history, probe.reported = failed("raised"), states("failing", "boom")
    return probe


def reporting(up: bool = True, neighbours: str = "", **labels: str) -> PolledProbe:
    """A probe before its first run; what it says of the state of its canaries has these labels."""
    probe = container(url=URL)
    point = Point(tuple(labels.values()), 1.0)
    states = Family("infercanary_canary_state", "gauge", "", tuple(labels), (point,) if labels else ())
    probe.up, probe.trouble, probe.neighbours, probe.reported = up, "", neighbours, read_facts([states])
    return probe


def container(**fields: Any) -> PolledProbe:
    return PolledProbe(Container(**{"service": "search", "name": "search-1", **fields}))


AT = NOW - 7200
SETTLING = upgraded("settling", None, runs=7, looks=Looks(next=12), upgraded_at=AT, newest_at=AT + 60)
SOURCE = "https://github.com/acme/search"
ORIGINS = Origin("1a2b3c4d5e6f", SOURCE, "1.4"), Origin("9f8e7d6c5b4a", SOURCE, "<script>")
CONV = Operators("explained", (OperatorShift("aten::conv2d", 0.01, 0.02, 1.0, "grew"),), 1.0)
DRIFT = Drift(
    shift=0.5, onset=1.0, host=Part(0.02, 0.01, 0.03), changes=(Change("torch", "2", "3"),), operators=CONV
)
ALONE = Result(state="no_baseline", candidate_image="search:1 (2)", runs=11)
PAST = PastVerdict(
    answered_at=2.0, upgraded_at=2.0, state="regressed", sentence="regressed +10 %", baseline_image="a:1",
    candidate_image="a:2", rolled_back=True,
)  # fmt: skip
DIGEST = "sha256:fa3e587c72e7" + "0" * 52
NEW: dict[str, Any] = {"sides": {"resnet": Sides()}}
OLD: dict[str, Any] = {"sides": {"resnet": Sides(old=MINE)}}
WORDS: list[tuple[PolledProbe, str, str]] = [
    # Verdicts: progress, sides, what the labels say.
    (with_verdict(upgraded("inconclusive", looks=Looks(next=24))), "old search:1 new search:2 upgraded", "last start"),
    (with_verdict(upgraded("inconclusive", looks=Looks(next=24))), "; next look at 24 runs", ""),
    (with_verdict(upgraded("regressed", looks=Looks(next=24))), "regressed", "next look"),
    (with_verdict(SETTLING), "upgraded 2 h ago; collecting: 7 of 12 runs", ""),
    (with_verdict(msgspec.structs.replace(SETTLING, newest_at=AT + 7000)), "2 h ago, last start 3 min ago", ""),
    (with_verdict(upgraded(baseline=0.0575, current=0.16)), "old 57.5 ms search:1 new 160 ms search:2", ""),
    (with_verdict(upgraded(origins=ORIGINS)), "version 1.4 → &lt;script&gt;, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a", ""),
    (with_verdict(upgraded(causes=Causes(operators=CONV))), "10 ms 20 ms", ""),
    (
        with_verdict(upgraded(), drifts={"resnet": {"search-1": DRIFT}}),
        "no upgrade; host +2.0 %; since that day torch 2 → 3; conv2d 10 → 20 ms (100 % of the change)", "",
    ),
    (
        with_verdict(upgraded(), measures={"resnet": LESS["resnet"] | {"energy": MeasureVerdict("settling")}}),
        "throughput at batch 8 regressed -20.0 % [-25.0, -15.0]; energy settling", "",
    ),
    (
        with_verdict(upgraded(), answers={"resnet": (PAST, msgspec.structs.replace(PAST, upgraded_at=1.0))}),
        "1970-01-01 00:00:02 UTC a:1 → a:2: regressed +10 %; then rolled back", "00:00:01",
    ),
    # Sides of a rollout; by image if the judge does not know the start.
    (with_verdict(image()), "regressed +300 %", ""),
    (with_verdict(image(), **NEW), "regressed +300 %", ""),
    (
        with_verdict(image(), "1", **OLD),
        "runs the old image; the verdict is about containers with the new one", "regressed",
    ),
    (with_verdict(image(), "1", **NEW), "runs the old image", "regressed"),
    (with_verdict(image("model"), "1", **OLD), "runs the old model", "regressed"),
    (with_verdict(image(), "3", **NEW), "runs another image than the judge last looked at", "regressed"),
    (with_verdict(image(), "2", sides={"resnet": Sides(others=MINE)}), "regressed +300 %", ""),
    (with_verdict(ALONE, "3", **NEW), "runs another image than the judge last looked at", "baseline"),
    (with_verdict(ALONE, **NEW), "baseline 11 of 24 runs", "upgraded"),
    (failing(), "last run raised", ""),
    (healthy(), "not judged yet: 3 runs of this start", ""),
    # Before the first run; a hostile probe has other labels.
    (reporting(canary="<b>", state="opening"), "no run yet: &lt;b&gt; is opening", ""),
    (reporting(canary="c", state="steady"), "no run yet: c is warm, and its first run comes next", ""),
    (reporting(canary="c", state="failing"), "c is failing no run yet", "no run yet:"),
    (reporting(up=False, canary="c", state="failing"), "", "no run yet"),
    (reporting(), "no run yet: no canary is reported", "shares its GPU"),
    (reporting(state="steady", odd="x"), "no canary is reported", ""),
    # The container.
    (reporting(neighbours="train-1"), "shares its GPU with train-1", ""),
    (reporting(neighbours=NOBODY), "", "shares its GPU"),
    (container(notes=("label infercanary.sevice: <b>",)), "label infercanary.sevice: &lt;b&gt;", ""),
    (container(image="search:latest"), "runs search:latest, a tag that may be another image", ""),
    (container(namespace="prod", pod="search-7d9-a", name="server"), "search-7d9-a/server prod/search", ""),
    (container(image="fa3e587c72e7", image_id=DIGEST), "fa3e587c72e7", "fa3e587c72e7 ·"),
    (container(image="search:2", image_id=DIGEST), "search:2 · fa3e587c72e7", "7000"),
]  # fmt: skip
"""A container, words of its card, and words that are not on it."""


def test_words(stopped: None) -> None:
    for probe, expected, absent in WORDS:
        text = words(page([probe]).partition("<main>")[2])
        assert expected in text and (not absent or absent not in text), (expected, text)


def test_an_upgrade_links_to_its_commits() -> None:
    link = f'<a href="{SOURCE}/compare/1a2b3c4d5e6f...9f8e7d6c5b4a" rel="noopener noreferrer">'
    assert link in page([with_verdict(upgraded(origins=ORIGINS))])
    assert "/compare/" not in page([with_verdict(upgraded())])


def test_a_failing_canary_has_its_detail_once() -> None:
    text = page([failing()])
    assert text.count("boom") == 1 and re.search(r'class="line new".*class="miss" d="M3.5 ', text, re.DOTALL)


def test_above_the_cards() -> None:
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


def test_a_label_without_enable_is_a_card_and_no_alert() -> None:
    probe = container(url_missing="label infercanary.enable is missing", is_asked=False)
    probe.trouble = probe.container.url_missing
    assert not [
        point for each in probe.families(0.0) if each.name == "infercanary_up" for point in each.points
    ]
    text = page([probe])
    assert "<b>1</b> not polled" in text and "label infercanary.enable is missing" in text


@pytest.mark.parametrize("where", ["card", "state_of"])
def test_a_fault_with_one_card_costs_no_other(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of it is shown as if that were all, and the log has it."""
    whole = getattr(status, where)

    def broken(probe: PolledProbe, *others: Any) -> Any:
        assert probe.container.name != "evil"
        return whole(probe, *others)

    monkeypatch.setattr(status, where, broken)
    with capture_logs() as lines:
        text = page([healthy("evil", image="search:7"), healthy("good", image="search:8")])
    (first, (_, evil)), (_, (_, good)) = cards(text).items()
    assert first == "evil" and "search:7" not in text and "<b>1</b> not shown" in text
    assert "cannot be shown: the exporter" in evil and "search:8" in good
    assert [(line["container"], line["log_level"]) for line in lines] == [("evil", "error")]


async def test_others_have_their_turn_between_two_cards() -> None:
    rendering = asyncio.create_task(
        status.page([healthy(f"s-{n}") for n in range(10)], {}, version="1", troubles=(), left=())
    )
    turns = 0
    while not rendering.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10


@pytest.mark.parametrize("letter", ["a", "'", "\U0001f600"])
def test_a_hostile_probe_has_a_card_of_a_bounded_size(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide, name = letter * 9_000, letter * 100
    names = [f"{name}{n:02}" for n in range(16)]
    probes = [container(name=f"wide-{n}", url=URL, image=wide, notes=(wide,) * 99) for n in range(10)]
    for probe in probes:
        probe.up, probe.trouble = True, wide
        probe.environment = {f"{name}{n:03}": letter * 4_096 for n in range(200)}
        failed = Run(0, "", 0.0, 0.0, "raised", (0.1,), detail=letter * 500)
        probe.history.take(
            msgspec.structs.replace(failed, sequence=n, canary=each, started_at=float(n))
            for n in range(120)
            for each in names
        )
        probe.reported = ReportFacts(dict.fromkeys(names, "failing"), dict.fromkeys(names, wide))
    whole = page(probes[:1])
    assert "and 72 more</p>" in whole or "more canaries" in whole, "what is left out is counted"
    assert len(whole) < 450_000
    monkeypatch.setattr(status, "_PAGE", 0)
    small = page(probes)
    assert len(small) < 10 * 35_000
    for what in ("more canaries", "more failing canaries", "more</p>"):
        assert len(re.findall(rf"and \d+ {what}", small)) == len(probes)


MOVES = ("search:latest", "registry.local:5000/team/search", "search:main")
STAYS = (
    "registry.local:5000/team/search:1.4", "search@sha256:0123456789abcdef", "0123456789ab",
    "sha256:0123456789abcdef", "search:latest-2024-01", "",
)  # fmt: skip


def test_tags_that_move_and_those_that_do_not() -> None:
    assert [name for name in (*MOVES, *STAYS) if tag_moves(name)] == [*MOVES]
