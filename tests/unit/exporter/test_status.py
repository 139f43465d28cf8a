"""Status page: states, words, bounds. ``tests/integration/pages`` looks at it in a browser."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
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
    return found(name=replica, drifts={"resnet": {replica: Drift(shift=shift, onset=time.time() - 7200)}})


def failed(outcome: Outcome) -> History:
    history = History()
    history.take([*runs(3), Run(99, "resnet", 99.0, 99.0, outcome, detail="boom")])
    return history


LESS = {"resnet": {"throughput@8x1": MeasureVerdict(state="regressed", shift=-0.2, low=-0.25, high=-0.15)}}
KILLED = {"killed": 60.0, "killed long ago": 7_200.0}  # seconds ago
STATES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("down", {"up": False, "trouble": "refused"}, "down", "down", f"refused ({URL})"),
    ("no address", {"container": {"url": None}}, "down", "not polled", "resnet"),
    ("failing", {"reported": states("failing", "<b>")}, "critical", "with a failing canary", "failing: &lt;b&gt;"),
    (
        "out of memory", {"reported": states("out_of_memory", "CUDA")}, "critical", "with a failing canary",
        "resnet is out of memory: CUDA",
    ),
    ("killed", {}, "failing", "killed for memory", "killed for memory 2 times, last 60 s ago with search:1"),
    (
        "regressed", {"findings": found(upgraded("regressed"))}, "failing", "regressed since an upgrade",
        "regressed +10.0 % [+8.0, +12.0]",
    ),
    (
        "less throughput", {"findings": found(measures=LESS)}, "failing", "regressed since an upgrade",
        "throughput at batch 8 regressed -20.0 % [-25.0, -15.0]",
    ),
    (
        "drifted", {"findings": drifted(0.1)}, "failing", "drifted without an upgrade",
        "drifted +10.0 % from the first day of this image, with no upgrade since 2 h ago",
    ),
    ("lost", {"runs_lost": 7}, "up", "up", "7 runs lost"),
    ("raised", {"history": failed("raised")}, "up", "up", "last run raised: boom"),
    ("busy", {"history": failed("busy")}, "up", "up", "last run busy"),
    ("faster", {"findings": drifted(-0.1)}, "up", "up", "drifted -10.0 %"),
    ("improved", {"findings": found(upgraded("improved", -0.1))}, "up", "up", "improved -10.0 %"),
    (
        "on the old image", {"findings": found(upgraded(), sides={"resnet": Sides(old=MINE)})}, "up", "up",
        "runs the old image",
    ),
    ("killed long ago", {}, "up", "up", "last 2 h ago"),
    ("another drifted", {"findings": drifted(0.1, "another")}, "up", "up", "resnet"),
    ("well", {}, "up", "up", "resnet 20.08 ms min 19.88 ms max 20.48 ms"),
]  # fmt: skip
"""Name, difference from a healthy probe, style and words of its tally, and distinctive words; the worst first."""


def test_each_state_has_its_place_its_style_and_its_words() -> None:
    probes, ended = [], {}
    for name, differs, *_ in reversed(STATES):
        fields = dict(differs)
        probe = healthy("search-1", service=name, **fields.pop("container", {}))
        for field, value in fields.items():
            setattr(probe, field, value)
        if name in KILLED:
            ended[probe.key] = (2, time.time() - KILLED[name], "search:1")
        probes.append(probe)
    text = page(probes, ended=ended)
    assert "does not run" not in text
    tally = re.findall(r'<span class="(\w+)"><b>(\d+)</b> (.*?)</span>', text)
    expected = Counter((style, state) for _, _, style, state, _ in STATES)
    assert tally == [(style, str(count), state) for (style, state), count in expected.items()]
    shown = re.findall(r'<article class="(\w+)">.*?"soft">(.+?)</span>(.*?)</article>', text, re.DOTALL)
    table = {name: others for name, _, *others in STATES}
    order = [table[name][1] for _, name, _ in shown]
    assert len(shown) == len(STATES) and order == sorted(order, key=[state for _, state in expected].index)
    for style, name, html in shown:
        assert style == table[name][0] and table[name][2] in words(html), (name, words(html))


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


def family(name: str, value: float = 1.0, **labels: str) -> Family:
    return Family(f"infercanary_{name}", "gauge", "", tuple(labels), (Point(tuple(labels.values()), value),))


def reporting(*families: Family, **fields: Any) -> PolledProbe:
    """A probe that is up, before its first run."""
    probe = PolledProbe(Container(service="search", name="search-1", url=URL))
    probe.up, probe.trouble, probe.reported = True, "", read_facts(families)
    for field, value in fields.items():
        setattr(probe, field, value)
    return probe


def container(**fields: Any) -> PolledProbe:
    return PolledProbe(Container(**{"service": "search", "name": "search-1", **fields}))


NOW, CLOCK = 1.8e9, time.monotonic()
AT = NOW - 7200
SETTLING = upgraded("settling", None, runs=7, looks=Looks(next=12), upgraded_at=AT, newest_at=AT + 60)
SOURCE = "https://github.com/acme/search"
ORIGINS = Origin("1a2b3c4d5e6f", SOURCE, "1.4"), Origin("9f8e7d6c5b4a", SOURCE, "<script>")
CONV = Operators("explained", (OperatorShift("aten::conv2d", 0.01, 0.02, 1.0, "grew"),), 1.0)
OUTSIDE = Operators("outside", (), 0.1)
ALONE = Result(state="no_baseline", candidate_image="search:1 (2)", runs=11)
PAST = PastVerdict(
    answered_at=2.0, upgraded_at=2.0, state="regressed", sentence="regressed +10 %", baseline_image="a:1",
    candidate_image="a:2", rolled_back=True,
)  # fmt: skip
DIGEST = "sha256:fa3e587c72e7" + "0" * 52
STEADY = family("canary_state", canary="c", state="steady")
FAILING = family("canary_state", canary="c", state="failing")
NEW: dict[str, Any] = {"sides": {"resnet": Sides()}}
WORDS: dict[str, tuple[PolledProbe, Sequence[str], Sequence[str]]] = {
    # Verdicts: progress, sides, what the labels say.
    "open": (
        with_verdict(upgraded("inconclusive", looks=Looks(next=24))),
        ["old search:1 new search:2 upgraded", "; next look at 24 runs"], ["last start"],
    ),
    "last look": (with_verdict(upgraded("inconclusive")), ["inconclusive"], ["next look"]),
    "answered": (with_verdict(upgraded("regressed", looks=Looks(next=24))), ["regressed"], ["next look"]),
    "settling": (with_verdict(SETTLING), ["upgraded 2 h ago; collecting: 7 of 12 runs"], []),
    "started again": (
        with_verdict(msgspec.structs.replace(SETTLING, newest_at=AT + 7000)), ["2 h ago, last start 3 min ago"], [],
    ),
    "medians": (
        with_verdict(upgraded(baseline=0.0575, current=0.16)), ["old 57.5 ms search:1 new 160 ms search:2"], [],
    ),
    "commits": (
        with_verdict(upgraded(origins=ORIGINS)),
        ["search:1 (1.4, 1a2b3c4d5e6f) new", "version 1.4 → &lt;script&gt;, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a"], [],
    ),
    "operators": (
        with_verdict(upgraded(causes=Causes(operators=CONV))), ["Evidence", "10 ms 20 ms"], [],
    ),
    "operators of a drift": (
        with_verdict(upgraded(), drifts={"resnet": {"search-1": Drift(shift=0.5, onset=1.0, operators=CONV)}}),
        ["no upgrade; conv2d 10 → 20 ms (100 % of the change)", "10 ms 20 ms"], [],
    ),
    "causes of a drift": (
        with_verdict(upgraded(), drifts={"resnet": {"search-1": Drift(
            shift=0.5, onset=1.0, host=Part(0.02, 0.01, 0.03), changes=(Change("torch", "2.7", "2.8"),))}}),
        ["with no upgrade; host +2.0 %; since that day torch 2.7 → 2.8"], [],
    ),
    "measures": (
        with_verdict(upgraded(), measures={"resnet": LESS["resnet"] | {"energy": MeasureVerdict("settling")}}),
        ["throughput at batch 8 regressed -20.0 % [-25.0, -15.0]; energy settling"], [],
    ),
    "drift outside of operators": (
        with_verdict(upgraded(), drifts={"resnet": {"search-1": Drift(shift=0.5, onset=1.0, operators=OUTSIDE)}}),
        ["no upgrade; no operator explains it since"], [],
    ),
    "earlier upgrade": (
        with_verdict(upgraded(), answers={"resnet": (PAST, msgspec.structs.replace(PAST, upgraded_at=1.0))}),
        ["1970-01-01 00:00:02 UTC a:1 → a:2: regressed +10 %; then rolled back"], ["00:00:01"],
    ),
    "many earlier upgrades": (
        with_verdict(upgraded(), answers={
            "resnet": tuple(msgspec.structs.replace(PAST, upgraded_at=float(n)) for n in range(20, 30))}),
        ["00:00:29", "00:00:20"], [],
    ),
    # Sides of a rollout; by image if the judge does not know the start.
    "new": (with_verdict(image()), ["regressed +300 %"], []),
    "new image": (with_verdict(image(), **NEW), ["regressed +300 %"], []),
    "old": (
        with_verdict(image(), "1", sides={"resnet": Sides(old=MINE)}),
        ["runs the old image; the verdict is about containers with the new one"], ["regressed"],
    ),
    "old image": (with_verdict(image(), "1", **NEW), ["runs the old image"], ["regressed"]),
    "old model": (
        with_verdict(image("model"), "1", sides={"resnet": Sides(old=MINE)}), ["runs the old model"], ["regressed"],
    ),
    "other": (
        with_verdict(image(), "3", **NEW), ["runs another image than the judge last looked at"], ["regressed"],
    ),
    "other start": (
        with_verdict(image(), "2", sides={"resnet": Sides(others=MINE)}), ["regressed +300 %"], [],
    ),
    "other, no upgrade": (
        with_verdict(ALONE, "3", **NEW), ["runs another image than the judge last looked at"], ["baseline"],
    ),
    "no upgrade": (
        with_verdict(ALONE, **NEW),
        ["no upgrade yet", "baseline 11 of 24 runs"], ["upgraded"],
    ),
    "after a failure": (failing(), ["resnet 20.08 ms min 19.88 ms", "last run raised"], []),
    "not judged": (healthy(), ["not judged yet: 3 runs of this start"], []),
    # Before the first run; a hostile probe has other labels and other kinds.
    "opening": (
        reporting(family("canary_state", canary="<b>", state="opening")), ["no run yet: &lt;b&gt; is opening"], [],
    ),
    "warm": (reporting(STEADY), ["no run yet: c is warm, and its first run comes next"], []),
    "failing at once": (reporting(FAILING), ["c is failing no run yet"], ["no run yet:"]),
    "down at once": (reporting(FAILING, up=False), [], ["no run yet", "c is failing"]),
    "no canary": (reporting(), ["no run yet: no canary is reported"], []),
    "no value": (reporting(family("canary_state", 0.0, canary="c", state="steady")), ["no canary is reported"], []),
    "no state": (reporting(family("canary_state", canary="c")), ["no canary is reported"], []),
    "no name": (reporting(family("canary_state", state="steady", odd="x")), ["no canary is reported"], []),
    "odd failure": (reporting(family("canary_failure_info", detail="x")), ["no canary is reported"], []),
    # The container.
    "GPU neighbours": (
        reporting(neighbours="train-1"), ["shares its GPU with train-1"], [],
    ),
    "no GPU neighbours": (reporting(neighbours=NOBODY), [], ["shares its GPU"]),
    "note": (container(notes=("label infercanary.sevice: <b>",)), ["label infercanary.sevice: &lt;b&gt;"], []),
    "moving tag": (container(image="search:latest"), ["runs search:latest, a tag that may be another image"], []),
    "pod": (container(namespace="prod", pod="search-7d9-a", name="server"), ["search-7d9-a/server prod/search"], []),
    "image by id": (
        container(image="fa3e587c72e7", image_id=DIGEST), ["fa3e587c72e7"], ["fa3e587c72e7 ·"],
    ),
    "image and id": (
        container(image="search:2", image_id=DIGEST), ["search:2 · fa3e587c72e7"], ["7000"],
    ),
}  # fmt: skip
"""Situation → a container, words of its card, and words that are not on it."""


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: CLOCK)
    probe, expected, absent = WORDS[name]
    text = words(page([probe]).partition("<main>")[2])
    assert all(each in text for each in expected) and not any(each in text for each in absent), text


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

    def broken(probe: PolledProbe, *others: Any) -> Any:
        if probe.container.name == "evil":
            raise KeyError("gpu")
        return whole(probe, *others)

    whole = getattr(status, where)
    monkeypatch.setattr(status, where, broken)
    with capture_logs() as lines:
        text = page([healthy("evil", image="search:7"), healthy("good", image="search:8")])
    shown = cards(text)
    assert next(iter(shown)) == "evil" and "search:7" not in text
    assert "cannot be shown: the exporter's log says why" in shown["evil"][1].replace("&#39;", "'")
    assert "search:8" in shown["good"][1] and "<b>1</b> not shown" in text
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
    probes = [
        container(name=f"wide-{n}", url=URL, image=letter * 9_000, notes=(letter * 9_000,) * 99)
        for n in range(10)
    ]
    names = [letter * 100 + f"{n:02}" for n in range(16)]
    for probe in probes:
        probe.up, probe.trouble = True, letter * 9_000
        probe.environment = {letter * 100 + f"{n:03}": letter * 4_096 for n in range(200)}
        probe.history.take(
            Run(n, name, float(n), float(n), "raised", (0.1,), detail=letter * 500)
            for n in range(120)
            for name in names
        )
        probe.reported = ReportFacts(dict.fromkeys(names, "failing"), dict.fromkeys(names, letter * 9_000))
    whole = page(probes[:1])
    assert "and 72 more</p>" in whole or "more canaries" in whole, "what is left out is counted"
    assert len(whole) < 450_000
    monkeypatch.setattr(status, "_PAGE", 0)
    small = page(probes)
    assert len(small) < 10 * 35_000
    for what in ("more canaries", "more failing canaries", "more</p>"):
        assert len(re.findall(rf"and \d+ {what}", small)) == len(probes)


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("search:latest", True),
        ("registry.local:5000/team/search", True),
        ("search:main", True),
        ("registry.local:5000/team/search:1.4", False),
        ("search@sha256:0123456789abcdef", False),
        ("0123456789ab", False),
        ("sha256:0123456789abcdef", False),
        ("search:latest-2024-01", False),
        ("", False),
    ],
)
def test_tags_that_move_and_those_that_do_not(name: str, moves: bool) -> None:
    assert tag_moves(name) == moves
