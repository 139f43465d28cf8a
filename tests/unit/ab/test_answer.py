"""The answer of an experiment, as text, as JSON and as a page."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jsonschema import validate
from msgspec.structs import replace

from infercanary.ab import answer, command, page, text
from infercanary.ab.answer import ArmSummary, common, decisions, series, summarize
from infercanary.ab.experiment import FailedStart, Result, TurnPair
from infercanary.ab.turn import Turn
from infercanary.command.settings import UsageError
from infercanary.compare import options
from infercanary.compare import page as pages
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.origin import Origin
from infercanary.judge.policy import EXPERIMENT

A = ArmSummary(
    name="search:1.4",
    image_id="sha256:" + "a" * 64,
    image_bytes=1_410_000_000,
    cold_start={"pull": 12.0},
    starts=0,
    failed_starts=0,
    runs=0,
)
B = ArmSummary(
    name="search:1.5",
    image_id="sha256:" + "b" * 64,
    image_bytes=1_620_000_000,
    starts=0,
    failed_starts=0,
    runs=0,
)


def turn(rng, level, torch="2.7.0", contended=0, canaries=("c",), load=1.0, interval=0.5):
    """A turn as a probe would give it: 12 runs around a level of its own."""
    starts = {}
    for canary in canaries:
        of = level * math.exp(rng.gauss(0, 0.005))
        samples = [
            Sample(sequence=i, canary=canary, started_at=float(i), outcome="ok",
                   median=of * math.exp(rng.gauss(0, 0.003)) * (1.5 if i < contended else 1),
                   phases={"h2d": 0.001, "compute": of - 0.001},
                   controls={"cpu_spin": 4e-4 * math.exp(rng.gauss(0, 0.002))},
                   tags=("cpu_wait_outside",) if i < contended else ())
            for i in range(12 + contended)
        ]  # fmt: skip
        generation = Generation(
            service="", container="", boot_id=str(rng.random()), started_at=0.0, environment={"torch": torch},
            cold_start={canary: {"load": load * rng.uniform(0.95, 1.05), "first_run": 0.1, "time_to_steady": 3.0}},
        )  # fmt: skip
        starts[canary] = Start(generation, samples)
    answered = {canary: 2.0 * rng.uniform(0.9, 1.1) for canary in canaries}
    return Turn(starts, 0.4, answered, 9.0, interval)


def pairs(count, shift=1.0, seed=1, **b):
    rng = random.Random(seed)
    return [TurnPair(turn(rng, 0.02), turn(rng, 0.02 * shift, **b), i % 2 == 0) for i in range(count)]


def result(found, ended="clear", failures=()):
    return Result(found, failures, ended, 18.0 * len(found))


class Page(HTMLParser):
    """Well-formed, and nothing in it comes from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert not {"href", "src", "onclick", "style"} & {name for name, _ in attrs}
        if tag not in ("meta", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_regression_is_reported_with_its_cause():
    found = pairs(5, 1.1, torch="2.13.0")
    each = summarize("c", result(found), A, B, 12)
    assert each.compared.verdict == "regressed" and each.compared.exit_code == 1
    assert each.compared.low > 0.05 and each.compared.high < 0.15  # type: ignore[operator]
    assert each.compared.sentence.startswith("regressed +")
    assert "image; torch 2.7.0 → 2.13.0; compute phase; controls flat" in each.compared.sentence
    assert each.compared.restart_sd_from == "measured"
    assert each.compared.level > 0.95
    out = text.experiment(each, *series(found, "c"), 80)
    assert max(map(len, out.splitlines())) <= 80 and not any(
        line != line.rstrip() for line in out.splitlines()
    )
    words = " ".join(out.split())
    assert "measured on 10 starts" in words
    assert "A search:1.4, aaaaaaaaaaaa, 1.41 GB, mean 20." in words
    assert "B search:1.5, bbbbbbbbbbbb, 1.62 GB, mean 2" in words
    assert "pull 12.00 s → not pulled start 400.0 ms (± 0 %) → 400.0 ms (± 0 %) first answer " in words
    assert re.search(r"first answer (1\.9|2\.)\d+ s \(± ", words)
    assert "took 90.00 s; ended when the answer was clear" in words
    assert len([x for x in each.pairs if x.shift > 0.05]) == 5


def test_the_same_image_is_equivalent():
    each = summarize("c", result(pairs(8)), A, B, 12)
    assert (each.compared.verdict, each.compared.exit_code, each.compared.next) == ("equivalent", 0, ())
    assert decisions(pairs(8), 12)["c"].done


def test_a_page_is_well_formed_and_escaped():
    found = pairs(4, 1.2, torch="<script>2.13</script>")
    nasty = ArmSummary(name="</h1><img src=x>", starts=0, failed_starts=0, runs=0)
    each = summarize("c", result(found), nasty, B, 12)
    articles = page.experiment(each, *series(found, "c"))
    read = Page(pages.page("title", articles, ["a note"]))
    assert "</h1><img src=x>" in read.text and "<script>2.13</script>" in read.text
    assert "Starts, in order of time" in read.text and "first answer" in read.text and "B first" in read.text


def test_a_page_holds_a_change_of_more_than_ten_times():
    found = pairs(4, 80)
    each = summarize("c", result(found), A, B, 12)
    assert "regressed ×79.6 [×65, ×97.6]" in Page("".join(page.experiment(each, *series(found, "c")))).text


def test_json_is_one_object(capsys):
    found = pairs(5, 1.1)
    each = summarize("c", result(found), A, B, 12)
    assert command._say([each], result(found), 0, "json", "") == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["verdict"] == "regressed" and reported["exit_code"] == 1 and reported["canary"] == "c"
    assert reported["a"]["mean"] == pytest.approx(0.02, rel=0.02)
    assert reported["b"]["cold_start"]["load"] == pytest.approx(1, rel=0.06)
    assert [pair["first"] for pair in reported["pairs"]] == ["A", "B", "A", "B", "A"]
    assert len(reported["canaries"]) == 1 and reported["ended"] == "clear"
    assert command._say([each], result(found), 0, "github", "") == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("**") and shown[2] == "|  | A: search:1.4 | B: search:1.5 | change |", shown
    assert any(line.startswith("| pairs |") for line in shown)
    assert command._say([each], result(found, "interrupted"), 2, "json", "") == 130
    assert json.loads(capsys.readouterr().out)["exit_code"] == 130


def test_one_image_under_two_settings():
    found = pairs(5, 1.6)
    one = replace(A, settings={"cpus": "1"}), replace(A, settings={"cpus": "0.5", "env.OMP_NUM_THREADS": "2"})
    each = summarize("c", result(found), *one, 12)
    assert each.compared.sentence.startswith("regressed +")
    assert (
        ": settings; compute phase; controls flat; B: cpus=0.5, OMP_NUM_THREADS=2" in each.compared.sentence
    )
    words = " ".join(text.experiment(each, *series(found, "c"), 80).split())
    assert "A search:1.4, cpus=1, aaaaaaaaaaaa" in words
    assert "B search:1.4, cpus=0.5, OMP_NUM_THREADS=2, aaaaaaaaaaaa" in words
    other = replace(B, settings={"cpus": "0.5"})
    assert ": image or settings; " in summarize("c", result(found), A, other, 12).compared.sentence
    same = summarize("c", result(pairs(8)), *one, 12).compared
    assert same.verdict == "equivalent" and same.sentence.endswith("]; B: cpus=0.5, OMP_NUM_THREADS=2")


def test_a_change_names_its_commits_with_a_link():
    found = pairs(5, 1.6)
    source = "https://github.com/acme/search"
    old = replace(A, origin=Origin("1a2b3c4d5e6f", source, "1.4"))
    new = replace(B, origin=Origin("9f8e7d6c5b4a", source, "1.5"))
    each = summarize("c", result(found), old, new, 12)
    address = f"{source}/compare/1a2b3c4d5e6f...9f8e7d6c5b4a"
    assert each.compared.sentence.endswith(
        f"; version 1.4 → 1.5, revision 1a2b3c4d5e6f → 9f8e7d6c5b4a {address}"
    )
    assert text.side(each.a).startswith("search:1.4, 1.4, 1a2b3c4d5e6f, aaaaaaaaaaaa, 1.41 GB")
    written = pages.page("title", page.experiment(each, *series(found, "c")), [])
    assert written.count(f'href="{address}"') == 1 and written.count("href") == 1
    reported = options.plain(each)
    assert reported["b"]["origin"] == {"revision": "9f8e7d6c5b4a", "source": source, "version": "1.5"}
    schema = json.loads((Path(__file__).parents[3] / "docs/schemas/ab.v1.json").read_text())
    validate(json.loads(command._json([each], result(found), 1, ["a note"])), schema)


def test_a_claim_decides_what_it_ends_with_and_when(capsys):
    found = pairs(6, 0.6, seed=7)
    held, refuted = (summarize("c", result(found), A, B, 12, claimed=claimed) for claimed in (-0.38, -0.6))
    assert held.compared.verdict == refuted.compared.verdict == "improved"
    assert (held.compared.claim.state, held.compared.exit_code) == ("held", 0)  # type: ignore[union-attr]
    assert (refuted.compared.claim.state, refuted.compared.exit_code) == ("refuted", 1)  # type: ignore[union-attr]
    assert command._say([refuted], result(found), 0, "json", "") == 1
    assert json.loads(capsys.readouterr().out)["claim"]["state"] == "refuted"
    words = " ".join(text.experiment(held, *series(found, "c"), 80).split())
    assert (
        "expected -38.0 % holds: -39.9 % [-46.6, -32.3] reaches it," in words
        and "and lies below -19.0 %" in words
    )
    slower = pairs(6, 1.6, seed=7)
    assert summarize("c", result(slower), A, B, 12, claimed=0.7).compared.exit_code == 0, "it was promised"
    # The verdict is clear after two pairs, and the claim is not: the experiment goes on, to its last start.
    rng = random.Random(2)
    wide = [
        TurnPair(turn(rng, 0.02), turn(rng, 0.01 * math.exp(rng.gauss(0, 0.4))), i % 2 == 0)
        for i in range(12)
    ]
    each = [decisions(wide[:n], 12, claimed=-0.5)["c"] for n in range(1, 13)]
    assert not any(decision.done for decision in each[:3])
    assert each[-1].done
    narrow = [decisions(pairs(n, 0.5), 12, claimed=-0.4)["c"] for n in (1, 2, 3)]
    assert not narrow[0].done and narrow[2].done and narrow[2].clear


def test_without_a_whole_pair_it_says_so(capsys):
    assert command._say([], result([], "budget"), 0, "text", "") == 3
    assert capsys.readouterr().out == (
        "inconclusive: no pair of starts was complete (ended when the time was up (--budget))\n"
    )
    assert command._say([], result([], "budget"), 0, "json", "") == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"


def test_two_pairs_are_too_few():
    each = summarize("c", result(pairs(2), "budget"), A, B, 12)
    assert re.fullmatch(r"inconclusive [+-]\d\.\d % \[-\d+\.\d, \+\d+\.\d]", each.compared.sentence)
    assert each.compared.next == ["the time was up (--budget): give it more"]
    assert text.experiment(each, *series(pairs(2), "c")).startswith("c: inconclusive ")
    assert page.experiment(each, *series(pairs(2), "c"))


def test_inconclusive_says_what_would_settle_it():
    rng = random.Random(2)
    noisy = [
        TurnPair(turn(rng, 0.02), turn(rng, 0.02 * math.exp(rng.gauss(0.04, 0.03))), i % 2 == 0)
        for i in range(4)
    ]
    each = summarize("c", result(noisy, "restarts"), A, B, 4)
    assert each.compared.verdict in ("inconclusive", "unconfirmed") and each.compared.exit_code == 3
    assert "would settle it, if they continue like this (--restarts " in each.compared.next[0]
    edge = [TurnPair(turn(rng, 0.02), turn(rng, 0.0206), i % 2 == 0) for i in range(4)]
    assert "will hardly settle it" in " ".join(
        summarize("c", result(edge, "restarts"), A, B, 4).compared.next
    )


def test_contended_runs_failures_and_a_slow_pace_are_noted():
    rng = random.Random(3)
    found = [
        TurnPair(
            turn(rng, 0.02, contended=3 * (i % 2)),
            turn(rng, 0.02, contended=3 * (1 - i % 2), interval=10.0),
            i % 2 == 0,
        )
        for i in range(4)
    ]
    failures = [FailedStart("B", "it ended with exit code 1"), FailedStart("B", "no run")]
    each = summarize("c", result(found, failures=failures), A, B, 12)
    notes = each.compared.notes
    assert notes[0] == "12 of 108 runs that waited for other work on this host are left out"
    assert notes[1] == "B failed to start 2 times and was started again: no run"
    assert notes[2].startswith("a run came every 10 s only: ")
    assert (each.b.failed_starts, each.a.failed_starts, each.a.runs) == (2, 0, 48)
    assert abs(each.compared.shift) < 0.02  # type: ignore[arg-type]


def test_a_canary_of_one_side_is_not_judged():
    rng = random.Random(4)
    found = [TurnPair(turn(rng, 0.02, canaries=("c", "old")), turn(rng, 0.02, canaries=("c", "new")), True)]
    assert common(found) == ["c"]
    assert command._alone(found) == ["only in A, and so not judged: old", "only in B, and so not judged: new"]
    with pytest.raises(UsageError, match=r"no canary is in both images; A has old; B has new"):
        common([TurnPair(turn(rng, 0.02, canaries=("old",)), turn(rng, 0.02, canaries=("new",)), True)])


def test_the_worst_of_several_canaries_decides(capsys):
    rng = random.Random(5)
    both = ("steady", "slow")
    found = []
    for i in range(6):
        a, b = turn(rng, 0.02, canaries=both), turn(rng, 0.02, canaries=both)
        slow = turn(rng, 0.03, canaries=("slow",)).starts["slow"]
        found.append(TurnPair(a, b._replace(starts={**b.starts, "slow": slow}), i % 2 == 0))
    each = [summarize(name, result(found), A, B, 12) for name in common(found)]
    assert [one.compared.verdict for one in each] == ["equivalent", "regressed"]
    assert command._say(each, result(found), 0, "json", "") == 1
    assert json.loads(capsys.readouterr().out)["canary"] == "slow"
    assert answer.decisions(found, 12)["slow"].verdict == "regressed"


def test_the_policy_in_use_decides_and_is_named():
    """A shift of 2 % is no change by default, and is one where 1.5 % counts."""
    rng = random.Random(4)
    found = [TurnPair(turn(rng, 0.02), turn(rng, 0.0204), i % 2 == 0) for i in range(12)]
    strict = options.adjusted(EXPERIMENT, 1.5, 0.1, 0.9)
    default, stricter = (
        summarize("c", result(found), A, B, 12, policy).compared for policy in (EXPERIMENT, strict)
    )
    assert (default.smallest_effect, stricter.smallest_effect) == (0.03, 0.015)
    assert (default.verdict, stricter.verdict) == ("equivalent", "regressed")
    rng = random.Random(5)
    edge = [TurnPair(turn(rng, 0.02), turn(rng, 0.0203), i % 2 == 0) for i in range(4)]
    strict = options.adjusted(EXPERIMENT, 1.5, 0, None)
    narrow = summarize("c", result(edge, "restarts"), A, B, 4, strict).compared
    assert "the edge of what counts as one (1.5 %)" in " ".join(narrow.next)


def test_an_arm_says_what_is_known_of_it_and_no_more():
    bare = ArmSummary(name="here", starts=0, failed_starts=2, runs=0)
    assert text.side(bare) == "here"
    one = ArmSummary(
        name="search:1.4", image_id="sha256:0123456789abcdef", starts=1, failed_starts=0, runs=8, mean=0.02
    )
    assert text.side(one) == "search:1.4, 0123456789ab, mean 20.00 ms"
