"""Who had the CPU: cases with recorded shapes of runs, in the live judge and between two files."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from infercanary.judge.causes import Attribution
from infercanary.judge.crowding import crowding
from infercanary.judge.model import Generation, Pair, Sample, Start, merge
from infercanary.judge.result import Result
from infercanary.judge.shift import Shift
from infercanary.judge.verdict import Judge

judge = Judge().verdict

HOUR = 3600.0
OWN = 0.020  # seconds of the canary's own computing


def start(
    image: str,
    at: float,
    *,
    waited: float | None = 0.0,
    crowded: float | None = 0.0,
    inside: float | None = 0.0,
    received: float | None = 3.0,
    own: float = OWN,
    tags: tuple[str, ...] = (),
    threads: str = "1",
    service: str = "s",
    control: float = 0.0004,
    runs: int = 100,
    unasked: int = 0,
) -> Start:
    """A start whose runs wait for ``waited`` seconds (others on the host) and ``crowded`` (others in the container).

    The first ``unasked`` runs do not know the requests.
    """
    rng = random.Random(f"{image} {at} {service}")

    def about(x: float | None) -> float | None:
        return None if x is None else x * rng.lognormvariate(0, 0.03)

    samples = []
    for i in range(runs):
        host, own_container = about(waited), about(crowded)
        samples.append(
            Sample(
                sequence=i, canary="c", started_at=at + 30 + 10 * i, outcome="ok", repeats=10, tags=tags,
                median=own * rng.lognormvariate(0, 0.005) + (host or 0.0) + (own_container or 0.0),
                controls={"cpu_spin": control * rng.lognormvariate(0, 0.005)},
                waited=host, crowded=own_container, inside=about(inside),
                received=None if i < unasked else about(received),
            )
        )  # fmt: skip
    generation = Generation(
        service=service, container=service, boot_id=f"{service}-{at}", started_at=at, image_id=image,
        environment={"torch": "2.7.0", "torch_intra_op_threads": threads},
    )  # fmt: skip
    return Start(generation, samples)


def judged(
    new: Mapping[str, object],
    old: Mapping[str, object] | None = None,
    siblings: float | None = None,
    felt: tuple[str, ...] = (),
) -> Result:
    """After four starts of the old image one of the new; two siblings that became ``siblings`` times as slow.

    Their runs have the tags ``felt`` then.
    """
    before: Mapping[str, object] = old or {}
    starts = [start("old", HOUR * i, **before) for i in range(4)]  # type: ignore[arg-type]
    starts.append(start("new", 4 * HOUR, **new))  # type: ignore[arg-type]
    beside = []
    for name in "xy" if siblings is not None else "":
        one, two = (
            start("x", 3 * HOUR, service=name),
            start("x", 4 * HOUR, own=OWN * (siblings or 1), service=name, tags=felt),
        )
        beside.append(Start(one.generation, [*one.samples, *two.samples]))
    return judge(starts, beside, "c")


# Two containers pinned to a core each. Sharing it with one busy loop, the canary takes twice as long and waits for
# half of that; the loop has half of the core.
BUSY_INSIDE = {"crowded": OWN, "inside": 0.5, "tags": ("cpu_wait_inside",)}
BUSY_OUTSIDE = {"waited": OWN, "tags": ("cpu_wait_outside",)}


BEFORE = {"crowded": 0.2 * OWN, "inside": 0.15, "received": 100.0}
ASKED = {"inside": 0.1, "received": 100.0}  # as requests hold the interpreter
HOST_BUSY = {"own": 0.004, "waited": 0.008, "inside": 0.012}  # seen in Docker; a loop made 24 ms of 12
UNKNOWN = {"inside": None, "crowded": None}  # of a sidecar
SLOW = {"own": 1.5 * OWN}
Scenario = tuple[Mapping[str, object], Mapping[str, object], str, str]
SCENARIOS: dict[str, Scenario] = {
    "others had its core": (BUSY_OUTSIDE, {}, "host", ""),
    "a slower host, and a short wait": (
        {"own": 1.3 * OWN, "waited": 0.05 * OWN, "control": 0.0004 * 1.35}, {}, "host", "",
    ),
    "others had the cores of several threads": (
        BUSY_OUTSIDE | {"threads": "4", "control": 0.00044}, {"threads": "4"}, "host", "",
    ),
    "nobody knows who": (BUSY_OUTSIDE | UNKNOWN, UNKNOWN, "unknown", "unknown_waiting"),
    "a busy server's neighbour": (
        {"crowded": OWN, "inside": 2.0}, {"crowded": 0.002, "inside": 2.0}, "host", "",
    ),
    "many more requests": (
        BUSY_INSIDE | {"received": 600.0}, {}, "load", "",
    ),
    "some more requests of an idle container": (BUSY_INSIDE | {"received": 90.0}, {}, "unknown", "unknown_load"),
    "unknown requests": (BUSY_INSIDE | {"received": None}, {}, "unknown", "unknown_load"),
    "many more requests, but of some runs unknown": (
        BUSY_INSIDE | {"received": 600.0, "unasked": 3}, {"unasked": 1}, "load", "",
    ),
    "others inside, of several threads and after runs that do not know them": (
        BUSY_INSIDE | {"threads": "4", "received": 600.0}, UNKNOWN | {"threads": "4"}, "unknown", "unknown_load",
    ),
    "requests in proportion": (BUSY_INSIDE | {"received": 330.0}, BEFORE, "load", ""),
    "the same requests with more CPU": (BUSY_INSIDE | {"received": 102.0}, BEFORE, "image", ""),
    "nobody asks, as in an experiment": (BUSY_INSIDE | {"received": 0.0}, {"received": 0.0}, "image", ""),
    "a lock that requests hold": (
        {"own": 1.3 * OWN, "inside": 0.3, "received": 300.0}, ASKED, "unknown", "unknown_load",
    ),
    "a lock for too little": ({"own": 2 * OWN, "inside": 0.15, "received": 150.0}, ASKED, "image", ""),
    "a loop that is gone": ({}, BUSY_INSIDE, "image", ""),
    "half inside, half outside": ({"crowded": OWN, "waited": OWN, "inside": 1 / 3}, {}, "both", ""),
    "a loop inside doubles the wait for neighbours": (
        {"own": 0.004, "waited": 0.016, "crowded": 0.004, "inside": 0.17}, HOST_BUSY, "image", "",
    ),
    "more neighbours": ({"own": 0.004, "waited": 0.020, "inside": 0.012}, HOST_BUSY, "host", ""),
    "a loop and neighbours": (
        {"own": 0.004, "waited": 0.037, "crowded": 0.004, "inside": 0.09}, HOST_BUSY, "both", "",
    ),
    # Cold caches cost as much as the wait at most.
    "a slower image, not excluded": ({"waited": 0.6 * OWN, "own": 1.4 * OWN}, {}, "unknown", ""),
    "a slower image beside a neighbour": ({"waited": 0.4 * OWN, "own": 1.6 * OWN}, {}, "both", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_who_had_the_cpu(name: str) -> None:
    new, old, cause, doubt = SCENARIOS[name]
    found = judged(new, old)
    state = "improved" if old is BUSY_INSIDE else "regressed"
    assert (found.state, found.causes.cause) == (state, cause), found.causes
    assert not doubt or getattr(found.causes, doubt)


@pytest.mark.parametrize("siblings", [None, 1.0, 1.1])
@pytest.mark.parametrize("control", [0.0004, 0.0006])
@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_busy_loop_in_the_upgraded_container_is_the_images(
    siblings: float | None, control: float, threads: str
) -> None:
    """Whether or not controls feel it too: they have the same core to share."""
    new = {**BUSY_INSIDE, "control": control, "threads": threads}
    found = judged(new, {"threads": threads}, siblings)
    assert (found.state, found.causes.cause) == ("regressed", "image"), found.causes
    assert found.causes.inside == pytest.approx((0.0, 0.5), abs=0.01)
    # How long it waited is not known of several threads, but that requests may have done it.
    asked = judged({**new, "received": 600.0}, {"threads": threads}, siblings)
    assert asked.causes.cause == ("load" if threads == "1" else "unknown"), asked.causes


@pytest.mark.parametrize("siblings", [1.0, 1.1, 2.0])
def test_a_busy_container_on_its_core_is_the_hosts_whatever_siblings_feel(siblings: float) -> None:
    found = judged(BUSY_OUTSIDE, siblings=siblings)
    assert found.causes.cause == "host" and found.causes.inside is None, found.causes


@pytest.mark.parametrize("siblings", [1.5, 10.0])
@pytest.mark.parametrize("tag", ["cgroup_throttled", "cpu_wait_inside", "cpuset_changed", "memory_limit"])
def test_a_sibling_that_its_own_container_held_back_tells_nothing_of_the_host(
    siblings: float, tag: str
) -> None:
    """Its quota was lowered in the minutes of the upgrade, or something else began to run in it."""
    found = judged(SLOW, siblings=siblings, felt=(tag,))
    assert (found.causes.cause, found.causes.siblings) == ("image", None), found.causes
    assert judged(SLOW, siblings=siblings, felt=("cpu_wait_outside",)).causes.cause == "host"


def test_an_image_that_is_not_excluded_is_not_hidden_behind_a_neighbour() -> None:
    starts = [start("old", HOUR * i, own=OWN * level) for i, level in enumerate((0.8, 1.2, 0.95, 1.05))]
    found = judge([*starts, start("new", 4 * HOUR, waited=2 * OWN, own=1.25 * OWN)], [], "c")
    assert (found.state, found.causes.cause) == ("regressed", "unknown"), found.causes
    host, image = found.causes.host, found.causes.image
    assert host is not None and image is not None and host.low > 0 and host.shift > image.shift > 0


def test_two_files_get_the_cause_that_the_live_judge_gives() -> None:
    shift = Shift(0.69, 0.02, 8.0)
    for new, cause in ((BUSY_INSIDE, "image"), (BUSY_OUTSIDE, "host")):
        pair = Pair([start("old", 0.0)], [start("new", HOUR, **new)])  # type: ignore[arg-type]
        assert Attribution().explain(shift, [pair], "c").cause == cause


def test_runs_that_are_merged_keep_what_the_container_took() -> None:
    runs = start("new", 0.0, waited=0.002, crowded=0.001, inside=0.3, received=5.0, runs=9).samples
    merged = merge(runs)
    for name in ("waited", "crowded", "inside", "received"):
        assert getattr(merged, name) == sorted(getattr(s, name) for s in runs)[4]
    assert merge(start("new", 0.0, inside=None, runs=3).samples).inside is None


def test_without_enough_runs_nothing_is_known() -> None:
    many, few = (start("x", 0.0, runs=runs).samples for runs in (20, 4))
    assert crowding(many, few, 5) is None
    assert crowding(many, many, 5) == (0.0, 0.0, (0.0, 0.0))
