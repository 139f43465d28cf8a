"""What the page says of a verdict."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from infercanary.contract.report import Family, Point
from infercanary.contract.vocabulary import Outcome
from infercanary.exporter import card, status
from infercanary.exporter.canaries import ReportedCanaries, reported_canaries
from infercanary.exporter.card_verdicts import earlier_upgrades, measures_of, verdict_on
from infercanary.exporter.departed import Gone
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.drawing import before_and_after, sparkline
from infercanary.exporter.history import History, RunSummary, baseline
from infercanary.exporter.judging.answers import PastVerdict
from infercanary.exporter.judging.findings import Findings
from infercanary.exporter.judging.sides import Sides
from infercanary.exporter.polled import PolledProbe
from infercanary.exporter.tags import tag_moves
from infercanary.judge.drift import Drift
from infercanary.judge.measures import MeasureVerdict
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.origin import Origin
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Looks, Result, State
from tests.results import upgraded


def page(probes: Collection[PolledProbe], **others: Any) -> str:
    return asyncio.run(status.page(probes, version="1", **others)).decode()


def cards(text: str) -> dict[str, tuple[str, str]]:
    """Name → style and HTML of each card, in order."""
    found = re.findall(r'<article class="(\w+)">.*?<h2>(.+?)</h2>(.*?)</article>', text, re.DOTALL)
    return {name: (style, html) for style, name, html in found}


def runs(count: int, every: float = 10.0) -> list[RunSummary]:
    return [RunSummary("resnet", n * every, "ok", "", 0.02, 0.02, 0.02) for n in range(count)]


def shown(state: State, next_look: int | None) -> str:
    return verdict_on(upgraded(state, looks=Looks(next=next_look)), "inconclusive", [], LIVE)


def test_what_is_open_says_when_it_looks_again() -> None:
    assert "next look at 24 runs" in shown("inconclusive", 24)
    assert "next look" not in shown("inconclusive", None), "it was the last look"
    assert "next look" not in shown("regressed", 24), "that is an answer"


def test_an_upgrade_before_its_first_look_shows_how_many_runs_it_has() -> None:
    settling = upgraded("settling", None, runs=7, looks=Looks(next=12))
    assert "collecting: 7 of 12 runs</small>" in verdict_on(settling, "settling", [], LIVE)
    assert "collecting: 7 of 12 runs, about 50 s left" in verdict_on(settling, "settling", runs(4), LIVE)


def test_a_rollout_that_was_started_again_says_when() -> None:
    """One that was rolled back and came back had the age of the first one alone."""
    at = time.time() - 7200
    first = upgraded("settling", None, upgraded_at=at, newest_at=at + 60)
    again = msgspec.structs.replace(first, newest_at=at + 7000)
    assert "search:1 → search:2, 2 h ago<" in verdict_on(first, "settling", [], LIVE)
    assert "search:1 → search:2, 2 h ago, last start 3 min ago<" in verdict_on(again, "settling", [], LIVE)


def test_an_earlier_upgrade_that_was_rolled_back_says_so() -> None:
    past = PastVerdict(
        answered_at=2.0, upgraded_at=1.0, state="regressed", sentence="regressed +10 %", baseline_image="a:1",
        candidate_image="a:2", rolled_back=True,
    )  # fmt: skip
    assert "a:1 → a:2: regressed +10 %; then rolled back</li>" in earlier_upgrades([past], None, "s/c")
    stood = msgspec.structs.replace(past, rolled_back=False)
    assert "regressed +10 %</li>" in earlier_upgrades([stood], None, "s/c")


@pytest.mark.parametrize(
    ("image", "same"),
    [
        ("environment e6d0811abd5", "the same environment e6d0811abd5"),
        ("a:1 (90a)", "the same image a:1 (90a)"),
    ],
)
def test_a_new_model_is_in_the_same_image(image: str, same: str) -> None:
    model = upgraded(changed="model", baseline_image=image, candidate_image=image)
    found = verdict_on(model, "regressed", [], LIVE)
    assert same in found and "→" not in found


def test_a_picture_of_what_a_float_can_hardly_hold() -> None:
    assert "<svg" in before_and_after([5e-324] * 3, [5e-324] * 3)


def test_an_upgrade_links_to_its_commits_and_what_labels_say_is_escaped() -> None:
    source = "https://github.com/acme/search"
    origins = Origin("1a2b3c4d5e6f", source, "1.4"), Origin("9f8e7d6c5b4a", source, "<script>")
    found = verdict_on(upgraded(origins=origins), "regressed", [], LIVE)
    assert (
        '<a href="https://github.com/acme/search/compare/1a2b3c4d5e6f...9f8e7d6c5b4a" rel="noopener noreferrer">'
        "version 1.4 → &lt;script&gt;, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a</a>"
    ) in found
    assert "<a " not in verdict_on(upgraded("equivalent"), "equivalent", [], LIVE)


def test_measures_have_one_line_with_what_changed_first() -> None:
    same = MeasureVerdict(state="equivalent", shift=0.001, low=-0.02, high=0.02)
    less = MeasureVerdict(state="regressed", shift=-0.2, low=-0.25, high=-0.15)
    found = measures_of(
        {"host_memory": same, "throughput@8x1": less, "<b>": MeasureVerdict(state="settling")}
    )
    assert found == (
        '<div class="verdict regressed"><small>throughput at batch 8 regressed -20.0 % [-25.0, -15.0]; '
        "host memory equivalent +0.1 % [-2.0, +2.0]; &lt;b&gt; settling</small></div>"
    )
    assert measures_of({}) == ""


@pytest.mark.parametrize(
    ("image", "moves"),
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
def test_tags_that_move_and_those_that_do_not(image: str, moves: bool) -> None:
    assert tag_moves(image) == moves


URL = "http://127.0.0.1:9798"
MINE = frozenset({("search-1", "b")})


def healthy(name: str = "search-1", **container: Any) -> PolledProbe:
    """A probe that is up and whose canary ran."""
    probe = PolledProbe(Container(**{"service": "search", "name": name, "url": URL, **container}))
    probe.up, probe.trouble = True, ""
    probe.generations["b"] = started("1"), []
    probe.history.take(runs(3))
    return probe


def started(image_id: str) -> Generation:
    return Generation(
        service="search", container="search-1", boot_id="b", started_at=0.0, image="search:1", image_id=image_id
    )  # fmt: skip


def reporting(*families: Family, **container: Any) -> PolledProbe:
    """A probe that is up, before its first run."""
    probe = PolledProbe(Container(**{"service": "search", "name": "search-1", "url": URL, **container}))
    probe.up, probe.trouble, probe.reported = True, "", reported_canaries(families)
    return probe


def family(name: str, value: float = 1.0, **labels: str) -> Family:
    return Family(f"infercanary_{name}", "gauge", "", tuple(labels), (Point(tuple(labels.values()), value),))


def states(state: str, detail: str, canary: str = "resnet") -> ReportedCanaries:
    info = family("canary_failure_info", canary=canary, reason="raised", detail=detail)
    return reported_canaries([family("canary_state", canary=canary, state=state), info])


def found(**findings: Any) -> Findings:
    """Findings with a verdict on the canary."""
    result = upgraded(findings.pop("state", "equivalent"))
    return Findings(
        judgements={"resnet": result}, sentences={"resnet": "the verdict"}, sides={"resnet": Sides(new=MINE)},
        **findings,
    )  # fmt: skip


def drifts(shift: float, replica: str) -> Findings:
    return found(drifts={(replica, "resnet"): Drift(shift=shift, onset=1.0)})


def failed(outcome: Outcome) -> History:
    history = History()
    history.take([*runs(3), RunSummary("resnet", 99.0, outcome, "boom", None, None, None)])
    return history


LESS = {"resnet": {"throughput@8x1": MeasureVerdict(state="regressed", shift=-0.2, low=-0.25, high=-0.15)}}
KILLED = {"killed": 60.0, "killed long ago": 7_200.0}  # seconds ago
STATES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("down", {"up": False, "trouble": "unreachable: refused"}, "down", "down", "unreachable: refused"),
    ("unknown address", {}, "down", "not polled", "no network in common"),
    ("failing", {"reported": states("failing", "<b>")}, "critical", "with a failing canary", "failing: &lt;b&gt;"),
    (
        "out of memory", {"reported": states("out_of_memory", "CUDA")}, "critical", "with a failing canary",
        "resnet is out of memory: CUDA",
    ),
    ("killed", {}, "failing", "killed for memory", "the kernel ended it for memory 2 times"),
    ("raised", {"history": failed("raised")}, "failing", "with a failed last run", "last run raised: boom"),
    ("regressed", {"findings": found(state="regressed")}, "failing", "regressed since an upgrade", "the verdict"),
    (
        "less throughput", {"findings": found(measures=LESS)}, "failing", "regressed since an upgrade",
        "throughput at batch 8 regressed",
    ),
    ("drifted", {"findings": drifts(0.1, "drifted")}, "failing", "drifted without an upgrade", "drifted +10.0 %"),
    ("lost", {"runs_lost": 7}, "up", "up, with lost runs", "7 runs lost"),
    ("busy", {"history": failed("busy")}, "up", "up", "last run busy"),
    (
        "renamed after a failure", {"history": failed("raised"), "reported": states("steady", "", "classify")},
        "up", "up", "last run raised",
    ),
    ("faster", {"findings": drifts(-0.1, "faster")}, "up", "up", "drifted -10.0 %"),
    ("improved", {"findings": found(state="improved")}, "up", "up", "the verdict"),
    ("killed long ago", {}, "up", "up", "last 2 h ago"),
    ("another drifted", {"findings": drifts(0.1, "drifted")}, "up", "up", "the verdict"),
    ("well", {}, "up", "up", "20.0 <small>ms"),
]  # fmt: skip
"""State, what differs from a healthy probe, style and words of its tally, and distinctive words; the worst first."""


def test_each_state_has_its_place_its_colour_and_its_words() -> None:
    probes, ended = [], {}
    for name, differs, *_ in reversed(STATES):
        missing = "no network in common" if name == "unknown address" else ""
        probe = healthy(name, url=None if missing else URL, url_missing=missing)
        probe.trouble = missing
        for field, value in differs.items():
            setattr(probe, field, value)
        if name in KILLED:
            ended[probe.key] = (2, time.time() - KILLED[name], "search:1")
        probes.append(probe)
    text = page(probes, ended=ended)
    shown = cards(text)
    tally = re.findall(r'<span class="(\w+)"><b>(\d+)</b> (.*?)</span>', text)
    expected = Counter((style, words) for _, _, style, words, _ in STATES)
    assert tally == [(style, str(count), words) for (style, words), count in expected.items()]
    places = [words for _, _, _, words, _ in STATES]
    order = [next(words for of, _, _, words, _ in STATES if of == name) for name in shown]
    assert order == sorted(order, key=places.index)
    for name, _, style, _, words in STATES:
        assert shown[name][0] == style, name
        assert words in shown[name][1], name


def test_a_failing_canary_has_its_detail_once() -> None:
    probe = healthy()
    probe.history, probe.reported = failed("raised"), states("failing", "boom")
    assert page([probe]).count("boom") == 1


EXPECTED_BEFORE = [
    ([("canary_state", 1.0, {"canary": "<b>", "state": "opening"})], "no run yet: &lt;b&gt; is opening"),
    ([("canary_state", 1.0, {"canary": "c", "state": "steady"})], "c is warm, and its first run is due"),
    (
        [("canary_state", 1.0, {"canary": "c", "state": "steady"}), ("interval_seconds", 509.0, {})],
        "c is warm, and its first run comes within about 8 min<",
    ),
    ([("canary_state", 1.0, {"canary": "c", "state": "failing"})], "no run yet</p>"),
    ([], "no run yet: it reports no canary"),
    ([("canary_state", 0.0, {"canary": "c", "state": "steady"})], "no run yet: it reports no canary"),
    # Hostile: other labels, other kinds.
    ([("canary_state", 1.0, {"canary": "c"})], "no run yet: it reports no canary"),
    ([("canary_state", 1.0, {"state": "steady", "odd": "x"})], "no run yet: it reports no canary"),
    ([("canary_failure_info", 1.0, {"detail": "x"})], "no run yet: it reports no canary"),
]


@pytest.mark.parametrize(("reported", "words"), EXPECTED_BEFORE)
def test_before_the_first_run(reported: list[tuple[str, float, dict[str, str]]], words: str) -> None:
    shown = page([reporting(*(family(name, value, **labels) for name, value, labels in reported))])
    assert words in shown


def test_a_probe_that_is_down_reports_no_state() -> None:
    probe = reporting(family("canary_state", canary="c", state="failing"))
    probe.up, probe.trouble = False, "connection refused"
    assert "no run yet" not in page([probe]) and "c is failing" not in page([probe])


def test_the_exporters_own_trouble_is_above_the_cards_and_alerts_are_a_link() -> None:
    shown = page([], troubles=["<the store> fails"], alertmanager="https://me:secret@alerts.example/a?b=1&c")
    assert shown.index("&lt;the store&gt; fails") < shown.index("<main>")
    [address] = re.findall(r'<a href="([^"]*)"[^>]*>alerts</a>', shown)
    assert address.endswith("alerts.example/a?b=1&amp;c") and "secret" not in address
    assert ">alerts</a>" not in page([])


def test_a_pod_is_shown_with_its_namespace() -> None:
    running = Container(namespace="prod", pod="search-7d9-a", service="search", name="server", id="1")
    gone = ("test", "search", "search-5c4-a/server")
    text = page([PolledProbe(running)], ended={gone: (1, 1.0, "app:1")})
    assert '<h2>search-7d9-a/server</h2><span class="soft">prod/search</span>' in text
    assert "search-5c4-a/server (test/search) does not run" in text


def test_an_image_whose_tag_moved_is_named_once() -> None:
    moved = Container(service="s", name="a", image="fa3e587c72e7", image_id="sha256:fa3e587c72e7" + "0" * 52)
    assert page([PolledProbe(moved)]).count(">fa3e587c72e7<") == 1
    named = msgspec.structs.replace(moved, image="search:2")
    shown = page([PolledProbe(named)])
    assert ">search:2<" in shown and ">fa3e587c72e7<" in shown


def test_a_service_that_was_stopped_leaves_a_line() -> None:
    text = page([], left=[Gone(ServiceKey("", "<b>"), "search-1", 300.0)])
    assert "&lt;b&gt;: its last container, search-1, ended 5 min ago. What is stopped sends no alert." in text


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (runs(0), "baseline 0 of 24 runs"),
        (runs(1), "baseline 1 of 24 runs"),
        (runs(11), "baseline 11 of 24 runs, about 2 min left"),
        (runs(20), "baseline 20 of 24 runs, about 40 s left"),
        (runs(24), "baseline complete: 24 runs or more; an upgrade can be judged"),
    ],
)
def test_how_far_the_baseline_is(known: list[RunSummary], words: str) -> None:
    assert baseline(known) == words


def test_runs_that_failed_are_no_baseline() -> None:
    failed = [RunSummary("resnet", 5.0, "raised", "", None, None, None)] * 30
    assert baseline([*runs(2), *failed]).startswith("baseline 2 of 24 runs")


def test_the_page_says_how_far_the_baseline_is_and_what_labels_are_wrong() -> None:
    noted = Container(
        service="search",
        name="search-1",
        url="http://127.0.0.1:9798",
        notes=("label infercanary.sevice: <b>",),
    )
    probe = PolledProbe(noted)
    probe.history.take(runs(11))
    shown = page([probe])
    assert "not judged yet: 11 runs of this start" in shown, "there may be more of earlier starts"
    assert '<p class="note">label infercanary.sevice: &lt;b&gt;</p>' in shown


@pytest.mark.parametrize("where", ["card", "state_of"])
def test_what_is_wrong_with_one_card_costs_no_other(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no page shows a part of it as if that were all, and the log has it once, however often somebody asks."""

    def broken(probe: PolledProbe, *others: Any) -> Any:
        if probe.container.name == "evil":
            raise KeyError("gpu")
        return whole(probe, *others)

    whole = getattr(status, where)
    monkeypatch.setattr(status, where, broken)
    probes = [
        PolledProbe(Container(service="s", name=name, url="http://127.0.0.1:1")) for name in ("evil", "good")
    ]
    with capture_logs() as lines:
        texts = [page(probes) for _ in range(3)]
    shown = dict(re.findall(r"<article.*?<h2>(.+?)</h2>(.*?)</article>", texts[-1], re.DOTALL))
    assert shown["evil"] == '<p class="trouble">It cannot be shown: the log says why.</p>'
    assert "not from Docker" in shown["good"]
    assert [(line["container"], line["log_level"]) for line in lines] == [("evil", "error")]


@pytest.mark.parametrize("letter", ["a", "'", "\U0001f600"])
def test_a_page_is_bound_in_bytes_and_builds_nothing_that_it_leaves_out(
    letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def counted(runs: Sequence[RunSummary]) -> str:
        drawn.append(len(runs))
        return sparkline(runs)

    monkeypatch.setattr(card, "sparkline", counted)
    monkeypatch.setattr(status, "_MOST_BYTES", 10 * status._LEAST_CARD_BYTES)
    probes = [
        PolledProbe(Container(service="s", name=f"wide-{n}", url="http://127.0.0.1:1")) for n in range(10)
    ]
    names = [letter * 100 + f"{n:02}" for n in range(16)]
    for probe in probes:
        probe.environment = {letter * 100 + f"{n:03}": letter * 600 for n in range(200)}
        probe.history.take(
            RunSummary(name, float(n), "raised", letter * 300, 0.1, 0.1, 0.1)
            for n in range(120)
            for name in names
        )
        points = tuple(Point((f"{n}{letter * 120}", "failing"), 1.0) for n in range(400))
        state = Family("infercanary_canary_state", "gauge", "", ("canary", "state"), points)
        info = Family("infercanary_canary_failure_info", "gauge", "", ("canary", "detail"), tuple(
            Point((point.labels[0], letter * 240), 1.0) for point in points
        ))  # fmt: skip
        probe.reported, probe.up = reported_canaries([state, info]), True
        assert len(probe.reported.states) == len(probe.reported.failures) == 16
    text = page(probes)
    shown = text.count('class="canary"')
    assert len(text.encode()) < 1.3 * 10 * status._LEAST_CARD_BYTES
    assert len(drawn) <= shown + len(probes)
    assert len(re.findall(r"and \d+ canaries more", text)) == len(probes)
    assert len(re.findall(r"and \d+ failing canaries more", text)) == len(probes)
    assert len(re.findall(r"and \d+ more<", text)) == len(probes)


def test_a_card_has_a_bound_and_counts_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = [
        PolledProbe(Container(service="s", name=f"wide-{n}", url="http://127.0.0.1:1")) for n in range(12)
    ]
    probes[0].history.take(
        RunSummary("'" * 100 + f"{n:02}", 1.0, "raised", "'" * 300, None, None, None) for n in range(16)
    )
    for each in probes:
        each.environment = {"'" * 100 + f"{n:03}": "'" * 600 for n in range(200)}
        each.history = probes[0].history
    one = page(probes[:1])
    assert len(one) < 400_000 and re.search(r"and \d+ more<", one)
    monkeypatch.setattr(status, "_MOST_BYTES", 1 << 18)
    whole = page(probes)
    assert len(whole) < 12 * 40_000 and whole.count("<article") == 12
    assert len(re.findall(r"and \d+ canaries more", whole)) == 12


def judged(image_id: str, sides: Sides, judgement: Result) -> PolledProbe:
    """A container that runs an image, in a service with a verdict."""
    probe = healthy()
    probe.generations["b"] = started(image_id), []
    probe.history = History()
    probe.history.take(runs(1))
    probe.findings = Findings(
        judgements={"resnet": judgement}, sentences={"resnet": "what the judge says"}, sides={"resnet": sides}
    )
    return probe


REGRESSED = upgraded(shift=3.0, baseline_image="search:1 (1)", candidate_image="search:1 (2)")


@pytest.mark.parametrize("sides", [Sides(new=MINE), Sides()])
def test_a_container_of_the_new_image_has_the_verdict(sides: Sides) -> None:
    new = page([judged("2", sides, REGRESSED)])
    assert "what the judge says" in new and "<b>1</b> regressed since an upgrade" in new


@pytest.mark.parametrize(
    ("image", "sides", "words"),
    [
        ("1", Sides(old=MINE), "runs the old image; the verdict is about containers with the new one"),
        # Rolled back, or started again: the judge has no run of it yet, or knows another host's of that name.
        ("1", Sides(new=frozenset({("search-1", "a")})), "runs the old image"),
        ("3", Sides(others=MINE), "runs another image than the last verdict is about"),
        ("3", Sides(), "runs another image than the last verdict is about"),
    ],
)
def test_a_container_that_was_not_upgraded_is_not_called_slower(image: str, sides: Sides, words: str) -> None:
    shown = page([judged(image, sides, REGRESSED)])
    assert "what the judge says" not in shown
    assert words in shown
    assert '<article class="up">' in shown


def test_a_replica_with_the_old_model_of_one_image() -> None:
    image = "search:1 (1)"
    model = msgspec.structs.replace(REGRESSED, changed="model", baseline_image=image, candidate_image=image)
    assert "runs the old model; the verdict" in page([judged("1", Sides(old=MINE), model)])
    assert "what the judge says" in page([judged("1", Sides(new=MINE), model)])


def test_a_label_without_enable_is_a_card_and_no_alert() -> None:
    container = Container(
        service="s", name="s-1", url_missing="label infercanary.enable is missing", is_asked=False
    )
    probe = PolledProbe(container)
    probe.trouble = container.url_missing
    assert not [
        point for each in probe.families(0.0) if each.name == "infercanary_up" for point in each.points
    ]
    shown = page([probe])
    assert "<b>1</b> not polled" in shown and "label infercanary.enable is missing" in shown


def test_an_image_of_which_the_judge_has_no_run_is_not_the_only_one_that_was_seen() -> None:
    alone = Result(state="no_baseline", candidate_image="search:1 (1)", runs=40)
    shown = page([judged("2", Sides(), alone)])
    assert "runs an image that the judge has no run of yet" in shown and "baseline 1" not in shown


def test_a_container_that_was_created_again_keeps_its_services_baseline() -> None:
    alone = Result(state="no_baseline", candidate_image="search:1 (1)", runs=11)
    assert "baseline 11 of 24 runs, with those of earlier starts and other replicas<" in page(
        [judged("1", Sides(), alone)]
    )
    assert "baseline 1 of 24 runs" in page(
        [judged("1", Sides(others=MINE), Result(state="no_baseline", runs=0))]
    ), "its own are counted before the judge has them"
