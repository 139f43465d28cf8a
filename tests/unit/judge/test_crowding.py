"""Who had the CPU: cases with recorded shapes of runs, in the live judge and between two files."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from infercanary.judge.causes import explain
from infercanary.judge.crowding import crowding
from infercanary.judge.model import Generation, Pair, Sample, Start, merge
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Result
from infercanary.judge.sentence import sentence
from infercanary.judge.shift import UNKNOWN, Shift
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
) -> Start:
    """A start whose runs wait for ``waited`` seconds (others on the host) and ``crowded`` (others in the container)."""
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
                waited=host, crowded=own_container, inside=about(inside), received=about(received),
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


@pytest.mark.parametrize("siblings", [None, 1.0, 1.1])
@pytest.mark.parametrize("control", [0.0004, 0.0006])
@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_busy_loop_in_the_upgraded_container_is_the_images(
    siblings: float | None, control: float, threads: str
) -> None:
    """Whether or not controls feel it too: they have the same core to share."""
    new = {**BUSY_INSIDE, "control": control, "threads": threads}
    found = judged(new, {"threads": threads}, siblings)
    assert (found.state, found.causes.cause) == ("regressed", "image"), sentence(found)
    assert ": image; " in sentence(found) and "others in its container took 0.00 → 0.50 cores" in sentence(
        found
    )
    assert found.causes.inside == pytest.approx((0.0, 0.5), abs=0.05)


@pytest.mark.parametrize("siblings", [None, 1.0, 1.1, 2.0])
def test_a_busy_container_on_that_core_is_the_hosts(siblings: float | None) -> None:
    found = judged(BUSY_OUTSIDE, siblings=siblings)
    assert (found.state, found.causes.cause) == ("regressed", "host"), sentence(found)
    assert found.causes.inside is None


@pytest.mark.parametrize("siblings", [1.5, 10.0])
def test_a_sibling_that_its_own_container_held_back_tells_nothing_of_the_host(siblings: float) -> None:
    """Its quota was lowered in the minutes of the upgrade, or something else began to run in it."""
    slow = {"own": OWN * 1.5}
    assert judged(slow, siblings=siblings).causes.cause == "host"
    for tag in ("cgroup_throttled", "cpu_wait_inside", "cpuset_changed", "memory_limit"):
        found = judged(slow, siblings=siblings, felt=(tag,))
        assert (found.causes.cause, found.causes.siblings) == ("image", None), sentence(found)
    assert judged(slow, siblings=siblings, felt=("cpu_wait_outside",)).causes.cause == "host"


@pytest.mark.parametrize("unknown", [{"inside": None, "crowded": None}, {}], ids=["sidecar", "container"])
def test_where_the_container_is_not_known_waiting_is_nobodys(unknown: Mapping[str, object]) -> None:
    found = judged({**BUSY_OUTSIDE, **unknown}, unknown)
    assert found.causes.cause == ("unknown" if unknown else "host")
    assert ("in its container or on the host, not known which" in sentence(found)) == bool(unknown)


def test_a_neighbour_of_a_busy_server_is_the_hosts_though_the_server_takes_much() -> None:
    """What the server took before, and takes still, made nothing slower: only what grew counts."""
    busy = {"crowded": 0.002, "inside": 2.0}
    found = judged({"crowded": OWN, "inside": 2.0, "waited": 0.0}, busy)
    assert (found.state, found.causes.cause) == ("regressed", "host"), sentence(found)


@pytest.mark.parametrize(
    ("received", "cause"), [(3.0, "image"), (600.0, "load"), (90.0, "unknown"), (None, "unknown")]
)
@pytest.mark.parametrize("threads", ["1", "4"])
def test_more_requests_are_load(received: float | None, cause: str, threads: str) -> None:
    """Of an idle container a request is assumed to cost as much as was seen at most: a few more explain nothing."""
    found = judged({**BUSY_INSIDE, "received": received, "threads": threads}, {"threads": threads})
    if threads == "4":  # how long it waited is not known of several threads
        cause = {"load": "unknown", None: "unknown"}.get(cause, cause)
        if received is None:
            cause = "image"
    assert (found.state, found.causes.cause) == ("regressed", cause), sentence(found)
    if cause == "load":
        assert ": load, with more or fewer requests than before; " in sentence(found)
    elif cause == "unknown":
        assert ": load or image, not known which; " in sentence(found)


def test_requests_in_proportion_are_load_and_the_same_requests_with_more_cpu_are_the_images() -> None:
    before = {"crowded": 0.2 * OWN, "inside": 0.15, "received": 100.0}
    twice = judged({**BUSY_INSIDE, "received": 330.0}, before)
    assert twice.causes.cause == "load", sentence(twice)
    same = judged({**BUSY_INSIDE, "received": 102.0}, before)
    assert same.causes.cause == "image", sentence(same)


def test_where_nobody_asks_before_and_after_it_is_the_images() -> None:
    """As in an experiment: no request is a number of requests too."""
    found = judged({**BUSY_INSIDE, "received": 0.0}, {"received": 0.0})
    assert (found.state, found.causes.cause) == ("regressed", "image"), sentence(found)


def test_requests_that_make_it_wait_for_a_lock_are_not_the_images() -> None:
    """They hold the interpreter: nothing waits for a CPU, and it takes longer all the same."""
    before = {"inside": 0.1, "received": 100.0}
    found = judged({"own": 1.3 * OWN, "inside": 0.3, "received": 300.0}, before)
    assert (found.state, found.causes.cause) == ("regressed", "unknown"), sentence(found)
    assert "load or image, not known which" in sentence(found)
    # A little more load cannot have made so much.
    found = judged({"own": 2 * OWN, "inside": 0.15, "received": 150.0}, before)
    assert found.causes.cause == "image", sentence(found)


def test_a_loop_that_is_gone_is_the_images_improvement() -> None:
    found = judged({}, BUSY_INSIDE)
    assert (found.state, found.causes.cause) == ("improved", "image"), sentence(found)


def test_half_inside_and_half_outside_is_both() -> None:
    found = judged({"crowded": OWN, "waited": OWN, "inside": 1 / 3})
    assert (found.state, found.causes.cause) == ("regressed", "both"), sentence(found)


def test_on_a_busy_host_a_loop_inside_makes_it_wait_twice_as_long_for_neighbours_too() -> None:
    """Seen in Docker on a busy machine: 12 ms, of which 8 were neighbours'; with a loop 24, of which 16 were."""
    busy = {"own": 0.004, "waited": 0.008, "inside": 0.012}
    inside = judged({"own": 0.004, "waited": 0.016, "crowded": 0.004, "inside": 0.17}, busy)
    assert (inside.state, inside.causes.cause) == ("regressed", "image"), sentence(inside)
    outside = judged({"own": 0.004, "waited": 0.020, "inside": 0.012}, busy)
    assert (outside.state, outside.causes.cause) == ("regressed", "host"), sentence(outside)
    both = judged({"own": 0.004, "waited": 0.037, "crowded": 0.004, "inside": 0.09}, busy)
    assert (both.state, both.causes.cause) == ("regressed", "both"), sentence(both)


def test_a_slower_image_beside_a_neighbour_is_not_excluded() -> None:
    """Waiting explains a half of it; cold caches after it explain as much again at most."""
    found = judged({"waited": 0.6 * OWN, "own": 1.4 * OWN})
    assert (found.state, found.causes.cause) == ("regressed", "unknown"), sentence(found)
    assert ": mostly host; image +" in sentence(found) and " not excluded" in sentence(found)
    found = judged({"waited": 0.4 * OWN, "own": 1.6 * OWN})
    assert (found.state, found.causes.cause) == ("regressed", "both"), sentence(found)
    assert ": host +" in sentence(found) and ", image +59.9 %" in sentence(found)
    starts = [start("old", HOUR * i, own=OWN * level) for i, level in enumerate((0.8, 1.2, 0.95, 1.05))]
    open_ = judge([*starts, start("new", 4 * HOUR, waited=2 * OWN, own=1.25 * OWN)], [], "c")
    assert (open_.state, open_.causes.cause) == ("regressed", "unknown"), sentence(open_)
    assert ": mostly host; image +" in sentence(open_) and " not excluded" in sentence(open_)


def test_two_files_get_the_cause_that_the_live_judge_gives() -> None:
    shift = Shift(0.69, 0.02, 8.0)
    for new, cause in ((BUSY_INSIDE, "image"), (BUSY_OUTSIDE, "host")):
        pair = Pair([start("old", 0.0)], [start("new", HOUR, **new)])  # type: ignore[arg-type]
        assert explain(shift, [pair], "c").cause == cause


def test_runs_that_are_merged_keep_what_the_container_took() -> None:
    runs = start("new", 0.0, waited=0.002, crowded=0.001, inside=0.3, received=5.0, runs=9).samples
    merged = merge(runs)
    for name in ("waited", "crowded", "inside", "received"):
        assert getattr(merged, name) == sorted(getattr(s, name) for s in runs)[4]
    assert merge(start("new", 0.0, inside=None, runs=3).samples).inside is None


def test_without_enough_runs_nothing_is_known() -> None:
    many, few = (start("x", 0.0, runs=runs).samples for runs in (20, 4))
    assert crowding(many, few, (0.0, 0.0), UNKNOWN, LIVE) is None
    found = crowding(many, many, (0.0, 0.0), UNKNOWN, LIVE)
    assert found is not None and (found.inside, found.load) == (0.0, None)
