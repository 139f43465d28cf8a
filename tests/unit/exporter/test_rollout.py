"""Answers to rollouts in every known race: the judge is real, on runs that are made up."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any

import msgspec
import pytest

from infercanary.contract.vocabulary import MODEL, of_canary
from infercanary.exporter.judging.findings import NOTHING, Findings, judge_canary
from infercanary.exporter.rollout import PROMOTES, WORST_FIRST, Answer, Question, ServiceState, answer
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES

FAST, SLOW = 0.020, 0.026
HOUR = 3600.0
V1, V2, V3 = (f"registry.example.com/search:v{number}" for number in (1, 2, 3))
IDS = {V1: "sha256:" + "1" * 64, V2: "sha256:" + "2" * 64, V3: "sha256:" + "3" * 64}


def generation(container: str, image: str, at: float, tag: str = "", model: str = "") -> Generation:
    return Generation(
        namespace="ml", service="search", container=container, boot_id=f"{container}@{at:g}", started_at=at,
        image=tag or image, image_id=IDS[image],
        environment={of_canary(MODEL, canary): model for canary in ("c", "d")} if model else {},
    )  # fmt: skip


@cache
def samples(canary: str, container: str, at: float, seconds: float, count: int) -> list[Sample]:
    rng = random.Random(f"{container} {at}")
    return [
        Sample(i, canary, at + 10 * i, "ok", seconds * rng.lognormvariate(0, 0.003), 10) for i in range(count)
    ]


def start(g: Generation, seconds: float = FAST, count: int = 200, canary: str = "c") -> Start:
    return Start.of(g, samples(canary, g.container, g.started_at, seconds, count))


def judged(*starts: Start, found: Findings = NOTHING) -> Findings:
    """What the judge finds of these starts of one canary."""
    canary = starts[-1].canary_name
    return {**found, canary: judge_canary(canary, None, identified(starts), [], LIVE)}


def says(
    findings: Findings,
    running: Iterable[Generation],
    silent: Sequence[str] = (),
    *,
    since: float | None = None,
    **asked: str,
) -> Answer:
    """Return the answer about the service `search` of the namespace `ml`, unless something else is asked."""
    at = None if since is None else datetime.fromtimestamp(since, timezone.utc)
    question = Question(**{"service": "search", "namespace": "ml", **asked}, since=at)
    return answer(question, ServiceState(findings, [*running], silent))


# Two replicas, four starts each, so that the judge knows how much starts differ.
OLD = [generation(name, V1, HOUR * n) for n in range(4) for name in ("a", "b")]
STABLE = OLD[-2:]
CANARY = generation("x", V2, 4 * HOUR)
BEFORE = [start(each) for each in OLD]


@cache
def side_by_side(seconds: float) -> Findings:
    """The stable replicas run on, and one of v2 runs beside them."""
    return judged(*BEFORE[:-2], *(start(each, count=560) for each in STABLE), start(CANARY, seconds))


@cache
def replaced(seconds: float) -> Findings:
    """Every replica was replaced by one of v2."""
    return judged(
        *BEFORE, start(generation("a", V2, 4 * HOUR), seconds), start(generation("b", V2, 4 * HOUR), seconds)
    )


def test_all_states_have_an_order() -> None:
    assert {*WORST_FIRST} == {*STATES, "unknown"}
    assert WORST_FIRST[0] == "regressed" and {*WORST_FIRST[-2:]} == PROMOTES


@pytest.mark.parametrize(
    ("seconds", "verdict", "cause"),
    [(SLOW, "regressed", "image"), (FAST, "equivalent", None), (0.016, "improved", "image")],
)
@pytest.mark.parametrize("image", ["", V2, IDS[V2], f"registry.example.com/search@{IDS[V2]}"])
def test_a_rollout_that_is_under_way(seconds: float, verdict: str, cause: str | None, image: str) -> None:
    given = says(side_by_side(seconds), [*STABLE, CANARY], image=image)
    assert (given.verdict, given.canary, given.canaries) == (verdict, "c", {"c": verdict})
    assert given.low < given.shift < given.high  # type: ignore[operator]
    assert given.sentence.startswith(verdict) and given.cause == cause
    assert given.since is not None and given.since.timestamp() == 4 * HOUR
    assert (given.baseline_image, given.candidate_image) == (f"{V1} ({'1' * 12})", f"{V2} ({'2' * 12})")


LATEST = "registry.example.com/search:latest"
STABLE_LATEST = [generation(name, V1, 3 * HOUR, LATEST) for name in ("a", "b")]
CANARY_LATEST = generation("x", V2, 4 * HOUR, LATEST)
NEW = [generation(name, V2, 4 * HOUR) for name in ("a", "b")]
V3_POD = generation("y", V3, 5 * HOUR)
BACK = generation("c", V1, 5 * HOUR)
AGAIN = generation("y", V2, 5 * HOUR)
WEIGHTS = [generation(name, V2, 4 * HOUR, model="file-sha256:1") for name in ("a", "b")]
NEW_WEIGHTS = generation("x", V2, 5 * HOUR, model="file-sha256:2")
UNKNOWN_IMAGES = [msgspec.structs.replace(each, image="", image_id="") for each in [*STABLE, CANARY]]
UNKNOWN_IMAGES[-1] = msgspec.structs.replace(UNKNOWN_IMAGES[-1], environment={"torch": "2"})
WORKERS = [generation("w", V1, 3 * HOUR), generation("v", V2, 4 * HOUR)]


STARTS = {
    **dict(zip(("a", "b", "x"), [*STABLE, CANARY], strict=True)),
    **dict(zip(("al", "bl", "xl"), [*STABLE_LATEST, CANARY_LATEST], strict=True)),
    **dict(zip(("a2", "b2"), NEW, strict=True)),
    **dict(zip(("aw", "bw", "xw"), [*WEIGHTS, NEW_WEIGHTS], strict=True)),
    **dict(zip(("a?", "b?", "x?"), UNKNOWN_IMAGES, strict=True)),
    **dict(zip(("w", "v"), WORKERS, strict=True)),
    "y3": V3_POD, "c1": BACK, "y2": AGAIN, "u3": generation("u", V3, 5 * HOUR),
}  # fmt: skip
"""Name in the table → a start."""


STARTS |= {f"o{number}": each for number, each in enumerate(OLD)}
STARTS["gone"] = msgspec.structs.replace(CANARY, ended_at=4.6 * HOUR)
SITUATIONS = """
latest         |      | al bl fast 560 | xl slow 200
rolled back    |      | old fast 200 | a2 b2 slow 560 | c1 fast 200
again          |      | older fast 200 | a b fast 723 | gone slow 200 | y2 slow 2
weights        |      | aw bw fast 560 | xw slow 200
two            | fast | older fast 200 d | a b fast 560 d | x slow 200 d
half of two    | fast | old fast 200 d
workers        | slow | o0 o2 o4 o6 fast 200 d | w v fast 560 d
still          |      | older fast 200 | a fast 20 | b fast 560 | x slow 200
alone          |      | x fast 200
settling       |      | older fast 200 | a b fast 362 | x slow 2
unknown images |      | a? b? fast 560 | x? slow 200
"""
"""What ran: a situation that it adds to, and starts with their speed, number of runs, and canary unless it is c."""


@cache
def findings_of(name: str) -> Findings:
    """What was found in a situation of the table."""
    if name in ("", "nothing"):
        return NOTHING
    if name in ("slow", "fast"):
        return side_by_side(SLOW if name == "slow" else FAST)
    if name.startswith("all "):
        return replaced(SLOW if name == "all slow" else FAST)
    rows = {
        row[0]: row[1:] for row in (re.split(r" *\| *", line) for line in SITUATIONS.strip().splitlines())
    }
    before, *groups = rows[name]
    starts = []
    for group in groups:
        names, speed, count, canary = re.fullmatch(r"(.*) (fast|slow) (\d+) ?(\w?)", group).groups()  # type: ignore[union-attr]
        names = {"old": "o0 o1 o2 o3 o4 o5 o6 o7", "older": "o0 o1 o2 o3 o4 o5"}.get(names, names)
        seconds = SLOW if speed == "slow" else FAST
        starts += [start(STARTS[each], seconds, int(count), canary or "c") for each in names.split()]
    return judged(*starts, found=findings_of(before))


RACES = f"""
# v3 overtakes v2: nothing names the image, or v3 is named.
slow           | a b x y3      |       |               | unknown     | y did not run its canaries yet
slow           | a b x         | y     |               | unknown     | y did not run its canaries yet
fast           | a b x         | y     |               | unknown     | y did not run its canaries yet
slow           | a b x y3      |       | image={V3}    | unknown     | is known to run {V3}
# A replica that crashes hides no regression, and holds a promotion.
slow           | a b x         | y     | image={V2}    | regressed   |
fast           | a b x         | y     | image={V2}    | unknown     | y did not run its canaries yet
# A tag that moved names both images and tells nothing apart; then the rollout is over.
latest         | al bl xl      |       | image={LATEST} | regressed  |
latest         | xl            |       | image={LATEST} | unknown    | no rollout is under way
# Back to v1.
all slow       | a2 b2         |       | image={V1}    | unknown     | is about {V2}
rolled back    | a2 b2 c1      |       | image={V1}    | improved    | after a rollback
rolled back    | a2 b2 c1      |       | image={V2}    | unknown     |
slow           | a b           |       |               | unknown     | no container that reports now is known to run it
slow           | a b           |       | image={V2}    | unknown     |
again          | a b y2        |       | image={V2}    | regressed   |
again          | a b           | y     | image={V2}    | unknown     |
# After a rollout.
all slow       | a2 b2         |       | image={V2}    | unknown     | say since=
all slow       | a2 b2         |       | since=14399   | regressed   |
all slow       | a2 b2         |       | since=14401   | unknown     | that upgrade was before since=
# New weights in the same image; at first their container is silent.
all fast       | aw bw         | x     | image={V2}    | unknown     |
weights        | aw bw xw      |       | image={V2}    | regressed   |
# Several canaries: the worst counts.
two            | a b x         |       | image={V2}    | regressed   |
two            | a b x         |       | canary=c      | equivalent  |
two            | a b x         |       | canary=e      | unknown     | has no canary e; it has c, d
half of two    | a b x         |       | image={V2}    | no_baseline |
workers        | a b x w v     |       | canary=c      | regressed   |
workers        | a b x w v     |       |               | regressed   |
workers        | a b x w v u3  |       |               | unknown     | u did not run
# Not judged, or not to the end.
still          | a b x         |       |               | regressed   |
alone          | x             |       | image={V2}    | no_baseline | no upgrade yet
settling       | a b x         |       | image={V2}    | settling    |
nothing        | x             |       |               | unknown     | unknown: the service was not judged yet
fast           |               | a b x | image={V2}    | unknown     |
nothing        |               |       |               | unknown     | no such service is known here
# Probes from the config's list: what their containers run is not known.
unknown images | a? b? x?      |       | image={V2}    | unknown     | ask without image=
unknown images | a? b? x?      |       |               | regressed   |
"""
"""Findings, running starts, silent containers, question, verdict, and words of the sentence."""


@pytest.mark.parametrize("race", [row for row in RACES.strip().splitlines() if row[0] != "#"])
def test_races(race: str) -> None:
    findings, running, silent, asked, verdict, words = map(str.strip, race.split("|"))
    name, _, value = asked.partition("=")
    question: dict[str, Any] = {name: float(value) if name == "since" else value} if name else {}
    given = says(
        findings_of(findings), [STARTS[each] for each in running.split()], silent.split(), **question
    )
    assert given.verdict == verdict and words in given.sentence, given.sentence
    assert verdict != "unknown" or given.shift is None


@pytest.mark.parametrize(
    "image", ["", V3, IDS[V3], f"{V2}@{IDS[V3]}", "search:v2", "registry.example.com/search"]
)
@pytest.mark.parametrize("seconds", [FAST, SLOW])
@pytest.mark.parametrize("silent", [(), ("x",)])
def test_a_verdict_on_the_upgrade_before_neither_promotes_nor_aborts(
    seconds: float, image: str, silent: Sequence[str]
) -> None:
    """v2 was rolled out long ago; now v3 is, and its pods are not there yet, or have not reported."""
    given = says(replaced(seconds), NEW, silent, image=image)
    assert given.verdict == "unknown" and given.shift is None and V2 in given.sentence


def test_each_canary_has_its_verdict() -> None:
    given = says(findings_of("two"), [*STABLE, CANARY])
    assert given.canary == "d" and given.canaries == {"c": "equivalent", "d": "regressed"}
    assert says(findings_of("workers"), [*STABLE, CANARY, *WORKERS]).canaries["c"] == "regressed"
