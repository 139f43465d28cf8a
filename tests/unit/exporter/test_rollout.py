"""What a rollout learns, in every race with it that we know: the judge is real, on runs that are made up."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import pytest

from infercanary.contract.vocabulary import MODEL, of_canary
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.rollout import PROMOTES, WORST_FIRST, Answer, Question, ServiceState, answer
from infercanary.judge.identity import identified
from infercanary.judge.model import Generation, Sample, ServiceKey, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.result import STATES

SEARCH = ServiceKey("ml", "search")
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
    return found.judged(starts[-1].canary_name, identified(starts), [], LIVE)


class Memory:
    """What is known, as a rollout's answers need it."""

    def __init__(
        self,
        findings: Findings,
        running: Iterable[Generation],
        silent: Sequence[str] = (),
        key: ServiceKey = SEARCH,
    ) -> None:
        self._known = {key: ServiceState(findings, [*running], silent)}

    def known(self, service: ServiceKey) -> ServiceState:
        return self._known.get(service, ServiceState(NOTHING, ()))

    def services(self) -> list[ServiceKey]:
        return [*self._known]

    def says(
        self, service: ServiceKey = SEARCH, canary: str = "", image: str = "", since: float | None = None
    ) -> Answer:
        return answer(Question(service, canary, image, since), self)


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
    given = Memory(side_by_side(seconds), [*STABLE, CANARY]).says(image=image)
    assert given.verdict == verdict, given.sentence
    assert given.canaries == {"c": verdict} and given.canary == "c"
    assert given.low is not None and given.shift is not None and given.high is not None
    assert given.low < given.shift < given.high
    assert given.sentence.startswith(verdict) and given.runs > 4 and given.starts > 2 and given.hosts == 1
    assert given.cause == ("image" if verdict != "equivalent" else None) or given.cause == "unknown"
    assert given.since is not None and given.since.timestamp() == 4 * HOUR
    assert given.baseline_image == f"{V1} (111111111111)" and given.candidate_image == f"{V2} (222222222222)"


@pytest.mark.parametrize(
    "image", ["", V3, IDS[V3], f"{V2}@{IDS[V3]}", "search:v2", "registry.example.com/search"]
)
@pytest.mark.parametrize("seconds", [FAST, SLOW])
def test_a_verdict_on_the_upgrade_before_neither_promotes_nor_aborts(seconds: float, image: str) -> None:
    """v2 was rolled out long ago; now v3 is, and its pods are not there yet, or have not reported."""
    running = [generation(name, V2, 4 * HOUR) for name in ("a", "b")]
    for silent in ((), ("x",)):
        given = Memory(replaced(seconds), running, silent).says(image=image)
        assert given.verdict == "unknown" and given.shift is None
        assert V2 in given.sentence


def test_an_upgrade_that_overtakes_another_one_is_not_judged_by_it() -> None:
    """v3 came while v2 was still beside v1: nothing names the image, and what began since was not judged."""
    running = [*STABLE, CANARY]
    for findings in (side_by_side(FAST), side_by_side(SLOW)):
        given = Memory(findings, [*running, generation("y", V3, 5 * HOUR)]).says()
        assert given.verdict == "unknown" and "y did not run its canaries yet" in given.sentence
        given = Memory(findings, running, ["y"]).says()
        assert given.verdict == "unknown" and "y did not run its canaries yet" in given.sentence
        assert Memory(findings, [*running, generation("y", V3, 5 * HOUR)]).says(image=V3).verdict == "unknown"


def test_a_replica_that_crashes_does_not_hide_that_the_named_image_regressed() -> None:
    assert Memory(side_by_side(SLOW), [*STABLE, CANARY], ["y"]).says(image=V2).verdict == "regressed"
    assert Memory(side_by_side(FAST), [*STABLE, CANARY], ["y"]).says(image=V2).verdict == "unknown"


def test_a_tag_that_moved_names_both_images_and_tells_nothing_apart() -> None:
    latest = "registry.example.com/search:latest"
    stable = [generation(name, V1, 3 * HOUR, latest) for name in ("a", "b")]
    canary = generation("x", V2, 4 * HOUR, latest)
    findings = judged(*(start(each, count=560) for each in stable), start(canary, SLOW))
    assert Memory(findings, [*stable, canary]).says(image=latest).verdict == "regressed"
    assert Memory(findings, [canary]).says(image=latest).verdict == "unknown", "the rollout is over"


def test_a_rollback_is_not_judged_by_what_it_takes_back() -> None:
    """v2 replaced v1, and v1 comes back: what is known of v2 does not count, and what is known of v1 then does."""
    running = [generation(name, V2, 4 * HOUR) for name in ("a", "b")]
    given = Memory(replaced(SLOW), running).says(image=V1)
    assert given.verdict == "unknown" and f"is about {V2}" in given.sentence
    back = generation("c", V1, 5 * HOUR)
    findings = judged(*BEFORE, *(start(each, SLOW, 560) for each in running), start(back))
    given = Memory(findings, [*running, back]).says(image=V1)
    assert given.verdict == "improved" and "after a rollback" in given.sentence
    assert Memory(findings, [*running, back]).says(image=V2).verdict == "unknown"


def test_an_image_whose_containers_are_gone_has_no_verdict() -> None:
    given = Memory(side_by_side(SLOW), STABLE).says()
    assert given.verdict == "unknown" and "no container that reports now has that" in given.sentence
    assert Memory(side_by_side(SLOW), STABLE).says(image=V2).verdict == "unknown"


def test_an_image_that_was_aborted_and_comes_again_is_known() -> None:
    gone = msgspec.structs.replace(CANARY, ended_at=4.6 * HOUR)
    again = generation("y", V2, 5 * HOUR)
    beside = [start(each, count=723) for each in STABLE]
    findings = judged(*BEFORE[:-2], *beside, start(gone, SLOW), start(again, SLOW, 2))
    assert Memory(findings, [*STABLE, again]).says(image=V2).verdict == "regressed"
    assert Memory(findings, STABLE, ["y"]).says(image=V2).verdict == "unknown", "before it reports"


def test_after_a_rollout_it_takes_a_time_since_when_a_verdict_counts() -> None:
    running = [generation(name, V2, 4 * HOUR) for name in ("a", "b")]
    given = Memory(replaced(SLOW), running).says(image=V2)
    assert given.verdict == "unknown" and "say since=" in given.sentence
    assert Memory(replaced(SLOW), running).says(since=4 * HOUR - 1).verdict == "regressed"
    given = Memory(replaced(SLOW), running).says(since=4 * HOUR + 1)
    assert given.verdict == "unknown" and "that upgrade was before since=" in given.sentence


def test_new_weights_in_the_same_image_are_not_judged_by_the_image() -> None:
    running = [generation(name, V2, 4 * HOUR, model="file-sha256:1") for name in ("a", "b")]
    findings = judged(*(start(each, FAST, 560) for each in running))
    new = generation("x", V2, 5 * HOUR, model="file-sha256:2")
    assert Memory(replaced(FAST), running, ["x"]).says(image=V2).verdict == "unknown"
    findings = judged(*(start(each, count=560) for each in running), start(new, SLOW))
    assert Memory(findings, [*running, new]).says(image=V2).verdict == "regressed"


def test_of_two_canaries_the_worst_counts() -> None:
    after = [*(start(each, count=560, canary="d") for each in STABLE), start(CANARY, SLOW, canary="d")]
    both = judged(*(start(each, canary="d") for each in OLD[:-2]), *after, found=side_by_side(FAST))
    memory = Memory(both, [*STABLE, CANARY])
    given = memory.says(image=V2)
    assert (given.verdict, given.canary) == ("regressed", "d")
    assert given.canaries == {"c": "equivalent", "d": "regressed"}
    assert memory.says(canary="c").verdict == "equivalent"
    # One that the new image has not run yet holds the other one back.
    half = judged(*(start(each, canary="d") for each in OLD), found=side_by_side(FAST))
    given = Memory(half, [*STABLE, CANARY]).says(image=V2)
    assert given.canaries["c"] == "equivalent" and given.verdict not in (*PROMOTES, "regressed")
    given = memory.says(canary="e")
    assert (
        given.verdict == "unknown" and given.sentence == "unknown: the service has no canary e; it has c, d"
    )


def test_containers_of_a_service_may_run_different_canaries() -> None:
    """A leader runs one, and a worker another one: neither waits for the other's."""
    workers = [generation("w", V1, 3 * HOUR), generation("v", V2, 4 * HOUR)]
    beside = [start(each, count=560, canary="d") for each in workers]
    both = judged(*(start(each, canary="d") for each in OLD[::2]), *beside, found=side_by_side(SLOW))
    memory = Memory(both, [*STABLE, CANARY, *workers])
    assert memory.says(canary="c").verdict == "regressed"
    assert memory.says().canaries["c"] == "regressed"
    # One that is on its way, and has run none, still holds it back.
    assert (
        Memory(both, [*STABLE, CANARY, *workers, generation("u", V3, 5 * HOUR)]).says().verdict == "unknown"
    )


def test_a_replica_that_stands_still_was_seen() -> None:
    """A GPU that is busy for an hour keeps canaries waiting; what was judged before still counts."""
    still = start(STABLE[0], count=20)
    findings = judged(*BEFORE[:-2], still, start(STABLE[1], count=560), start(CANARY, SLOW))
    assert Memory(findings, [*STABLE, CANARY]).says().verdict == "regressed"


def test_a_node_without_a_baseline_waits() -> None:
    findings = judged(start(CANARY))
    given = Memory(findings, [CANARY]).says(image=V2)
    assert given.verdict == "no_baseline" and given.sentence.startswith("no upgrade yet")
    beside = [start(each, count=362) for each in STABLE]
    settling = judged(*BEFORE[:-2], *beside, start(CANARY, SLOW, 2))
    assert Memory(settling, [*STABLE, CANARY]).says(image=V2).verdict == "settling"


def test_a_service_of_another_namespace_does_not_answer() -> None:
    memory = Memory(side_by_side(FAST), [*STABLE, CANARY])
    for other in (ServiceKey("", "search"), ServiceKey("staging", "search"), ServiceKey("ml", "serach")):
        given = memory.says(service=other, image=V2)
        assert given.verdict == "unknown" and (given.namespace, given.service) == other
    assert memory.says(service=ServiceKey("", "search")).sentence.endswith("say namespace=ml")


def test_what_was_not_judged_yet_waits() -> None:
    given = Memory(NOTHING, [CANARY]).says()
    assert (given.verdict, given.sentence) == ("unknown", "unknown: the service was not judged yet")
    # After a restart of the exporter, before the first report.
    assert Memory(side_by_side(FAST), [], ["a", "b", "x"]).says(image=V2).verdict == "unknown"


@pytest.mark.parametrize("at", [1e300, -1e300])
def test_a_time_that_no_calendar_has_is_not_known(at: float) -> None:
    """When a start began is its probe's own word."""
    found = side_by_side(SLOW)
    judgements = {"c": msgspec.structs.replace(found.judgements["c"], upgraded_at=at)}
    given = Memory(msgspec.structs.replace(found, judgements=judgements), [*STABLE, CANARY]).says()
    assert given.verdict == "regressed" and given.since is None


def test_an_image_that_nobody_knows_is_not_compared() -> None:
    """Probes from the config's list: what their containers run is not known."""
    known = [msgspec.structs.replace(each, image="", image_id="") for each in [*STABLE, CANARY]]
    known[-1] = msgspec.structs.replace(known[-1], environment={"torch": "2"})
    findings = judged(*(start(each, count=560) for each in known[:2]), start(known[2], SLOW))
    given = Memory(findings, known).says(image=V2)
    assert given.verdict == "unknown" and "ask without image=" in given.sentence
    assert Memory(findings, known).says().verdict == "regressed"
