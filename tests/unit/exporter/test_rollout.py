"""Answers to rollouts in every known race: the judge is real, on runs that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import cache, partial
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
    ("seconds", "verdict"), [(SLOW, "regressed"), (FAST, "equivalent"), (0.016, "improved")]
)
@pytest.mark.parametrize("image", ["", V2, IDS[V2], f"registry.example.com/search@{IDS[V2]}"])
def test_a_rollout_that_is_under_way(seconds: float, verdict: str, image: str) -> None:
    given = says(side_by_side(seconds), [*STABLE, CANARY], image=image)
    assert given.verdict == verdict, given.sentence
    assert given.canaries == {"c": verdict} and given.canary == "c"
    assert given.low is not None and given.shift is not None and given.high is not None
    assert given.low < given.shift < given.high
    assert given.sentence.startswith(verdict)
    assert given.cause == ("image" if verdict != "equivalent" else None) or given.cause == "unknown"
    assert given.since is not None and given.since.timestamp() == 4 * HOUR
    assert given.baseline_image == f"{V1} (111111111111)" and given.candidate_image == f"{V2} (222222222222)"


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


@cache
def moving_tag() -> Findings:
    return judged(*(start(each, count=560) for each in STABLE_LATEST), start(CANARY_LATEST, SLOW))


@cache
def rolled_back() -> Findings:
    return judged(*BEFORE, *(start(each, SLOW, 560) for each in NEW), start(BACK))


@cache
def again() -> Findings:
    gone = msgspec.structs.replace(CANARY, ended_at=4.6 * HOUR)
    beside = (start(each, count=723) for each in STABLE)
    return judged(*BEFORE[:-2], *beside, start(gone, SLOW), start(AGAIN, SLOW, 2))


@cache
def other_weights() -> Findings:
    return judged(*(start(each, count=560) for each in WEIGHTS), start(NEW_WEIGHTS, SLOW))


@cache
def one_of_two_canaries() -> Findings:
    after = [*(start(each, count=560, canary="d") for each in STABLE), start(CANARY, SLOW, canary="d")]
    return judged(*(start(each, canary="d") for each in OLD[:-2]), *after, found=side_by_side(FAST))


@cache
def half_of_two_canaries() -> Findings:
    return judged(*(start(each, canary="d") for each in OLD), found=side_by_side(FAST))


@cache
def leader_and_workers() -> Findings:
    beside = [start(each, count=560, canary="d") for each in WORKERS]
    return judged(*(start(each, canary="d") for each in OLD[::2]), *beside, found=side_by_side(SLOW))


@cache
def one_stood_still() -> Findings:
    return judged(*BEFORE[:-2], start(STABLE[0], count=20), start(STABLE[1], count=560), start(CANARY, SLOW))


@cache
def settling() -> Findings:
    return judged(*BEFORE[:-2], *(start(each, count=362) for each in STABLE), start(CANARY, SLOW, 2))


@cache
def unknown_images() -> Findings:
    return judged(*(start(each, count=560) for each in UNKNOWN_IMAGES[:2]), start(UNKNOWN_IMAGES[2], SLOW))


def nothing() -> Findings:
    return NOTHING


ON, SIDE = [*STABLE, CANARY], partial(side_by_side, SLOW)
UNSEEN = "y did not run its canaries yet"
RACES: dict[str, tuple[Callable[[], Findings], Sequence[Generation], Sequence[str], dict[str, Any], str, str]] = {
    # v3 overtakes v2: nothing names the image, or v3 is named.
    "a pod of v3 that was not judged": (SIDE, [*ON, V3_POD], (), {}, "unknown", UNSEEN),
    "a pod of v3 that is silent": (SIDE, ON, ["y"], {}, "unknown", UNSEEN),
    "a silent pod after a fast v2": (partial(side_by_side, FAST), ON, ["y"], {}, "unknown", UNSEEN),
    "v3 by name": (SIDE, [*ON, V3_POD], (), {"image": V3}, "unknown", f"is known to run {V3}"),
    "a replica that crashes hides no regression": (SIDE, ON, ["y"], {"image": V2}, "regressed", ""),
    "a replica that crashes holds a promotion": (
        partial(side_by_side, FAST), ON, ["y"], {"image": V2}, "unknown", UNSEEN,
    ),
    # A tag that moved names both images and tells nothing apart.
    "latest, under way": (moving_tag, [*STABLE_LATEST, CANARY_LATEST], (), {"image": LATEST}, "regressed", ""),
    "latest, over": (moving_tag, [CANARY_LATEST], (), {"image": LATEST}, "unknown", "no rollout is under way"),
    # Back to v1.
    "v1 comes back": (partial(replaced, SLOW), NEW, (), {"image": V1}, "unknown", f"is about {V2}"),
    "v1 is back": (rolled_back, [*NEW, BACK], (), {"image": V1}, "improved", "after a rollback"),
    "v1 is back, v2 by name": (rolled_back, [*NEW, BACK], (), {"image": V2}, "unknown", ""),
    "v2 is gone": (SIDE, STABLE, (), {}, "unknown", "no container that reports now is known to run it"),
    "v2 is gone, by name": (SIDE, STABLE, (), {"image": V2}, "unknown", ""),
    "v2 again": (again, [*STABLE, AGAIN], (), {"image": V2}, "regressed", ""),
    "v2 again, silent": (again, STABLE, ["y"], {"image": V2}, "unknown", ""),
    # After a rollout.
    "over": (partial(replaced, SLOW), NEW, (), {"image": V2}, "unknown", "say since="),
    "over, since before": (partial(replaced, SLOW), NEW, (), {"since": 4 * HOUR - 1}, "regressed", ""),
    "over, since after": (
        partial(replaced, SLOW), NEW, (), {"since": 4 * HOUR + 1}, "unknown", "that upgrade was before since=",
    ),
    # New weights in the same image.
    "new weights, silent": (partial(replaced, FAST), WEIGHTS, ["x"], {"image": V2}, "unknown", ""),
    "new weights": (other_weights, [*WEIGHTS, NEW_WEIGHTS], (), {"image": V2}, "regressed", ""),
    # Several canaries: the worst counts.
    "one of two": (one_of_two_canaries, ON, (), {"image": V2}, "regressed", ""),
    "the other": (one_of_two_canaries, ON, (), {"canary": "c"}, "equivalent", ""),
    "neither": (one_of_two_canaries, ON, (), {"canary": "e"}, "unknown", "has no canary e; it has c, d"),
    "one that did not run yet": (half_of_two_canaries, ON, (), {"image": V2}, "no_baseline", ""),
    "a leader": (leader_and_workers, [*ON, *WORKERS], (), {"canary": "c"}, "regressed", ""),
    "a leader and its workers": (leader_and_workers, [*ON, *WORKERS], (), {}, "regressed", ""),
    "with one on its way": (
        leader_and_workers, [*ON, *WORKERS, generation("u", V3, 5 * HOUR)], (), {}, "unknown", "u did not run",
    ),
    # Not judged, or not to the end.
    "one stands still": (one_stood_still, ON, (), {}, "regressed", ""),
    "no baseline": (lambda: judged(start(CANARY)), [CANARY], (), {"image": V2}, "no_baseline", "no upgrade yet"),
    "settling": (settling, ON, (), {"image": V2}, "settling", ""),
    "not judged": (nothing, [CANARY], (), {}, "unknown", "unknown: the service was not judged yet"),
    "exporter started again": (partial(side_by_side, FAST), [], ["a", "b", "x"], {"image": V2}, "unknown", ""),
    "no service": (nothing, [], (), {}, "unknown", "no such service is known here"),
    # Probes from the config's list: what their containers run is not known.
    "images unknown": (unknown_images, UNKNOWN_IMAGES, (), {"image": V2}, "unknown", "ask without image="),
    "images unknown, none asked": (unknown_images, UNKNOWN_IMAGES, (), {}, "regressed", ""),
}  # fmt: skip
"""Situation → findings, running starts, silent containers, question, verdict, and words of the sentence."""


@pytest.mark.parametrize("situation", RACES)
def test_races(situation: str) -> None:
    findings, running, silent, asked, verdict, words = RACES[situation]
    given = says(findings(), running, silent, **asked)
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
    given = says(one_of_two_canaries(), ON)
    assert given.canary == "d" and given.canaries == {"c": "equivalent", "d": "regressed"}
    assert says(leader_and_workers(), [*ON, *WORKERS]).canaries["c"] == "regressed"
