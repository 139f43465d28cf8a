"""Answers to rollouts in every known race, from a real judge with simulated runs."""

import random
import re
from datetime import datetime, timezone
from functools import cache

import msgspec
import pytest

from infercanary.contract.vocabulary import MODEL, of_canary
from infercanary.exporter.judging.findings import NOTHING, judge_canary
from infercanary.exporter.rollout import PROMOTES, WORST_FIRST, Question, ServiceState, answer
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES
from tests.scenarios import scenarios

HOUR = 3600.0
SPEEDS = {"quick": 0.016, "fast": 0.020, "slow": 0.026}
V1, V2, V3 = (f"registry.example.com/search:v{number}" for number in (1, 2, 3))
LATEST = "registry.example.com/search:latest"
ID2, ID3 = ("sha256:" + number * 64 for number in "23")

STARTS = {
    name: Generation(
        namespace="ml", service="search", container=name[0], boot_id=f"{name[0]}@{hour}", started_at=HOUR * int(hour),
        image=tag or f"registry.example.com/search:v{version}", image_id="sha256:" + version * 64,
        environment={of_canary(MODEL, canary): f"file-sha256:{model}" for canary in "cd"} if model else {},
    )
    for names, version, hour, tag, model in scenarios(f"""
oa0 ob0         | 1 | 0 |          |
oa1 ob1         | 1 | 1 |          |
oa2 ob2         | 1 | 2 |          |
oa3 ob3 a b w   | 1 | 3 |          |
x v a2 b2       | 2 | 4 |          |
al bl           | 1 | 3 | {LATEST} |
xl              | 2 | 4 | {LATEST} |
y3 u3           | 3 | 5 |          |
c1              | 1 | 5 |          |
y2              | 2 | 5 |          |
aw bw           | 2 | 4 |          | 1
xw              | 2 | 5 |          | 2
""")
    for name in names.split()
}  # fmt: skip
"""Names, whose first letter is the container; then version, hour of the start, tag, and model."""
for _name in [name for name in STARTS if name[0] == "o"]:
    STARTS[_name] = msgspec.structs.replace(
        STARTS[_name], container=_name[1], boot_id=f"{_name[1]}@{_name[2]}"
    )
STARTS["gone"] = msgspec.structs.replace(STARTS["x"], ended_at=4.6 * HOUR)
for _name in "abx":  # variants with unknown images
    STARTS[f"{_name}?"] = msgspec.structs.replace(
        STARTS[_name], image="", image_id="", environment={"torch": "2"} if _name == "x" else {}
    )

SITUATIONS = {
    name: (before, *groups)
    for name, before, *groups in scenarios("""
quick          |      | older fast 200 | a b fast 560 | x quick 200
fast           |      | older fast 200 | a b fast 560 | x fast 200
slow           |      | older fast 200 | a b fast 560 | x slow 200
all fast       |      | old fast 200 | a2 b2 fast 200
all slow       |      | old fast 200 | a2 b2 slow 200
latest         |      | al bl fast 560 | xl slow 200
rolled back    |      | old fast 200 | a2 b2 slow 560 | c1 fast 200
again          |      | older fast 200 | a b fast 723 | gone slow 200 | y2 slow 2
weights        |      | aw bw fast 560 | xw slow 200
two            | fast | older fast 200 d | a b fast 560 d | x slow 200 d
half of two    | fast | old fast 200 d
workers        | slow | oa0 oa1 oa2 oa3 fast 200 d | w v fast 560 d
still          |      | older fast 200 | a fast 20 | b fast 560 | x slow 200
alone          |      | x fast 200
settling       |      | older fast 200 | a b fast 362 | x slow 2
unknown images |      | a? b? fast 560 | x? slow 200
""")
}
"""Situation → situation that it extends, and groups of starts: latency, number of runs, and canary (default: c).

The stable replicas have four starts each, so that the restart variance is known.
"""
OLDER = "oa0 ob0 oa1 ob1 oa2 ob2"
NAMES = {"older": OLDER, "old": f"{OLDER} oa3 ob3"}


@cache
def samples(canary, container, at, speed, count):
    rng = random.Random(f"{container} {at}")
    return [
        Sample(i, canary, at + 10 * i, "ok", SPEEDS[speed] * rng.lognormvariate(0, 0.003), 10)
        for i in range(count)
    ]


@cache
def findings_of(situation):
    if situation in ("", "nothing"):
        return NOTHING
    before, *groups = SITUATIONS[situation]
    starts = []
    for group in groups:
        names, speed, count, canary = re.fullmatch(r"(.*) (\w+) (\d+) ?(\w?)", group).groups()
        canary = canary or "c"
        for each in (STARTS[name] for name in NAMES.get(names, names).split()):
            ran = samples(canary, each.container, each.started_at, speed, int(count))
            starts.append(Start.of(each, ran))
    return {**findings_of(before), canary: judge_canary(canary, None, identified(starts), [], LIVE)}


def says(situation, running, silent=(), *, since="", **asked):
    at = datetime.fromtimestamp(float(since), timezone.utc) if since else None
    question = Question(service="search", namespace="ml", since=at, **asked)
    state = ServiceState(findings_of(situation), [STARTS[name] for name in running.split()], silent)
    return answer(question, state)


def test_all_states_have_an_order():
    assert {*WORST_FIRST} == {*STATES, "unknown"}
    assert WORST_FIRST[0] == "regressed"
    assert {*WORST_FIRST[-2:]} == PROMOTES


@pytest.mark.parametrize(
    ("situation", "verdict", "cause"),
    [("slow", "regressed", "image"), ("fast", "equivalent", None), ("quick", "improved", "image")],
)
@pytest.mark.parametrize("image", ["", V2, ID2, f"registry.example.com/search@{ID2}"])
def test_a_rollout_that_is_under_way(situation, verdict, cause, image):
    given = says(situation, "a b x", image=image)
    assert (given.verdict, given.canary, given.canaries) == (verdict, "c", {"c": verdict})
    assert given.low < given.shift < given.high
    assert given.sentence.startswith(verdict)
    assert given.cause == cause
    assert given.since == datetime.fromtimestamp(4 * HOUR, timezone.utc)
    assert (given.baseline_image, given.candidate_image) == (f"{V1} ({'1' * 12})", f"{V2} ({'2' * 12})")


RACES = """
# v3 overtakes v2: the question names no image, or names v3.
slow           | a b x y3      |       |               | unknown     | y has not run its canaries yet
slow           | a b x         | y     |               | unknown     | y has not run its canaries yet
fast           | a b x         | y     |               | unknown     | y has not run its canaries yet
slow           | a b x y3      |       | image={V3}    | unknown     | no reporting container runs {V3}
# A crashing replica hides no regression, and delays a promotion.
slow           | a b x         | y     | image={V2}    | regressed   |
fast           | a b x         | y     | image={V2}    | unknown     | y has not run its canaries yet
# A moved tag names both images, so it does not distinguish them; then the rollout is over.
latest         | al bl xl      |       | image={LATEST} | regressed  |
latest         | xl            |       | image={LATEST} | unknown    | no rollout is in progress
# Back to v1.
all slow       | a2 b2         |       | image={V1}    | unknown     | is about {V2}
rolled back    | a2 b2 c1      |       | image={V1}    | improved    | after a rollback
rolled back    | a2 b2 c1      |       | image={V2}    | unknown     |
slow           | a b           |       |               | unknown     | no reporting container runs the new image
slow           | a b           |       | image={V2}    | unknown     |
again          | a b y2        |       | image={V2}    | regressed   |
again          | a b           | y     | image={V2}    | unknown     |
# After a rollout, or while the pods of v3 do not exist yet or have not reported.
all slow       | a2 b2         |       |               | unknown     | {V2}
all slow       | a2 b2         | x     |               | unknown     | {V2}
all slow       | a2 b2         |       | image={V3}    | unknown     | {V2}
all fast       | a2 b2         | x     | image={V3}    | unknown     | {V2}
all fast       | a2 b2         |       | image={ID3}   | unknown     | {V2}
all fast       | a2 b2         |       | image={V2}@{ID3} | unknown  | {V2}
all slow       | a2 b2         |       | image=search:v2 | unknown   | {V2}
all slow       | a2 b2         |       | image=registry.example.com/search | unknown | {V2}
all slow       | a2 b2         |       | image={V2}    | unknown     | add since=
all slow       | a2 b2         |       | since=14399   | regressed   |
all slow       | a2 b2         |       | since=14401   | unknown     | the last upgrade is older than since=
# New weights in the same image; at first their container is silent.
all fast       | aw bw         | x     | image={V2}    | unknown     |
weights        | aw bw xw      |       | image={V2}    | regressed   |
# Several canaries: the worst verdict counts.
two            | a b x         |       | image={V2}    | regressed   |
two            | a b x         |       | canary=c      | equivalent  |
two            | a b x         |       | canary=e      | unknown     | has no canary e; it has c, d
half of two    | a b x         |       | image={V2}    | no_baseline |
workers        | a b x w v     |       | canary=c      | regressed   |
workers        | a b x w v     |       |               | regressed   |
workers        | a b x w v u3  |       |               | unknown     | u has not run
# Not judged, or not completely.
still          | a b x         |       |               | regressed   |
alone          | x             |       | image={V2}    | no_baseline | no upgrade yet
settling       | a b x         |       | image={V2}    | settling    |
nothing        | x             |       |               | unknown     | unknown: the service has not been judged yet
fast           |               | a b x | image={V2}    | unknown     |
nothing        |               |       |               | unknown     | the service is unknown
# Probes from the config's list: the images of their containers are unknown.
unknown images | a? b? x?      |       | image={V2}    | unknown     | ask without image=
unknown images | a? b? x?      |       |               | regressed   |
"""
"""Findings, running starts, silent containers, question, verdict, and words of the sentence."""


NAMED = {"V1": V1, "V2": V2, "V3": V3, "ID3": ID3, "LATEST": LATEST}


@pytest.mark.parametrize(
    "race", [row for row in scenarios(RACES.format(**NAMED)) if row[0][0] != "#"], ids=str
)
def test_races(race):
    findings, running, silent, asked, verdict, words = race
    name, _, value = asked.partition("=")
    question = {name: value} if name else {}
    given = says(findings, running, silent.split(), **question)
    assert given.verdict == verdict and words in given.sentence, given.sentence
    assert verdict != "unknown" or given.shift is None


def test_each_canary_has_its_verdict():
    given = says("two", "a b x")
    assert (given.canary, given.canaries) == ("d", {"c": "equivalent", "d": "regressed"})
