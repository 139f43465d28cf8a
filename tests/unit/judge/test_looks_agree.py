"""The recorded stacks, look by look: neither a call nor its cause flips."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import recorded

from infercanary.judge import Judge
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.upgrade import select
from tests.unit.judge.test_neighbour_gone import as_reported_since


def said(starts: Sequence[Start], siblings: Sequence[Start]) -> list[tuple[str, str]]:
    """State and cause at each number of runs that the new image's starts have had."""
    upgrade = select(starts).upgrade
    assert upgrade is not None
    new = {start.boot for start in upgrade.after}
    found: list[tuple[str, str]] = []
    for runs in range(1, max(len(start.samples) for start in upgrade.after) + 1):
        now = [start.first(runs) if start.boot in new else start for start in starts]
        until = max(s.started_at for start in now if start.boot in new for s in start.samples)
        beside = [start.first(sum(s.started_at <= until for s in start.samples)) for start in siblings]
        result = Judge().verdict(now, beside, "resnet18")
        found.append((result.state, result.causes.cause))
    return found


@pytest.mark.parametrize(("stack", "calls"), [("neighbour_gone", 20), ("second_rollout", 10)])
def test_neither_a_call_nor_its_cause_flips(stack: str, calls: int) -> None:
    starts = recorded.starts(stack)
    found = said([as_reported_since(start) for start in starts["classify"]], starts["moderate"])
    states = [state for state, _ in found]
    named = [cause for state, cause in found if state == "regressed" and cause != "unknown"]
    assert states.count("regressed") >= calls and "improved" not in states and "equivalent" not in states
    assert [pair for pair in pairwise(named) if pair[0] != pair[1]] == []
    assert {*named} <= {"image"}


def start(image: str, at: float, runs: int, slower: float, control: Callable[[int], float]) -> Start:
    """A run every 10 s; ``slower`` and ``control`` are ratios, the latter by the number of the run."""
    rng = np.random.default_rng([7, int(at)])
    samples = [
        Sample(
            i, "c", at + 10 * i, "ok", 0.02 * (1 + slower) * math.exp(rng.normal(0, 0.005)),
            controls={"cpu_spin": 0.001 * control(i) * math.exp(rng.normal(0, 0.003))},
        )
        for i in range(runs)
    ]  # fmt: skip
    return Start(
        Generation(service="s", container="r", boot_id=image + f"{at}", started_at=at, image_id=image),
        samples,
    )


def test_a_cause_that_a_look_contradicts_is_unknown_until_the_next_one_agrees() -> None:
    """The host was slower for the first minutes alone, and then the image is."""
    old = [start("old", 3600.0 * hour, 60, 0.0, lambda _: 1.0) for hour in range(4)]
    new = start("new", 3600.0 * 5, 192, 0.4, lambda i: 1.4 if i < 10 else 1.0)
    judge = Judge(LIVE.but(looks=(5, 96, 192)))
    looks = [judge.verdict([*old, new.first(runs)], [], "c") for runs in (5, 96, 192)]
    assert [(result.state, result.causes.cause) for result in looks] == [
        ("regressed", "host"),
        ("regressed", "unknown"),
        ("regressed", "image"),
    ]
