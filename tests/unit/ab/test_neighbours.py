"""Which runs count when other work on the host came and went."""

from __future__ import annotations

import random

from infercanary.ab.neighbours import counted, is_quiet
from infercanary.judge.model import Generation, Sample, Start


def start(tags, level=0.02):
    """A start with a run for each of ``tags``; contended runs take twice as long."""
    samples = [
        Sample(sequence=i, canary="c", started_at=float(i), outcome="ok", median=level * (2 if tag else 1),
               tags=(tag,) if tag else ())
        for i, tag in enumerate(tags)
    ]  # fmt: skip
    return Start(Generation(service="", container="", boot_id="b", started_at=0.0), samples)


def runs(contended, count=12, tag="cpu_wait_outside"):
    return [tag] * contended + [""] * (count - contended)


def quiet():
    return start(runs(0))


def test_without_neighbours_all_count():
    pairs = [(quiet(), quiet())] * 3
    assert counted(pairs) == (pairs, ())


def test_what_a_neighbour_slowed_at_random_is_left_out():
    pairs = [
        (start(runs(4)), quiet()),
        (quiet(), start(runs(3))),
        (start(runs(2)), start(runs(2))),
        (quiet(), quiet()),
    ]
    found = counted(pairs)
    assert len(found[0]) == 4
    assert all(s.median == 0.02 for pair in found[0] for side in pair for s in side.samples)
    assert found[1] == ["11 of 96 runs excluded: contended"]


def test_a_run_that_its_own_container_slowed_is_not_left_out():
    """A busy loop in B takes the CPU for half of its runs, and in A and B a neighbour does now and then."""
    crowded = ["cpu_wait_inside"] * 6 + [""] * 6
    pairs = [(start(runs(2)), start([*runs(2)[:3], *crowded[3:]]))] * 4
    found = counted(pairs)
    assert found[1][0].startswith("16 of 96 runs")
    assert all(
        "cpu_wait_inside" in tags
        for pair in found[0]
        for tags in [{t for s in pair[1].samples for t in s.tags}]
    )
    both = Sample(0, "c", 0.0, "ok", 0.02, tags=("stalled", "cpu_wait_inside"))
    assert is_quiet(both)


def test_a_pair_without_enough_quiet_runs_is_left_out():
    pairs = [(start(runs(8)), quiet()), (quiet(), start(runs(8))), (quiet(), quiet()), (quiet(), quiet())]
    found = counted(pairs)
    assert len(found[0]) == 2
    assert found[1][0].startswith("48 of 96 runs")


def test_an_image_that_slows_itself_is_not_rewarded():
    """More threads than CPUs: its runs wait in start after start."""
    pairs = [
        (start(runs(rng.randint(0, 1))), start(runs(rng.randint(3, 5))))
        for rng in map(random.Random, range(5))
    ]
    found = counted(pairs)
    assert list(found[0]) == pairs
    assert "all runs count" in found[1][0]


def test_where_it_is_never_quiet_all_count():
    pairs = [(start(runs(12)), start(runs(11)))] * 4
    found = counted(pairs)
    assert list(found[0]) == pairs
    assert found[1][0].startswith("most runs were contended; all runs count")


def test_what_an_image_does_to_itself_by_its_limits_counts():
    throttled = start(runs(6, tag="cgroup_throttled"))
    pairs = [(quiet(), throttled)] * 3
    assert counted(pairs) == (pairs, ())
